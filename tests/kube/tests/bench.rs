//! Both studies of `tulle bench` between pods: every sample is valid, with proof of mutual TLS, and has CPU
//! and memory of the sidecars.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use tests_kube::{Cluster, install, root};

/// Longer than a kubelet takes to look twice.
const SECONDS: &str = "30";

/// `kubectl` as a user would have it.
fn kubectl() -> PathBuf {
    let file = root().join("build/kube-images/kubectl");
    let script = root().join("tests/kube/cluster/cluster.sh");
    let text = format!("#!/bin/sh\nexec {} kubectl \"$@\"\n", script.display());
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    file
}

/// Runs a study; its samples.
fn study(cluster: &Cluster, words: &[&str]) -> Vec<Value> {
    let out = root().join("build/kube-bench");
    let done = Command::new(root().join("target/debug/tulle"))
        .args(["bench", words[0], "--kubernetes", "--kubectl"])
        .arg(kubectl())
        .args(["--fortio-image", "localhost/fortio:test", "--out"])
        .arg(&out)
        .args([
            "--quick",
            "--repeats",
            "1",
            "--warmup",
            "1",
            "--seconds",
            SECONDS,
        ])
        .args(&words[1..])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{words:?}: {said}");
    let results = fs::read_to_string(out.join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&results).unwrap();
    let left = cluster.get_json(&["namespaces", "-l", "tulle.dev/bench"]);
    let left = left["items"].as_array().unwrap().iter();
    let staying = left.filter(|n| n["metadata"].get("deletionTimestamp").is_none());
    assert_eq!(staying.count(), 0, "a namespace is left behind");
    results["samples"].as_array().unwrap().clone()
}

/// Counts; figures that every machine agrees on.
fn check(sample: &Value) {
    println!("{sample:#}");
    assert!(sample.get("invalid").is_none(), "{sample:#}");
    let figure = |name: &str| sample["figures"][name].as_f64();
    assert!(figure("requests").unwrap() > 100.0);
    assert_eq!(figure("errors"), Some(0.0));
    let measured = figure("cpu_us_per_request").is_some_and(|cpu| cpu > 0.0);
    assert_eq!(measured, sample["peer"] == "tulle", "{sample:#}");
    if measured {
        assert!(figure("rss_peak_mib").unwrap() > 1.0);
        let evidence = sample["evidence"].to_string();
        assert!(evidence.contains("mutual_tls"), "{evidence}");
        assert!(evidence.contains("refused to"), "{evidence}");
    }
}

#[test]
fn both_studies_run_between_pods() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    let samples = study(
        &cluster,
        &[
            "sweep",
            "--modes",
            "both,baseline",
            "--connections",
            "4",
            "--qps",
            "100",
        ],
    );
    assert_eq!(samples.len(), 2);
    samples.iter().for_each(check);
    let samples = study(&cluster, &["seeds", "--cpu", "0.5", "--connections", "4"]);
    assert_eq!(samples.len(), 4, "two paths, with sidecars and without");
    samples.iter().for_each(check);
}
