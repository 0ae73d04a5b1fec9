//! Processes under measurement: started on given CPUs, watched through `/proc`, ended as a group.

use crate::failure::{Failure, OrFail, Result};
use crate::interrupt::Interrupt;
use crate::janitor::{self, JanitorWatch, Thing};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end after SIGTERM, then after SIGKILL.
const PATIENCE: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(5)];

/// A process in a group of its own; ends with this value.
pub struct Process {
    /// The name in messages.
    pub name: String,
    /// Its output.
    pub log: PathBuf,
    child: Child,
    _watch: JanitorWatch,
}

impl Process {
    /// Starts `command` on `cpus` (empty: wherever this process may run) with its output in `log`.
    ///
    /// # Errors
    /// The log or the program cannot be opened, or a CPU cannot be used.
    pub fn start(name: &str, mut command: Command, cpus: &[usize], log: &Path) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(open(log)?);
        Self::spawn(name, command, cpus, log)
    }

    /// Like [`Self::start`], with its standard input and output for the caller.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_piped(
        name: &str,
        mut command: Command,
        cpus: &[usize],
        log: &Path,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Self::spawn(name, command, cpus, log)?;
        let child = &mut process.child;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok((process, input, output)),
            _ => Err(Failure::failed(format!("{name} has no pipes"))),
        }
    }

    fn spawn(name: &str, mut command: Command, cpus: &[usize], log: &Path) -> Result<Self> {
        command.stderr(open(log)?).process_group(0);
        janitor::mark(&mut command);
        let child = on_cpus(cpus, || command.spawn())?
            .or_fail(|| format!("cannot start {name} ({:?})", command.get_program()))?;
        Ok(Self {
            name: name.to_owned(),
            log: log.to_owned(),
            _watch: janitor::watch(Thing::group(child.id())),
            child,
        })
    }

    /// Its process id, which is also its group's.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Why it has ended; none: it has not.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{} ended ({status}): {}", self.name, self.tail()))
    }

    /// Waits until it ends by itself, with success or not. Otherwise it is ended.
    ///
    /// # Errors
    /// It did not end in time, or Ctrl-C.
    pub fn wait(&mut self, patience: Duration, interrupt: &Interrupt) -> Result<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            let ended = self.child.try_wait();
            let ended = ended.or_fail(|| format!("cannot wait for {}", self.name))?;
            if let Some(status) = ended {
                return Ok(status);
            }
            if Instant::now() > until {
                self.stop();
                return Err(Failure::failed(format!(
                    "{} did not end within {} s: {}",
                    self.name,
                    patience.as_secs(),
                    self.tail()
                )));
            }
            interrupt
                .sleep(Duration::from_millis(20))
                .inspect_err(|_| self.stop())?;
        }
    }

    /// The end of its log, for a message.
    pub fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let begin = text.len().saturating_sub(2000);
        String::from_utf8_lossy(&text[begin..]).trim().to_owned()
    }

    /// Returns the usage so far of the process and its descendants.
    pub fn usage(&self) -> Usage {
        usage(self.id())
    }

    /// Ends its group: SIGTERM, then SIGKILL.
    pub fn stop(&mut self) {
        for (signal, patience) in [Signal::TERM, Signal::KILL].into_iter().zip(PATIENCE) {
            if self.end(signal, patience) {
                return;
            }
        }
    }

    /// Ends its group with SIGKILL, without a chance to say goodbye.
    pub fn kill(&mut self) {
        self.end(Signal::KILL, PATIENCE[1]);
    }

    /// Whether it has ended in this time.
    fn end(&mut self, signal: Signal, patience: Duration) -> bool {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let send = |signal| group.map(|group| kill_process_group(group, signal));
        let _ = send(signal);
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                // Children that outlived it (workers of a master) are in its group.
                let _ = send(Signal::KILL);
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

fn open(log: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(log);
    file.or_fail(|| format!("cannot write {}", log.display()))
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs `start` in a thread that may run on these CPUs only: what it starts inherits that.
///
/// # Errors
/// A CPU cannot be used.
pub fn on_cpus<T: Send>(cpus: &[usize], start: impl FnOnce() -> T + Send) -> Result<T> {
    let pin = || -> Result<T> {
        if !cpus.is_empty() {
            let mut set = CpuSet::new();
            for cpu in cpus {
                set.set(*cpu);
            }
            sched_setaffinity(None, &set)
                .or_fail(|| format!("cannot run on the CPUs {cpus:?} (see `taskset -p $$`)"))?;
        }
        Ok(start())
    };
    std::thread::scope(|scope| scope.spawn(pin).join())
        .unwrap_or_else(|_| Err(Failure::failed("a thread of the bench panicked")))
}

/// CPU time and memory of a process and its descendants.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Time on a CPU of every thread since each began, from the scheduler.
    pub cpu: Duration,
    /// Resident now.
    pub rss_mib: f64,
    /// Highest resident so far, the processes added up.
    pub rss_peak_mib: f64,
    /// Resident memory that is no page of a file: the process's own.
    pub anonymous_mib: f64,
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            rss_mib: self.rss_mib + other.rss_mib,
            rss_peak_mib: self.rss_peak_mib + other.rss_peak_mib,
            anonymous_mib: self.anonymous_mib + other.anonymous_mib,
        }
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), std::ops::Add::add)
    }
}

/// Returns the usage of a process and its descendants (nginx has a worker). A process that has ended used
/// nothing.
pub fn usage(id: u32) -> Usage {
    family(id).into_iter().map(usage_of_one).sum()
}

/// Returns the usage of one process without its children.
pub fn usage_of_one(id: u32) -> Usage {
    let mut usage = Usage::default();
    for task in numbers(&format!("/proc/{id}/task")) {
        let stat = fs::read_to_string(format!("/proc/{id}/task/{task}/schedstat"));
        let stat = stat.unwrap_or_default();
        let nanoseconds = stat.split(' ').next().and_then(|n| n.parse().ok());
        usage.cpu += Duration::from_nanos(nanoseconds.unwrap_or(0));
    }
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    for line in status.lines() {
        let (key, rest) = line.split_once(':').unwrap_or((line, ""));
        let kib = rest.split_whitespace().next().and_then(|n| n.parse().ok());
        let mib = kib.unwrap_or(0.0) / 1024.0;
        match key {
            "VmRSS" => usage.rss_mib = mib,
            "VmHWM" => usage.rss_peak_mib = mib,
            "RssAnon" => usage.anonymous_mib = mib,
            _ => {}
        }
    }
    usage
}

/// The process and its descendants.
pub fn family(id: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut todo = vec![id];
    while let Some(id) = todo.pop() {
        found.push(id);
        for task in numbers(&format!("/proc/{id}/task")) {
            let children = fs::read_to_string(format!("/proc/{id}/task/{task}/children"));
            let children = children.unwrap_or_default();
            todo.extend(
                children
                    .split_whitespace()
                    .filter_map(|c| c.parse::<u32>().ok()),
            );
        }
    }
    found
}

fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |e: fs::DirEntry| e.file_name().to_str().and_then(|n| n.parse().ok());
    entries.filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_measured_and_ended_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & while :; do :; done"]);
        let mut process = Process::start("busy", command, &[], &dir.path().join("log")).unwrap();
        let members = loop {
            let members = family(process.id());
            if members.len() == 2 && process.usage().cpu > Duration::from_millis(20) {
                break members;
            }
            assert_eq!(process.ended(), None);
        };
        assert!(process.usage().rss_mib > 0.1);
        process.stop();
        for id in members {
            // Gone, or a zombie that its new parent has not collected; on a busy machine a child that was killed
            // takes a moment to be either.
            let end = Instant::now() + Duration::from_secs(30);
            loop {
                let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
                if stat.is_empty() || stat.contains(") Z") {
                    break;
                }
                assert!(Instant::now() < end, "{stat}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn what_cannot_be_started_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let none = Command::new("/nowhere/to/be/found");
        let failure = Process::start("it", none, &[], &dir.path().join("log")).map(drop);
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("cannot start it"), "{text}");
    }
}
