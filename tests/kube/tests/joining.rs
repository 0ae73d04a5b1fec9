//! The first day: a namespace joins the mesh, installed with its defaults, while a client that has no sidecar calls
//! it, and loses nothing by the mesh. Then what is still outside is told and refused, and the trust domain stays.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::Output;
use tests_kube::load::{Load, await_endpoints, rollout, scale};
use tests_kube::{
    CONTROLLER, Cluster, MESH, OnNode, eventually, install_as, install_gateway_api, root,
};

/// The node's address, which belongs to no service and no pod.
const NODE: &str = "10.200.0.2";
const SERVER: &str = "deployment/server";
/// Counters of lost requests.
const LOST: [&str; 5] = ["refused", "endedNew", "cut", "late", "nobody"];
/// A server without a sidecar that ends closes connections that clients keep, in two lanes, and a request may be on
/// its way just then: that is HTTP/1.1's, with or without a mesh. Each of the two servers ends once.
const MAY_END: u64 = 4;

fn tulle(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = cluster.command(&["exec"]);
    let command = command.arg(root().join("target/debug/tulle"));
    command.args(arguments).output().unwrap()
}

fn said(done: &Output) -> String {
    let text = [&done.stdout[..], b"\n", &done.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// The command ends with this code; what it said.
fn ends(cluster: &Cluster, arguments: &[&str], code: i32) -> String {
    let done = tulle(cluster, arguments);
    let said = said(&done);
    println!("tulle {arguments:?}: {said}");
    assert_eq!(done.status.code(), Some(code), "{arguments:?}: {said}");
    said
}

fn fetch(cluster: &Cluster, namespace: &str, target: &str, url: &str) -> String {
    let program = ["bookinfo", "fetch", url];
    cluster.exec(namespace, target, &program).1
}

fn call(cluster: &Cluster) -> String {
    fetch(
        cluster,
        "legacy",
        "deployment/client",
        "http://server.joining/path",
    )
}

fn leave(cluster: &Cluster) -> String {
    let outside = format!("http://{NODE}:8099/");
    fetch(cluster, "joining", SERVER, &outside)
}

fn holds(what: &str, mut ask: impl FnMut() -> String, expected: &[&str]) {
    let mut last = String::new();
    eventually(what, || {
        let now = ask();
        if now != last {
            println!("{what}: {now}");
        }
        last = now;
        expected.iter().all(|part| last.contains(part))
    });
}

#[test]
fn joining_loses_nothing_and_the_mesh_is_made_strict_afterwards() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    cluster.apply_file("joining.yaml", &[]);
    install_as(&cluster, &[]);
    let _outside = OnNode::serve(&cluster, NODE, 8099);
    let account = while_a_client_calls(&cluster);
    assert_eq!(account["status"], 0, "{account:#}");
    for lost in LOST {
        assert_eq!(account[lost], 0, "{lost}: {account:#}");
    }
    assert!(
        account["endedKept"].as_u64().unwrap() <= MAY_END,
        "{account:#}"
    );
    is_told(&cluster);
    is_made_strict(&cluster);
    the_trust_domain_stays(&cluster);
    a_strict_mesh_stays_strict(&cluster);
    another_trust_domain_takes_a_new_installation(&cluster);
}

/// A namespace joins meanwhile. What became of the client's requests.
fn while_a_client_calls(cluster: &Cluster) -> Value {
    cluster.await_deployment("joining", "server");
    await_endpoints(cluster, "joining", "server", 2);
    scale(cluster, "legacy", "deployment/client", 1);
    cluster.await_deployment("legacy", "client");
    let pods = cluster.get_json(&["-n", "legacy", "pods", "-l", "app=client"]);
    let ip = pods.pointer("/items/0/status/podIP").unwrap();
    let load = Load::at(cluster, format!("http://{}:8107/", ip.as_str().unwrap()));
    let answered = |account: &Value| {
        let count = |kind: &str| account[kind].as_u64().unwrap();
        count("answeredKept").min(count("answeredNew"))
    };
    eventually("requests are answered", || answered(&load.account()) > 50);

    ends(cluster, &["namespace", "add", "joining", "--restart"], 0);
    let status = [
        "-n",
        "joining",
        "rollout",
        "status",
        SERVER,
        "--timeout=600s",
    ];
    cluster.kubectl(&status);
    eventually("every server has a sidecar", || {
        let pods = cluster.get_json(&["-n", "joining", "pods"]);
        let pods = pods["items"].as_array().unwrap();
        pods.len() == 2
            && pods
                .iter()
                .all(|pod| pod.to_string().contains("tulle-proxy"))
    });
    let then = answered(&load.account());
    eventually("requests are answered by servers with sidecars", || {
        let account = load.account();
        assert_eq!(account["status"], 0, "a server refuses: {account:#}");
        answered(&account) > then + 50
    });
    let account = load.account();
    println!("{account:#}");
    account
}

fn is_told(cluster: &Cluster) {
    assert!(
        leave(cluster).contains("Directory listing"),
        "it reaches the node"
    );
    let caller = "legacy/deployment/client";
    for command in [&["check"][..], &["status"], &["edges", "-n", "joining"]] {
        let told = || said(&tulle(cluster, command));
        holds(
            "the caller and what leaves are told",
            told,
            &[caller, "8099"],
        );
    }
    cluster.await_finding(
        "‼ TK074 plaintext: legacy/deployment/client → joining/deployment/server port 8104",
    );
    cluster.await_finding("√ TK076 what leaves the mesh: joining/deployment/server → ");
}

fn is_made_strict(cluster: &Cluster) {
    let found = tulle(cluster, &["harden", "--dry-run", "-o", "json"]);
    assert_eq!(found.status.code(), Some(79), "{}", said(&found));
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let joining = found
        .as_array()
        .unwrap()
        .iter()
        .find(|n| n["namespace"] == "joining");
    let joining = joining.unwrap();
    assert_eq!(joining["outcome"], "left");
    assert_eq!(joining["plaintext"][0]["peer"], "legacy/deployment/client");
    assert_eq!(joining["plaintext"][0]["workload"], "deployment/server");
    assert_eq!(joining["egress"][0]["port"], 8099);

    // Where something would be refused, it is left as it is unless it is named.
    let why = [
        "why",
        "-n",
        "joining",
        "deploy/client.legacy",
        "server:80",
        "/path",
    ];
    let judged = ends(cluster, &why, 0);
    assert!(
        judged.contains("which a permissive mesh lets in"),
        "{judged}"
    );
    let left = ends(cluster, &["harden"], 79);
    assert!(left.contains("joining: it stays as it is"), "{left}");
    assert!(call(cluster).starts_with("200"), "still");
    let done = ends(cluster, &["harden", "joining"], 0);
    assert!(
        done.contains("plaintext: legacy/deployment/client calls"),
        "{done}"
    );
    assert!(
        done.contains("egress: joining/deployment/server reaches"),
        "{done}"
    );
    holds(
        "plaintext is refused",
        || call(cluster),
        &["403 plaintext_refused", "namespace joining is strict"],
    );
    holds(
        "egress is refused",
        || leave(cluster),
        &["no_service", "namespace joining is strict"],
    );
    let why = [
        "why",
        "-n",
        "joining",
        "deploy/client.legacy",
        "server:80",
        "/path",
    ];
    let judged = ends(cluster, &why, 1);
    assert!(judged.contains("(plaintext_refused)"), "{judged}");
    cluster.await_finding(
        "‼ TK075 refused plaintext: legacy/deployment/client → joining/deployment/server",
    );
    cluster.await_finding("‼ TK077 refused egress: joining/deployment/server → ");
    let strict = ends(cluster, &["harden", "joining"], 0);
    assert!(strict.contains("joining: it is strict already"), "{strict}");

    cluster.kubectl(&["label", "namespace", "joining", "tulle.dev/profile-"]);
    holds("it is open again", || call(cluster), &["200"]);
    holds(
        "egress is open again",
        || leave(cluster),
        &["Directory listing"],
    );
}

fn the_trust_domain_stays(cluster: &Cluster) {
    let other = ["install", "--trust-domain", "other.example"];
    let refused = ends(cluster, &other, 65);
    assert!(
        refused.contains("is cluster.local and cannot become other.example"),
        "{refused}"
    );
    assert!(refused.contains("tulle uninstall"), "{refused}");
    ends(
        cluster,
        &["upgrade", "--set", "trustDomain=other.example"],
        65,
    );

    let mesh = r#"{ "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": "mesh" },
        "spec": { "trustDomain": "other.example" } }"#;
    let done = cluster.try_apply(mesh);
    let why = said(&done);
    assert!(
        !done.status.success() && why.contains("since the installation"),
        "{why}"
    );
    // Apply settings like an installation that was printed elsewhere.
    let settings = cluster.get_json(&["-n", MESH, "configmap", "tulle-settings"]);
    let before = settings["data"]["settings.json"].as_str().unwrap();
    let domain = |text: &str| {
        let mut settings: Value = serde_json::from_str(before).unwrap();
        settings["sidecars"]["trustDomain"] = text.into();
        let data = serde_json::json!({ "data": { "settings.json": settings.to_string() } });
        let patch = [
            "-n",
            MESH,
            "patch",
            "configmap",
            "tulle-settings",
            "--type=merge",
            "-p",
        ];
        cluster.try_kubectl(&[&patch[..], &[&data.to_string()]].concat())
    };
    let done = domain("other.example");
    let why = said(&done);
    assert!(
        !done.status.success() && why.contains("since the installation"),
        "{why}"
    );

    // Past the webhook: the controller does not start with it, and the one before goes on.
    let hooks = ["validatingwebhookconfiguration", "tulle-validator"];
    let kept = cluster.kubectl(&["get", "-o", "json", hooks[0], hooks[1]]);
    cluster.kubectl(&["delete", hooks[0], hooks[1]]);
    eventually("the API server asks nobody", || {
        domain("other.example").status.success()
    });
    cluster.kubectl(&["-n", MESH, "rollout", "restart", CONTROLLER]);
    let label = "app.kubernetes.io/name=tulle-controller";
    let log = ["-n", MESH, "logs", "-l", label, "--tail=-1", "--prefix"];
    holds(
        "the new controller says why",
        || said(&cluster.try_kubectl(&log)),
        &["cannot become `other.example`"],
    );
    cluster.await_finding("× TK092 trust domain: the settings say other.example");
    assert!(call(cluster).starts_with("200"), "traffic goes on");
    assert!(domain("cluster.local").status.success());
    rollout(cluster, MESH, CONTROLLER);
    let mut hooks: Value = serde_json::from_str(&kept).unwrap();
    for field in ["resourceVersion", "uid", "creationTimestamp"] {
        hooks["metadata"].as_object_mut().unwrap().remove(field);
    }
    cluster.apply(&hooks.to_string());
    cluster.await_finding("√ TK092 trust domain: cluster.local");
}

fn a_strict_mesh_stays_strict(cluster: &Cluster) {
    install_as(cluster, &["--profile", "strict"]);
    let refused = ["403 plaintext_refused", "Mesh spec.mtls.mode is strict"];
    holds("plaintext is refused", || call(cluster), &refused);
    holds(
        "egress is refused",
        || leave(cluster),
        &["no_service", "allowEgress is false"],
    );
    let done = tulle(cluster, &["install"]);
    let note = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && note.contains("stays so"), "{note}");
    install_as(cluster, &[]);
    assert!(call(cluster).contains(refused[0]), "still");
    let settings = cluster.get_json(&["-n", MESH, "configmap", "tulle-settings"]);
    let settings = settings["data"]["settings.json"].as_str().unwrap();
    let settings: Value = serde_json::from_str(settings).unwrap();
    assert_eq!(settings["mesh"]["mtls"]["mode"], "strict", "{settings}");
    assert_eq!(settings["mesh"]["allowEgress"], false, "{settings}");
}

/// Follows the advice of the refusals: a Gateway must not keep saying that it is served.
fn another_trust_domain_takes_a_new_installation(cluster: &Cluster) {
    install_gateway_api(cluster);
    cluster.apply(
        r#"{ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
             "metadata": { "name": "edge", "namespace": "legacy" },
             "spec": { "gatewayClassName": "tulle", "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP" }] } }"#,
    );
    let accepted = || {
        let gateway = cluster.get_json(&["-n", "legacy", "gateway", "edge"]);
        let all = gateway["status"]["conditions"].as_array().unwrap().clone();
        let accepted = all.into_iter().find(|c| c["type"] == "Accepted").unwrap();
        accepted["status"].as_str().unwrap().to_owned()
    };
    eventually("the gateway is accepted", || accepted() == "True");
    ends(cluster, &["uninstall", "--force", "--yes"], 0);
    assert_eq!(accepted(), "Unknown");

    install_as(cluster, &["--trust-domain", "other.example"]);
    rollout(cluster, "joining", SERVER);
    cluster.await_finding("√ TK092 trust domain: other.example");
    holds("callers go on", || call(cluster), &["200"]);
    eventually("the gateway is accepted again", || accepted() == "True");
}
