//! A mesh without privileges: the same sidecars, the same mutual TLS, nothing left. As root these
//! tests run it as another user, who owns nothing but the mesh's directory.

use crate::demo::EDGES;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests_local::{Demo, RATING, eventually, read_demo, runs_as_root, skip_part};

/// A third person.
const STRANGER: u32 = 4321;

fn paths() -> [String; 3] {
    [
        format!("/ratings/{RATING}"),
        format!("/bookinfo-ratings/ratings/{RATING}"),
        "/productpage".into(),
    ]
}

/// The user of a process, as the kernel says.
fn user_of(pid: u64) -> u32 {
    fs::metadata(format!("/proc/{pid}")).unwrap().uid()
}

fn pids(status: &Value) -> Vec<u64> {
    let services = status["services"].as_array().unwrap();
    let apps = services
        .iter()
        .flat_map(|s| s["workloads"].as_array().unwrap());
    let proxies = status["proxies"].as_array().unwrap();
    let pids = apps.chain(proxies).map(|p| p["pid"].as_u64().unwrap());
    let own = [
        &status["controller"]["pid"],
        &status["mesh"]["supervisor_pid"],
    ];
    pids.chain(own.map(|p| p.as_u64().unwrap())).collect()
}

#[test]
fn every_path_answers_over_mutual_tls_without_privileges() {
    let demo = Demo::start_without_privileges(|text| text);
    for path in paths() {
        assert_eq!(demo.get(&path).status(), 200, "{path}");
    }
    let status = demo.status();
    assert_eq!(status["mesh"]["mode"], "loopback");
    assert_eq!(status["mesh"]["ready"], true);
    for (from, to) in EDGES {
        demo.await_edge(from, to);
    }
    for edge in demo.status()["edges"].as_array().unwrap() {
        assert_eq!(edge["security"], "mutual_tls", "{edge}");
        assert_eq!(edge["success_rate"], 1.0, "{edge}");
        for side in ["source", "destination"] {
            let id = edge[side].as_str().unwrap();
            assert!(id.starts_with("spiffe://tulle.local/svc/"), "{edge}");
        }
    }
    let pids = pids(&status);
    assert_eq!(pids.len(), 5 + 6 + 2, "{status}");
    for pid in pids {
        assert_eq!(user_of(pid), demo.user());
    }

    // The sidecars trust nobody who has no certificate of this mesh.
    let endpoints = status["services"].as_array().unwrap().iter();
    for endpoint in endpoints.flat_map(|s| s["endpoints"].as_array().unwrap()) {
        let mut client = tests_local::Client::connect(endpoint.as_str().unwrap().parse().unwrap());
        client.send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.read_to_end().unwrap_or_default();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    assert_eq!(demo.tulle(&["check"]).code, 0);

    let down = demo.tulle(&["down"]);
    assert_eq!(
        (down.code, down.out.as_str()),
        (0, "the mesh is down; nothing is left of it\n")
    );
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn a_policy_takes_effect_and_why_and_logs_tell_of_it() {
    let demo = Demo::start_without_privileges(|text| text);
    let denied = format!("/bookinfo-ratings/ratings/{RATING}");
    assert_eq!(demo.get(&denied).status(), 200);
    assert_eq!(demo.tulle(&["why", "gateway", "ratings"]).code, 0);
    let file = demo.write("deny.yaml", &read_demo("deny-ratings.yaml"));
    demo.apply(&file);
    eventually("gateway is denied", || demo.get(&denied).status() == 403);
    assert_eq!(demo.get(&format!("/ratings/{RATING}")).status(), 200);
    let why = demo.tulle(&["why", "gateway", "ratings", "/ratings/1", "-o", "json"]);
    assert_eq!(why.code, 1, "{why:?}");
    let why: Value = serde_json::from_str(&why.out).unwrap();
    assert_eq!(why["allowed"], false);
    assert_eq!(why["considered"][0]["policy"], "TrafficTarget/ratings");
    assert_eq!(why["last_error"]["error"]["code"], 403, "{why}");

    let logs = demo.tulle(&["logs", "ratings", "--sidecar"]);
    assert_eq!(logs.code, 0, "{logs:?}");
    assert!(logs.out.contains("ratings"), "{logs:?}");
    assert_eq!(
        demo.tulle(&["logs", "controller", "--tail", "1"])
            .out
            .lines()
            .count(),
        1
    );
}

/// Everything below a directory.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(tree(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

#[test]
fn nobody_else_can_read_keys_tokens_snapshots_or_sockets() {
    let demo = Demo::start_without_privileges(|text| text);
    assert_eq!(demo.get("/productpage").status(), 200);
    let state = demo.path().join("state");
    let entries = tree(&state);
    let (mut tokens, mut sockets, mut snapshots) = (Vec::new(), 0, 0);
    for path in &entries {
        let found = fs::symlink_metadata(path).unwrap();
        let mode = found.permissions().mode() & 0o777;
        // A directory may let others pass, not look.
        let allowed = match found.is_dir() {
            // Prometheus watches the directory of its targets.
            true if path.ends_with("run/metrics") => 0o755,
            true => 0o711,
            // Made by an application, in a directory that is closed.
            false if path.starts_with(state.join("data")) => 0o777,
            // Prometheus reads it as a user of its own; it names addresses alone.
            false if path.ends_with("metrics/targets.json") => 0o744,
            false => 0o700,
        };
        assert_eq!(mode & !allowed, 0, "{mode:o} {}", path.display());
        assert_eq!(found.uid(), demo.user(), "{}", path.display());
        let name = path.file_name().unwrap();
        sockets += usize::from(found.file_type().is_socket());
        snapshots += usize::from(name == "snapshot");
        if name == "token" {
            tokens.push(fs::read_to_string(path).unwrap());
        }
    }
    assert_eq!(
        fs::metadata(&state).unwrap().permissions().mode() & 0o777,
        0o700
    );
    // Six proxies. The controller has a socket, too, and each of the five sidecars one for the process that takes over.
    assert_eq!((tokens.len(), sockets, snapshots), (6, 12, 6));

    // Not in an argument, an environment or a log, spent or not.
    let made = demo.tulle(&["token", "create", "node/edge", "-o", "json"]);
    let made: Value = serde_json::from_str(&made.out).unwrap();
    tokens.push(made["token"].as_str().unwrap().to_owned());
    let holds_secret = |bytes: &[u8]| {
        let holds = |secret: &[u8]| bytes.windows(secret.len()).any(|w| w == secret);
        tokens.iter().any(|t| holds(t.trim().as_bytes())) || holds(b"PRIVATE KEY")
    };
    assert!(holds_secret(tokens[0].as_bytes()), "the search works");
    for pid in pids(&demo.status()) {
        for file in ["cmdline", "environ"] {
            // A sidecar's environment is closed to all but root.
            let bytes = fs::read(format!("/proc/{pid}/{file}"));
            let bytes = match bytes {
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => continue,
                bytes => bytes.unwrap(),
            };
            assert!(!holds_secret(&bytes), "{file} of {pid}");
        }
    }
    for log in entries
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "log"))
    {
        assert!(!holds_secret(&fs::read(log).unwrap()), "{}", log.display());
    }

    if !runs_as_root() {
        return skip_part("only root asks as somebody else");
    }
    // Asked in earnest, by somebody else.
    let as_stranger = |program: &str, file: &Path| {
        let mut command = Command::new(program);
        command.arg(file).uid(STRANGER).gid(STRANGER);
        command.output().unwrap().status.success()
    };
    for path in &entries {
        let found = fs::symlink_metadata(path).unwrap();
        if found.is_file() {
            assert!(!as_stranger("cat", path), "{}", path.display());
        } else if found.is_dir() {
            assert!(!as_stranger("ls", path), "{}", path.display());
        }
    }
    let mut tulle = demo.command();
    let answer = tulle
        .uid(STRANGER)
        .gid(STRANGER)
        .args(["status"])
        .output()
        .unwrap();
    assert_eq!(answer.status.code(), Some(1));
    let said = String::from_utf8(answer.stderr).unwrap();
    assert!(said.contains("what to do"), "{said}");
}

#[test]
fn each_replica_serves_with_its_own_application() {
    let demo = Demo::start_without_privileges(|text| text);
    let (port, program) = (tests_local::free_port(), demo.path().join("bookinfo"));
    let replica = format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: ratings-2}}\nspec:\n  \
         service: ratings\n  \
         command: [{}, echo, --name, second, --port, '{port}']\n  \
         ports: [{{name: http, port: 8101, targetPort: {port}, appProtocol: http}}]\n",
        program.display()
    );
    demo.apply(&demo.write("replica.yaml", &replica));
    let path = format!("/ratings/{RATING}");
    let is_second = || {
        let answer = demo.get(&path);
        assert_eq!(answer.status(), 200);
        answer.text().contains("\"second\"")
    };
    eventually("the second application answers", is_second);
    eventually("the first does, too", || !is_second());
    // The console and the history know them apart, too.
    let listed = demo.tulle(&["proxy", "list", "-o", "json"]);
    assert!(listed.out.contains("ratings-2"), "{listed:?}");
    let deleted = demo.tulle(&["delete", "workload", "ratings-2"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    for _ in 0..200 {
        is_second();
    }
}

#[test]
fn a_killed_supervisor_leaves_no_process() {
    let demo = Demo::start_without_privileges(|text| text);
    let supervisor = demo.status()["mesh"]["supervisor_pid"].as_u64().unwrap();
    assert!(demo.left().len() >= 5 + 6 + 2);
    let killed = Command::new("kill")
        .args(["-KILL", &supervisor.to_string()])
        .status();
    assert!(killed.unwrap().success());
    demo.await_nothing_left();
    // The port is free, and the same directory serves again.
    demo.up();
    assert_eq!(demo.get("/productpage").status(), 200);
}
