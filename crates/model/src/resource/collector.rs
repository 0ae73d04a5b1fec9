//! A collector of telemetry: where it is, and how it is spoken to.

use super::{CollectorAddress, is_default};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The form in which OTLP is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// Over gRPC (port 4317 of most collectors).
    #[default]
    Grpc,
    /// As Protobuf over HTTP/1.1 (port 4318), to `/v1/traces`, `/v1/metrics` and `/v1/logs`.
    Http,
}

/// A collector, and what is said of the proxy to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Collector {
    /// `host:port`, with `https://` before it for TLS.
    pub endpoint: String,
    /// The form in which it takes OTLP.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: OtlpProtocol,
    /// Roots (PEM) that its certificate must lead to; empty: those of the system.
    #[serde(default, skip_serializing_if = "is_default")]
    pub roots: String,
    /// Attributes of everything that is sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attributes: BTreeMap<String, String>,
}

/// Most attributes, and bytes of one's name and value: each batch carries them.
const MAX_ATTRIBUTES: usize = 32;
const MAX_ATTRIBUTE_BYTES: usize = 1024;
/// Attributes that a proxy sets itself.
const OWN_ATTRIBUTES: [&str; 2] = ["service.name", "service.instance.id"];

impl Collector {
    /// Returns each problem, with the field it is in.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if let Err(expected) = CollectorAddress::parse(&self.endpoint) {
            found.push(("endpoint", format!("{expected}, found `{}`", self.endpoint)));
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

    #[test]
    fn limits_of_attributes() {
        let mut collector = Collector {
            endpoint: "otel:4317".into(),
            attributes: (0..33).map(|i| (i.to_string(), String::new())).collect(),
            ..Collector::default()
        };
        collector
            .attributes
            .insert("service.name".into(), "x".into());
        collector.attributes.insert(String::new(), "x".into());
        collector.attributes.insert("long".into(), "x".repeat(1025));
        let found = collector.problems();
        let fields: Vec<_> = found.iter().map(|(field, _)| *field).collect();
        assert_eq!(fields, ["attributes"; 4], "{found:?}");
    }
}
