//! The sidecars of one peer, running.

use super::{Peer, Topology};
use crate::failure::{Failure, Result};
use crate::process::{Process, Usage};
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

/// How long sidecars may take to the first answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Space for the table of listening sockets: 400 listeners.
const LISTENERS_BYTES: u64 = 64 << 10;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The sidecar that takes the server's connections.
const SERVER_ROLE: &str = "server";

/// The sidecars of one peer; ended with this value.
pub struct Running {
    /// Sidecars by role: `client`, `server`.
    pub sidecars: Vec<(&'static str, Process)>,
    /// Time from the start of the first process to the first answer through them.
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
            let mut process = Process::start(&name, sidecar.command, cpus, &log)?;
            // A client's sidecar that comes first finds nobody; some then wait for a second, which
            // is not their start.
            while sidecar.role == SERVER_ROLE && !listens(topology.ports.server) {
                check(&mut process, begin, "it does not listen")?;
                std::thread::sleep(LOOK);
            }
            running.sidecars.push((sidecar.role, process));
        }
        loop {
            let Err(why) = answers() else {
                running.start = begin.elapsed();
                return Ok(running);
            };
            for (_, process) in &mut running.sidecars {
                check(process, begin, &why)?;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Kills the server's sidecar and starts it anew: nobody is told, as when it crashes.
    ///
    /// # Errors
    /// There is none, or it cannot be started.
    pub fn restart_server(
        &mut self,
        peer: &dyn Peer,
        topology: &Topology,
        cpus: &[usize],
    ) -> Result<()> {
        let new = peer.sidecars(topology)?.into_iter();
        let new = new.filter(|sidecar| sidecar.role == SERVER_ROLE).last();
        let old = self.sidecars.iter_mut();
        let old = old.map(|(role, process)| (*role, process));
        let old = old.filter(|(role, _)| *role == SERVER_ROLE).last();
        let (Some(new), Some((_, process))) = (new, old) else {
            let why = format!("{} has no sidecar of the server", peer.name());
            return Err(Failure::failed(why));
        };
        process.kill();
        *process = Process::start(&process.name, new.command, cpus, &process.log)?;
        Ok(())
    }

    /// Returns the usage so far of the sidecar of this role; none if there is no such sidecar.
    pub fn usage(&self, role: &str) -> Option<Usage> {
        let found = self.sidecars.iter().find(|(of, _)| *of == role);
        found.map(|(_, process)| process.usage())
    }
}

/// Checks that the process runs and has time left.
fn check(process: &mut Process, begin: Instant, why: &str) -> Result<()> {
    if let Some(end) = process.ended() {
        return Err(Failure::failed(end));
    }
    if begin.elapsed() > PATIENCE {
        return Err(Failure::failed(format!(
            "{} was not ready within {} s: {why}\n{}",
            process.name,
            PATIENCE.as_secs(),
            process.tail()
        )));
    }
    Ok(())
}

/// Whether somebody listens on a loopback port, seen from outside: a connection would be counted.
fn listens(port: u16) -> bool {
    // Listeners stand first. After many short connections the rest takes long to read.
    let mut table = String::new();
    let read = File::open("/proc/net/tcp")
        .and_then(|file| file.take(LISTENERS_BYTES).read_to_string(&mut table));
    if read.is_err() {
        return false;
    }
    let address = format!("0100007F:{port:04X}");
    let mut rows = table.lines().map(|line| line.split_whitespace().skip(1));
    // 0A is LISTEN.
    rows.any(|mut row| row.next() == Some(&address) && row.nth(1) == Some("0A"))
}
