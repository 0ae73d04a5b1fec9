//! Regular expressions: written for Rust's `regex`, interpreted by Envoy's RE2.
//!
//! The two agree on almost everything. Where they do not, RE2 would refuse the expression or,
//! worse, match other texts with it; both are refused here.

use crate::Untranslatable;
use serde_json::{Value, json};

/// RE2's largest counted repetition.
const MAX_REPETITION: u32 = 1000;

/// Returns a matcher of the whole text.
pub(crate) fn matcher(object: &str, field: &str, pattern: &str) -> Result<Value, Untranslatable> {
    match difference(pattern) {
        None => Ok(json!({ "regex": pattern })),
        Some(why) => Err(Untranslatable::Pattern {
            object: object.to_owned(),
            field: field.to_owned(),
            pattern: pattern.to_owned(),
            why,
        }),
    }
}

/// Returns the part of the expression that RE2 lacks or interprets differently.
fn difference(pattern: &str) -> Option<&'static str> {
    let mut rest = pattern;
    // Depth of character classes; Rust's may be nested.
    let mut class = 0_u32;
    // Repetitions in a row; the second may only be the `?` that makes it lazy.
    let mut repetitions = 0_u32;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = after;
        if class == 0 && "*+?{".contains(c) {
            repetitions += 1;
            if repetitions > 2 || (repetitions == 2 && c != '?') {
                return Some("it does not repeat a repetition; put the inner one in (?:…)");
            }
        } else {
            repetitions = 0;
        }
        match c {
            '\\' => {
                let escaped = after.chars().next();
                let wide = after.strip_prefix("x{").and_then(|t| t.split_once('}'));
                let wide = wide.and_then(|(digits, _)| u32::from_str_radix(digits, 16).ok());
                if wide.is_some_and(|code| code > 0xff) {
                    return Some("it matches bytes, and no characters beyond");
                }
                if escaped.is_some_and(|e| "uU<>".contains(e)) || after.starts_with("b{") {
                    return Some("it has no such escape");
                }
                rest = escaped.map_or("", |e| &after[e.len_utf8()..]);
            }
            '[' if class > 0 => {
                if !after.starts_with(':') {
                    return Some("it has no classes within classes");
                }
                rest = after.split_once(":]").map_or("", |(_, rest)| rest);
            }
            '[' => {
                class += 1;
                // A `]` that comes first stands for itself.
                let negated = after.strip_prefix('^').unwrap_or(after);
                rest = negated.strip_prefix(']').unwrap_or(negated);
            }
            ']' => class = class.saturating_sub(1),
            '&' | '-' | '~' if class > 0 && after.starts_with(c) => {
                return Some("it has no intersection or difference of classes");
            }
            '(' if class == 0 && after.starts_with('?') => {
                let flags = after.trim_start_matches('?');
                let end = flags.find([':', ')', '<', 'P']).unwrap_or(flags.len());
                if flags[..end].contains(['x', 'R', 'u']) {
                    return Some("it has only the flags i, m, s and U");
                }
            }
            '{' if class == 0 => {
                let counts = after.split('}').next().unwrap_or_default();
                let large = |n: &str| n.trim().parse::<u32>().is_ok_and(|n| n > MAX_REPETITION);
                if counts.contains(char::is_whitespace) {
                    return Some("it has no blanks in counted repetitions");
                }
                if counts.starts_with(',') {
                    return Some("its counted repetitions begin with a number");
                }
                if counts.split(',').any(large) {
                    return Some("it repeats at most 1000 times");
                }
                rest = after.split_once('}').map_or("", |(_, rest)| rest);
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn what_both_know_passes() {
        for pattern in [
            "",
            "/ratings/[0-9]+",
            r"/[^/]*\.html",
            "(?i)firefox.*",
            "(?P<id>a|b){1,3}",
            "(?<id>a)",
            "[[:alpha:]_-]+",
            "[]a]",
            r"\[[a\]\-]\{2000}",
            "a{1000}",
            "(?:a&&b)--~~",
            "(?:a*)*?b+?c??d{2}?",
            "(?i)a|(?:)",
            r"[*+?]{3}\x{7F}\*+",
        ] {
            assert_eq!(difference(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn what_re2_reads_otherwise_is_refused() {
        for pattern in [
            "(?x) a b",
            "(?ix:a)",
            "(?R)a",
            "(?-u)a",
            "[a-z&&[^b]]",
            "[a[bc]]",
            "[a--b]",
            "[a~~b]",
            "a{1001}",
            "a{2,5000}",
            "a{ 2 }",
            "a{,3}",
            "a**",
            "a+?+",
            "a???",
            "a{2}{3}",
            "a{2}+",
            r"\x{1F600}",
            r"\u0041",
            r"\b{start}a",
            r"\<a",
        ] {
            assert!(difference(pattern).is_some(), "{pattern}");
        }
    }
}
