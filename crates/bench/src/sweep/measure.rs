//! One scenario for one peer, once: sidecars up, warm-up, load, figures, proof, sidecars down.

use super::csv::{Average, Row};
use super::plan::{Load, Scene};
use crate::failure::{Failure, Result};
use crate::fortio::{Fortio, Rate, Report};
use crate::interrupt::Interrupt;
use crate::peer::refusal::{self, ProbeRequest};
use crate::peer::{Mode, Peer, Running, Topology};
use crate::process::{Process, Usage};
use crate::results::{Sample, Series, figure};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Paths of Fortio's server.
const PROBE: ProbeRequest<'static> = ProbeRequest {
    path: "/echo",
    caller: Some("/debug"),
};
/// Share of the requested rate from which on it counts as reached.
const REACHED: f64 = 0.98;
/// Share of the load's CPU from which on the load, not the sidecars, is what is measured.
const SATURATED: f64 = 0.95;

/// Connections from which on, without a rate, one CPU or the other is always busy; otherwise the machine
/// had something else to do.
const MANY: u32 = 16;
/// Share of a CPU below which it was not.
const IDLE: f64 = 0.8;

/// State that every measurement needs.
pub(super) struct Bench<'a> {
    pub(super) fortio: &'a Fortio,
    pub(super) server: RefCell<Process>,
    pub(super) interrupt: &'a Interrupt,
    pub(super) load: Load,
    pub(super) sidecar_cpus: Vec<usize>,
    pub(super) load_cpus: Vec<usize>,
    pub(super) rows: RefCell<Vec<Row>>,
}

impl Bench<'_> {
    /// Measures.
    ///
    /// # Errors
    /// It could not be measured at all.
    pub(super) fn measure(
        &self,
        scene: &Scene,
        peer: &dyn Peer,
        topology: &Topology,
        repeat: u32,
    ) -> Result<Sample> {
        if let Some(why) = self.server.borrow_mut().ended() {
            return Err(Failure::failed(why));
        }
        let running = Running::start(peer, topology, &self.sidecar_cpus, || {
            self.fortio.ask(topology.protocol, topology.entry())
        })?;
        let warm = if self.load.warmup.is_zero() {
            None
        } else {
            let (report, _) = self.run(scene, topology, &running, self.load.warmup)?;
            Some(report)
        };
        let (report, seen) = self.run(scene, topology, &running, self.load.time)?;
        let mut sample = Sample {
            scenario: scene.name(),
            peer: peer.name().to_owned(),
            repeat,
            ..Sample::default()
        };
        let report = match report {
            Ok(report) => report,
            Err(why) => {
                sample.invalid = Some(why);
                return Ok(sample);
            }
        };
        let warm = warm.and_then(std::result::Result::ok);
        let answered = report.answered() + warm.map_or(0, |warm| warm.answered());
        self.figures(&mut sample, &report, &seen, &running);
        remark(&mut sample, scene, &report, &seen);
        match self.prove(peer, topology, answered) {
            Ok(evidence) => sample.evidence = evidence,
            Err(why) => sample.invalid = Some(why),
        }
        if report.errors() > 0 {
            sample
                .remarks
                .push(format!("Fortio's return codes: {}", report.codes()));
        }
        sample.series = seen.series.into_values().collect();
        sample.judge();
        if sample.invalid.is_none() {
            self.rows.borrow_mut().push(Row {
                peer: peer.name().to_owned(),
                mode: scene.mode.name(),
                rate: scene.rate.to_string(),
                client: average(&sample, "client"),
                server: average(&sample, "server"),
                report,
            });
        }
        Ok(sample)
    }

    /// Loads for a time, looking at the sidecars all the while. Fortio's failure to report is the
    /// sample's affair, not the study's.
    fn run(
        &self,
        scene: &Scene,
        topology: &Topology,
        running: &Running,
        time: Duration,
    ) -> Result<(std::result::Result<Report, String>, Seen)> {
        let file = topology.path("fortio.json");
        let _ = fs::remove_file(&file);
        let command = self.fortio.load(
            topology.protocol,
            topology.entry(),
            scene.rate,
            scene.connections,
            time,
            &file,
        );
        let log = topology.path("fortio.log");
        let _ = fs::remove_file(&log);
        let mut seen = Seen::begin(running, &self.server.borrow());
        let mut process = Process::start("Fortio", command, &self.load_cpus, &log)?;
        let every = (time / 20).clamp(Duration::from_millis(100), Duration::from_secs(1));
        let mut look = Instant::now() + every;
        // A load that takes 30 s more than twice its time is considered stuck.
        let patience = Instant::now() + time * 2 + Duration::from_secs(30);
        let ended = loop {
            self.interrupt.check()?;
            // Read before it is known to have ended: then its usage is gone.
            let client = process.usage();
            if let Some(end) = process.ended() {
                break end;
            }
            seen.load_client = client;
            if Instant::now() >= look {
                seen.look(running);
                look += every;
            }
            if Instant::now() > patience {
                break format!("it has not ended: {}", process.tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        seen.end(running, &self.server.borrow());
        let report = fs::read_to_string(&file)
            .map_err(|_| format!("Fortio left no report: {ended}"))
            .and_then(|text| Report::parse(&text));
        Ok((report, seen))
    }

    fn figures(&self, sample: &mut Sample, report: &Report, seen: &Seen, running: &Running) {
        let answered = report.answered();
        report.tell(sample);
        let mut set = |name: &str, value: f64| {
            sample.figures.insert(name.to_owned(), value);
        };
        set(figure::LOAD_CORES, seen.load_cores());
        if running.sidecars.is_empty() {
            return;
        }
        // Not the life of Fortio's process: before and after the load the sidecars are idle.
        let loaded = Duration::from_nanos(report.actual_duration)
            .as_secs_f64()
            .max(1e-9);
        let mut peak: f64 = 0.0;
        let mut cpu = Duration::ZERO;
        for (role, _) in &running.sidecars {
            let used = seen.used(role);
            cpu += used;
            set(
                &format!("{role}_cpu_milli"),
                used.as_secs_f64() * 1e3 / loaded,
            );
            if let Some(series) = seen.series.get(role) {
                let mean = series.rss_mib.iter().sum::<f64>() / series.rss_mib.len().max(1) as f64;
                set(&format!("{role}_rss_mib"), mean);
            }
            peak = peak.max(running.usage(role).unwrap_or_default().rss_peak_mib);
        }
        set(figure::RSS_PEAK_MIB, peak);
        set(figure::START_MS, running.start.as_secs_f64() * 1e3);
        set(figure::SIDECAR_CORES, cpu.as_secs_f64() / loaded);
        if answered > 0 {
            let micros = cpu.as_secs_f64() * 1e6 / answered as f64;
            set(figure::CPU_US_PER_REQUEST, micros);
        }
    }

    fn prove(
        &self,
        peer: &dyn Peer,
        topology: &Topology,
        answered: u64,
    ) -> std::result::Result<Vec<String>, String> {
        let mut evidence = peer.prove(topology, answered)?;
        if topology.mode == Mode::Both {
            evidence.extend(refusal::prove(peer, topology, &PROBE)?);
        }
        Ok(evidence)
    }
}

fn average(sample: &Sample, role: &str) -> Option<Average> {
    Some(Average {
        cpu_milli: sample.figure(&format!("{role}_cpu_milli"))?,
        rss_mib: sample.figure(&format!("{role}_rss_mib"))?,
    })
}

/// Remarks on limits of the figures other than the sidecars.
fn remark(sample: &mut Sample, scene: &Scene, report: &Report, seen: &Seen) {
    if let Rate::Fixed(rate) = scene.rate
        && report.actual_qps < f64::from(rate) * REACHED
    {
        sample.remarks.push(format!(
            "{rate} requests/s were asked for, {:.0} were reached",
            report.actual_qps
        ));
    }
    let load = seen.load_cores();
    if load >= SATURATED {
        sample.remarks.push(format!(
            "load generator saturated: Fortio's client and server used {:.0}% of a core, so throughput and latency are theirs as much as the sidecars'",
            load * 100.0
        ));
    }
    let sidecars = sample.figure(figure::SIDECAR_CORES).unwrap_or(0.0);
    if scene.rate == Rate::Max && scene.connections >= MANY && load.max(sidecars) < IDLE {
        sample.remarks.push(format!(
            "the machine had something else to do: sidecars used {:.0}% and Fortio {:.0}% of their CPUs, where one should have been busy",
            sidecars * 100.0,
            load * 100.0
        ));
    }
}

/// Usage during a load.
struct Seen {
    begin: Instant,
    wall: Duration,
    before: BTreeMap<&'static str, Usage>,
    after: BTreeMap<&'static str, Usage>,
    server_before: Usage,
    server_after: Usage,
    load_client: Usage,
    series: BTreeMap<&'static str, Series>,
    last: Instant,
    last_cpu: BTreeMap<&'static str, Duration>,
}

impl Seen {
    fn begin(running: &Running, server: &Process) -> Self {
        let before = usages(running);
        let now = Instant::now();
        Self {
            begin: now,
            wall: Duration::ZERO,
            after: before.clone(),
            server_before: server.usage(),
            server_after: Usage::default(),
            load_client: Usage::default(),
            series: BTreeMap::new(),
            last: now,
            last_cpu: before.iter().map(|(role, u)| (*role, u.cpu)).collect(),
            before,
        }
    }

    fn look(&mut self, running: &Running) {
        let now = Instant::now();
        let since = now.duration_since(self.last).as_secs_f64();
        if since <= 0.0 {
            return;
        }
        for (role, usage) in usages(running) {
            let series = self.series.entry(role).or_insert_with(|| Series {
                sidecar: role.to_owned(),
                ..Series::default()
            });
            let last = self.last_cpu.insert(role, usage.cpu).unwrap_or_default();
            let cores = usage.cpu.saturating_sub(last).as_secs_f64() / since;
            series
                .at_s
                .push(now.duration_since(self.begin).as_secs_f64());
            series.cpu_cores.push(cores);
            series.rss_mib.push(usage.rss_mib);
        }
        self.last = now;
    }

    fn end(&mut self, running: &Running, server: &Process) {
        self.look(running);
        self.wall = self.begin.elapsed();
        self.after = usages(running);
        self.server_after = server.usage();
    }

    /// Time on a CPU of a sidecar.
    fn used(&self, role: &str) -> Duration {
        let cpu =
            |of: &BTreeMap<&'static str, Usage>| of.get(role).map_or(Duration::ZERO, |u| u.cpu);
        cpu(&self.after).saturating_sub(cpu(&self.before))
    }

    /// Returns the cores used by Fortio's client and server.
    fn load_cores(&self) -> f64 {
        let server = self.server_after.cpu.saturating_sub(self.server_before.cpu);
        let used = server + self.load_client.cpu;
        used.as_secs_f64() / self.wall.as_secs_f64().max(1e-9)
    }
}

fn usages(running: &Running) -> BTreeMap<&'static str, Usage> {
    let sidecars = running.sidecars.iter();
    sidecars
        .map(|(role, process)| (*role, process.usage()))
        .collect()
}
