//! The sidecars of one peer, running.

use super::{Peer, Topology};
use crate::failure::{Failure, Result};
use crate::process::{Process, Usage};
use std::time::{Duration, Instant};

/// How long sidecars may take to the first answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// The sidecars of one peer; ended with this value.
pub struct Running {
    /// By role: `client`, `server`.
    pub sidecars: Vec<(&'static str, Process)>,
    /// From the start of the first process to the first answer through them.
    pub start: Duration,
}

impl Running {
    /// Starts them on `cpus` and waits until `answers` does not fail: a request through them.
    ///
    /// # Errors
    /// One cannot be started or has ended, or there was no answer.
    pub fn start(
        peer: &dyn Peer,
        topology: &Topology,
        cpus: &[usize],
        mut answers: impl FnMut() -> std::result::Result<(), String>,
    ) -> Result<Self> {
        let sidecars = peer.sidecars(topology)?;
        let begin = Instant::now();
        let mut running = Self {
            sidecars: Vec::new(),
            start: Duration::ZERO,
        };
        for sidecar in sidecars {
            let name = format!("{}'s sidecar of the {}", peer.name(), sidecar.role);
            let log = topology.path(&format!("{}-{}.log", peer.name(), sidecar.role));
            let process = Process::start(&name, sidecar.command, cpus, &log)?;
            running.sidecars.push((sidecar.role, process));
        }
        loop {
            let Err(why) = answers() else {
                running.start = begin.elapsed();
                return Ok(running);
            };
            for (_, process) in &mut running.sidecars {
                if let Some(end) = process.ended() {
                    return Err(Failure::failed(end));
                }
            }
            if begin.elapsed() > PATIENCE {
                let logs = running.sidecars.iter();
                let logs = logs.map(|(_, p)| format!("\n{}: {}", p.name, p.tail()));
                return Err(Failure::failed(format!(
                    "{} did not answer within {} s: {why}{}",
                    peer.name(),
                    PATIENCE.as_secs(),
                    logs.collect::<String>()
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What the sidecar of this role has used so far; none: there is no such sidecar.
    pub fn usage(&self, role: &str) -> Option<Usage> {
        let found = self.sidecars.iter().find(|(of, _)| *of == role);
        found.map(|(_, process)| process.usage())
    }
}
