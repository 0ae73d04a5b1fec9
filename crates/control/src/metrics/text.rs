//! Prometheus text (exposition format 0.0.4), written.

use std::fmt::{Display, Write as _};

/// The body of the answer to a scrape.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Begins a metric: `kind` is `counter`, `gauge` or `histogram`.
    pub fn metric(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A sample of the metric that was begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (place, (label, value)) in labels.iter().enumerate() {
            self.0.push(if place == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"");
            for c in value.chars() {
                match c {
                    '\n' => self.0.push_str("\\n"),
                    '"' | '\\' => self.0.extend(['\\', c]),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    /// A metric without labels.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.metric(name, kind, help);
        self.sample(name, &[], value);
    }

    /// The text.
    pub fn end(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Text::default();
        text.metric("a", "gauge", "What.");
        text.sample("a", &[("x", "1"), ("y", "q\"\\\n")], 2.5);
        text.single("b", "counter", "Other.", 3);
        assert_eq!(
            text.end(),
            "# HELP a What.\n# TYPE a gauge\na{x=\"1\",y=\"q\\\"\\\\\\n\"} 2.5\n\
             # HELP b Other.\n# TYPE b counter\nb 3\n"
        );
    }
}
