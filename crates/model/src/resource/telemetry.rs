//! Telemetry that proxies send to collectors: spans of requests, metrics, lines of the access log.

use super::{Collector, OtlpProtocol, is_default};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How requests are traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tracing {
    /// The collector: `host:port`, with `https://` before it for TLS.
    pub endpoint: String,
    /// The form in which it takes OTLP.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: OtlpProtocol,
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

impl Tracing {
    /// The collector of spans.
    pub fn collector(&self) -> Collector {
        Collector {
            endpoint: self.endpoint.clone(),
            protocol: self.protocol,
            roots: self.roots.clone(),
            attributes: self.attributes.clone(),
        }
    }

    /// Returns each problem, with the field it is in.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = self.collector().problems();
        if self.sampling_ppm > 1_000_000 {
            let text = "expected at most 1000000, which is every request";
            found.push((
                "samplingPpm",
                format!("{text}, found {}", self.sampling_ppm),
            ));
        }
        found
    }
}

/// Metrics and lines of the access log for a collector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Otlp {
    /// The collector.
    pub collector: Collector,
    /// Milliseconds between two reports of all metrics; 0: they are not sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metrics_ms: u32,
    /// Whether lines of the access log are sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub access_log: bool,
}

/// Shortest and longest time between two reports of metrics.
const METRICS_MS: std::ops::RangeInclusive<u32> = 1_000..=3_600_000;

impl Otlp {
    /// Returns each problem, with the field it is in.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = self.collector.problems();
        if self.metrics_ms > 0 && !METRICS_MS.contains(&self.metrics_ms) {
            let text = "expected from 1s to 1h, found";
            found.push(("metrics", format!("{text} {} ms", self.metrics_ms)));
        }
        if self.metrics_ms == 0 && !self.access_log {
            let text = "expected how often metrics are sent (such as `30s`), or `accessLog: true`: \
                        without both nothing is sent";
            found.push(("metrics", text.to_owned()));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let tracing = Tracing {
            endpoint: "otel".into(),
            protocol: OtlpProtocol::Http,
            roots: String::new(),
            sampling_ppm: 1_000_001,
            attributes: BTreeMap::new(),
        };
        let fields = |found: Vec<(&'static str, String)>| -> Vec<&'static str> {
            found.into_iter().map(|(field, _)| field).collect()
        };
        assert_eq!(fields(tracing.problems()), ["endpoint", "samplingPpm"]);
        let otlp = |metrics_ms, access_log| Otlp {
            collector: Collector {
                endpoint: "otel:4318".into(),
                ..Collector::default()
            },
            metrics_ms,
            access_log,
        };
        for (metrics_ms, access_log) in [(1_000, false), (0, true), (3_600_000, true)] {
            assert_eq!(fields(otlp(metrics_ms, access_log).problems()), [""; 0]);
        }
        for (metrics_ms, access_log) in [(999, true), (3_600_001, false), (0, false)] {
            let found = fields(otlp(metrics_ms, access_log).problems());
            assert_eq!(found, ["metrics"], "{metrics_ms} {access_log}");
        }
    }
}
