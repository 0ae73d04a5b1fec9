//! Fortio's load in the client's container, while the kubelets are asked.

use super::place::{CLIENT, ReadyNamespace};
use super::usage::{Seen, Used, seconds};
use crate::failure::{Failure, OrFail, Result};
use crate::fortio::{self, Rate, Report};
use crate::interrupt::Interrupt;
use crate::results::{Sample, figure};
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tulle_model::resource::Protocol;

/// Between two questions to the kubelets, which look every ten seconds or so.
const LOOK: Duration = Duration::from_secs(2);

/// A load to send.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The protocol of the load.
    pub protocol: Protocol,
    /// Host and port, and for HTTP the path.
    pub target: String,
    /// How fast.
    pub rate: Rate,
    /// Connections.
    pub connections: u32,
    /// How long.
    pub time: Duration,
}

/// The result of a load.
pub struct Loaded {
    /// Fortio's.
    pub report: Report,
    seen: Seen,
    begin: f64,
    end: f64,
}

impl Loaded {
    /// Records the usage of all sidecars together. The share of a request follows from the rate of the
    /// load, because the kubelet samples only part of it.
    pub fn sidecars(&self, sample: &mut Sample, cores: f64, peak_mib: f64) {
        let mut set = |name: &str, value: f64| {
            sample.figures.insert(name.to_owned(), value);
        };
        set(figure::SIDECAR_CORES, cores);
        set(figure::RSS_PEAK_MIB, peak_mib);
        if self.report.actual_qps > 0.0 {
            set(
                figure::CPU_US_PER_REQUEST,
                cores * 1e6 / self.report.actual_qps,
            );
        }
    }

    /// Returns the usage of an application's sidecar during the load; none if the kubelet sampled too
    /// rarely.
    pub fn used(&self, app: &str) -> Option<Used> {
        self.seen.used(app, self.begin, self.end)
    }
}

impl ReadyNamespace {
    /// Loads. That Fortio leaves no report is the sample's affair, not the study's.
    ///
    /// # Errors
    /// It could not be started, or Ctrl-C.
    pub fn load(
        &self,
        asked: &Asked,
        interrupt: &Interrupt,
    ) -> Result<std::result::Result<Loaded, String>> {
        let before = self.standing()?;
        let client = format!("deployment/{CLIENT}");
        let words = [
            "-n",
            &self.namespace,
            "exec",
            &client,
            "-c",
            "app",
            "--",
            "fortio",
        ];
        let load = fortio::words(
            asked.protocol,
            &asked.target,
            asked.rate,
            asked.connections,
            asked.time,
            "-",
        );
        let load: Vec<&str> = load.iter().map(String::as_str).collect();
        let mut seen = Seen::default();
        let mut command = self.kubectl.command(&[&words[..], &load].concat());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .or_fail(|| "cannot run kubectl".to_owned())?;
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = pipe.map(|mut pipe| pipe.read_to_string(&mut text));
                text
            })
        };
        let out = read(child.stdout.take().map(|p| Box::new(p) as _));
        let err = read(child.stderr.take().map(|p| Box::new(p) as _));
        let patience = Instant::now() + asked.time * 2 + Duration::from_secs(60);
        let mut look = Instant::now();
        let ended = loop {
            if let Some(status) = child
                .try_wait()
                .or_fail(|| "cannot wait for kubectl".to_owned())?
            {
                break status.success();
            }
            if interrupt.is_set() || Instant::now() > patience {
                let _ = child.kill();
                let _ = child.wait();
                interrupt.check()?;
                return Err(Failure::failed("Fortio's load did not end in time"));
            }
            if Instant::now() >= look {
                seen.look(&self.kubectl, &self.pods);
                look += LOOK;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let (text, said) = (
            out.join().unwrap_or_default(),
            err.join().unwrap_or_default(),
        );
        let report = match Report::parse(&text) {
            Ok(report) => report,
            Err(why) => return Ok(Err(format!("{why}: {}", said.trim()))),
        };
        if !ended && report.answered() == 0 {
            return Ok(Err(format!("Fortio failed: {}", said.trim())));
        }
        if let Some(change) = before.change(&self.standing()?) {
            return Ok(Err(format!(
                "the cluster changed during the load: {change}"
            )));
        }
        let begin = seconds(&report.start_time).unwrap_or(f64::MAX);
        #[allow(clippy::cast_precision_loss)] // nanoseconds of minutes
        let end = begin + report.actual_duration as f64 / 1e9;
        Ok(Ok(Loaded {
            report,
            seen,
            begin,
            end,
        }))
    }
}
