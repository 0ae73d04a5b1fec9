//! A test that runs again in a process of its own, inside a cgroup that limits its memory.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tulle_redirect::{Cgroup, ProcessLimits};

/// Where the process writes what its clients need to know.
const DIRECTORY: &str = "TULLE_TEST_DIRECTORY";
const LONG: Duration = Duration::from_secs(60);

/// The process; it ends with this.
pub struct Limited {
    child: Child,
    group: Cgroup,
}

/// Starts the test of this name again, which finds the directory with [`directory`]. `None`: limits need root.
pub fn again(test: &str, bytes: u64, directory: &Path) -> Option<Limited> {
    if !rustix::process::getuid().is_root() {
        println!("skipped: it needs root, for limits of memory");
        return None;
    }
    let limits = ProcessLimits {
        cpu_millis: None,
        memory_bytes: Some(bytes),
    };
    let name = format!("{test}-{}", std::process::id());
    let group = Cgroup::create(&name, "controller", &limits).unwrap();
    let joins = group.directories().iter();
    let joins = joins.map(|d| format!("echo $$ > {}/cgroup.procs && ", d.display()));
    let program = env::current_exe().unwrap();
    let run = format!(
        "{}exec {} --exact {test} --nocapture --test-threads 1",
        joins.collect::<String>(),
        program.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &run]).env(DIRECTORY, directory);
    let child = command.spawn().unwrap();
    Some(Limited { child, group })
}

/// The directory, in the process that [`again`] has started.
pub fn directory() -> Option<String> {
    env::var(DIRECTORY).ok()
}

/// Says what clients need to know.
pub fn say(directory: &str, text: &str) {
    let file = Path::new(directory).join("said");
    fs::write(file.with_extension("new"), text).unwrap();
    fs::rename(file.with_extension("new"), file).unwrap();
}

impl Limited {
    /// Waits for the process's message.
    pub async fn said(&mut self, directory: &Path) -> String {
        let begin = Instant::now();
        loop {
            if let Ok(said) = fs::read_to_string(directory.join("said")) {
                return said;
            }
            self.runs();
            assert!(begin.elapsed() < LONG, "it says nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asserts that nobody has ended it.
    pub fn runs(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "it has ended: {ended:?}");
    }

    /// Bytes that count towards its limit now.
    pub fn memory(&self) -> u64 {
        self.group.memory_bytes().unwrap().unwrap_or_default()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.group.remove();
        for directory in self.group.directories() {
            let _ = directory.parent().map(fs::remove_dir);
        }
    }
}
