//! Start-up, memory before any load, and what an idle connection of a client takes.
//!
//! A sidecar gives back what only its start needed after some seconds. All peers' sidecars of one
//! repeat therefore settle together: started one after the other, read at the same time.

use super::lab::Lab;
use super::scenario::{IDLE, Shape};
use crate::failure::{Failure, FailureKind, Result};
use crate::load::{Event, Generator, Load, Report};
use crate::peer::{Mode, Peer, Running, Topology};
use crate::process::Usage;
use crate::results::{Sample, figure};
use std::time::{Duration, Instant};

/// Until memory is read that nobody has used yet.
pub(super) const SETTLE: Duration = Duration::from_secs(8);
/// How long opening all connections may take: a relay of TCP makes a handshake for each.
const OPEN: Duration = Duration::from_secs(120);

/// All peers with sidecars, another one first in each repeat.
pub(super) fn measure(
    lab: &Lab<'_>,
    shape: &Shape,
    settle_connections: Duration,
    repeat: u32,
) -> Result<Vec<Sample>> {
    let both = |(_, topology): &&(Box<dyn Peer>, Topology)| topology.mode == Mode::Both;
    let mut places: Vec<_> = lab.places.iter().filter(both).collect();
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let turn = repeat as usize % places.len();
    places.rotate_left(turn);
    let mut started = Vec::new();
    for (peer, topology) in places {
        let running = lab.start(peer.as_ref(), topology);
        if let Err(failure) = &running
            && failure.kind != FailureKind::Failed
        {
            return running.map(|_| Vec::new());
        }
        started.push((peer.as_ref(), topology, running));
    }
    lab.interrupt.sleep(SETTLE)?;
    let usage = |running: &Result<Running>| running.as_ref().map(read).unwrap_or_default();
    let before: Vec<_> = started.iter().map(|(.., running)| usage(running)).collect();
    let mut samples = Vec::new();
    for ((peer, topology, running), before) in started.into_iter().zip(before) {
        let done = running.and_then(|running| {
            connections(
                lab,
                peer,
                topology,
                &running,
                shape,
                settle_connections,
                &before,
            )
        });
        let mut sample = match done {
            Ok(sample) => sample,
            Err(failure) if failure.kind == FailureKind::Failed => {
                Sample::invalid(failure.to_string())
            }
            Err(failure) => return Err(failure),
        };
        IDLE.clone_into(&mut sample.scenario);
        peer.name().clone_into(&mut sample.peer);
        sample.repeat = repeat;
        samples.push(sample);
    }
    Ok(samples)
}

fn read(running: &Running) -> Vec<(&'static str, Usage)> {
    let sidecars = running.sidecars.iter();
    sidecars
        .map(|(role, process)| (*role, process.usage()))
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "connections and errors are far below 2^53"
)]
fn connections(
    lab: &Lab<'_>,
    peer: &dyn Peer,
    topology: &Topology,
    running: &Running,
    shape: &Shape,
    settle: Duration,
    before: &[(&'static str, Usage)],
) -> Result<Sample> {
    let mut sample = Sample::default();
    let mut set = |name: &str, value: f64| {
        sample.figures.insert(name.to_owned(), value);
    };
    set(figure::START_MS, running.start.as_secs_f64() * 1000.0);
    let mut idle = 0.0_f64;
    for (role, usage) in before {
        idle = idle.max(usage.rss_mib);
        set(&format!("{role}_rss_idle_mib"), usage.rss_mib);
        set(&format!("{role}_idle_anonymous_mib"), usage.anonymous_mib);
    }
    set(figure::RSS_IDLE_MIB, idle);

    let (report, after) = hold(lab, topology, running, shape, settle)?;
    let client = |usage: &[(&str, Usage)]| {
        let client = usage.iter().find(|(role, _)| *role == "client");
        client.map_or(0.0, |(_, usage)| usage.rss_mib)
    };
    let grown = (client(&after) - client(before)) * 1024.0;
    set(
        figure::IDLE_CONNECTION_KIB,
        grown / shape.connections as f64,
    );
    set(figure::ERRORS, report.errors.total() as f64);
    if let Some(first) = report.first_error {
        sample.remarks.push(format!("first loss: {first}"));
    }
    match peer.prove(topology, report.answered_ever) {
        Ok(evidence) => sample.evidence = evidence,
        Err(why) => sample.invalid = Some(why),
    }
    Ok(sample)
}

/// Opens the connections and reads the memory while they are idle.
fn hold(
    lab: &Lab<'_>,
    topology: &Topology,
    running: &Running,
    shape: &Shape,
    settle: Duration,
) -> Result<(Report, Vec<(&'static str, Usage)>)> {
    let load = Load {
        to: topology.entry(),
        connections: shape.connections,
        pattern: shape.pattern,
        bytes: shape.bytes,
        upload: 0,
        beside: None,
        warmup: Duration::ZERO,
        measure: OPEN,
        certificates: None,
    };
    let mut generator = Generator::start(&load, &lab.load_cpus, &lab.load_log())?;
    let deadline = Instant::now() + OPEN * 2;
    let mut after = Vec::new();
    loop {
        lab.interrupt.check()?;
        match generator.next(Duration::from_millis(50))? {
            Some(Event::Holding) => {
                lab.interrupt.sleep(settle)?;
                after = read(running);
                generator.release();
            }
            Some(Event::Done(report)) => return Ok((report, after)),
            _ if Instant::now() > deadline => {
                return Err(Failure::failed("the load generator did not end in time"));
            }
            _ => {}
        }
    }
}
