//! The study `pair`: the data plane alone, and the gate that keeps it fast.
//!
//! ```text
//! load ──plain──> sidecar ══mutual TLS══> sidecar ──plain──> server
//! CPU 1            CPU 0                    CPU 0             CPU 1
//! ```
//!
//! CPU time per request is the figure that noise touches least: time on a CPU of all threads of both
//! sidecars within the measurement, divided by the requests answered in it. Requests/s and latencies
//! of a saturated closed loop say how long the queue is; latencies at a fixed rate count from when a
//! request was due. When the load's CPU is busy all the time, the load is the limit, and the sample
//! says so.
//!
//! Every sidecar is started anew for every sample; another peer is first in each repeat.

mod gate;
mod idle;
mod lab;
mod measure;
mod scenario;
mod storm;

use crate::args::Common;
use crate::cpus;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::peer;
use crate::report::{Recorder, Study};
use crate::run::{self, Cell};
use clap::Args;
use gate::Gate;
use lab::Lab;
use scenario::{IDLE, Shape};
use std::path::PathBuf;
use std::time::Duration;

/// Open files of a process other than its connections: listeners, pools, logs.
const OTHER_FILES: u64 = 256;

/// `tulle bench pair`
#[derive(Debug, Clone, Args, serde::Serialize)]
pub struct Options {
    /// Options of every study
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Peers to compare with Tulle [default: all; with --quick none,envoy,nginx,haproxy]
    #[arg(long, value_name = "PEERS")]
    pub vs: Option<String>,
    /// Scenarios to run, such as saturated-10KB-64c, rate-1000-8c, mixed; shapes and low-rates stand for several
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = scenario::known)]
    pub scenarios: Vec<String>,
    /// Threads of each sidecar, unless the scenario's name says it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// CPU of the sidecars; the first one if they have several workers [default: 0]
    #[arg(long, value_name = "CPU")]
    pub sidecar_cpu: Option<usize>,
    /// CPU of load generator and server [default: 1; with several workers the remaining ones]
    #[arg(long, value_name = "CPU")]
    pub load_cpu: Option<usize>,
    /// Idle connections of the scenario `idle` [default: 10000; with --quick 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub idle_connections: Option<u32>,
    /// Budgets file [default: bench/budgets.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub budgets: Option<PathBuf>,
    /// results.json of an earlier run that this one must not be worse than
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
}

impl Options {
    fn peers(&self) -> String {
        if let Some(list) = &self.vs {
            return list.clone();
        }
        if self.common.quick {
            return "none,envoy,nginx,haproxy".to_owned();
        }
        let names = peer::NAMES.iter().map(|(name, _)| *name);
        // No registry has Pipy: it takes part when its program is named.
        let there = |name: &&str| *name != "pipy" || self.common.pipy_binary.is_some();
        names.filter(there).collect::<Vec<_>>().join(",")
    }

    /// Returns the CPUs of the sidecars, and of load generator and server.
    fn cpus(&self, workers: u16) -> (Vec<usize>, Vec<usize>) {
        if workers > 1 {
            return cpus::several(workers.into(), self.sidecar_cpu, self.load_cpu);
        }
        let (sidecar, load) = cpus::chosen(self.sidecar_cpu, self.load_cpu);
        (vec![sidecar], vec![load])
    }

    fn idle_asked(&self) -> u32 {
        let otherwise = if self.common.quick { 1000 } else { 10_000 };
        self.idle_connections.unwrap_or(otherwise)
    }

    /// Not more than a sidecar that relays each connection can have with so many open files.
    fn idle(&self, files: u64) -> usize {
        let most = files.saturating_sub(OTHER_FILES) / 2;
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        most.min(self.idle_asked() as usize)
    }
}

/// Runs the study.
///
/// # Errors
/// As [`crate::run`].
pub fn run(options: &Options) -> Result<()> {
    let interrupt = Interrupt::catch()?;
    let gate = Gate::read(options)?;
    let peers = peer::parse(&options.peers(), &options.common)?;
    let idle = options.idle(lab::raise_files());
    let shapes = scenario::shapes(options, idle);
    let lab = Lab::prepare(options, peers, &shapes, &interrupt)?;
    let study = Study {
        name: "pair",
        options: serde_json::to_value(options).unwrap_or_default(),
        versions: lab.versions()?,
        notes: notes(options, &lab, idle),
        configurations: lab.configurations()?,
        scenarios: shapes.iter().map(Shape::scenario).collect(),
    };
    let mut recorder = Recorder::new(study, options.common.out.as_deref())?;
    let mut cells = cells(&lab, &shapes, options.common.quick);
    let done = run::interleaved(
        &mut cells,
        options.common.repeats(),
        &interrupt,
        &mut recorder,
    );
    if done.is_ok() {
        let verdicts = gate.judge(recorder.results());
        recorder.judged(verdicts);
    }
    let (results, _) = recorder.conclude(done)?;
    if results.samples.iter().all(|s| s.invalid.is_some()) {
        return Err(Failure::failed(
            "no sample is valid: the reason of each is above",
        ));
    }
    gate.pass(&results.verdicts)
}

/// A cell for each scenario and peer, and one for all that settle together.
fn cells<'a>(lab: &'a Lab<'a>, shapes: &'a [Shape], quick: bool) -> Vec<Cell<'a>> {
    let mut cells = Vec::new();
    for shape in shapes {
        if shape.name == IDLE {
            let settle = if quick {
                Duration::from_secs(1)
            } else {
                idle::SETTLE
            };
            let each = u32::try_from(lab.places.len()).unwrap_or(u32::MAX);
            cells.push(Cell {
                name: IDLE.to_owned(),
                group: IDLE.to_owned(),
                estimate: idle::SETTLE + (settle + Duration::from_millis(500)) * each,
                measure: Box::new(move |repeat| idle::measure(lab, shape, settle, repeat)),
            });
            continue;
        }
        for (peer, topology) in lab.takers(shape) {
            if shape.is_handshakes() && topology.mode == peer::Mode::Baseline {
                continue;
            }
            cells.push(Cell {
                name: format!("{} {}", shape.name, peer.name()),
                group: shape.name.clone(),
                estimate: shape.warmup + shape.measure + Duration::from_millis(400),
                measure: Box::new(move |repeat| {
                    let mut sample = measure::sample(lab, peer, topology, shape)?;
                    shape.name.clone_into(&mut sample.scenario);
                    peer.name().clone_into(&mut sample.peer);
                    sample.repeat = repeat;
                    Ok(vec![sample])
                }),
            });
        }
    }
    cells
}

fn notes(options: &Options, lab: &Lab<'_>, idle: usize) -> Vec<String> {
    let (sidecar, load) = (&lab.sidecar_cpus, &lab.load_cpus);
    let mut notes = vec![
        format!(
            "Both sidecars ran on {}; load generator and server on {}.",
            cpus::named(sidecar),
            cpus::named(load)
        ),
        "cpu_us_per_request is time on a CPU of all threads of both sidecars, from the scheduler, within the measurement, divided by the requests answered in it.".to_owned(),
        "errors counts what was lost also before and after the measurement: no connection, connection lost, no answer within ten seconds or a second after the end, another status, another body. One is enough to make a sample invalid.".to_owned(),
        "At a fixed rate latencies count from when a request was due, not from when it was sent.".to_owned(),
        "rss_idle_mib is read 8 s after the start and before any load, rss_peak_mib at the end of the load; of the larger sidecar, the processes of one added up. Pages of program files count, though sidecars on a host share them.".to_owned(),
        "In each run of the headline plaintext, a client without a certificate and a valid certificate of another identity were refused at the server's sidecar.".to_owned(),
    ];
    notes.extend(match (&sidecar[..], &load[..]) {
        ([sidecar], [load]) => cpus::note(*sidecar, *load),
        _ => cpus::note_several(sidecar, load),
    });
    notes.push("The client of handshakes offers every peer the same, what sidecars offer each other: shares of X25519MLKEM768 and X25519, AES-128 first. A peer that knows no ML-KEM has less to do; each sample says what was agreed on. Certificates are ECDSA P-256, signed by the root.".to_owned());
    let asked = options.idle_asked();
    if idle < asked as usize {
        notes.push(format!(
            "{idle} idle connections instead of {asked}: this machine's limit of open files (ulimit -Hn) allows no more through a sidecar that relays each."
        ));
    }
    notes.push("In a storm every client has a source address of its own and tries again after 20 ms, whoever the peer is. Times count from the end of the old sidecar, so that the start of the new one is in them; its CPU time includes its start.".to_owned());
    for (peer, _) in &lab.places {
        notes.extend(peer.notes());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Options {
        crate::args::parse(words)
    }

    fn names(options: &Options) -> Vec<String> {
        let shapes = scenario::shapes(options, 10);
        shapes.into_iter().map(|shape| shape.name).collect()
    }

    #[test]
    fn the_headline_is_first_and_quick_is_less() {
        assert_eq!(names(&options(&[])), scenario::NAMES);
        let quick = ["saturated-200B", "idle"];
        assert_eq!(names(&options(&["--quick"])), quick);
        let some = options(&["--scenarios", "idle,saturated-200B"]);
        assert_eq!(names(&some), ["saturated-200B", "idle"]);
        let group = options(&["--scenarios", "rate-1000-8c,low-rates"]);
        assert_eq!(names(&group)[..2], ["rate-1000-8c", "rate-1000-2c"]);
        assert_eq!(names(&group).len(), 6, "none twice");
        assert!(!options(&[]).peers().contains("pipy"));
        assert!(options(&["--pipy-binary", "/x"]).peers().contains("pipy"));
    }

    #[test]
    fn no_more_idle_connections_than_a_relay_has_files_for() {
        assert_eq!(options(&[]).idle(65_536), 10_000);
        assert_eq!(options(&[]).idle(20_000), 9_872);
        assert_eq!(options(&["--quick"]).idle(1024), 384);
        assert_eq!(options(&["--idle-connections", "7"]).idle(100_000), 7);
    }
}
