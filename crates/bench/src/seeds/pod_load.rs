//! The load of a round between pods: Fortio or JMeter, in the client's container.

use super::load::Measured;
use super::{Options, Path, SEEDED, Tool, jmeter};
use crate::failure::{Failure, OrFail, Result};
use crate::fortio::Rate;
use crate::interrupt::Interrupt;
use crate::kubernetes::{Asked, ReadyNamespace, SidecarUsage};
use std::path::Path as File;
use std::time::Duration;
use tulle_model::resource::Protocol;

/// Where the plan and its settings are in the client's container.
pub(super) const PLAN: &str = "/plan";
/// JMeter's archive in the image.
const JMETER: &str = "/jmeter/bin/ApacheJMeter.jar";
/// Where JMeter may write.
const SCRATCH: &str = "/tmp";

/// The result of a load.
pub(super) struct PodLoad {
    /// The answers that the client saw.
    pub(super) measured: Measured,
    /// CPU and memory of the sidecars.
    pub(super) usage: SidecarUsage,
}

/// Sends the load of a path, after its warm-up, once a first request is answered as it must be: a wrong answer would be a fast
/// one. That it leaves no result is the sample's affair, not the study's.
///
/// # Errors
/// It could not be started, or Ctrl-C.
pub(super) fn run(
    options: &Options,
    place: &ReadyNamespace,
    (host, port): (&str, u16),
    path: Path,
    interrupt: &Interrupt,
) -> Result<std::result::Result<PodLoad, String>> {
    let url = format!("{host}:{port}{}", path.url_path());
    place.await_answer(&format!("http://{url}"), SEEDED, interrupt)?;
    match options.load {
        Tool::Oha => fortio(options, place, &url, interrupt),
        Tool::Jmeter => jmeter(options, place, (host, port), path, interrupt),
    }
}

fn fortio(
    options: &Options,
    place: &ReadyNamespace,
    url: &str,
    interrupt: &Interrupt,
) -> Result<std::result::Result<PodLoad, String>> {
    let asked = |seconds| Asked {
        protocol: Protocol::Http,
        target: url.to_owned(),
        rate: Rate::Max,
        connections: options.connections,
        time: Duration::from_secs(seconds),
    };
    let warm = match options.warmup() {
        0 => None,
        seconds => place.load(&asked(seconds), interrupt)?.ok(),
    };
    let loaded = match place.load(&asked(options.seconds()), interrupt)? {
        Ok(loaded) => loaded,
        Err(why) => return Ok(Err(why)),
    };
    let (begin, end) = loaded.report.time();
    let measured = Measured {
        begin,
        end,
        answered: loaded.report.answered(),
        lost: loaded.report.lost(),
        answered_besides: warm.as_ref().map_or(0, |warm| warm.report.answered()),
        lost_besides: warm.map(|warm| warm.report.lost()).unwrap_or_default(),
        latencies: loaded.report.latencies().collect(),
        ..Measured::default()
    };
    Ok(Ok(PodLoad {
        measured,
        usage: loaded.usage,
    }))
}

fn jmeter(
    options: &Options,
    place: &ReadyNamespace,
    (host, port): (&str, u16),
    path: Path,
    interrupt: &Interrupt,
) -> Result<std::result::Result<PodLoad, String>> {
    let (warmup, seconds) = (options.warmup(), options.seconds());
    let words = jmeter::words(&jmeter::Words {
        archive: File::new(JMETER),
        plan: File::new(PLAN),
        own: File::new(SCRATCH),
        host,
        port,
        path: path.url_path(),
        connections: options.connections,
        warmup,
        seconds,
    });
    let words: Vec<&str> = std::iter::once("java")
        .chain(words.iter().map(String::as_str))
        .collect();
    let time = Duration::from_secs(warmup + seconds) + jmeter::PATIENCE;
    let finished = match place.run_in_client(&words, time, interrupt)? {
        Ok(finished) => finished,
        Err(why) => return Ok(Err(why)),
    };
    if !finished.succeeded {
        let said = [finished.output.trim(), finished.said.trim()].join(" ");
        return Ok(Err(format!("JMeter failed: {said}")));
    }
    let results = format!("{SCRATCH}/{}", jmeter::RESULTS);
    let what = || "cannot read JMeter's results".to_owned();
    let read = place.in_client(&["cat", &results]).output().or_fail(what)?;
    if !read.status.success() {
        let said = String::from_utf8_lossy(&read.stderr);
        return Err(Failure::failed(format!("{}: {}", what(), said.trim())));
    }
    let measured = match jmeter::parse(&read.stdout[..], warmup, seconds) {
        Ok(measured) => measured,
        Err(failure) => return Ok(Err(failure.to_string())),
    };
    Ok(Ok(PodLoad {
        usage: finished.usage(measured.begin, measured.end),
        measured,
    }))
}
