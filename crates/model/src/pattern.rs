//! Regular expressions in manifests and policies are compiled in one way everywhere. So the proxy
//! decides by exactly the expression that was accepted when it was applied. Paths and header values
//! are bytes, so classes such as `\w` are ASCII.

use regex::bytes::{Regex, RegexBuilder};

/// Longest pattern in bytes.
pub const MAX_PATTERN_BYTES: usize = 1024;

/// Memory for one compiled expression; enough for a few hundred alternatives.
const MAX_COMPILED_BYTES: usize = 256 * 1024;

/// Compiles a pattern that must match the whole text.
///
/// ```
/// let regex = tulle_model::pattern::compile("/ratings/[0-9]+").unwrap();
/// assert!(regex.is_match(b"/ratings/7"));
/// assert!(!regex.is_match(b"/v2/ratings/7"));
/// ```
///
/// # Errors
/// Says why the pattern is not usable: its syntax, or that it is too large.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    whole(pattern, false)
}

/// Compiles a pattern that must match the whole text in any (ASCII) letter case.
///
/// # Errors
/// As for [`compile`].
pub fn compile_any_case(pattern: &str) -> Result<Regex, String> {
    whole(pattern, true)
}

fn whole(pattern: &str, any_case: bool) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!(
            "the regular expression has {} bytes, at most {MAX_PATTERN_BYTES} are allowed",
            pattern.len()
        ));
    }
    // Alone first: `a)|(b` is no expression, but becomes one between parentheses.
    build(pattern, any_case)?;
    build(&format!("^(?:{pattern})$"), any_case)
}

fn build(pattern: &str, any_case: bool) -> Result<Regex, String> {
    RegexBuilder::new(pattern)
        .unicode(false)
        .case_insensitive(any_case)
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_COMPILED_BYTES)
        .nest_limit(50)
        .build()
        .map_err(|e| match e {
            regex::Error::CompiledTooBig(_) => {
                "the regular expression is too large once compiled".to_owned()
            }
            // The last line of a syntax error is its reason; those above draw the place.
            other => {
                let text = other.to_string();
                let reason = text.lines().last().unwrap_or_default();
                let reason = reason.trim().trim_start_matches("error: ");
                format!("not a valid regular expression: {reason}")
            }
        })
}

#[cfg(test)]
mod tests {
    use super::compile;

    #[test]
    fn the_whole_text_must_match() {
        let regex = compile("a|b").unwrap();
        assert!(regex.is_match(b"a") && regex.is_match(b"b"));
        assert!(!regex.is_match(b"ax") && !regex.is_match(b"xb"));
        assert!(!compile("a").unwrap().is_match(b"a\n"));
        assert!(!compile("(?m)a").unwrap().is_match(b"a\nb"));
    }

    #[test]
    fn refuses_what_is_broken_or_large() {
        for pattern in ["(", "a)|(b", "[", "(?x) a #", r"\w{500}{500}"] {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
        assert!(compile(&"a".repeat(1025)).is_err());
        assert_eq!(
            compile("(").unwrap_err(),
            "not a valid regular expression: unclosed group"
        );
    }
}
