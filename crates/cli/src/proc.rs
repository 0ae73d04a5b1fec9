//! Processes as `/proc` shows them: are they alive, whose are they, what do they use.

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Environment variable that marks every process of a mesh, with its `run` directory as value.
/// It is inherited, so a process that an application started is found too.
pub(crate) const MARK: &str = "TULLE_MESH";

/// A process, told apart from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    /// Number.
    pub(crate) pid: i32,
    /// Start time in clock ticks after boot.
    pub(crate) started: u64,
}

impl ProcessId {
    /// The process that now has this number.
    pub(crate) fn from_pid(pid: i32) -> Option<Self> {
        let started = Stat::of_main_thread(pid)?.started;
        Some(Self { pid, started })
    }

    /// This process.
    pub(crate) fn current() -> Self {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self::from_pid(pid).unwrap_or(Self { pid, started: 0 })
    }

    /// Whether it still runs. One that ended and was not yet waited for does not.
    pub(crate) fn is_alive(self) -> bool {
        Stat::of_main_thread(self.pid).is_some_and(|s| s.started == self.started && s.state != 'Z')
    }

    /// Sends a signal if it is still that process.
    pub(crate) fn signal(self, signal: Signal) {
        if self.is_alive()
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            // It may have ended meanwhile: nothing to do then.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// A line of `/proc/PID/stat`, or of one of its threads.
struct Stat {
    state: char,
    cpu_ticks: u64,
    started: u64,
}

impl Stat {
    fn of_process(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The thread lives from the process's beginning to its end. Where a processor is imitated (qemu's user mode) a process
    /// reads something else of itself than others do, but not of its threads.
    fn of_main_thread(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name is in parentheses and may hold any character, so start after the last one.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            cpu_ticks: number(11)? + number(12)?,
            started: number(19)?,
        })
    }
}

/// Resources that a process uses.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Usage {
    /// Resident memory.
    pub(crate) rss_bytes: u64,
    /// User and system time.
    pub(crate) cpu_seconds: f64,
}

/// Returns the current usage of a process and its children: the proxy may be a child of its agent.
pub(crate) fn usage(id: ProcessId) -> Option<Usage> {
    let mut sum = usage_of_one(id)?;
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", id.pid));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|c| c.parse().ok());
    for child in children
        .filter_map(ProcessId::from_pid)
        .filter_map(usage_of_one)
    {
        sum.rss_bytes += child.rss_bytes;
        sum.cpu_seconds += child.cpu_seconds;
    }
    Some(sum)
}

#[allow(clippy::cast_precision_loss)] // ticks: far below 2^52
fn usage_of_one(id: ProcessId) -> Option<Usage> {
    ProcessId::from_pid(id.pid).filter(|now| *now == id)?;
    let stat = Stat::of_process(id.pid)?;
    let statm = fs::read_to_string(format!("/proc/{}/statm", id.pid)).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(Usage {
        rss_bytes: pages * rustix::param::page_size() as u64,
        cpu_seconds: stat.cpu_ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    })
}

/// Whether a process does something of its own at a signal: neither ends at once nor passes it over, as whoever a shell's `&` has
/// started does with SIGQUIT.
pub(crate) fn catches(pid: Pid, signal: Signal) -> bool {
    let file = format!("/proc/{}/status", pid.as_raw_pid());
    let status = fs::read_to_string(file).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}

/// Every living process that carries the mark of this mesh. A proxy keeps its environment from
/// everybody but root: an ordinary user knows it by the file it was told to read.
pub(crate) fn marked(run: &Path) -> Vec<ProcessId> {
    let mark = [MARK.as_bytes(), b"=", run.as_os_str().as_encoded_bytes()].concat();
    let below = [run.as_os_str().as_encoded_bytes(), b"/proxies/"].concat();
    let own = ProcessId::current().pid;
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| match fs::read(format!("/proc/{pid}/environ")) {
            Ok(env) => env.split(|b| *b == 0).any(|v| v == mark),
            Err(_) => fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|b| *b == 0).any(|w| w.starts_with(&below))),
        })
        .filter_map(ProcessId::from_pid)
        .filter(|id| id.is_alive())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn odd_names_do_not_confuse() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 100 50 0 0 20 0 1 0 777 0 0";
        let stat = Stat::parse(&format!("12 (a) b (c) {rest}")).unwrap();
        assert_eq!((stat.state, stat.cpu_ticks, stat.started), ('S', 150, 777));
        assert!(Stat::parse("12 (a").is_none());
    }

    #[test]
    fn this_process_is_alive_and_uses_memory() {
        let me = ProcessId::current();
        assert!(me.is_alive());
        assert!(usage(me).unwrap().rss_bytes > 0);
        let other = ProcessId {
            started: me.started + 1,
            ..me
        };
        assert!(!other.is_alive());
    }

    #[test]
    fn a_marked_process_is_found_and_its_children_too() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .env(MARK, dir.path())
            .spawn()
            .unwrap();
        // The shell starts its child in its own time.
        let mut found = Vec::new();
        while found.len() < 2 {
            found = marked(dir.path());
        }
        for id in &found {
            id.signal(Signal::KILL);
        }
        child.wait().unwrap();
        while !marked(dir.path()).is_empty() {}
        assert!(found.iter().any(|id| id.pid == child.id().cast_signed()));
    }
}
