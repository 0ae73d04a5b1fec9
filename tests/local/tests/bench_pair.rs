//! `tulle bench pair` with the real proxies: its gate, and that nothing is left, however it ends.
#![allow(clippy::unwrap_used)]

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tests_local::{Study, eventually, interruptible, program};

/// A short study of this machine with its results in `out`.
fn bench(out: &Path, arguments: &[&str]) -> Command {
    // They lie side by side; each is built if need be.
    for name in ["tulle-proxy", "tulle-bench"] {
        program(name);
    }
    let mut command = interruptible(program("tulle"));
    command.args(["bench", "pair"]).args(arguments);
    let short = [
        ("--vs", "none"),
        ("--repeats", "1"),
        ("--warmup", "0"),
        ("--seconds", "1"),
        ("--idle-connections", "50"),
    ];
    for (option, value) in short {
        if !arguments.contains(&option) {
            command.args([option, value]);
        }
    }
    command.arg("--out").arg(out).stdin(Stdio::null());
    command
}

fn run(out: &Path, arguments: &[&str]) -> Output {
    let child = bench(out, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    nothing_is_left_of(id);
    output
}

fn results(out: &Path) -> Value {
    let text = fs::read(out.join("results.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Temporary directories of a bench of this process id.
fn directories(id: u32) -> Vec<String> {
    let entries = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    names
        .filter(|name| name.starts_with(&format!("tulle-bench-pair-{id}-")))
        .collect()
}

/// Processes whose working files are in them, load and server of the bench, and its janitor.
fn processes(id: u32) -> Vec<String> {
    let place = format!("tulle-bench-pair-{id}-");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = entries.filter_map(|entry| {
        let path = entry.path();
        let command = fs::read_to_string(path.join("cmdline")).ok()?;
        let log = fs::read_link(path.join("fd/2")).unwrap_or_default();
        let is_own = command.contains(&place) || log.to_string_lossy().contains(&place);
        is_own.then(|| command.replace('\0', " "))
    });
    own.collect()
}

fn nothing_is_left_of(id: u32) {
    assert_eq!(processes(id), Vec::<String>::new());
    assert_eq!(directories(id), Vec::<String>::new());
}

fn figure(results: &Value, peer: &str, name: &str) -> Option<f64> {
    results["peers"][peer][name]["median"].as_f64()
}

#[test]
fn every_scenario_is_measured_proven_and_within_its_budget() {
    let out = tempfile::tempdir().unwrap();
    let budgets = out.path().join("budgets.toml");
    let generous = "[peers.tulle]\nrps = {min = 1}\nerrors = {max = 0}\n\
                    [ratios.envoy]\ncpu_us_per_request = {max = 0.1}\n";
    fs::write(&budgets, generous).unwrap();
    let done = run(out.path(), &["--budgets", budgets.to_str().unwrap()]);
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}{}", text(&done.stderr));
    assert!(
        said.contains("2 figures are within the budgets of "),
        "{said}"
    );
    assert!(
        said.contains("not checked: envoy was not measured"),
        "{said}"
    );

    let results = results(out.path());
    for name in [
        "rps",
        "cpu_us_per_request",
        "p50_ms",
        "p90_ms",
        "p99_ms",
        "p999_ms",
        "errors",
        "rss_idle_mib",
        "rss_peak_mib",
        "start_ms",
        "idle_connection_kib",
    ] {
        assert!(figure(&results, "tulle", name).is_some(), "{name}");
    }
    let ratio = &results["ratios"]["none"]["rps"]["median"];
    assert!(ratio.as_f64().is_some_and(|r| r > 0.0), "{ratio}");
    let mut measured = Vec::new();
    for sample in results["samples"].as_array().unwrap() {
        assert_eq!(sample["invalid"], Value::Null, "{sample:#}");
        let name = |key: &str| sample[key].as_str().unwrap().to_owned();
        if name("peer") == "tulle" {
            measured.push(name("scenario"));
            let evidence = sample["evidence"].to_string();
            if let Some(kind) = [("handshakes", "full"), ("handshakes-resumed", "resumed")]
                .iter()
                .find_map(|(scenario, kind)| (name("scenario") == *scenario).then_some(kind))
            {
                let over = format!("requests, each over a {kind} mutual TLS handshake");
                assert!(evidence.contains(&over), "{sample:#}");
                let agreed = "by X25519MLKEM768 and TLS13_AES_128_GCM_SHA256";
                assert!(evidence.contains(agreed), "{sample:#}");
                assert!(!sample["remarks"].to_string().contains("full ones"));
            } else if name("scenario") == "storm" {
                let back = "1000 clients, each back over a full mutual TLS handshake";
                assert!(evidence.contains(back), "{sample:#}");
                assert!(sample["figures"]["last_back_ms"].is_f64(), "{sample:#}");
            } else if name("scenario") == "bulk-plain" {
                assert!(evidence.contains("one sidecar"), "{sample:#}");
            } else {
                assert!(evidence.contains("mutual_tls, spiffe://tulle.local/svc/client -> spiffe://tulle.local/svc/echo"), "{sample:#}");
            }
            if name("scenario") == "saturated-200B" {
                for part in [
                    "refused plaintext: ",
                    "refused spiffe://tulle.local/svc/stranger: ",
                    "a forged identity is removed",
                ] {
                    assert!(evidence.contains(part), "{evidence}");
                }
                let series = sample["series"].as_array().unwrap();
                assert_eq!(series.len(), 2, "{sample:#}");
                assert!(sample["histogram"].is_string());
            }
        }
    }
    measured.sort_unstable();
    assert_eq!(
        measured,
        [
            "bulk-plain",
            "bulk-tcp",
            "handshakes",
            "handshakes-resumed",
            "idle",
            "new-connections",
            "rate-1000",
            "rate-5000",
            "saturated-100KB",
            "saturated-1KB",
            "saturated-200B",
            "storm",
        ]
    );
}

#[test]
fn an_exceeded_budget_is_said_and_ends_with_79() {
    let out = tempfile::tempdir().unwrap();
    let budgets = out.path().join("budgets.toml");
    fs::write(&budgets, "[peers.tulle]\nrps = {min = 1e9}\n").unwrap();
    let short = [
        "--scenarios",
        "saturated-200B",
        "--budgets",
        budgets.to_str().unwrap(),
    ];
    let done = run(out.path(), &short);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(79), "{said}{}", text(&done.stderr));
    assert!(
        said.contains("saturated-200B: rps of tulle  at least 1000000000"),
        "{said}"
    );
    assert!(out.path().join("results.json").exists());

    // The baseline has one run: too few to compare, which is reported.
    let file = out.path().join("results.json");
    fs::write(&budgets, "").unwrap();
    let again = tempfile::tempdir().unwrap();
    let arguments = [&short[..], &["--baseline", file.to_str().unwrap()]].concat();
    let done = run(again.path(), &arguments);
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}{}", text(&done.stderr));
    assert!(said.contains("no figure has 3 valid runs"), "{said}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_measured() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("budgets.toml");
    fs::write(&file, "[peers.tulle]\nrpm = {min = 1}\n").unwrap();
    let file = file.to_str().unwrap();
    let results = out.path().join("out");
    for (arguments, code, part) in [
        (
            ["--budgets", file],
            65,
            "budgets.toml: peers.tulle.rpm: there is no such figure",
        ),
        (["--budgets", "/nowhere.toml"], 65, "/nowhere.toml: "),
        (["--baseline", file], 65, "the baseline "),
        (["--vs", "istio"], 64, "--vs istio: there is no such peer"),
        (["--sidecar-cpu", "999"], 64, "--sidecar-cpu 999: "),
        (["--scenarios", "fast"], 64, "fast"),
    ] {
        let done = run(&results, &arguments);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    assert!(!results.exists());
}

/// A proxy that does its work, and forgets to encrypt.
const PLAINTEXT: &str = r#"#!/bin/sh
if [ "$1" = --config ]; then
    sed -i -e 's/^    - address: .*/&\n      mutualTls: false/' -e 's/strictMtls: true/strictMtls: false/' \
        -e 's/^  policy:/&\n    permissive: true/' "$2"
fi
exec "$PROXY" "$@"
"#;

/// A proxy that does not get far.
const BROKEN: &str =
    "#!/bin/sh\n[ \"$1\" = --version ] && exec \"$PROXY\" \"$1\"\necho it is broken >&2\nexit 3\n";

#[test]
fn a_sidecar_that_cannot_prove_what_it_did_does_not_count() {
    let cases = [
        (PLAINTEXT, "knows 0 (istio_requests_total) as mutual TLS"),
        (BROKEN, "it is broken"),
    ];
    for (script, why) in cases {
        let place = tempfile::tempdir().unwrap();
        // The bench takes the proxy that lies beside it.
        let bench = place.path().join("tulle-bench");
        fs::copy(program("tulle-bench"), &bench).unwrap();
        let proxy = place.path().join("tulle-proxy");
        fs::write(&proxy, script).unwrap();
        fs::set_permissions(&proxy, fs::Permissions::from_mode(0o755)).unwrap();
        let budgets = place.path().join("budgets.toml");
        fs::write(&budgets, "").unwrap();
        let out = place.path().join("out");
        let mut command = Command::new(bench);
        let done = command
            .args(["pair", "--vs", "none", "--repeats", "1", "--warmup", "0"])
            .args([
                "--seconds",
                "1",
                "--scenarios",
                "saturated-200B",
                "--budgets",
            ])
            .arg(&budgets)
            .arg("--out")
            .arg(&out)
            .env("PROXY", program("tulle-proxy"))
            .output()
            .unwrap();
        let said = text(&done.stdout);
        assert_eq!(done.status.code(), Some(79), "{said}{}", text(&done.stderr));
        assert!(
            said.contains("saturated-200B: invalid samples of tulle"),
            "{said}"
        );
        let results = results(&out);
        assert_eq!(figure(&results, "tulle", "rps"), None);
        assert!(
            figure(&results, "none", "rps").is_some(),
            "the others are measured"
        );
        let samples = results["samples"].as_array().unwrap();
        let sample = samples.iter().find(|s| s["peer"] == "tulle").unwrap();
        let invalid = sample["invalid"].as_str().unwrap();
        assert!(invalid.contains(why), "{invalid}");
    }
}

/// Starts it and waits until the second peer is under load.
fn begin(out: &Path) -> Study {
    let arguments = ["--scenarios", "saturated-200B", "--repeats", "100"];
    let command = bench(out, &arguments);
    let long = Study::start(command);
    eventually("a sample is there and load runs", || {
        let samples = out.join("samples.jsonl").exists();
        let processes = processes(long.id());
        let runs = |word: &str| processes.iter().any(|p| p.contains(word));
        samples && runs("tulle-proxy") && runs("internal load") && runs("internal server")
    });
    long
}

#[test]
fn a_killed_study_leaves_nothing() {
    let out = tempfile::tempdir().unwrap();
    let (id, _) = begin(out.path()).end(Signal::KILL);
    // The janitor does it, a moment later.
    eventually("its processes and files are gone", || {
        processes(id).is_empty() && directories(id).is_empty()
    });
    // The samples were written one by one, so those already measured remain.
    let samples = fs::read_to_string(out.path().join("samples.jsonl")).unwrap();
    assert!(samples.lines().count() > 0);
}

#[test]
fn an_interrupted_study_keeps_what_is_done() {
    let out = tempfile::tempdir().unwrap();
    let (id, code) = begin(out.path()).end(Signal::INT);
    assert_eq!(code, Some(130));
    nothing_is_left_of(id);
    let results = results(out.path());
    assert!(!results["samples"].as_array().unwrap().is_empty());
    assert!(results["done"].as_u64() < results["planned"].as_u64());
    assert!(out.path().join("report.html").exists());
}

#[test]
fn shapes_have_names_and_workers_share_the_load() {
    let out = tempfile::tempdir().unwrap();
    let names = "mixed,slow-readers,upload-1MB-2c,rate-200-2c,saturated-10KB-16c-2w";
    let done = run(out.path(), &["--scenarios", names]);
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}{}", text(&done.stderr));
    let results = results(out.path());
    let samples = results["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 10);
    for sample in samples {
        assert_eq!(sample["invalid"], Value::Null, "{sample:#}");
        let beside = ["mixed", "slow-readers"].contains(&sample["scenario"].as_str().unwrap());
        let figures = &sample["figures"];
        assert!(figures["rps"].as_f64().unwrap() > 0.0, "{sample:#}");
        let received = figures["beside_mib_per_s"].as_f64();
        assert_eq!(received.is_some_and(|mib| mib > 0.0), beside, "{sample:#}");
    }
    let report = fs::read_to_string(out.path().join("summary.md")).unwrap();
    for part in [
        "MiB/s beside",
        "sidecars of 2 workers",
        "POST of 1048576-byte",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let client = results["configurations"].to_string();
    assert!(client.contains("workers: 1"), "{client}");

    let wrong = run(out.path(), &["--scenarios", "saturated-1GB"]);
    assert!(
        text(&wrong.stderr).contains("\"1GB\" is no size"),
        "{}",
        text(&wrong.stderr)
    );
}
