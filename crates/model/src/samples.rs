//! Reads the metrics of proxies: Prometheus text (exposition format 0.0.4). Lines that are not samples are skipped:
//! one odd line must not hide a proxy.

use crate::grpc_status;
use std::collections::BTreeMap;

/// Domain of a cluster's services, with which the label `destination_service` ends there.
pub const CLUSTER_DOMAIN: &str = ".svc.cluster.local";

const REQUESTS: &str = "istio_requests_total";
const CONNECTIONS: &str = "istio_tcp_connections_opened_total";
const DURATIONS: &str = "istio_request_duration_milliseconds_bucket";

/// Upper bounds of proxies' buckets in milliseconds, the same as Istio's; in bytes for sizes, as Istio has them, too.
pub const BUCKETS_MS: [f64; 19] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10000.0,
    30000.0,
    60000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// A sample, which is one line of metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricSample {
    /// Metric's name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

impl MetricSample {
    /// A label's value; empty when absent, which is the same to Prometheus.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// Returns the service that was called, as objects name it: `<name>.<namespace>` in a cluster.
    pub fn service(&self) -> &str {
        let host = self.label("destination_service");
        host.strip_suffix(CLUSTER_DOMAIN).unwrap_or(host)
    }

    /// Whether these requests failed, by no fault of the client: answered with 5xx, not at all, or to a
    /// call of gRPC with what says the same.
    pub fn is_failure(&self) -> bool {
        let code = self.label("response_code");
        code.starts_with('5')
            || code == "0"
            || self
                .label("grpc_response_status")
                .parse()
                .is_ok_and(grpc_status::is_failure)
    }
}

/// Every sample in the text.
pub fn parse(text: &str) -> Vec<MetricSample> {
    text.lines().filter_map(parse_line).collect()
}

/// The sample of a line, if it is one.
pub fn parse_line(line: &str) -> Option<MetricSample> {
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
    Some(MetricSample {
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

/// Requests and connections that one side counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CountedTraffic {
    /// HTTP requests.
    pub requests: f64,
    /// Failed requests among these ([`MetricSample::is_failure`]).
    pub failed: f64,
    /// TCP connections.
    pub connections: f64,
    /// Bits of the upper bound, which sort as it does, to cumulative count.
    buckets: BTreeMap<u64, f64>,
}

impl CountedTraffic {
    /// Adds what another counted.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.connections += other.connections;
        for (bound, count) in &other.buckets {
            *self.buckets.entry(*bound).or_default() += count;
        }
    }

    /// Whether a sample is one of the metrics counted here.
    pub fn counts(sample: &MetricSample) -> bool {
        matches!(sample.name.as_str(), REQUESTS | CONNECTIONS | DURATIONS)
    }

    /// Adds a sample.
    pub fn take(&mut self, sample: &MetricSample) {
        match sample.name.as_str() {
            REQUESTS => {
                self.requests += sample.value;
                if sample.is_failure() {
                    self.failed += sample.value;
                }
            }
            CONNECTIONS => self.connections += sample.value,
            DURATIONS => {
                let bound: f64 = sample.label("le").parse().unwrap_or(f64::INFINITY);
                // Bounds are positive, so their bits sort as they do.
                *self.buckets.entry(bound.max(0.0).to_bits()).or_default() += sample.value;
            }
            _ => {}
        }
    }

    /// The number of buckets. A proxy may name any bounds.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// How many milliseconds this share of the requests took at most, estimated within its bucket.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let each = self.buckets.iter();
        let buckets: Vec<(f64, f64)> = each.map(|(b, c)| (f64::from_bits(*b), *c)).collect();
        percentile(&buckets, share)
    }

    /// Returns the counts since `before`. A proxy that was started again counts from nothing.
    pub fn since(&self, before: &Self) -> Self {
        let restarted = self.requests < before.requests || self.connections < before.connections;
        if restarted {
            return self.clone();
        }
        let bucket = |(bound, count): (&u64, &f64)| {
            let old = before.buckets.get(bound).copied().unwrap_or_default();
            (*bound, (count - old).max(0.0))
        };
        Self {
            requests: self.requests - before.requests,
            failed: (self.failed - before.failed).max(0.0),
            connections: self.connections - before.connections,
            buckets: self.buckets.iter().map(bucket).collect(),
        }
    }
}

/// Estimates a percentile like Prometheus' `histogram_quantile`: linear within the bucket, and the last finite bound
/// when the value is beyond it.
pub fn percentile(buckets: &[(f64, f64)], share: f64) -> Option<f64> {
    let total = buckets.last().map(|b| b.1).filter(|t| *t > 0.0)?;
    let rank = share * total;
    let (mut low, mut below) = (0.0, 0.0);
    for &(bound, count) in buckets {
        if count >= rank {
            if bound.is_infinite() {
                return Some(low);
            }
            let inside = count - below;
            let part = if inside > 0.0 {
                (rank - below) / inside
            } else {
                1.0
            };
            return Some(((low + (bound - low) * part) * 1000.0).round() / 1000.0);
        }
        (low, below) = (bound, count);
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

    #[test]
    fn percentiles_are_interpolated() {
        let buckets = [
            (1.0, 50.0),
            (2.0, 90.0),
            (4.0, 100.0),
            (f64::INFINITY, 100.0),
        ];
        assert_eq!(percentile(&buckets, 0.50), Some(1.0));
        assert_eq!(percentile(&buckets, 0.70), Some(1.5));
        assert_eq!(percentile(&buckets, 0.99), Some(3.8));
        assert_eq!(
            percentile(&[(1.0, 0.0), (f64::INFINITY, 5.0)], 0.5),
            Some(1.0)
        );
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn counters_beyond_32_bits_are_whole() {
        let samples = parse("istio_requests_total 4294967303\na 9007199254740991\n");
        assert_eq!(samples[0].value, 4_294_967_303.0);
        assert_eq!(samples[1].value, 9_007_199_254_740_991.0, "2^53 - 1");
        let (mut counted, mut before) = (CountedTraffic::default(), CountedTraffic::default());
        counted.take(&samples[0]);
        before.take(&parse("istio_requests_total 4294967290").remove(0));
        assert_eq!(counted.since(&before).requests, 13.0);
    }
}
