//! Leaves nothing behind: the end of every mesh, however it came.
//!
//! The janitor is a small process in a session of its own. Its standard input is a pipe whose
//! other end only the supervisor has; the kernel closes that end even when the supervisor is
//! killed with SIGKILL. Then everything that carries the mesh's name or mark is removed. `down`
//! uses the same code when janitor and supervisor are both gone (after a power cut, for instance).

use super::controller::COPIED;
use super::state::RunState;
use crate::failure::{Failure, Result};
use crate::paths::Paths;
use crate::proc;
use crate::remove_tree::remove_tree;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tulle_net::memory;
use tulle_redirect::{Cgroup, Network};

/// How long all of it may take.
pub(crate) const TIME: Duration = Duration::from_secs(60);
/// How long killed processes may take to disappear.
const KILL_TIME: Duration = Duration::from_secs(10);

/// Leftovers that were found and removed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Removed {
    /// Processes that were still alive.
    pub(crate) processes: usize,
    /// Network namespaces.
    pub(crate) namespaces: usize,
    /// Links on the host.
    pub(crate) links: usize,
    /// Control groups.
    pub(crate) cgroups: usize,
}

impl Removed {
    /// There was nothing.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Display for Removed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            (self.processes, "process", "processes"),
            (self.namespaces, "network namespace", "network namespaces"),
            (self.links, "network link", "network links"),
            (self.cgroups, "control group", "control groups"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(n, ..)| *n > 0)
            .map(|(n, one, many)| format!("{n} {}", if *n == 1 { one } else { many }))
            .collect();
        f.write_str(&parts.join(", "))
    }
}

/// `tulle janitor`: waits for the supervisor's end, then clears up.
pub(crate) fn main(paths: &Paths) -> Result<()> {
    // Already the leader of a group: then it is out of the terminal's reach as well.
    let _ = rustix::process::setsid();
    // It has read its command line, and will do nothing until the mesh ends.
    memory::release_unused();
    // Nothing is ever written; any end of the read is the end of the supervisor.
    let _ = std::io::stdin().read(&mut [0]);
    clear(paths).map(drop)
}

/// Removes everything of the mesh except its durable files and logs. Safe to repeat.
pub(crate) fn clear(paths: &Paths) -> Result<Removed> {
    let mut removed = Removed {
        processes: kill_all(paths),
        ..Removed::default()
    };
    let mut first: Option<Failure> = None;
    if rustix::process::geteuid().is_root() {
        match Network::remove_all(&paths.name) {
            Ok(found) => {
                removed.processes += found.processes;
                removed.namespaces = found.namespaces.len();
                removed.links = found.links.len();
            }
            Err(e) => {
                first = Some(Failure::new("cannot remove the network of the mesh").because(e))
            }
        }
        match Cgroup::remove_all(&paths.name) {
            Ok(found) => removed.cgroups = found.len(),
            Err(e) => {
                let failure = Failure::new("cannot remove the control groups of the mesh");
                first.get_or_insert(failure.because(e));
            }
        }
    }
    for file in files(paths) {
        remove(&file, &mut first);
    }
    for directory in directories(paths) {
        if let Err(e) = remove_tree(&directory) {
            let what = format!("cannot remove {}", directory.display());
            first.get_or_insert(Failure::new(what).because(e));
        }
    }
    // Last, so that a failure above is found again by the next `down`.
    if first.is_none() {
        remove(&paths.run_state(), &mut first);
    }
    first.map_or(Ok(removed), Err)
}

/// Files that are there only while a mesh is up, but for the state of the run.
pub(super) fn files(paths: &Paths) -> Vec<PathBuf> {
    let copies = COPIED
        .iter()
        .filter_map(|program| paths.program_copy(program));
    let own = [
        paths.socket(),
        paths.hosts(),
        paths.resolv_conf(),
        paths.metrics_targets(),
    ];
    own.into_iter().chain(copies).collect()
}

/// Directories that are there only while a mesh is up.
pub(super) fn directories(paths: &Paths) -> [PathBuf; 3] {
    [paths.proxies(), paths.data_mounts(), paths.accounts()]
}

fn remove(file: &Path, first: &mut Option<Failure>) {
    if let Err(e) = fs::remove_file(file)
        && !is_absent(file, &e)
    {
        let what = format!("cannot remove {}", file.display());
        first.get_or_insert(Failure::new(what).because(e));
    }
}

/// Whether a file could not be removed because there is none. On a read-only root the system says so whatever is there.
fn is_absent(file: &Path, error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotFound, ReadOnlyFilesystem};
    let found = || fs::symlink_metadata(file);
    match error.kind() {
        NotFound => true,
        ReadOnlyFilesystem => found().is_err_and(|e| e.kind() == NotFound),
        _ => false,
    }
}

/// Kills until nothing is left: a dying process may start another.
fn kill_all(paths: &Paths) -> usize {
    let recorded = RunState::recorded(paths);
    let mut killed = BTreeSet::new();
    let until = Instant::now() + KILL_TIME;
    loop {
        let mut alive = proc::marked(&paths.run);
        alive.extend(recorded.iter().copied().filter(|id| id.is_alive()));
        if alive.is_empty() || Instant::now() >= until {
            return killed.len();
        }
        for id in alive {
            killed.insert((id.pid, id.started));
            id.signal(Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::MARK;
    use std::process::Command;

    #[test]
    fn clears_processes_and_files_and_may_be_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: format!("j{:05}", std::process::id() % 100_000),
            state: dir.path().join("state"),
            run: dir.path().join("run"),
        };
        paths.create().unwrap();
        fs::write(paths.socket(), "").unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .env(MARK, &paths.run)
            .spawn()
            .unwrap();
        while proc::marked(&paths.run).is_empty() {}
        let waiter = std::thread::spawn(move || child.wait());
        assert_eq!(clear(&paths).unwrap().processes, 1);
        waiter.join().unwrap().unwrap();
        assert!(!paths.socket().exists());
        assert!(paths.logs().exists());
        assert!(clear(&paths).unwrap().is_nothing());
    }
}
