//! `tulle bench seeds` with the real mesh, the real bookinfo and the real load generator: what it
//! measures is proven, and nothing is left of it, however it ends.
#![allow(clippy::unwrap_used)]

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tests_local::{Alone, Study, alone, envoy_binary, eventually, interruptible, is_root, program};

/// One run at a time: each would slow the others down.
fn one_run() -> Alone {
    alone("bench-seeds")
}

/// A short study of this machine, its results in `out`.
fn bench(out: &Path, seconds: u32, vs: &str) -> Command {
    // They lie side by side; each is built if need be.
    for name in ["tulle-proxy", "tulle-envoy", "tulle-bench", "bookinfo"] {
        program(name);
    }
    let mut command = interruptible(program("tulle"));
    command
        .args(["bench", "seeds", "--repeats", "1", "--warmup", "0"])
        .args(["--connections", "8", "--cpu", "0.5", "--vs", vs])
        .args(["--seconds", &seconds.to_string(), "--out"])
        .arg(out);
    command
}

fn results(out: &Path) -> Value {
    let text = fs::read(out.join("results.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Its own directory.
fn place(id: u32) -> PathBuf {
    std::env::temp_dir().join(format!("tulle-bench-seeds-{id}-0"))
}

/// Returns the remnants of the mesh that a bench of this process id starts, and of its files.
fn traces(id: u32) -> Vec<PathBuf> {
    let places = [
        place(id),
        format!("/run/tulle-bench-{id}").into(),
        format!("/var/lib/tulle-proxy-bench-{id}").into(),
        format!("/sys/fs/cgroup/cpu/tulle-bench-{id}").into(),
    ];
    places.into_iter().filter(|path| path.exists()).collect()
}

fn namespaces(id: u32) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    let own = format!("tulle-bench-{id}");
    let is_own = |name: &String| *name == own || name.starts_with(&format!("{own}."));
    names.filter(is_own).collect()
}

/// The load generator has its files there.
fn processes(id: u32) -> Vec<String> {
    let place = format!("{}/", place(id).display());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.filter_map(|e| fs::read_to_string(e.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&place)).collect()
}

fn nothing_is_left_of(id: u32) {
    assert_eq!(processes(id), Vec::<String>::new());
    assert_eq!(traces(id), Vec::<PathBuf>::new());
    assert_eq!(namespaces(id), Vec::<String>::new());
}

#[test]
fn both_paths_are_measured_and_mutual_tls_is_proven() {
    if !is_root() {
        return;
    }
    let _alone = one_run();
    let out = tempfile::tempdir().unwrap();
    let mut command = bench(out.path(), 1, "none,envoy");
    command.arg("--envoy").arg(envoy_binary());
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    let id = child.id();
    assert!(child.wait_with_output().unwrap().status.success());
    nothing_is_left_of(id);

    let results = results(out.path());
    let samples = results["samples"].as_array().unwrap();
    let mut measured: Vec<(&str, &str)> = Vec::new();
    for sample in samples {
        let name = |key: &str| sample[key].as_str().unwrap();
        assert_eq!(sample["invalid"], Value::Null, "{sample:#}");
        let figure = |name: &str| sample["figures"][name].as_f64();
        assert!(figure("rps").unwrap() > 10.0, "{sample:#}");
        assert_eq!(figure("errors"), Some(0.0));
        assert!(figure("p50_ms") <= figure("p999_ms"), "{sample:#}");
        measured.push((name("peer"), name("scenario")));
        if name("peer") == "none" {
            assert_eq!(figure("cpu_us_per_request"), None);
            assert_eq!(sample["evidence"], Value::Null);
            continue;
        }
        assert!(figure("cpu_us_per_request").unwrap() > 1.0, "{sample:#}");
        assert!(figure("gateway_cpu_cores").unwrap() < 0.6, "{sample:#}");
        assert!(figure("rss_peak_mib").unwrap() > 1.0, "{sample:#}");
        let evidence = sample["evidence"].to_string();
        if name("peer") == "envoy" {
            assert!(evidence.contains("none refused"), "{evidence}");
            assert!(figure("agents_rss_peak_mib").unwrap() > 1.0, "{sample:#}");
        }
        let hop = "svc/ingress -> spiffe://tulle.local/svc/";
        assert!(evidence.contains(hop), "{evidence}");
        assert!(evidence.contains("quota of 0.5"), "{evidence}");
        let series = sample["series"].as_array().unwrap();
        assert!(series.iter().any(|s| s["sidecar"] == "ratings"));
    }
    measured.sort_unstable();
    assert_eq!(
        measured,
        [
            ("envoy", "gateway-ratings@0.5"),
            ("envoy", "ratings@0.5"),
            ("none", "gateway-ratings@0.5"),
            ("none", "ratings@0.5"),
            ("tulle", "gateway-ratings@0.5"),
            ("tulle", "ratings@0.5")
        ]
    );
}

/// Starts it and waits until its mesh is under load.
fn begin(out: &Path) -> Study {
    let command = bench(out, 60, "none");
    let long = Study::start(command);
    let id = long.id();
    eventually("the mesh is up and under load", || {
        place(id).join("oha.log").exists() && !namespaces(id).is_empty()
    });
    long
}

#[test]
fn an_interrupted_study_clears_up_and_keeps_what_is_done() {
    if !is_root() {
        return;
    }
    let _alone = one_run();
    let out = tempfile::tempdir().unwrap();
    let (id, code) = begin(out.path()).end(Signal::INT);
    assert_eq!(code, Some(130));
    nothing_is_left_of(id);
    assert_eq!(results(out.path())["samples"], serde_json::json!([]));
}

#[test]
fn a_killed_study_leaves_nothing_either() {
    if !is_root() {
        return;
    }
    let _alone = one_run();
    let out = tempfile::tempdir().unwrap();
    let (id, _) = begin(out.path()).end(Signal::KILL);
    eventually("everything is cleared away", || {
        processes(id).is_empty() && traces(id).is_empty() && namespaces(id).is_empty()
    });
}
