//! One load through one pair of sidecars.

use super::lab::Lab;
use super::scenario::{HEADLINE, Shape};
use super::storm;
use crate::failure::{Failure, FailureKind, Result};
use crate::load::{Event, Generator, Load, Pattern, Report};
use crate::peer::refusal::{self, ProbeRequest};
use crate::peer::{Peer, Running, Topology};
use crate::process::Usage;
use crate::results::{Sample, Series, figure};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Time between two points of a series.
const POINT: Duration = Duration::from_millis(250);
/// Time that the generator may take in addition to its load: starting, and waiting for the last answers.
const EXTRA: Duration = Duration::from_secs(20);
const MIB: f64 = 1_048_576.0;
/// Share of the load CPU from which on not the sidecars, but the load may be the limit.
const SATURATED: f64 = 0.95;
/// Share of a fixed rate below which it was not kept.
const KEPT: f64 = 0.98;
/// How late requests at a fixed rate may leave before it must be said.
const LATE_US: u64 = 2000;

/// Measures; what goes wrong with this peer alone makes the sample invalid, not the study fail.
pub(super) fn sample(
    lab: &Lab<'_>,
    peer: &dyn Peer,
    topology: &Topology,
    shape: &Shape,
) -> Result<Sample> {
    let measured = match shape.pattern {
        Pattern::Storm => storm::measure(lab, peer, topology, shape),
        _ => measure(lab, peer, topology, shape),
    };
    match measured {
        Err(failure) if failure.kind == FailureKind::Failed => {
            Ok(Sample::invalid(failure.to_string()))
        }
        other => other,
    }
}

fn measure(lab: &Lab<'_>, peer: &dyn Peer, topology: &Topology, shape: &Shape) -> Result<Sample> {
    let topology = &Topology {
        workers: shape.workers,
        ..topology.clone()
    };
    let mut running = lab.start(peer, topology)?;
    let observed = observe(lab, &mut running, topology, shape)?;
    let mut sample = Sample::default();
    observed.describe(lab, &running, shape, &mut sample)?;
    let answered = observed.report.answered_ever;
    if shape.is_handshakes() {
        handshakes(&observed.report, shape, &mut sample);
        return Ok(sample);
    }
    match prove(peer, topology, shape, answered) {
        Ok(evidence) => sample.evidence = evidence,
        Err(why) => sample.invalid = Some(why),
    }
    Ok(sample)
}

/// Their client is the bench's own: it has seen the handshakes itself.
fn handshakes(report: &Report, shape: &Shape, sample: &mut Sample) {
    let resumed = shape.pattern == Pattern::Resumed;
    let (kind, full) = if resumed {
        ("resumed", report.full_handshakes)
    } else {
        ("full", 0)
    };
    let (answered, agreed) = (
        report.answered,
        report.agreed.as_deref().unwrap_or("nothing"),
    );
    sample.evidence = vec![format!(
        "{answered} requests, each over a {kind} mutual TLS handshake of the bench's own client with the client's certificate, by {agreed}; who is refused is proven in {HEADLINE}"
    )];
    if resumed && answered == 0 && full > 0 {
        sample.invalid = Some(format!(
            "it resumes no session: each of {full} handshakes was a full one"
        ));
    } else if full > 0 {
        sample.remarks.push(format!(
            "{full} more handshakes were full ones: their requests do not count, their CPU time does"
        ));
    }
}

fn prove(
    peer: &dyn Peer,
    topology: &Topology,
    shape: &Shape,
    answered: u64,
) -> std::result::Result<Vec<String>, String> {
    let mut evidence = peer.prove(topology, answered)?;
    // Once in a repeat is enough, and last: refusals are counted by the sidecars, too.
    if shape.name == HEADLINE {
        let probe = ProbeRequest {
            path: "/bytes/200",
            caller: Some("/caller"),
        };
        evidence.extend(refusal::prove(peer, topology, &probe)?);
    }
    Ok(evidence)
}

/// The observations during a load.
struct Observed {
    report: Report,
    /// CPU time of each sidecar within the measurement, in the order of [`Running::sidecars`].
    sidecar_cpu: Vec<Duration>,
    server_cpu: Duration,
    series: Vec<Series>,
}

fn observe(
    lab: &Lab<'_>,
    running: &mut Running,
    topology: &Topology,
    shape: &Shape,
) -> Result<Observed> {
    let to = match shape.pattern {
        Pattern::Handshakes | Pattern::Resumed => {
            SocketAddr::from((Ipv4Addr::LOCALHOST, topology.ports.server))
        }
        _ => topology.entry(),
    };
    let load = Load {
        to,
        connections: shape.connections,
        pattern: shape.pattern,
        bytes: shape.bytes,
        upload: shape.upload,
        beside: shape.beside,
        warmup: shape.warmup,
        measure: shape.measure,
        certificates: Some(topology.directory.clone()),
    };
    let mut generator = Generator::start(&load, &lab.load_cpus, &lab.load_log())?;
    let deadline = Instant::now() + shape.warmup + shape.measure + EXTRA;
    let server = || lab.server.process.usage().cpu;
    let sidecars = |running: &Running| -> Vec<Usage> {
        let processes = running.sidecars.iter();
        processes.map(|(_, process)| process.usage()).collect()
    };
    let roles = running.sidecars.iter().map(|(role, _)| (*role).to_owned());
    let mut series: Vec<Series> = roles
        .map(|sidecar| Series {
            sidecar,
            ..Series::default()
        })
        .collect();
    // Since when, and what was used until then; for the whole and for the last point.
    let mut begin: Option<(Instant, Vec<Usage>, Duration)> = None;
    let mut point: Option<(Instant, Vec<Usage>)> = None;
    let mut used = None;
    loop {
        lab.interrupt.check()?;
        let event = generator.next(Duration::from_millis(50))?;
        let now = Instant::now();
        match event {
            Some(Event::Begin) => {
                let usage = sidecars(running);
                point = Some((now, usage.clone()));
                begin = Some((now, usage, server()));
            }
            Some(Event::End) => {
                let usage = sidecars(running);
                if let Some((_, before, server_before)) = &begin {
                    let difference =
                        |(after, before): (&Usage, &Usage)| after.cpu.saturating_sub(before.cpu);
                    let each: Vec<Duration> = usage.iter().zip(before).map(difference).collect();
                    used = Some((each, server().saturating_sub(*server_before)));
                }
                point = None;
            }
            Some(Event::Done(report)) => {
                let Some((sidecar_cpu, server_cpu)) = used else {
                    return Err(Failure::failed("the load generator measured nothing"));
                };
                return Ok(Observed {
                    report,
                    sidecar_cpu,
                    server_cpu,
                    series,
                });
            }
            Some(Event::Holding) | None => {}
        }
        if let (Some((last, before)), Some((begin, ..))) = (&mut point, &begin)
            && now.duration_since(*last) >= POINT
        {
            let usage = sidecars(running);
            let time = now.duration_since(*last).as_secs_f64();
            for ((series, after), before) in series.iter_mut().zip(&usage).zip(before.iter()) {
                let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
                series.at_s.push(now.duration_since(*begin).as_secs_f64());
                series.cpu_cores.push(cpu / time);
                series.rss_mib.push(after.rss_mib);
            }
            (*last, *before) = (now, usage);
        }
        for (_, process) in &mut running.sidecars {
            if let Some(ended) = process.ended() {
                return Err(Failure::failed(ended));
            }
        }
        if now > deadline {
            return Err(Failure::failed("the load generator did not end in time"));
        }
    }
}

impl Observed {
    #[expect(
        clippy::cast_precision_loss,
        reason = "requests of one run are far below 2^53"
    )]
    fn describe(
        &self,
        lab: &Lab<'_>,
        running: &Running,
        shape: &Shape,
        sample: &mut Sample,
    ) -> Result<()> {
        let report = &self.report;
        let (answered, seconds) = (report.answered as f64, report.seconds.max(1e-9));
        let rate = answered / seconds;
        let mut set = |name: &str, value: f64| {
            sample.figures.insert(name.to_owned(), value);
        };
        set(figure::REQUESTS, answered);
        let bulk = shape.opaque().is_some();
        if bulk {
            set(figure::MIB_PER_S, rate * shape.bytes as f64 / MIB);
        } else {
            set(figure::RPS, rate);
        }
        set(figure::ERRORS, report.errors.total() as f64);
        let [p50, p90, p95, p99, p999] = report.latencies_ms([0.5, 0.9, 0.95, 0.99, 0.999])?;
        set(figure::P50_MS, p50);
        set(figure::P90_MS, p90);
        set(figure::P95_MS, p95);
        set(figure::P99_MS, p99);
        set(figure::P999_MS, p999);
        if shape.beside.is_some() {
            let mib = report.beside_bytes as f64 / f64::from(1 << 20);
            set(figure::BESIDE_MIB_PER_S, mib / seconds);
        }
        let load = (report.cpu_seconds + self.server_cpu.as_secs_f64()) / seconds;
        set(figure::LOAD_CORES, load);
        if !running.sidecars.is_empty() {
            let cpu: Duration = self.sidecar_cpu.iter().sum();
            set(figure::SIDECAR_CORES, cpu.as_secs_f64() / seconds);
            // The costs of the measured connections and of those beside them cannot be told apart.
            let alone = shape.beside.is_none() && !bulk;
            if bulk {
                let gib = answered.max(1.0) * shape.bytes as f64 / MIB / 1024.0;
                set(figure::CPU_MS_PER_GIB, cpu.as_secs_f64() * 1e3 / gib);
            }
            if alone {
                set(
                    figure::CPU_US_PER_REQUEST,
                    cpu.as_secs_f64() * 1e6 / answered.max(1.0),
                );
            }
            let mut peak = 0.0_f64;
            for ((role, process), cpu) in running.sidecars.iter().zip(&self.sidecar_cpu) {
                let usage = process.usage();
                peak = peak.max(usage.rss_peak_mib);
                set(&format!("{role}_rss_peak_mib"), usage.rss_peak_mib);
                if alone {
                    let cpu = cpu.as_secs_f64() * 1e6 / answered.max(1.0);
                    set(&format!("{role}_cpu_us_per_request"), cpu);
                }
            }
            set(figure::RSS_PEAK_MIB, peak);
        }
        sample.series.clone_from(&self.series);
        sample.histogram = Some(report.histogram.clone());
        if let Some(first) = &report.first_error {
            sample.remarks.push(format!("first loss: {first}"));
        }
        // Generator and server are a thread each; on one CPU both together are limited by it.
        let busiest = match lab.load_cpus.len() {
            1 => load,
            _ => report.cpu_seconds.max(self.server_cpu.as_secs_f64()) / seconds,
        };
        if busiest >= SATURATED {
            sample.remarks.push(format!(
                "load generator saturated: its CPU was {:.0}% busy",
                busiest * 100.0
            ));
        }
        if let Pattern::Rate(asked) = shape.pattern {
            if rate < KEPT * asked {
                let text = format!("{rate:.0} of {asked} requests/s were reached");
                sample.remarks.push(text);
            }
            if report.late_p99_us > LATE_US {
                let late = report.late_p99_us as f64 / 1000.0;
                sample.remarks.push(format!(
                    "the generator itself was late: 1% of the requests left {late:.1} ms or more after they were due"
                ));
            }
        }
        Ok(())
    }
}
