//! What the command says and how it ends when no mesh is up.

mod common;

use common::{MESH, Mesh, WORKLOAD};

#[test]
fn a_wrong_command_line_ends_with_64() {
    let mesh = Mesh::new();
    for args in [
        &["fly"][..],
        &["up", "--wrong"],
        &["up", "--for", "soon"],
        &["get", "pods"],
        &["delete", "pods", "a"],
        &["delete", "tt"],
        &["apply"],
        &[
            "join",
            "--controller",
            "127.0.0.1:1",
            "--ca-fingerprint",
            "00",
        ],
        &["status", "--name", "Not A Name"],
        &["status", "-o", "xml"],
        &["up", "--advertise", "10.0.0.1"],
    ] {
        let answer = mesh.tulle(args);
        assert_eq!(answer.code, 64, "{args:?}: {answer:?}");
        assert!(!answer.err.is_empty(), "{args:?}");
    }
}

#[test]
fn help_and_completions_are_no_errors() {
    let mesh = Mesh::new();
    for args in [
        &["--help"][..],
        &["--version"],
        &["up", "--help"],
        &["completions", "bash"],
    ] {
        let answer = mesh.tulle(args);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(answer.out.contains("tulle"));
    }
}

#[test]
fn hidden_commands_stay_hidden() {
    let help = Mesh::new().tulle(&["--help"]).out;
    for hidden in ["janitor", "exec-in"] {
        assert!(!help.contains(hidden), "{hidden} in {help}");
    }
    assert!(help.contains("status"));
}

#[test]
fn a_wrong_manifest_ends_with_65_names_the_place_and_starts_nothing() {
    let mesh = Mesh::new();
    mesh.write("bad.yaml", &format!("{MESH}---\n{WORKLOAD}  colour: red\n"));
    let answer = mesh.tulle(&["up", "--loopback", "bad.yaml"]);
    assert_eq!(answer.code, 65, "{answer:?}");
    for part in ["bad.yaml", "colour", "Workload/b"] {
        assert!(answer.err.contains(part), "{part} in {}", answer.err);
    }
    assert!(!mesh.path().join("state").exists());
    let missing = mesh.tulle(&["up", "nowhere.yaml"]);
    assert_eq!(missing.code, 65, "{missing:?}");
}

#[test]
fn without_a_mesh_commands_say_how_to_start_one() {
    let mesh = Mesh::new();
    for args in [
        &["status"][..],
        &["get"],
        &["why", "a", "b"],
        &["token", "create", "node/a"],
    ] {
        let answer = mesh.tulle(args);
        assert_eq!(answer.code, 1, "{answer:?}");
        assert!(answer.err.contains("tulle up"), "{answer:?}");
    }
    let down = mesh.tulle(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    assert!(down.out.contains("no mesh is up"), "{down:?}");
}

#[test]
fn check_works_before_up_and_names_what_is_missing() {
    let mesh = Mesh::new();
    let findings = mesh.json(&["check", "-o", "json"]);
    let findings = findings.as_array().unwrap();
    assert!(
        findings.iter().all(|f| f["outcome"] != "error"),
        "{findings:?}"
    );
    let numbers: Vec<u64> = findings
        .iter()
        .map(|f| f["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());

    let mut without_proxy = mesh.command();
    without_proxy
        .args(["check"])
        .env("TULLE_PROXY", "/nowhere/tulle-proxy")
        .env("PATH", "/nowhere");
    let output = without_proxy.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Beside this very binary there may be a proxy, if the whole workspace was built.
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_tulle")).with_file_name("tulle-proxy");
    if !beside.exists() {
        assert_eq!(output.status.code(), Some(79));
        assert!(text.contains("× ") && text.contains("what to do"), "{text}");
    }
}

#[test]
fn exec_in_is_not_for_people() {
    let answer = Mesh::new().tulle(&["exec-in", "sh"]);
    assert_eq!(answer.code, 126);
    assert!(answer.err.contains("internal"), "{answer:?}");
}
