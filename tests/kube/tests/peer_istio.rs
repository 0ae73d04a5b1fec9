//! Istio as bench/mesh-peers/istio installs it: two sidecars talk in mutual TLS, a caller without one is refused, and
//! `tulle bench` measures it beside Tulle.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use tests_kube::{Cluster, eventually, install, peer, study};

const PLACE: &str = "peer-istio";

/// Installs Istio and returns the key and the value of its label; none without Go.
fn install_istio() -> Option<(String, String)> {
    let limits = "global.proxy.resources.limits";
    let limits = format!("{limits}.cpu=1,{limits}.memory=512Mi");
    let label = peer("istio/install.sh", |command| {
        command.args(["--set-string", &limits]);
    })?;
    let (key, value) = label.split_once('=').unwrap();
    Some((key.to_owned(), value.to_owned()))
}

/// Returns the pod of an application.
fn pod(cluster: &Cluster, app: &str) -> Value {
    let label = format!("app={app}");
    let pods = cluster.get_json(&["-n", PLACE, "pods", "-l", &label]);
    pods["items"][0].clone()
}

fn address(pod: &Value) -> Ipv4Addr {
    pod["status"]["podIP"].as_str().unwrap().parse().unwrap()
}

/// Returns the client's answer to a GET.
fn fetch(cluster: &Cluster, client: &str, url: &str) -> String {
    let target = format!("deployment/{client}");
    let said = cluster.exec(PLACE, &target, &["bookinfo", "fetch", url]).1;
    println!("{client}, {url}: {said}");
    said
}

/// Checks the limits of a pod's sidecar.
fn is_limited_to(pod: &Value, cpu: &str, memory: &str) {
    let sidecars = pod["spec"]["initContainers"].as_array().unwrap();
    let sidecar = sidecars.iter().find(|c| c["name"] == "istio-proxy");
    let limits = &sidecar.unwrap()["resources"]["limits"];
    assert_eq!(limits["cpu"], cpu, "{pod:#}");
    assert_eq!(limits["memory"], memory, "{pod:#}");
}

/// Checks that `tulle import` translates what there is of Istio: its strictness, and what pods and namespaces say.
fn it_is_imported(cluster: &Cluster) {
    let said = cluster.tulle(&["import", "istio", "--cluster", "-o", "json"]);
    let told: Value = serde_json::from_str(&said).unwrap();
    let made = |kind: &str, name: &str| {
        let mut objects = told["objects"].as_array().unwrap().iter();
        let found = objects.find(|made| {
            let object = &made["object"];
            object["kind"] == kind && object["metadata"]["name"] == name
        });
        found.unwrap_or_else(|| panic!("{kind} {name}: {told:#}"))["object"].clone()
    };
    assert_eq!(made("Mesh", "mesh")["spec"]["mtls"]["mode"], "strict");
    let labels = &made("Namespace", PLACE)["metadata"]["labels"];
    assert_eq!(labels["tulle.dev/inject"], "enabled", "{told:#}");
    let pods = |name: &str| made("Deployment", name)["spec"]["template"]["metadata"].clone();
    let limit = &pods("server")["annotations"]["tulle.dev/cpu-limit"];
    assert_eq!(limit, "500m", "{told:#}");
    let inject = &pods("stranger")["labels"]["tulle.dev/inject"];
    assert_eq!(inject, "disabled", "{told:#}");
    assert!(!said.contains("managedFields"), "{said}");
}

/// Checks that whatever the client and the server say to each other is TLS, of identities on both sides. The stranger's
/// request, which is seen as it is, proves that the capture sees what pods say.
fn talks_in_mutual_tls(cluster: &Cluster, key: &str, value: &str) {
    let capture = cluster.capture();
    cluster.apply_file("peer-istio.yaml", &[("@KEY@", key), ("@VALUE@", value)]);
    for app in ["server", "client", "stranger"] {
        cluster.await_deployment(PLACE, app);
    }
    let [server, client, stranger] = ["server", "client", "stranger"].map(|a| pod(cluster, a));
    is_limited_to(&client, "1", "512Mi");
    is_limited_to(&server, "500m", "256Mi"); // by its annotations
    it_is_imported(cluster);

    let mut said = String::new();
    eventually("the server is called", || {
        said = fetch(cluster, "client", "http://server/from-the-client");
        said.starts_with("200")
    });
    for account in ["client", "server"] {
        let identity = format!("spiffe://cluster.local/ns/{PLACE}/sa/{account}");
        assert!(said.contains(&identity), "{identity}: {said}");
    }
    let url = format!("http://{}:8104/from-a-stranger", address(&server));
    let refused = fetch(cluster, "stranger", &url);
    assert!(
        !refused.contains("\"name\""),
        "the stranger is answered: {refused}"
    );

    let wire = capture.end();
    let [server, client, stranger] = [server, client, stranger].map(|p| address(&p));
    let outside = BTreeSet::from([server, stranger]);
    assert!(
        wire.between(&outside)
            .any(|d| wire.has(d, b"from-a-stranger")),
        "the capture does not see what pods say"
    );
    let inside = BTreeSet::from([server, client]);
    let all: Vec<_> = wire.between(&inside).collect();
    let called = all
        .iter()
        .find(|(_, to)| (*to.ip(), to.port()) == (server, 8104));
    assert!(wire.is_whole(*called.unwrap()), "{all:?}");
    for direction in all {
        assert_eq!(wire.not_tls(direction), None, "{direction:?}");
        assert!(!wire.has(direction, b"from-the-client"), "{direction:?}");
    }
}

#[test]
fn istio_is_a_peer_with_mutual_tls() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let Some((key, value)) = install_istio() else {
        return;
    };
    talks_in_mutual_tls(&cluster, &key, &value);
    cluster.kubectl(&["delete", "namespace", PLACE]);

    install(&cluster);
    let mesh = format!("istio={key}={value}");
    let words = [
        "sweep",
        "--modes",
        "both",
        "--connections",
        "4",
        "--qps",
        "50",
        "--mesh",
        &mesh,
    ];
    let samples = study(&cluster, 5, &words);
    let peers: BTreeSet<&str> = samples.iter().filter_map(|s| s["peer"].as_str()).collect();
    assert_eq!(peers, BTreeSet::from(["istio", "tulle"]));
    for sample in samples {
        println!("{sample:#}");
        assert!(sample.get("invalid").is_none(), "{sample:#}");
        assert_eq!(sample["figures"]["errors"].as_f64(), Some(0.0));
        let evidence = sample["evidence"].to_string();
        assert!(evidence.contains("refused to"), "{evidence}");
    }
}
