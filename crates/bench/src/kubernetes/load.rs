//! A load in the client's container, Fortio's or another's, while the kubelets are asked.

use super::place::{APP, CLIENT, ReadyNamespace};
use super::usage::{Seen, Used};
use crate::failure::{Failure, OrFail, Result};
use crate::fortio::{self, Rate, Report};
use crate::interrupt::Interrupt;
use crate::results::{Sample, figure};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tulle_model::resource::Protocol;

/// Between two questions to the kubelets, which look every ten seconds or so.
const LOOK: Duration = Duration::from_secs(2);
/// How long the first request may take to be answered: sidecars hear of each other, and Java begins.
const FIRST_ANSWER: Duration = Duration::from_secs(300);

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

/// The result of a load by Fortio.
pub struct Loaded {
    /// Fortio's.
    pub report: Report,
    /// CPU and memory of the sidecars meanwhile.
    pub usage: SidecarUsage,
}

/// The output of a program that ran in the client's container.
pub struct Finished {
    /// Its standard output.
    pub output: String,
    /// Its standard error, and kubectl's.
    pub said: String,
    /// Whether it ended with 0.
    pub succeeded: bool,
    seen: Seen,
}

impl Finished {
    /// CPU and memory of the sidecars between two times, in seconds since 1970.
    pub fn usage(self, begin: f64, end: f64) -> SidecarUsage {
        SidecarUsage {
            seen: self.seen,
            begin,
            end,
        }
    }
}

/// CPU and memory of sidecars during a load.
pub struct SidecarUsage {
    seen: Seen,
    begin: f64,
    end: f64,
}

impl SidecarUsage {
    /// Records the usage of all sidecars together. The share of a request follows from the rate of the
    /// load, because the kubelet samples only part of it.
    pub fn sidecars(sample: &mut Sample, cores: f64, peak_mib: f64) {
        let rate = sample.figure(figure::RPS).unwrap_or_default();
        let mut set = |name: &str, value: f64| {
            sample.figures.insert(name.to_owned(), value);
        };
        set(figure::SIDECAR_CORES, cores);
        set(figure::RSS_PEAK_MIB, peak_mib);
        if rate > 0.0 {
            set(figure::CPU_US_PER_REQUEST, cores * 1e6 / rate);
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
        let load = fortio::words(
            asked.protocol,
            &asked.target,
            asked.rate,
            asked.connections,
            asked.time,
            "-",
        );
        let words: Vec<&str> = load.iter().map(String::as_str).collect();
        let words = [&["fortio"][..], &words].concat();
        let finished = match self.run_in_client(&words, asked.time, interrupt)? {
            Ok(finished) => finished,
            Err(why) => return Ok(Err(why)),
        };
        let report = match Report::parse(&finished.output) {
            Ok(report) => report,
            Err(why) => return Ok(Err(format!("{why}: {}", finished.said.trim()))),
        };
        if !finished.succeeded && report.answered() == 0 {
            return Ok(Err(format!("Fortio failed: {}", finished.said.trim())));
        }
        let (begin, end) = report.time();
        Ok(Ok(Loaded {
            usage: finished.usage(begin, end),
            report,
        }))
    }

    /// Runs a load generator in the client's container, and asks the kubelets meanwhile. `time` is how long it takes, about.
    /// A cluster that has changed meanwhile is the sample's affair, not the study's.
    ///
    /// # Errors
    /// It could not be started, did not end in time, or Ctrl-C.
    pub fn run_in_client(
        &self,
        words: &[&str],
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<std::result::Result<Finished, String>> {
        let before = self.standing()?;
        let mut seen = Seen::default();
        let mut child = self
            .in_client(words)
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
        let patience = Instant::now() + time * 2 + Duration::from_secs(60);
        let mut look = Instant::now();
        let succeeded = loop {
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
                let program = words.first().unwrap_or(&"nothing");
                let text = format!("the load ({program}) did not end in time");
                return Err(Failure::failed(text));
            }
            if Instant::now() >= look {
                seen.look(&self.kubectl, &self.pods);
                look += LOOK;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let (output, said) = (
            out.join().unwrap_or_default(),
            err.join().unwrap_or_default(),
        );
        if let Some(change) = before.change(&self.standing()?) {
            return Ok(Err(format!(
                "the cluster changed during the load: {change}; {}",
                said.trim()
            )));
        }
        Ok(Ok(Finished {
            output,
            said,
            succeeded,
            seen,
        }))
    }

    /// A command in the client's container.
    pub fn in_client(&self, words: &[&str]) -> Command {
        let client = format!("deployment/{CLIENT}");
        let exec = ["-n", &self.namespace, "exec", &client, "-c", APP, "--"];
        self.kubectl.command(&[&exec[..], words].concat())
    }

    /// Asks a URL from the client's container until the answer is 200 and has that text in it.
    ///
    /// # Errors
    /// It has not come in time, or Ctrl-C.
    pub fn await_answer(&self, url: &str, expected: &str, interrupt: &Interrupt) -> Result<()> {
        let until = Instant::now() + FIRST_ANSWER;
        loop {
            interrupt.check()?;
            let mut ask = self.in_client(&["fortio", "curl", "-timeout", "5s", url]);
            let done = ask.output().or_fail(|| "cannot run kubectl".to_owned())?;
            let text = [done.stdout, done.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            if text.contains("HTTP/1.1 200") && text.contains(expected) {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Failure::failed(format!(
                    "{}: {url} is not answered with 200 within {FIRST_ANSWER:?}; the last answer: {}",
                    self.namespace,
                    text.trim()
                )));
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}
