//! The machine's state, to compare before and after; and processes inside namespaces.

use crate::waits::holds_within;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use tulle_redirect::{Cgroup, LaunchSpec, Network};

/// Longest wait for something that must happen; a limit against hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Namespaces, links, addresses, routes, packet filter rules and cgroups, one line each.
pub(crate) struct World(BTreeSet<String>);

impl World {
    pub(crate) fn look() -> Self {
        let mut lines = BTreeSet::new();
        for line in [
            "ip -oneline netns list",
            "ip -oneline link show",
            "ip -oneline route show table all",
            "ip -6 -oneline route show table all",
            "nft list ruleset",
            // A test cluster of Kubernetes may start and end beside this.
            "find /sys/fs/cgroup -type d -name tulle-* -not -name tulle-kube*",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            lines.extend(text.lines().map(|found| format!("{line}: {found}")));
        }
        Self(lines)
    }

    /// Returns our own resources that are here and were not before: others work on this machine,
    /// too.
    pub(crate) fn beyond(&self, before: &Self) -> Vec<String> {
        let ours = |line: &&String| line.contains("tulle");
        self.0.difference(&before.0).filter(ours).cloned().collect()
    }
}

pub(crate) fn remove(mesh: &str) {
    Network::remove_all(mesh).unwrap();
    Cgroup::remove_all(mesh).unwrap();
}

/// A process of this binary that announced itself. Killed when dropped.
pub(crate) struct Running(pub(crate) Child, BufReader<ChildStdout>);

impl Running {
    /// Its next line.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(spec: &LaunchSpec, role: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = spec.command(program, std::env::vars_os()).unwrap();
    command.arg("role").args(role).stdin(Stdio::null());
    command
}

/// Starts a role and waits until it is ready.
pub(crate) fn start(spec: &LaunchSpec, role: &[&str]) -> Running {
    let mut child = command(spec, role).stdout(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut running = Running(child, stdout);
    assert_eq!(running.line(), "ready", "{role:?}");
    running
}

/// Runs a role to its end and returns what it printed.
pub(crate) fn ask(spec: &LaunchSpec, role: &[&str]) -> String {
    let output = command(spec, role).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{role:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Running {
    /// Lets it run on; returns its process id.
    pub(crate) fn detach(self) -> u32 {
        let pid = self.0.id();
        std::mem::forget(self);
        pid
    }
}

/// Waits until a process is gone. The caller must have a reason to expect it.
pub(crate) fn wait_until_gone(pid: u32) {
    let alive = |text: String| !text.contains("State:\tZ") && !text.contains("State:\tX");
    let gone = holds_within(PATIENCE, "the process is gone", || {
        !std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(alive)
    });
    assert!(gone, "process {pid} does not end");
}
