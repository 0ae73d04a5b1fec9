//! Peers of studies between pods (`bench/mesh-peers`).

use crate::root;
use std::process::Command;

/// Runs a script of a peer, such as `osm/install.sh`, and returns its output; none if this machine cannot build the peer.
///
/// # Panics
/// It fails.
pub fn peer(script: &str, set: impl FnOnce(&mut Command)) -> Option<String> {
    let mut command = Command::new(root().join("bench/mesh-peers").join(script));
    set(&mut command);
    let done = command.output().unwrap_or_else(|e| panic!("{script}: {e}"));
    let said = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(69) {
        println!("skipped: {}", said.trim());
        return None;
    }
    assert!(done.status.success(), "{script}: {said}");
    Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}
