//! The words of commands are true: causes, places and advice, and the stream they go to.

#![allow(clippy::unwrap_used)] // a helper of tests may fail like a test

mod common;

use common::{MESH, Mesh, UP, WORKLOAD, eventually};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// Starts a program as a supervisor does, as a user who has no way to one directory of the PATH.
fn exec_in(path: &str, program: &str) -> (Option<i32>, String) {
    let spec = r#"{"namespace":null,"hosts":null,"resolvConf":null,"directory":null,"cgroup":[],"user":[61190,61190],"bindLowPorts":false,"parent":null,"noNewPrivileges":true}"#;
    let output: Output = Command::new(env!("CARGO_BIN_EXE_tulle"))
        .args(["exec-in", spec, program])
        .env("TULLE_PROGRAM_PATH", path)
        .env("PATH", "/nowhere")
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

#[test]
fn a_program_that_does_not_exist_is_not_called_forbidden() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: it needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let closed = directory.path().to_str().unwrap();
    let (code, said) = exec_in(&format!("{closed}:/usr/bin"), "no-such-program");
    assert_eq!(code, Some(127), "{said}");
    assert!(
        said.contains("no-such-program") && said.contains("PATH"),
        "{said}"
    );
    assert!(!said.contains("may not reach"), "{said}");

    let missing = format!("{closed}/missing");
    let (code, said) = exec_in("/usr/bin", &missing);
    assert_eq!(code, Some(127), "{said}");
    assert!(
        said.contains(&format!("{missing} does not exist")),
        "{said}"
    );

    // A file that nobody may execute.
    let plain = directory.path().join("plain");
    fs::write(&plain, "x").unwrap();
    let (code, said) = exec_in("/usr/bin", plain.to_str().unwrap());
    assert_eq!(code, Some(126), "{said}");
    assert!(said.contains("is not executable"), "{said}");

    // And a script that only root can reach: this is the case of the words that were said of all.
    let script = directory.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, said) = exec_in("/usr/bin", script.to_str().unwrap());
    assert_eq!(code, Some(126), "{said}");
    assert!(said.contains("may not reach or execute it"), "{said}");

    let (code, said) = exec_in("/usr/bin", "true");
    assert_eq!(code, Some(0), "{said}");
}

/// One outage is one finding, and a log that is named can be read.
#[test]
fn a_dead_workload_is_one_finding_whose_advice_can_be_followed() {
    let mesh = Mesh::with_proxy("/bin/false");
    mesh.write("mesh.yaml", &format!("{MESH}---\n{WORKLOAD}"));
    let up = [UP, &["--detach", "--timeout", "1s", "mesh.yaml"]].concat();
    assert_eq!(mesh.tulle(&up).code, 1);
    let findings = eventually("its sidecar has ended", || {
        let found = mesh.json(&["check", "-o", "json"]);
        let found = found.as_array()?.clone();
        let of_proxy = found.iter().find(|f| f["check"] == "proxy of b")?;
        (of_proxy["outcome"] == "error").then_some(found)
    });
    let errors: Vec<&str> = findings
        .iter()
        .filter(|f| f["outcome"] == "error")
        .map(|f| f["check"].as_str().unwrap())
        .collect();
    assert_eq!(errors, ["proxy of b", "TL0033 service b"], "{findings:#?}");
    let mut followed = 0;
    for finding in &findings {
        let fix = finding["fix"].as_str().unwrap();
        for command in fix.split('`').filter(|c| c.starts_with("tulle logs ")) {
            let words: Vec<&str> = command.split(' ').skip(1).collect();
            let answer = mesh.tulle(&words);
            assert_eq!(answer.code, 0, "{command}: {answer:?}");
            followed += 1;
        }
    }
    assert!(followed >= 2, "{findings:#?}");
}

#[test]
fn what_does_not_fit_between_objects_is_told_with_file_and_line() {
    let mesh = Mesh::new();
    mesh.write("a.yaml", &format!("{MESH}---\n{WORKLOAD}"));
    mesh.write("b.yaml", &format!("\n{WORKLOAD}"));
    let refused = mesh.tulle(&["apply", "--dry-run", "a.yaml", "b.yaml"]);
    assert_eq!(refused.code, 65, "{refused:?}");
    // The first is in a.yaml, after the Mesh.
    for part in ["b.yaml:2: error TL0001: Workload/b", "a.yaml:7"] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    mesh.write("c.yaml", &MESH.replace("name: test", "name: other"));
    let refused = mesh.tulle(&["apply", "--dry-run", "a.yaml", "c.yaml"]);
    for part in ["c.yaml:1: error TL0002: Mesh/other", "a.yaml:1"] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
}

#[test]
fn a_token_that_nobody_could_use_is_not_made() {
    let mesh = Mesh::new();
    for time in ["0s", "0ms", "500ms"] {
        let answer = mesh.tulle(&["token", "create", "node/a", "--ttl", time]);
        assert_eq!(answer.code, 64, "{time}: {answer:?}");
        assert!(answer.err.contains("--ttl"), "{answer:?}");
    }
}

#[test]
fn a_join_that_fails_leaves_no_directory() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.up(&["mesh.yaml"]);
    let made = mesh.json(&["token", "create", "node/edge", "-o", "json"]);
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    let host = Mesh::new();
    host.write("b.yaml", WORKLOAD);
    let name = format!("w{}", std::process::id());
    let join = |token: &str| {
        let address = text("controller");
        let ca = text("ca_fingerprint");
        host.tulle(&[
            "join",
            "--name",
            &name,
            "--controller",
            &address,
            "--token",
            token,
            "--ca-fingerprint",
            &ca,
            "b.yaml",
        ])
    };
    let run = std::path::PathBuf::from(format!("/run/tulle-{name}"));
    let failed = join("00.00");
    assert_eq!(failed.code, 1, "{failed:?}");
    let left = (host.path().join("state").exists(), run.exists());
    assert_eq!(left, (false, false), "{failed:?}");

    // A directory that was there before stays.
    let kept = host.path().join("state/data/b");
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("file"), "").unwrap();
    assert_eq!(join("00.00").code, 1);
    assert!(kept.join("file").exists());
    assert!(!host.path().join("state/controller").exists());
    assert!(!run.exists());
}

/// Standard output is for results.
#[test]
fn progress_goes_to_standard_error() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    let timed = mesh.tulle(&[UP, &["--for", "2s", "mesh.yaml"]].concat());
    assert_eq!(timed.code, 0, "{timed:?}");
    assert_eq!(timed.out, "mesh/test created\n");
    for part in ["every service answers", "stopping", "nothing is left of it"] {
        assert!(timed.err.contains(part), "{part}: {timed:?}");
    }
    let detached = mesh.tulle(&[UP, &["--detach", "mesh.yaml"]].concat());
    assert!(detached.out.starts_with("mesh "), "{detached:?}");
    assert!(detached.err.contains("the mesh is up"), "{detached:?}");
}
