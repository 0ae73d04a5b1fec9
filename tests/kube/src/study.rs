//! Runs `tulle bench` in the cluster.

use crate::{Cluster, root};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Returns `kubectl` as a user would have it.
fn kubectl() -> PathBuf {
    let file = root().join("build/kube-images/kubectl");
    let script = root().join("tests/kube/cluster/cluster.sh");
    let text = format!("#!/bin/sh\nexec {} kubectl \"$@\"\n", script.display());
    let made = fs::write(&file, text)
        .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o755)));
    made.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    file
}

/// Runs a study with a load of so many seconds, and returns its samples.
///
/// # Panics
/// It fails, or leaves a namespace behind.
pub fn study(cluster: &Cluster, seconds: u32, words: &[&str]) -> Vec<Value> {
    let out = root().join("build/kube-bench");
    let done = Command::new(root().join("target/debug/tulle"))
        .args(["bench", words[0], "--kubernetes", "--kubectl"])
        .arg(kubectl())
        .args(["--fortio-image", "localhost/fortio:test", "--out"])
        .arg(&out)
        .args(["--quick", "--repeats", "1", "--warmup", "1", "--seconds"])
        .arg(seconds.to_string())
        .args(&words[1..])
        .output();
    let done = done.unwrap_or_else(|e| panic!("tulle bench: {e}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{words:?}: {said}");
    let file = out.join("results.json");
    let results = fs::read(&file).map(|text| serde_json::from_slice::<Value>(&text));
    let Ok(Ok(mut results)) = results else {
        panic!("{}: no results: {said}", file.display());
    };
    let left = cluster.get_json(&["namespaces", "-l", "tulle.dev/bench"]);
    let left = left["items"].as_array().into_iter().flatten();
    let staying = left.filter(|n| n["metadata"].get("deletionTimestamp").is_none());
    assert_eq!(staying.count(), 0, "a namespace is left behind");
    match results["samples"].take() {
        Value::Array(samples) => samples,
        other => panic!("{}: no samples: {other}", file.display()),
    }
}
