//! A server's sidecar restarts under a fleet of clients: how long until the last of them is served
//! again, and what that costs the sidecar.

use super::lab::Lab;
use super::scenario::Shape;
use crate::failure::{Failure, Result};
use crate::load::{Event, Generator, Load, Report};
use crate::peer::{Peer, Topology};
use crate::process::Usage;
use crate::results::{Sample, figure};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// How long coming back may take.
const BACK: Duration = Duration::from_secs(30);
/// How long everything may take, the first handshakes included.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn measure(
    lab: &Lab<'_>,
    peer: &dyn Peer,
    topology: &Topology,
    shape: &Shape,
) -> Result<Sample> {
    let mut running = lab.start(peer, topology)?;
    let load = Load {
        to: SocketAddr::from((Ipv4Addr::LOCALHOST, topology.ports.server)),
        connections: shape.connections,
        pattern: shape.pattern,
        bytes: shape.bytes,
        upload: 0,
        beside: None,
        warmup: Duration::ZERO,
        measure: BACK,
        certificates: Some(topology.directory.clone()),
    };
    let mut generator = Generator::start(&load, &lab.load_cpus, &lab.load_log())?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        lab.interrupt.check()?;
        match generator.next(Duration::from_millis(10))? {
            Some(Event::Holding) => {
                running.restart_server(peer, topology, &lab.sidecar_cpus)?;
            }
            Some(Event::Done(report)) => {
                let usage = running.usage("server").unwrap_or_default();
                return describe(&report, usage);
            }
            _ if Instant::now() > deadline => {
                return Err(Failure::failed("the load generator did not end in time"));
            }
            _ => {}
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "clients and errors are far below 2^53"
)]
fn describe(report: &Report, usage: Usage) -> Result<Sample> {
    let mut sample = Sample::default();
    let mut set = |name: &str, value: f64| {
        sample.figures.insert(name.to_owned(), value);
    };
    let answered = report.answered as f64;
    set(figure::REQUESTS, answered);
    set(figure::ERRORS, report.errors.total() as f64);
    if report.answered > 0 {
        let [p50, p90, p99] = report.latencies_ms([0.5, 0.9, 0.99])?;
        set(figure::P50_MS, p50);
        set(figure::P90_MS, p90);
        set(figure::P99_MS, p99);
        set(figure::LAST_BACK_MS, report.seconds * 1e3);
        let cpu = usage.cpu.as_secs_f64() * 1e6;
        set(figure::CPU_US_PER_REQUEST, cpu / answered);
        set(figure::RSS_PEAK_MIB, usage.rss_peak_mib);
        sample.histogram = Some(report.histogram.clone());
    }
    let agreed = report.agreed.as_deref().unwrap_or("nothing");
    sample.evidence = vec![format!(
        "{} clients, each back over a full mutual TLS handshake of its own with the client's certificate, by {agreed}",
        report.answered
    )];
    if report.vain > 0 {
        let text = format!("{} attempts on the way back brought no answer", report.vain);
        sample.remarks.push(text);
    }
    if let Some(first) = &report.first_error {
        sample.remarks.push(format!("first loss: {first}"));
    }
    Ok(sample)
}
