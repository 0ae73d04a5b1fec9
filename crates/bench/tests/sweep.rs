//! `tulle bench sweep` from the command line to its files, with the real Fortio. Fortio is a Go
//! program that not every machine has: without it (`scripts/fetch-fortio.sh`, or TULLE_FORTIO)
//! this says that it was skipped.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/local/src/interrupt.rs"]
#[allow(unreachable_pub)]
mod interrupt;
#[path = "../../../tests/local/src/waits.rs"]
#[allow(dead_code, unreachable_pub)]
mod waits;

use interrupt::interruptible;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use waits::holds_within;

fn sweep(options: &str) -> Option<(Value, String)> {
    if let Err(missing) = tulle_bench::tools::fortio() {
        println!("skipped: {missing}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let out = dir.path().join("out");
    let output = Command::new(env!("CARGO_BIN_EXE_tulle-bench"))
        .args(["sweep", "--repeats", "1", "--seconds", "1", "--warmup", "0"])
        .args(options.split(' '))
        .arg("--out")
        .arg(&out)
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(left(&temporary), Vec::<String>::new(), "it cleans up");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    let results = serde_json::from_str(&read("results.json")).unwrap();
    Some((results, read("sweep.csv")))
}

fn left(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn every_mode_is_measured_and_proven() {
    let Some((results, csv)) = sweep("--vs none --connections 2 --qps 200,max") else {
        return;
    };
    assert_eq!(results["study"], "sweep");
    let scenarios = results["scenarios"].as_array().unwrap();
    assert_eq!(scenarios.len(), 8);
    assert_eq!(scenarios[0]["name"], "both-qps200-c2");
    assert_eq!(scenarios[0]["labels"]["connections"], "2");
    let samples = results["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 8);
    for sample in samples {
        let name = sample["scenario"].as_str().unwrap();
        assert_eq!(sample["invalid"], Value::Null, "{sample}");
        let baseline = name.starts_with("baseline");
        assert_eq!(sample["peer"], if baseline { "none" } else { "tulle" });
        let figure = |key: &str| sample["figures"][key].as_f64();
        assert!(
            figure("p50_ms").unwrap() <= figure("p99_ms").unwrap(),
            "{sample}"
        );
        assert_eq!(figure("errors"), Some(0.0));
        if name.contains("qps200") {
            // Less on a busy machine; never more.
            let requests = figure("requests").unwrap();
            assert!((1.0..=200.0).contains(&requests), "{sample}");
        }
        for (role, with) in [
            ("client", ["both", "clientsidecar"]),
            ("server", ["both", "serversidecar"]),
        ] {
            let has = with.iter().any(|mode| name.starts_with(mode));
            for kind in ["cpu_milli", "rss_mib"] {
                let value = figure(&format!("{role}_{kind}"));
                assert_eq!(
                    value.is_some_and(|v| v > 0.0),
                    has,
                    "{role} {kind}: {sample}"
                );
            }
        }
        let evidence = sample["evidence"].to_string();
        assert_eq!(evidence.contains("mutual_tls"), name.starts_with("both"));
        if name.starts_with("both") {
            assert!(evidence.contains("refused spiffe://"), "{evidence}");
            assert!(
                evidence.contains("a forged identity is removed"),
                "{evidence}"
            );
        }
    }
    assert_eq!(csv.lines().count(), 9, "{csv}");
    assert!(csv.contains("qps_200_c_2_1024_tulle_both,2,"), "{csv}");
    assert!(csv.contains("_none_baseline,2,"), "{csv}");
}

#[test]
fn bytes_and_grpc_are_measured_too() {
    for protocol in ["tcp", "grpc"] {
        let options =
            format!("--vs none --protocol {protocol} --connections 2 --qps max --modes both");
        let Some((results, _)) = sweep(&options) else {
            return;
        };
        let [sample] = results["samples"].as_array().unwrap().as_slice() else {
            panic!("{results}");
        };
        assert_eq!(sample["invalid"], Value::Null, "{sample}");
        assert!(sample["figures"]["requests"].as_f64().unwrap() > 10.0);
        assert!(
            sample["evidence"].to_string().contains("mutual_tls"),
            "{sample}"
        );
    }
}

#[test]
fn ctrl_c_ends_it_with_a_report() {
    if let Err(missing) = tulle_bench::tools::fortio() {
        println!("skipped: {missing}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let out = dir.path().join("out");
    let mut bench = interruptible(env!("CARGO_BIN_EXE_tulle-bench"))
        .args(["sweep", "--vs", "none", "--modes", "both"])
        .args(["--connections", "1", "--qps", "100", "--seconds", "600"])
        .args(["--warmup", "0", "--out"])
        .arg(&out)
        .env("TMPDIR", &temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Until the load runs: then Fortio's log is there.
    let began = holds_within(Duration::from_mins(3), "the load runs", || {
        loads(&temporary)
    });
    let kill = format!("kill -INT {}", bench.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.unwrap().success());
    let status = bench.wait().unwrap();
    let mut said = String::new();
    bench
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(began, "it never began: {said}");
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("0 of 5 measurements"), "{said}");
    assert!(out.join("results.json").exists() && out.join("sweep.csv").exists());
    assert_eq!(left(&temporary), Vec::<String>::new(), "it cleans up");
}

fn loads(temporary: &Path) -> bool {
    let studies = std::fs::read_dir(temporary).unwrap().flatten();
    studies
        .into_iter()
        .any(|study| study.path().join("tulle-both/fortio.log").exists())
}

#[test]
fn what_there_is_not_is_a_usage_error() {
    for (options, word) in [
        ("--vs linkerd", "haproxy-tcp"),
        ("--modes sidecar", "clientsidecar"),
        ("--protocol udp", "grpc"),
        ("--qps 0", "max"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tulle-bench"))
            .arg("sweep")
            .args(options.split(' '))
            // Found in any case: it is not what is missing here.
            .env("TULLE_FORTIO", "/bin/true")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{options}: {said}");
        assert!(said.contains(word), "{options}: {said}");
    }
}
