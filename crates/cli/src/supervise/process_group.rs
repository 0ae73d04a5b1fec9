//! A process with a group of its own: whatever it starts ends with it.

use rustix::process::{Pid, Signal};
use std::process::ExitStatus;
use std::time::Duration;
use tokio::process::{Child, Command};

/// Starts a command as the leader of a group.
pub(super) fn spawn(mut command: Command, name: &str) -> Result<Child, String> {
    command
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("cannot start {name}: {e}"))
}

/// Runs a command to its end. Nothing of it is left then, nor when this is dropped before.
pub(super) async fn run_whole(command: &mut Command) -> std::io::Result<ExitStatus> {
    struct Group(Option<Pid>);
    impl Drop for Group {
        fn drop(&mut self) {
            kill_group(self.0, Signal::KILL);
        }
    }
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    // Dropped before the child, whose number is then still its own.
    let _group = Group(child_id(&child));
    child.wait().await
}

/// The group's id is the leader's, and stays taken while any member lives.
pub(super) fn child_id(child: &Child) -> Option<Pid> {
    Pid::from_raw(child.id()?.cast_signed())
}

/// Sends a signal to all that is left of a group.
pub(super) fn kill_group(leader: Option<Pid>, signal: Signal) {
    if let Some(leader) = leader {
        // An error means that nobody is left in the group.
        let _ = rustix::process::kill_process_group(leader, signal);
    }
}

/// SIGTERM to the group, a grace, then SIGKILL to what is left of it.
pub(super) async fn terminate(child: &mut Child, grace: Duration) {
    let leader = child_id(child);
    kill_group(leader, Signal::TERM);
    if tokio::time::timeout(grace, child.wait()).await.is_err() {
        kill_group(leader, Signal::KILL);
        let _ = child.wait().await;
    }
    kill_group(leader, Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::ProcessId;
    use tokio::time::sleep;

    #[tokio::test]
    async fn of_a_probe_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        for (name, end) in [("hangs", "wait"), ("ends", "true")] {
            let file = dir.path().join(name);
            let script = format!("sleep 60 & echo $! > {}; {end}", file.display());
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            let mut running = Box::pin(run_whole(&mut command));
            let mut grandchild = None;
            while grandchild.is_none() {
                // Until it ends or hangs.
                let soon = Duration::from_millis(50);
                let _ = tokio::time::timeout(soon, &mut running).await;
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                grandchild = text.trim().parse().ok();
                if name == "ends" && grandchild.is_some() {
                    break;
                }
            }
            drop(running);
            let alive = |pid| ProcessId::from_pid(pid).is_some_and(ProcessId::is_alive);
            while alive(grandchild.unwrap()) {
                sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
