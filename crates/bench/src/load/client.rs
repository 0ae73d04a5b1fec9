//! Describes the order to the load generator and its report.

use crate::failure::{Failure, OrFail, Result};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Longest latency that is told from others: longer than any timeout here.
const LONGEST_US: u64 = 60_000_000;

/// The order to the generator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Where it connects to.
    pub to: SocketAddr,
    /// How many connections it has.
    pub connections: usize,
    /// The pattern of the connections.
    pub pattern: Pattern,
    /// It asks for `/bytes/N`, and checks every byte of the answer.
    pub bytes: usize,
    /// Each request has a body of so many bytes.
    #[serde(default)]
    pub upload: usize,
    /// Others, which are not measured, but may be in the way.
    #[serde(default)]
    pub beside: Option<Beside>,
    /// Load before anything is measured.
    pub warmup: Duration,
    /// How long it measures; of [`Pattern::Hold`] how long opening may take, of
    /// [`Pattern::Storm`] how long coming back may take.
    pub measure: Duration,
    /// Patterns with mutual TLS: where `ca.crt`, `client.crt` and `client.key` are.
    #[serde(default)]
    pub certificates: Option<PathBuf>,
}

/// Further connections, saturated, whose answers are checked and counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// Number of connections.
    pub connections: usize,
    /// Bytes of each answer.
    pub bytes: usize,
    /// They read no more than so many bytes a second each, however long an answer takes.
    pub per_second: Option<usize>,
}

/// The pattern of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// The next request as soon as the answer is there.
    Saturate,
    /// So many requests a second, together. The latency counts from when a request was due, also
    /// when its connection was still waiting for the answer before.
    Rate(f64),
    /// Like [`Self::Saturate`], with a new connection for each request; opening it counts.
    NewConnections,
    /// Like [`Self::NewConnections`], with mutual TLS: a handshake for each request, none resumed.
    Handshakes,
    /// Like [`Self::Handshakes`], each resuming the session of the one before.
    Resumed,
    /// One request, and then nothing until standard input ends.
    Hold,
    /// Like [`Self::Hold`], with mutual TLS and a source address for each connection. All of them are
    /// lost at once, because the server's sidecar restarts, and each comes back and asks again.
    Storm,
}

/// Requests lost, warm-up included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// No connection.
    pub connect: u64,
    /// The connection ended before the answer did.
    pub reset: u64,
    /// No answer within ten seconds.
    pub timeout: u64,
    /// Answered with something other than 200.
    pub status: u64,
    /// Not the answer: no HTTP, another length, other bytes.
    pub body: u64,
    /// Not answered a second after the end.
    pub unanswered: u64,
}

impl Errors {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.connect + self.reset + self.timeout + self.status + self.body + self.unanswered
    }
}

impl std::ops::Add for Errors {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            connect: self.connect + other.connect,
            reset: self.reset + other.reset,
            timeout: self.timeout + other.timeout,
            status: self.status + other.status,
            body: self.body + other.body,
            unanswered: self.unanswered + other.unanswered,
        }
    }
}

/// The generator's report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Requests answered rightly within the measurement.
    pub answered: u64,
    /// How long the measurement was.
    pub seconds: f64,
    /// Bytes of bodies that [`Load::beside`] received within the measurement.
    #[serde(default)]
    pub beside_bytes: u64,
    /// Requests answered rightly, warm-up, the last ones and those beside included.
    pub answered_ever: u64,
    /// Requests lost.
    pub errors: Errors,
    /// The first loss in words.
    pub first_error: Option<String>,
    /// The generator's own time on a CPU within the measurement.
    pub cpu_seconds: f64,
    /// Handshakes within the measurement that were full although they should have resumed; their
    /// requests are not among the answered.
    #[serde(default)]
    pub full_handshakes: u64,
    /// The key exchange group and cipher suite of the first handshake.
    #[serde(default)]
    pub agreed: Option<String>,
    /// Attempts on the way back that brought no answer, with [`Pattern::Storm`]; they are no errors.
    #[serde(default)]
    pub vain: u64,
    /// Delay, at a fixed rate, of requests whose connection was free: 99th percentile.
    pub late_p99_us: u64,
    /// Latencies in microseconds, base64 of HdrHistogram's V2 encoding.
    pub histogram: String,
}

impl Report {
    /// Latency in milliseconds that this share of the requests did not exceed.
    ///
    /// # Errors
    /// The histogram cannot be read.
    pub fn latencies_ms<const N: usize>(&self, quantiles: [f64; N]) -> Result<[f64; N]> {
        let histogram = decode(&self.histogram)?;
        Ok(quantiles.map(|q| milliseconds(histogram.value_at_quantile(q))))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a minute in microseconds is far below 2^53"
)]
fn milliseconds(us: u64) -> f64 {
    us as f64 / 1000.0
}

/// Returns an empty histogram for latencies in microseconds.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, 3)
        .unwrap_or_else(|e| unreachable!("the bounds are constants: {e}"))
}

/// Encodes a histogram for [`crate::results::Sample::histogram`].
pub(crate) fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    // Writing into memory fails only for counts that no run reaches.
    let _ = V2Serializer::new().serialize(histogram, &mut bytes);
    BASE64.encode(bytes)
}

/// Decodes [`Report::histogram`].
///
/// # Errors
/// It is not base64 of a histogram.
pub fn decode(text: &str) -> Result<Histogram<u64>> {
    let what = || "cannot read the generator's histogram".to_owned();
    let bytes = BASE64.decode(text).or_fail(what)?;
    Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|e| Failure::failed(format!("{}: {e:?}", what())))
}

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_distributions() {
        let report = |values: &mut dyn Iterator<Item = u64>| {
            let mut all = histogram();
            for value in values {
                all.record(value).unwrap();
            }
            Report {
                histogram: encode(&all),
                ..Report::default()
            }
        };
        let near = |found: f64, expected: f64| {
            assert!(
                (found / expected - 1.0).abs() < 0.001,
                "{found} is not {expected}"
            );
        };
        // Uniform from 1 µs to 100 ms.
        let uniform = report(&mut (1..=100_000));
        let [p50, p90, p99, p999] = uniform.latencies_ms([0.5, 0.9, 0.99, 0.999]).unwrap();
        near(p50, 50.0);
        near(p90, 90.0);
        near(p99, 99.0);
        near(p999, 99.9);
        // One in a hundred takes a second, the others 200 µs: the 99th is the last fast one.
        let tail = report(&mut (0..10_000).map(|i| if i % 100 == 0 { 1_000_000 } else { 200 }));
        let [p50, p99, p999] = tail.latencies_ms([0.5, 0.99, 0.9901]).unwrap();
        near(p50, 0.2);
        near(p99, 0.2);
        near(p999, 1000.0);
        // Exponential with a mean of 10 ms, by its inverse: p99 is ln 100 times the mean.
        let inverse = |i: u64| {
            let share = (f64::from(u32::try_from(i).unwrap()) + 0.5) / 100_000.0;
            (-(1.0 - share).ln() * 10_000.0).round().max(1.0)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 to 10^6"
        )]
        let exponential = report(&mut (0..100_000).map(|i| inverse(i) as u64));
        let [p50, p99] = exponential.latencies_ms([0.5, 0.99]).unwrap();
        near(p50, 10.0 * 2f64.ln());
        near(p99, 10.0 * 100f64.ln());
    }

    #[test]
    fn a_histogram_that_is_none_is_said() {
        let report = Report {
            histogram: "AAAA".into(),
            ..Report::default()
        };
        assert!(report.latencies_ms([0.5]).is_err());
    }
}
