//! What is measured with each peer.

use super::Options;
use crate::load::Pattern;
use crate::results::Scenario;
use std::time::Duration;

/// The scenario that measures start-up, memory and idle connections.
pub(super) const IDLE: &str = "idle";
/// All of them, the headline first.
pub(super) const NAMES: [&str; 8] = [
    HEADLINE,
    "saturated-1KB",
    "saturated-100KB",
    "rate-1000",
    "rate-5000",
    "new-connections",
    HANDSHAKES,
    IDLE,
];
/// The scenario whose figures are the study's.
pub(super) const HEADLINE: &str = "saturated-200B";
/// The scenario without the client's sidecar.
pub(super) const HANDSHAKES: &str = "handshakes";
/// What `--quick` leaves of them. Fixed rates are in `bench sweep`, too.
const QUICK: [&str; 2] = [HEADLINE, IDLE];

/// Load of one kind.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) connections: usize,
    pub(super) pattern: Pattern,
    pub(super) bytes: usize,
    pub(super) warmup: Duration,
    pub(super) measure: Duration,
}

impl Shape {
    /// Of a name in [`NAMES`].
    fn of(name: &'static str, options: &Options, idle: usize) -> Self {
        let (connections, pattern, bytes) = match name {
            "saturated-1KB" => (200, Pattern::Saturate, 1 << 10),
            "saturated-100KB" => (200, Pattern::Saturate, 100 << 10),
            "rate-1000" => (64, Pattern::Rate(1000.0), 200),
            "rate-5000" => (64, Pattern::Rate(5000.0), 200),
            "new-connections" => (64, Pattern::NewConnections, 200),
            HANDSHAKES => (8, Pattern::Handshakes, 200),
            IDLE => (idle, Pattern::Hold, 200),
            _ => (200, Pattern::Saturate, 200),
        };
        let quick = options.common.quick;
        let (warmup, measure) = match (quick, name) {
            (false, _) => (2000, 8000),
            (true, HEADLINE) => (500, 2000),
            (true, _) => (300, 1000),
        };
        let given = options.common.warmup.map(Duration::from_secs);
        let seconds = options.common.seconds.map(Duration::from_secs);
        Self {
            name,
            connections,
            pattern,
            bytes,
            warmup: given.unwrap_or(Duration::from_millis(warmup)),
            measure: seconds.unwrap_or(Duration::from_millis(measure)),
        }
    }

    /// For the report.
    pub(super) fn scenario(&self) -> Scenario {
        let (connections, bytes) = (self.connections, self.bytes);
        let title = match self.pattern {
            Pattern::Saturate => {
                format!("{connections} connections, saturated, {bytes}-byte bodies")
            }
            Pattern::Rate(rate) => {
                format!("{rate} requests/s on {connections} connections, {bytes}-byte bodies")
            }
            Pattern::NewConnections => {
                format!("a new client connection for each request, {connections} at a time")
            }
            Pattern::Handshakes => format!(
                "mutual TLS handshakes of the server's sidecar, {connections} at a time, one request each"
            ),
            Pattern::Hold => {
                format!("start, memory before any load, {connections} idle client connections")
            }
        };
        let labels = [
            ("connections", connections.to_string()),
            ("bytes", bytes.to_string()),
            ("protocol", "HTTP/1.1".to_owned()),
            ("seconds", self.measure.as_secs_f64().to_string()),
        ];
        Scenario {
            name: self.name.to_owned(),
            title,
            labels: labels.map(|(k, v)| (k.to_owned(), v)).into(),
        }
    }
}

/// Those that the options ask for, the headline first; with so many idle connections.
pub(super) fn shapes(options: &Options, idle: usize) -> Vec<Shape> {
    let asked = |name: &&str| {
        if options.scenarios.is_empty() {
            !options.common.quick || QUICK.contains(name)
        } else {
            options.scenarios.iter().any(|s| s == name)
        }
    };
    let names = NAMES.into_iter().filter(asked);
    names.map(|name| Shape::of(name, options, idle)).collect()
}
