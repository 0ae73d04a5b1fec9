//! Defines the scenarios that are measured with each peer.
//!
//! Some scenarios have a fixed name; the others are named by their shape, such as
//! `saturated-10KB-64c` or `rate-1000-8c`.

use super::Options;
use crate::load::{Beside, Pattern};
use crate::payload::LONGEST;
use crate::peer::Mode;
use crate::results::Scenario;
use std::time::Duration;

/// The scenario that measures start-up, memory and idle connections.
pub(super) const IDLE: &str = "idle";
/// Those of a full run, the headline first.
pub(super) const NAMES: [&str; 12] = [
    HEADLINE,
    "saturated-1KB",
    "saturated-100KB",
    "rate-1000",
    "rate-5000",
    "new-connections",
    HANDSHAKES,
    RESUMED,
    STORM,
    BULK,
    BULK_PLAIN,
    IDLE,
];
/// The scenario whose figures are the study's.
pub(super) const HEADLINE: &str = "saturated-200B";
/// The scenario without the client's sidecar.
pub(super) const HANDSHAKES: &str = "handshakes";
/// The server's sidecar restarts under many clients.
pub(super) const STORM: &str = "storm";
/// The same with sessions that are resumed.
pub(super) const RESUMED: &str = "handshakes-resumed";
/// Few fetch large bodies while the others fetch small ones.
const MIXED: &str = "mixed";
/// Some hardly read what they fetch.
const SLOW_READERS: &str = "slow-readers";
/// Opaque TCP, a lot of it.
pub(super) const BULK: &str = "bulk-tcp";
/// The same through the client's sidecar alone, which has plaintext on both sides.
pub(super) const BULK_PLAIN: &str = "bulk-plain";
/// The scenarios of `--quick`. Fixed rates are in `bench sweep`, too.
const QUICK: [&str; 2] = [HEADLINE, IDLE];
/// Names that stand for several. `shapes`: how the cost depends on bodies and connections, and
/// whether streams hinder each other; `low-rates`: the latency of a sidecar that has little to do.
const GROUPS: [(&str, &[&str]); 2] = [
    (
        "shapes",
        &[
            "saturated-200B-1c",
            "saturated-200B-8c",
            "saturated-200B-64c",
            "saturated-200B-200c",
            "saturated-200B-1000c",
            "saturated-10KB-1c",
            "saturated-10KB-8c",
            "saturated-10KB-64c",
            "saturated-10KB-200c",
            "saturated-10KB-1000c",
            "saturated-1MB-1c",
            "saturated-1MB-8c",
            "saturated-1MB-64c",
            "upload-1MB-8c",
            MIXED,
            SLOW_READERS,
        ],
    ),
    (
        "low-rates",
        &[
            "rate-1000-2c",
            "rate-1000-4c",
            "rate-1000-8c",
            "rate-1000-16c",
            "rate-1000-32c",
            "rate-1000-64c",
        ],
    ),
];

/// The valid names, for errors.
const GRAMMAR: &str = "there are saturated-SIZE, upload-SIZE and rate-PER_SECOND, each with -Nc for N \
     connections and -Nw for N workers (saturated-10KB-64c, rate-1000-8c-2w), mixed, slow-readers, \
     new-connections, handshakes, handshakes-resumed, storm, bulk-tcp, bulk-plain and idle; shapes \
     and low-rates stand for several";

/// Bytes of a request and its answer, unless the name says more.
const SMALL: usize = 200;
/// More than these need more open files than a sidecar may have.
const MOST_CONNECTIONS: usize = 10_000;
/// Saturated, unless the name says it.
const CONNECTIONS: usize = 200;
/// Maximum of a sidecar's workers.
const MOST_WORKERS: u16 = 64;
/// Clients of a storm.
const FLEET: usize = 1000;
/// Connections of scenarios with a fixed rate or with different connections side by side.
const FEWER_CONNECTIONS: usize = 64;

/// Load of one kind.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) connections: usize,
    /// Workers of each sidecar.
    pub(super) workers: u16,
    pub(super) pattern: Pattern,
    pub(super) bytes: usize,
    pub(super) upload: usize,
    pub(super) beside: Option<Beside>,
    pub(super) warmup: Duration,
    pub(super) measure: Duration,
}

/// Checks a name given to `--scenarios` or in budgets.
///
/// # Errors
/// There is no such scenario: what there is.
pub(super) fn known(name: &str) -> Result<String, String> {
    if !GROUPS.iter().any(|(group, _)| *group == name) {
        Shape::named(name, 1)?;
    }
    Ok(name.to_owned())
}

impl Shape {
    fn named(name: &str, idle: usize) -> Result<Self, String> {
        let shape = |connections, pattern, bytes| Self {
            name: name.to_owned(),
            connections,
            workers: 1,
            pattern,
            bytes,
            upload: 0,
            beside: None,
            warmup: Duration::ZERO,
            measure: Duration::ZERO,
        };
        let with_beside = |connections, beside| Self {
            beside: Some(beside),
            ..shape(connections, Pattern::Saturate, SMALL)
        };
        Ok(match name {
            "new-connections" => shape(64, Pattern::NewConnections, SMALL),
            HANDSHAKES => shape(8, Pattern::Handshakes, SMALL),
            RESUMED => shape(8, Pattern::Resumed, SMALL),
            STORM => shape(FLEET, Pattern::Storm, SMALL),
            IDLE => shape(idle, Pattern::Hold, SMALL),
            BULK | BULK_PLAIN => shape(4, Pattern::Saturate, 4 << 20),
            MIXED => with_beside(
                60,
                Beside {
                    connections: 4,
                    bytes: 1 << 20,
                    per_second: None,
                },
            ),
            // Longer than what sockets hold: the sidecars have to stop reading.
            SLOW_READERS => with_beside(
                FEWER_CONNECTIONS,
                Beside {
                    connections: 16,
                    bytes: LONGEST,
                    per_second: Some(64 << 10),
                },
            ),
            _ => {
                let what = Words::read(name).ok_or_else(|| format!("{name}: {GRAMMAR}"))??;
                let workers = what.workers;
                let saturated = what.connections.unwrap_or(CONNECTIONS);
                let shape = match what.load {
                    Words::SATURATED => shape(saturated, Pattern::Saturate, what.amount),
                    Words::UPLOAD => Self {
                        upload: what.amount,
                        ..shape(saturated, Pattern::Saturate, SMALL)
                    },
                    _ => {
                        // A rate has at most six digits.
                        let rate = f64::from(u32::try_from(what.amount).unwrap_or(u32::MAX));
                        let connections = what.connections.unwrap_or(FEWER_CONNECTIONS);
                        shape(connections, Pattern::Rate(rate), SMALL)
                    }
                };
                let workers = workers.unwrap_or(shape.workers);
                Self { workers, ..shape }
            }
        })
    }

    fn timed(mut self, options: &Options) -> Self {
        let quick = options.common.quick;
        let (warmup, measure) = match (quick, self.name.as_str()) {
            (false, _) => (2000, 8000),
            (true, HEADLINE) => (500, 2000),
            (true, _) => (300, 1000),
        };
        let given = options.common.warmup.map(Duration::from_secs);
        let seconds = options.common.seconds.map(Duration::from_secs);
        self.warmup = given.unwrap_or(Duration::from_millis(warmup));
        if self.workers == 1 {
            self.workers = options.workers;
        }
        self.measure = seconds.unwrap_or(Duration::from_millis(measure));
        self
    }

    /// Returns the sidecars of a scenario with opaque TCP. All other scenarios have HTTP, and the lab
    /// decides.
    pub(super) fn opaque(&self) -> Option<Mode> {
        match self.name.as_str() {
            BULK => Some(Mode::Both),
            BULK_PLAIN => Some(Mode::ClientSidecar),
            _ => None,
        }
    }

    /// The bench's own client makes handshakes with the server's sidecar; there is no client's sidecar.
    pub(super) fn is_handshakes(&self) -> bool {
        let pattern = self.pattern;
        matches!(
            pattern,
            Pattern::Handshakes | Pattern::Resumed | Pattern::Storm
        )
    }

    /// Returns the scenario for the report.
    pub(super) fn scenario(&self) -> Scenario {
        let (connections, bytes) = (self.connections, self.bytes);
        let mut title = match self.pattern {
            Pattern::Saturate if self.opaque() == Some(Mode::Both) => {
                format!("bulk: {connections} opaque TCP connections, downloads of {bytes} bytes")
            }
            Pattern::Saturate if self.opaque().is_some() => format!(
                "bulk in plaintext: {connections} opaque TCP connections through one sidecar, downloads of {bytes} bytes"
            ),
            Pattern::Saturate if self.upload > 0 => {
                let upload = self.upload;
                format!("{connections} connections, saturated, POST of {upload}-byte bodies")
            }
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
            Pattern::Resumed => format!(
                "the same, each resuming the session of the one before, {connections} at a time"
            ),
            Pattern::Storm => format!(
                "the server's sidecar is killed and starts again under {connections} clients, which come back with a mutual TLS handshake and a request each"
            ),
            Pattern::Hold => {
                format!("start, memory before any load, {connections} idle client connections")
            }
        };
        if let Some(beside) = &self.beside {
            let (others, size) = (beside.connections, beside.bytes);
            title += &match beside.per_second {
                None => format!("; beside them {others} that fetch {size} bytes each time"),
                Some(rate) => format!(
                    "; beside them {others} that fetch {size} bytes and read {rate} of them a second"
                ),
            };
        }
        let protocol = self.opaque().map_or("HTTP/1.1", |_| "TCP");
        if self.workers > 1 {
            title += &format!("; sidecars of {} workers", self.workers);
        }
        let labels = [
            ("workers", self.workers.to_string()),
            ("connections", connections.to_string()),
            ("bytes", bytes.to_string()),
            ("protocol", protocol.to_owned()),
            ("seconds", self.measure.as_secs_f64().to_string()),
        ];
        Scenario {
            name: self.name.clone(),
            title,
            labels: labels.map(|(k, v)| (k.to_owned(), v)).into(),
        }
    }
}

/// Those that the options ask for, the headline first; with so many idle connections.
pub(super) fn shapes(options: &Options, idle: usize) -> Vec<Shape> {
    let mut names: Vec<&str> = Vec::new();
    let mut add = |name| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    for asked in &options.scenarios {
        match GROUPS.iter().find(|(group, _)| group == asked) {
            Some((_, members)) => members.iter().copied().for_each(&mut add),
            None => add(asked),
        }
    }
    if names.is_empty() {
        names = if options.common.quick {
            QUICK.to_vec()
        } else {
            NAMES.to_vec()
        };
    }
    names.sort_by_key(|name| *name != HEADLINE);
    // Names were checked when the command line was read.
    let shapes = names.iter().filter_map(|n| Shape::named(n, idle).ok());
    shapes.map(|shape| shape.timed(options)).collect()
}

/// A name made of words: `LOAD-AMOUNT[-CONNECTIONSc][-WORKERSw]`.
struct Words<'a> {
    load: &'a str,
    /// Bytes, or requests a second.
    amount: usize,
    connections: Option<usize>,
    workers: Option<u16>,
}

impl<'a> Words<'a> {
    const SATURATED: &'static str = "saturated";
    const UPLOAD: &'static str = "upload";
    const RATE: &'static str = "rate";

    /// None: it is no such name. An error: it is, but one of its words is wrong.
    fn read(name: &'a str) -> Option<Result<Self, String>> {
        let (load, rest) = name.split_once('-')?;
        if ![Self::SATURATED, Self::UPLOAD, Self::RATE].contains(&load) {
            return None;
        }
        Some(Self::from_load(load, rest).map_err(|why| format!("{name}: {why}")))
    }

    fn from_load(load: &'a str, rest: &str) -> Result<Self, String> {
        let mut words = rest.split('-').peekable();
        let amount = words.next().unwrap_or_default();
        let amount = if load == Self::RATE {
            let wrong = || format!("{amount:?} is no rate from 1 to 999999");
            let rate = number(amount).filter(|rate| (1..1_000_000).contains(rate));
            rate.ok_or_else(wrong)?
        } else {
            size(amount).ok_or_else(|| {
                let most = LONGEST >> 20;
                format!("{amount:?} is no size such as 200B, 10KB or 1MB, up to {most}MB")
            })?
        };
        let connections = words.next_if(|word| word.ends_with('c')).map(|text| {
            let count = text.strip_suffix('c').and_then(number);
            let count = count.filter(|count| (1..=MOST_CONNECTIONS).contains(count));
            count.ok_or_else(|| {
                format!("{text:?} is no number of connections, 1c to {MOST_CONNECTIONS}c")
            })
        });
        let workers = words.next_if(|word| word.ends_with('w')).map(|text| {
            let count = text.strip_suffix('w').and_then(number);
            let count = count.and_then(|count| u16::try_from(count).ok());
            let count = count.filter(|count| (1..=MOST_WORKERS).contains(count));
            count.ok_or_else(|| format!("{text:?} is no number of workers, 1w to {MOST_WORKERS}w"))
        });
        let (connections, workers) = (connections.transpose()?, workers.transpose()?);
        if let Some(word) = words.next() {
            return Err(format!(
                "{word:?} says nothing; connections are such as 64c, workers such as 2w"
            ));
        }
        Ok(Self {
            load,
            amount,
            connections,
            workers,
        })
    }
}

/// Digits alone: no sign, no leading zero, so that a scenario has one name.
fn number(text: &str) -> Option<usize> {
    let digits = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| digits)
}

fn size(text: &str) -> Option<usize> {
    let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let shift = match unit {
        "B" => 0,
        "KB" => 10,
        "MB" => 20,
        _ => return None,
    };
    let bytes = number(count)?.checked_mul(1 << shift)?;
    (bytes <= LONGEST).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_shape() {
        let of = |name: &str| {
            let shape = Shape::named(name, 7).unwrap();
            (shape.pattern, shape.connections, shape.bytes, shape.upload)
        };
        let saturate = Pattern::Saturate;
        assert_eq!(of("saturated-200B"), (saturate, 200, 200, 0));
        assert_eq!(of("saturated-10KB-64c"), (saturate, 64, 10 << 10, 0));
        assert_eq!(of("saturated-1MB-8c"), (saturate, 8, 1 << 20, 0));
        assert_eq!(of("upload-1MB-8c"), (saturate, 8, 200, 1 << 20));
        assert_eq!(of("rate-5000"), (Pattern::Rate(5000.0), 64, 200, 0));
        assert_eq!(of("rate-1000-2c"), (Pattern::Rate(1000.0), 2, 200, 0));
        assert_eq!(of("storm"), (Pattern::Storm, 1000, 200, 0));
        assert_eq!(of("idle"), (Pattern::Hold, 7, 200, 0));
        for (_, members) in GROUPS {
            members.iter().for_each(|name| drop(known(name).unwrap()));
        }
        let workers = |name: &str| Shape::named(name, 7).unwrap().workers;
        assert_eq!(workers("rate-1000-2c"), 1);
        assert_eq!(workers("rate-1000-2c-3w"), 3);
        assert_eq!(workers("saturated-1MB-2w"), 2);
        let mixed = Shape::named("mixed", 7).unwrap().scenario();
        assert!(mixed.title.contains("beside them 4"), "{}", mixed.title);
    }

    #[test]
    fn what_is_no_name_is_said() {
        for (name, part) in [
            ("saturated", "there are saturated-SIZE"),
            ("fast", "there are saturated-SIZE"),
            ("saturated-1GB", "\"1GB\" is no size"),
            ("saturated-9MB", "up to 8MB"),
            ("saturated-B", "no size"),
            ("saturated-200B-64", "\"64\" says nothing"),
            ("saturated-200B-0c", "no number of connections"),
            ("saturated-200B-20000c", "1c to 10000c"),
            ("saturated-200B-8c-0w", "no number of workers"),
            ("saturated-200B-65w", "1w to 64w"),
            ("saturated-200B-1c-2c", "\"2c\" says nothing"),
            ("rate-0", "no rate"),
            ("rate-01", "no rate"),
            ("rate-x-2c", "\"x\" is no rate"),
        ] {
            let why = known(name).unwrap_err();
            assert!(why.contains(part) && why.contains(name), "{name}: {why}");
        }
    }
}
