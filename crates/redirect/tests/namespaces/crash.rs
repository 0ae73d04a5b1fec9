//! Removal of everything that a crash leaves behind.

use crate::world::{World, start, wait_until_gone};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use tulle_redirect::{Cgroup, LaunchSpec, Network};

fn play(role: &[&str]) -> (std::process::ExitStatus, Vec<u32>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // Processes that it leaves running hold its standard error, so a pipe would never end.
    command.arg("role").args(role).stderr(Stdio::inherit());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (
        output.status,
        text.lines().map(|line| line.parse().unwrap()).collect(),
    )
}

pub(crate) fn crash(mesh: &str) {
    let before = World::look();
    let (status, pids) = play(&["make-and-die", mesh]);
    assert_eq!(status.signal(), Some(9));
    assert_eq!(pids.len(), 3);
    assert!(!World::look().beyond(&before).is_empty());

    let removed = Network::remove_all(mesh).unwrap();
    assert_eq!(
        (removed.namespaces.len(), removed.processes),
        (4, 3),
        "{removed:?}"
    );
    assert_eq!(Cgroup::remove_all(mesh).unwrap(), ["w0", "w1", "w2"]);
    for pid in pids {
        wait_until_gone(pid);
    }
    assert_eq!(World::look().beyond(&before), [""; 0]);
}

/// A namespace's file without the namespace: the crash was in the middle of making it.
pub(crate) fn half_made(mesh: &str) {
    let network = Network::new(mesh).unwrap();
    network.ensure().unwrap();
    let file = format!("/var/run/netns/tulle-{mesh}.a");
    std::fs::write(&file, "").unwrap();
    assert_eq!(network.list().unwrap(), ["a"]);
    network.add_workload("a", 0).unwrap();
    network.remove_workload("a").unwrap();
    std::fs::write(&file, "").unwrap();
    assert_eq!(Network::remove_all(mesh).unwrap().namespaces.len(), 2);
}

pub(crate) fn parent_death(mesh: &str) {
    let network = Network::new(mesh).unwrap();
    network.ensure().unwrap();
    let name = network.add_workload("a", 0).unwrap().name;
    let (status, pids) = play(&["spawn-and-die", &name]);
    assert!(status.success());
    wait_until_gone(pids[0]);

    // The parent has ended already.
    let spec = LaunchSpec {
        parent: Some(1),
        ..LaunchSpec::default()
    };
    let output = spec.command("true", []).unwrap().output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("has ended"),
        "{output:?}"
    );

    // There is no parent to die with.
    let spec = LaunchSpec {
        parent: None,
        namespace: Some(name),
        ..LaunchSpec::default()
    };
    let running = start(&spec, &["sleep"]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.0.id())).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}
