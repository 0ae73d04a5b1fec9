//! Defines a study's results: samples, and the file `results.json` that holds them.
//!
//! A sample is one scenario for one peer, once. It is invalid, with the reason, when its mutual TLS
//! was not proven or requests were lost; an invalid sample is shown and never averaged.

pub mod stats;

use crate::results::stats::{NO_MESH, SUBJECT, Summary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The schema version of `results.json`. It changes when a reader of the old schema would misread the new
/// one.
pub const SCHEMA: u32 = 1;
/// The beginning of the evidence of a mesh that refuses strangers, and of which nobody looked at whom it lets in.
pub const NOT_LOOKED_AT: &str = "identities were not looked at";

/// Names of figures, with their unit. A study uses those that it measures.
pub mod figure {
    /// Answered requests in a second.
    pub const RPS: &str = "rps";
    /// Time on a CPU of every thread of the sidecars, divided by answered requests.
    pub const CPU_US_PER_REQUEST: &str = "cpu_us_per_request";
    /// Bytes of bodies that came through in a second, of opaque TCP.
    pub const MIB_PER_S: &str = "mib_per_s";
    /// Time on a CPU of every thread of the sidecars, divided by those bytes.
    pub const CPU_MS_PER_GIB: &str = "cpu_ms_per_gib";
    /// Latency seen by the client.
    pub const P50_MS: &str = "p50_ms";
    /// Latency seen by the client.
    pub const P90_MS: &str = "p90_ms";
    /// Latency seen by the client.
    pub const P95_MS: &str = "p95_ms";
    /// Latency seen by the client.
    pub const P99_MS: &str = "p99_ms";
    /// Latency seen by the client.
    pub const P999_MS: &str = "p999_ms";
    /// Requests lost: no answer, a wrong answer, or a status that is not the expected one.
    pub const ERRORS: &str = "errors";
    /// Answered requests.
    pub const REQUESTS: &str = "requests";
    /// Resident memory of the larger sidecar before any load.
    pub const RSS_IDLE_MIB: &str = "rss_idle_mib";
    /// Highest resident memory of the larger sidecar.
    pub const RSS_PEAK_MIB: &str = "rss_peak_mib";
    /// Time from the start of the sidecars' processes to the first answer through them.
    pub const START_MS: &str = "start_ms";
    /// Memory that one more idle connection of a client takes in its sidecar.
    pub const IDLE_CONNECTION_KIB: &str = "idle_connection_kib";
    /// From the end of a server's sidecar until the last of its clients has an answer of the next one.
    pub const LAST_BACK_MS: &str = "last_back_ms";
    /// Bodies that connections beside the measured ones received.
    pub const BESIDE_MIB_PER_S: &str = "beside_mib_per_s";
    /// Share of one core that the sidecars used.
    pub const SIDECAR_CORES: &str = "sidecar_cores";
    /// Share of one core that load generator and server used.
    pub const LOAD_CORES: &str = "load_cores";
}

/// All figures that budgets may be about.
pub const FIGURES: [&str; 19] = [
    figure::RPS,
    figure::CPU_US_PER_REQUEST,
    figure::MIB_PER_S,
    figure::CPU_MS_PER_GIB,
    figure::P50_MS,
    figure::P90_MS,
    figure::P95_MS,
    figure::P99_MS,
    figure::P999_MS,
    figure::ERRORS,
    figure::REQUESTS,
    figure::RSS_IDLE_MIB,
    figure::RSS_PEAK_MIB,
    figure::START_MS,
    figure::IDLE_CONNECTION_KIB,
    figure::LAST_BACK_MS,
    figure::BESIDE_MIB_PER_S,
    figure::SIDECAR_CORES,
    figure::LOAD_CORES,
];

/// A scenario: the same for every peer, so that its samples may be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// Unique in a study, such as `saturated-200B` or `gateway-ratings@0.5`.
    pub name: String,
    /// The title of its table.
    pub title: String,
    /// The labels that distinguish it from other scenarios: path, connections, payload …
    pub labels: BTreeMap<String, String>,
}

/// One scenario for one peer, once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// [`Scenario::name`].
    pub scenario: String,
    /// The measured peer: `tulle`, `envoy`, `none` …
    pub peer: String,
    /// Number of the run, from 0. Samples of one repeat are compared with each other.
    pub repeat: u32,
    /// Why it does not count; none: it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
    /// Figures by the names in [`figure`] and by names of the study's own.
    pub figures: BTreeMap<String, f64>,
    /// Evidence that mutual TLS with the right identities was on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// Remarks for readers of this sample, above all a saturated load generator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// CPU and memory of each sidecar while it was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// Latencies in microseconds, base64 of HdrHistogram's V2 encoding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}

impl Sample {
    /// A sample that cannot be used, with the reason.
    pub fn invalid(why: impl Into<String>) -> Self {
        Self {
            invalid: Some(why.into()),
            ..Self::default()
        }
    }

    /// A figure, if it was measured.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// Makes it invalid when it has lost requests or answered none: the rule for every study.
    pub fn judge(&mut self) {
        if self.invalid.is_some() {
            return;
        }
        let errors = self.figure(figure::ERRORS).unwrap_or(0.0);
        if errors > 0.0 {
            self.invalid = Some(format!("{errors:.0} requests were lost"));
        } else if self.figure(figure::REQUESTS).is_some_and(|n| n < 1.0) {
            self.invalid = Some("no request was answered".into());
        }
    }
}

/// CPU and memory of one process group over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The sidecar: `client`, `server`, `gateway`, `ratings` …
    pub sidecar: String,
    /// Seconds since the measurement began.
    pub at_s: Vec<f64>,
    /// Cores in use since the point before.
    pub cpu_cores: Vec<f64>,
    /// Resident memory.
    pub rss_mib: Vec<f64>,
}

/// `results.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `pair`, `seeds` or `sweep`.
    pub study: String,
    /// When it began, UTC.
    pub date: String,
    /// The machine.
    pub environment: crate::environment::Environment,
    /// The command line, its first word the program; `repro.sh` runs it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub directory: String,
    /// Measurements asked for: cells times repeats.
    #[serde(default)]
    pub planned: usize,
    /// Measurements done; fewer than planned: it was interrupted, or failed.
    #[serde(default)]
    pub done: usize,
    /// The options that it was started with.
    pub options: serde_json::Value,
    /// The versions of the programs that took part.
    pub versions: BTreeMap<String, String>,
    /// Notes that a fair reader needs, such as missing abilities of a peer.
    pub notes: Vec<String>,
    /// Everything that was configured, by file name.
    pub configurations: BTreeMap<String, String>,
    /// The measured scenarios. The first is the study's headline.
    pub scenarios: Vec<Scenario>,
    /// The results of comparing the figures with budgets and a baseline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<crate::verdict::BudgetVerdict>,
    /// The summary of the headline scenario.
    #[serde(flatten)]
    pub headline: Summary,
    /// The summary of every scenario, by name.
    pub summaries: BTreeMap<String, Summary>,
    /// Everything, also what is invalid.
    pub samples: Vec<Sample>,
}

/// The scenario of `pair` that measures memory and start-up; the headline's table wants its figures.
const IDLE: &str = "idle";

impl Results {
    /// Results of a study that has measured nothing.
    #[cfg(test)]
    pub(crate) fn empty(study: &str) -> Self {
        Self {
            schema: SCHEMA,
            study: study.into(),
            date: String::new(),
            environment: crate::environment::Environment::default(),
            command: Vec::new(),
            directory: String::new(),
            planned: 0,
            done: 0,
            options: serde_json::Value::Null,
            versions: BTreeMap::new(),
            notes: Vec::new(),
            configurations: BTreeMap::new(),
            scenarios: Vec::new(),
            verdicts: Vec::new(),
            headline: Summary::default(),
            summaries: BTreeMap::new(),
            samples: Vec::new(),
        }
    }

    /// Says how much was measured, if not everything was.
    pub fn incomplete(&self) -> Option<String> {
        let (done, planned) = (self.done, self.planned);
        (done < planned)
            .then(|| format!("incomplete: interrupted after {done} of {planned} measurements"))
    }

    /// Samples of a scenario, in the order they were measured.
    pub fn for_scenario<'a>(&'a self, scenario: &str) -> impl Iterator<Item = &'a Sample> + Clone {
        self.samples.iter().filter(move |s| s.scenario == scenario)
    }

    /// Peers that have a sample in a scenario, the subject first, no mesh last.
    pub fn peers<'a>(&'a self, scenario: &str) -> Vec<&'a str> {
        let mut peers: Vec<&str> = self
            .for_scenario(scenario)
            .map(|s| s.peer.as_str())
            .collect();
        peers.sort_by_key(|peer| (*peer == NO_MESH, *peer != SUBJECT, *peer));
        peers.dedup();
        peers
    }

    /// Makes the summaries anew from the samples. The headline gets the figures that only the
    /// scenario `idle` measures, so that one table has them all.
    pub fn summarise(&mut self) {
        let summary = |s: &Scenario| {
            (
                s.name.clone(),
                Summary::from_samples(self.for_scenario(&s.name)),
            )
        };
        self.summaries = self.scenarios.iter().map(summary).collect();
        let first = self.scenarios.first();
        let headline = first.and_then(|s| self.summaries.get(&s.name));
        self.headline = headline.cloned().unwrap_or_default();
        if let Some(idle) = self.summaries.get(IDLE) {
            self.headline.fill_from(idle);
        }
    }
}
