//! Distributed traces: where spans go, and of which requests.

use super::{Collector, is_default};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How requests are traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tracing {
    /// The collector: `host:port` of OTLP over gRPC, with `https://` before it for TLS.
    pub endpoint: String,
    /// Roots (PEM) that its certificate must lead to; empty: those of the system.
    #[serde(default, skip_serializing_if = "is_default")]
    pub roots: String,
    /// Share of the requests that come without a decision, in millionths.
    #[serde(default = "one_percent")]
    pub sampling_ppm: u32,
    /// Attributes of every span.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attributes: BTreeMap<String, String>,
}

/// 1%
pub const DEFAULT_SAMPLING_PPM: u32 = 10_000;

fn one_percent() -> u32 {
    DEFAULT_SAMPLING_PPM
}

/// Most attributes, and bytes of one's name and value: each batch of spans carries them.
const MAX_ATTRIBUTES: usize = 32;
const MAX_ATTRIBUTE_BYTES: usize = 1024;
/// Attributes that a proxy sets itself.
const OWN_ATTRIBUTES: [&str; 2] = ["service.name", "service.instance.id"];

impl Tracing {
    /// Returns each problem, with the field it is in.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if let Err(expected) = Collector::parse(&self.endpoint) {
            found.push(("endpoint", format!("{expected}, found `{}`", self.endpoint)));
        }
        if self.sampling_ppm > 1_000_000 {
            let text = "expected at most 1000000, which is every request";
            found.push((
                "samplingPpm",
                format!("{text}, found {}", self.sampling_ppm),
            ));
        }
        if self.attributes.len() > MAX_ATTRIBUTES {
            let count = self.attributes.len();
            let text = format!("expected at most {MAX_ATTRIBUTES} attributes, found {count}");
            found.push(("attributes", text));
        }
        for (name, value) in &self.attributes {
            if name.is_empty() || name.len() + value.len() > MAX_ATTRIBUTE_BYTES {
                let text = "expected a name, and with its value at most";
                found.push(("attributes", format!("{text} {MAX_ATTRIBUTE_BYTES} bytes")));
            } else if OWN_ATTRIBUTES.contains(&name.as_str()) {
                let text = format!("`{name}` is set by each proxy itself; remove it");
                found.push(("attributes", text));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracing() -> Tracing {
        Tracing {
            endpoint: "otel:4317".into(),
            roots: String::new(),
            sampling_ppm: DEFAULT_SAMPLING_PPM,
            attributes: BTreeMap::new(),
        }
    }

    #[test]
    fn limits() {
        let mut all = tracing();
        all.sampling_ppm = 1_000_001;
        all.attributes = (0..33).map(|i| (i.to_string(), String::new())).collect();
        all.attributes.insert("service.name".into(), "x".into());
        all.attributes.insert(String::new(), "x".into());
        all.attributes.insert("long".into(), "x".repeat(1025));
        let found = all.problems();
        let fields: Vec<_> = found.iter().map(|(field, _)| *field).collect();
        assert_eq!(
            fields,
            [
                "samplingPpm",
                "attributes",
                "attributes",
                "attributes",
                "attributes"
            ],
            "{found:?}"
        );
    }
}
