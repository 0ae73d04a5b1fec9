//! Reads Prometheus text (exposition format 0.0.4). Lines that are not samples are passed over:
//! one odd line must not hide a proxy.

use std::collections::BTreeMap;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    /// Metric's name.
    pub(crate) name: String,
    /// Labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Value.
    pub(crate) value: f64,
}

impl Sample {
    /// A label's value; empty when absent, which is the same to Prometheus.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// Every sample in the text.
pub(crate) fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Sample> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Labels up to and with the closing brace; also what follows it.
fn parse_labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start().strip_prefix('"')?;
        let (value, after) = parse_value(after)?;
        labels.insert(name.trim().to_owned(), value);
        rest = after;
    }
}

/// A quoted value with `\\`, `\"` and `\n`, after its first quote.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_samples_and_passes_over_the_rest() {
        let samples = parse(
            "# HELP a b\n# TYPE a counter\na 1\nb{x=\"1\",y=\"q\\\"\\\\\\n,}\"} 2.5 1700000000\n\
             broken{\nalso broken\nc{} +Inf\nd{x=\"unterminated} 1\n",
        );
        assert_eq!(samples.len(), 3);
        assert_eq!(samples[0].name, "a");
        assert_eq!(samples[1].label("x"), "1");
        assert_eq!(samples[1].label("y"), "q\"\\\n,}");
        assert_eq!(samples[1].label("none"), "");
        assert_eq!(samples[1].value, 2.5);
        assert!(samples[2].value.is_infinite());
    }
}
