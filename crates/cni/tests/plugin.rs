//! The program as a runtime runs it, in a namespace of its own. Needs root, and says so.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tulle-cni");

/// A pod's network; gone with the value.
struct Pod(String);

impl Pod {
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: it needs root, for network namespaces");
            return None;
        }
        let pod = Self(format!("tulle-cni-{name}-{}", std::process::id()));
        let made = Command::new("ip").args(["netns", "add", &pod.0]).status();
        assert!(made.unwrap().success());
        Some(pod)
    }

    /// A command of the plugin; whether it succeeded, and its answer.
    fn cni(&self, command: &str, annotations: Value) -> (bool, Value) {
        let input = json!({
            "cniVersion": "1.0.0", "name": "pods", "type": "tulle-cni",
            "prevResult": result(),
            "runtimeConfig": { "io.kubernetes.cri.pod-annotations": annotations },
        });
        run(
            command,
            &format!("/run/netns/{}", self.0),
            &input.to_string(),
        )
    }

    fn rules(&self) -> String {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, "nft", "list", "ruleset"]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.0])
            .output();
    }
}

fn result() -> Value {
    json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.2.3/24" }], "other": [1, null] })
}

fn run(command: &str, namespace: &str, input: &str) -> (bool, Value) {
    let mut child = Command::new(PROGRAM)
        .env("CNI_COMMAND", command)
        .env("CNI_NETNS", namespace)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let done = child.wait_with_output().unwrap();
    let answer = serde_json::from_slice(&done.stdout).unwrap_or_default();
    (done.status.success(), answer)
}

fn annotated(value: &str) -> Value {
    json!({ "tulle.dev/redirection": value, "other": "x" })
}

#[test]
fn a_pod_with_a_sidecar_gets_its_rules() {
    let Some(pod) = Pod::new("rules") else {
        return;
    };
    let wish = annotated(r#"{"excludeOutboundPorts":[3306],"excludeOutboundRanges":["fd00::/8"]}"#);
    let (ok, answer) = pod.cni("CHECK", wish.clone());
    assert!(!ok && answer["code"] == 102, "{answer}");
    let (ok, answer) = pod.cni("ADD", wish.clone());
    assert!(ok, "{answer}");
    assert_eq!(answer, result());
    let rules = pod.rules();
    for expected in [
        "redirect to :15001",
        "redirect to :15006",
        "3306",
        "fd00::/8",
    ] {
        assert!(rules.contains(expected), "{rules}");
    }
    // Again is the same.
    assert!(pod.cni("ADD", wish.clone()).0);
    assert_eq!(pod.rules(), rules);
    for command in ["CHECK", "DEL", "GC", "STATUS"] {
        assert_eq!(
            pod.cni(command, wish.clone()),
            (true, Value::Null),
            "{command}"
        );
    }
}

#[test]
fn a_pod_without_one_is_let_pass() {
    let Some(pod) = Pod::new("without") else {
        return;
    };
    for annotations in [json!({}), json!({ "other": "x" }), Value::Null] {
        assert_eq!(pod.cni("ADD", annotations.clone()), (true, result()));
        assert_eq!(pod.cni("CHECK", annotations), (true, Value::Null));
    }
    // Nor does one of a runtime that says nothing.
    let input = json!({ "cniVersion": "0.4.0", "name": "n", "prevResult": result() });
    let said = run("ADD", &format!("/run/netns/{}", pod.0), &input.to_string());
    assert_eq!(said, (true, result()));
    assert_eq!(pod.rules(), "");
}

#[test]
fn what_is_not_understood_fails_the_pod() {
    let Some(pod) = Pod::new("wrong") else {
        return;
    };
    for wrong in [
        "",
        "{",
        r#"{"excludeEverything":true}"#,
        r#"{"excludeInboundPorts":[70000]}"#,
        r#"{"excludeOutboundRanges":["10.0.0.0/8; flush ruleset"]}"#,
    ] {
        let (ok, answer) = pod.cni("ADD", annotated(wrong));
        assert!(!ok && answer["code"] == 101, "{wrong}: {answer}");
        assert_eq!(answer["cniVersion"], "1.0.0");
        assert!(
            answer["msg"]
                .as_str()
                .unwrap()
                .contains("tulle.dev/redirection"),
            "{answer}"
        );
    }
    assert_eq!(pod.rules(), "");

    let base = |changes: &[(&str, Value)]| {
        let mut input = json!({
            "cniVersion": "1.1.0", "name": "n", "prevResult": result(),
            "runtimeConfig": { "io.kubernetes.cri.pod-annotations": annotated("{}") },
        });
        for (field, value) in changes {
            input[*field] = value.clone();
        }
        input.to_string()
    };
    let namespace = format!("/run/netns/{}", pod.0);
    for (command, at, input, code) in [
        (
            "ADD",
            namespace.as_str(),
            base(&[("cniVersion", "9.0.0".into())]),
            1,
        ),
        ("ADD", &namespace, base(&[("prevResult", Value::Null)]), 7),
        ("ADD", &namespace, "no json".to_owned(), 6),
        ("BEND", &namespace, base(&[]), 4),
        ("ADD", "", base(&[]), 4),
        ("ADD", "/run/netns/tulle-cni-is-not-there", base(&[]), 100),
        // Rules there would redirect the whole node.
        ("ADD", "/proc/self/ns/net", base(&[]), 100),
    ] {
        let (ok, answer) = run(command, at, &input);
        assert!(
            !ok && answer["code"] == code,
            "{command} {at} {input}: {answer}"
        );
    }
    assert_eq!(pod.rules(), "");
}

#[test]
fn it_says_which_versions_it_knows() {
    let (ok, answer) = run("VERSION", "", r#"{"cniVersion":"1.0.0"}"#);
    assert!(ok);
    assert_eq!(answer["cniVersion"], "1.0.0");
    let versions = answer["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&"0.4.0".into()) && versions.contains(&"1.1.0".into()));
}
