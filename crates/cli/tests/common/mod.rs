//! One mesh in a directory of its own, driven as an operator would: by the real `tulle`.
//!
//! Loopback mode, so that no privilege is needed. The proxy is built by another package; these
//! tests are about the command and its supervisor and name another program in its place (one that
//! ends at once). Traffic through real sidecars is tested in `tests/local`.

#![allow(dead_code)] // not every test file uses everything
#![allow(clippy::unwrap_used)] // a helper of tests may fail like a test

#[path = "../../../../tests/local/src/interrupt.rs"]
#[allow(unreachable_pub)]
mod interrupt;
#[path = "../../../../tests/local/src/waits.rs"]
#[allow(unreachable_pub)]
mod waits;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// Nothing here takes longer on a working machine; only a hang does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tests run at the same time, so each controller has a port of its own.
pub(crate) const UP: &[&str] = &["up", "--loopback", "--listen", "127.0.0.1:0"];

pub(crate) struct Mesh {
    directory: tempfile::TempDir,
    proxy: &'static str,
}

impl Mesh {
    pub(crate) fn new() -> Self {
        Self::with_proxy("/bin/true")
    }

    /// Another program in the proxy's place.
    pub(crate) fn with_proxy(proxy: &'static str) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            proxy,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    }

    pub(crate) fn command(&self) -> Command {
        self.furnished(Command::new(env!("CARGO_BIN_EXE_tulle")))
    }

    /// The same for a test that interrupts it: SIGINT arrives, also where the test ignores it.
    pub(crate) fn interruptible(&self) -> Command {
        self.furnished(interrupt::interruptible(env!("CARGO_BIN_EXE_tulle")))
    }

    fn furnished(&self, mut command: Command) -> Command {
        command
            .env("TULLE_STATE", self.path().join("state"))
            .env("TULLE_PROXY", self.proxy)
            .env_remove("TULLE_NAME")
            .current_dir(self.path());
        command
    }

    pub(crate) fn tulle(&self, args: &[&str]) -> Answer {
        Answer::from_output(self.command().args(args).output().unwrap())
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let answer = self.tulle(args);
        serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{e}: {answer:?}"))
    }

    /// Starts it detached with these manifests and waits until it is up.
    pub(crate) fn up(&self, files: &[&str]) {
        let answer = self.tulle(&[UP, &["--detach"], files].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
    }

    pub(crate) fn run_directory(&self) -> PathBuf {
        let status = self.json(&["status", "-o", "json"]);
        status["mesh"]["run_directory"].as_str().unwrap().into()
    }

    /// Process ids: supervisor first, then controller.
    pub(crate) fn pids(&self) -> (i32, Option<i32>) {
        let status = self.json(&["status", "-o", "json"]);
        let pid = |v: &Value| v.as_i64().map(|p| i32::try_from(p).unwrap());
        (
            pid(&status["mesh"]["supervisor_pid"]).unwrap(),
            pid(&status["controller"]["pid"]),
        )
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        // Also after a failed test, so that it leaves nothing.
        let _ = self.command().args(["down", "--purge"]).output();
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    pub(crate) fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Sleeps where nothing may happen for a while.
pub(crate) fn pause(why: &str, time: Duration) {
    waits::pause(why, time);
}

/// Waits for something that happens in its own time.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    waits::holds_within(PATIENCE, what, || {
        found = look();
        found.is_some()
    });
    found.unwrap_or_else(|| panic!("never: {what}"))
}

pub(crate) fn kill(pid: i32, signal: &str) {
    let status = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// A process that has ended but was not waited for counts as ended.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|s| !s.starts_with('Z'))
}

/// Processes that carry the mark of the mesh with this run directory.
pub(crate) fn marked(run: &Path) -> Vec<i32> {
    let mark = format!("TULLE_MESH={}", run.display());
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            is_alive(*pid) && environ.split(|b| *b == 0).any(|v| v == mark.as_bytes())
        })
        .collect()
}

pub(crate) const MESH: &str = "\
apiVersion: tulle.dev/v1alpha1
kind: Mesh
metadata:
  name: test
spec: {}
";

pub(crate) const TARGET: &str = "\
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata:
  name: a-to-b
spec:
  destination: {kind: ServiceAccount, name: b}
  sources:
    - {kind: ServiceAccount, name: a}
";

pub(crate) const WORKLOAD: &str = "\
apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata:
  name: b
spec:
  command: [sleep, '1000']
  ports:
    - port: 18080
";
