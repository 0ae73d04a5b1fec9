//! Appends one page of Prometheus' text format to another. Pure.
//!
//! Parsing is as strict as a scraper's, because one line that it rejects loses the whole page.

/// Prefixes of the mesh's own metrics, which an application must not use.
const RESERVED: [&str; 2] = ["istio_", "tulle_"];
/// Metric types of the format.
const TYPES: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];

/// Appends the samples of a text with their HELP and TYPE, except those named like the mesh's own.
///
/// # Errors
/// A line cannot be read; the error says which. `out` may have lines before it.
pub fn merge(text: &str, out: &mut String) -> Result<(), String> {
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_matches([' ', '\t', '\r']);
        let name = match line.strip_prefix('#') {
            Some(comment) => described(comment),
            None if line.is_empty() => Some(None),
            None => sample(line).map(Some),
        };
        let Some(name) = name else {
            return Err(format!("line {} is not Prometheus text", number + 1));
        };
        let is_reserved = |name: &str| RESERVED.iter().any(|prefix| name.starts_with(prefix));
        if name.is_some_and(|name| !is_reserved(name)) {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok(())
}

/// Returns the metric a comment is about: `Some(None)`: none; `None`: the line is malformed.
fn described(comment: &str) -> Option<Option<&str>> {
    let comment = comment.trim_start_matches([' ', '\t']);
    let (word, rest) = comment.split_once([' ', '\t']).unwrap_or((comment, ""));
    if !matches!(word, "HELP" | "TYPE") {
        return Some(None);
    }
    let (name, rest) = name(rest.trim_start_matches([' ', '\t']))?;
    let is_type = || TYPES.contains(&rest.trim_matches([' ', '\t']));
    let separated = rest.is_empty() || rest.starts_with([' ', '\t']);
    (separated && (word == "HELP" || is_type())).then_some(Some(name))
}

/// Returns the metric of a sample; `None` if the line is malformed.
fn sample(line: &str) -> Option<&str> {
    let (name, rest) = name(line)?;
    let rest = match rest.trim_start_matches([' ', '\t']).strip_prefix('{') {
        Some(labels) => after_labels(labels)?,
        None => rest.strip_prefix([' ', '\t'])?,
    };
    let mut words = rest.split([' ', '\t']).filter(|word| !word.is_empty());
    words.next()?.parse::<f64>().ok()?;
    if let Some(time) = words.next() {
        time.parse::<i64>().ok()?;
    }
    words.next().is_none().then_some(name)
}

/// Splits a name off the beginning.
fn name(text: &str) -> Option<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at_checked(end)?;
    let begins = name.starts_with(|c: char| !c.is_ascii_digit());
    begins.then_some((name, rest))
}

/// Returns the text after labels and their closing brace.
fn after_labels(labels: &str) -> Option<&str> {
    let mut rest = labels;
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (_, value) = name(rest)?;
        let value = value.trim_start_matches([' ', '\t']).strip_prefix('=')?;
        let value = value.trim_start_matches([' ', '\t']).strip_prefix('"')?;
        rest = after_text(value)?.trim_start_matches([' ', '\t']);
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => return rest.strip_prefix('}'),
        }
    }
}

/// Returns the text after a quoted text and its closing quote.
fn after_text(text: &str) -> Option<&str> {
    let mut escaped = false;
    let end = text.find(|c| match (escaped, c) {
        (true, _) => {
            escaped = false;
            false
        }
        (false, '\\') => {
            escaped = true;
            false
        }
        (false, c) => c == '"',
    })?;
    text.split_at_checked(end)?.1.strip_prefix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(text: &str) -> Result<String, String> {
        let mut out = String::new();
        merge(text, &mut out).map(|()| out)
    }

    #[test]
    fn carriage_returns_end_lines_and_are_nowhere_else() {
        assert_eq!(merged("up 0\r \r\ndown 1\r\n").unwrap(), "up 0\ndown 1\n");
        assert!(merged("up\r0\n").is_err());
        assert!(merged("up 0\r1\n").is_err());
    }

    #[test]
    fn samples_pass_as_they_are() {
        let text = "\
# HELP jobs_total Jobs, \"all\" of them\\n
# TYPE jobs_total counter
jobs_total{kind=\"a\\\"}b\",other=\"c\\\\\", } 1.5e3 1700000000000
jobs_total{kind=\"ü\"}2
up 1
down -Inf
odd:name {}\tNaN
# HELP nothing
";
        assert_eq!(merged(text).as_deref(), Ok(text));
        let noisy = "\n# a comment\r\n  up 1  \r\n#\n# EOF";
        assert_eq!(merged(noisy).as_deref(), Ok("up 1\n"));
    }

    #[test]
    fn the_names_of_the_mesh_are_its_own() {
        let text = "# TYPE istio_requests_total counter\nistio_requests_total 7\n\
                    tulle_config_generation 1\nmy_istio_requests 2\n";
        assert_eq!(merged(text).as_deref(), Ok("my_istio_requests 2\n"));
    }

    #[test]
    fn a_text_that_a_scraper_would_reject_is_rejected() {
        for line in [
            "<html>",
            "up",
            "up one",
            "up 1 2 3",
            "up 1 soon",
            "up1{ 1",
            "9up 1",
            "up-1",
            "up{a=b} 1",
            "up{a=\"b} 1",
            "up{a=\"b\" c=\"d\"} 1",
            "up{\"a\"} 1",
            "up{a=\"b\"} 1 # {id=\"x\"} 1",
            "# TYPE up thing",
            "# TYPE up",
            "# TYPE",
            "# HELP 9up text",
            "\u{fe0f}up 1",
        ] {
            let wrong = merged(&format!("good 1\n{line}\n"));
            assert_eq!(wrong, Err("line 2 is not Prometheus text".into()), "{line}");
        }
    }
}
