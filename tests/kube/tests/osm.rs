//! Open Service Mesh, the peer of studies between pods (`bench/mesh-peers/osm`): two pods with its sidecars
//! answer each other, in TLS on the wire and with its own statistics, and a client without a sidecar is refused.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use tests_kube::{Cluster, Wire, eventually, peer};

/// Where OSM's sidecars tell their metrics, if the namespace says so.
const METRICS_PORT: u16 = 15010;

/// Installs OSM with these settings and returns its label; none if this machine cannot build it.
fn install(settings: &[(&str, &str)]) -> Option<String> {
    peer("osm/install.sh", |command| {
        command.envs(settings.iter().copied());
    })
}

#[test]
fn a_mesh_of_osm_can_be_measured() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let settings = [("SIDECAR_CPU", "900m"), ("SIDECAR_MEMORY", "300Mi")];
    let Some(label) = install(&settings) else {
        return;
    };
    let (key, value) = label.split_once('=').unwrap();
    let apply = || cluster.apply_file("osm.yaml", &[("@KEY@", key), ("@VALUE@", value)]);
    apply();
    let wire = cluster.capture();
    await_pods(&cluster);
    limits_are_set(&cluster);
    it_is_imported(&cluster);
    pods_answer_each_other(&cluster);
    strangers_are_refused(&cluster);
    only_tls(&cluster, &wire.end());
    statistics_are(&cluster, true);

    install(&[("WASM", "off")]).unwrap();
    let restart = ["-n", "osm", "rollout", "restart", "deployment"];
    cluster.kubectl(&restart);
    await_pods(&cluster);
    pods_answer_each_other(&cluster);
    statistics_are(&cluster, false);

    let gone = ["delete", "namespace", "osm", "osm-plain"];
    cluster.kubectl(&gone);
    peer("osm/uninstall.sh", |_| {}).unwrap();
    let left = cluster.kubectl(&["get", "crd", "-o", "name"]);
    assert!(!left.contains("openservicemesh"), "{left}");
}

fn await_pods(cluster: &Cluster) {
    for (namespace, name) in [
        ("osm", "server"),
        ("osm", "client"),
        ("osm-plain", "plain"),
        ("osm-plain", "stranger"),
    ] {
        cluster.await_deployment(namespace, name);
    }
}

/// Returns the pod of an application that is not about to end.
fn pod(cluster: &Cluster, namespace: &str, app: &str) -> serde_json::Value {
    let pods = cluster.get_json(&["-n", namespace, "pods", "-l", &format!("app={app}")]);
    let mut pods = pods["items"].as_array().unwrap().iter();
    let stays = pods.find(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    stays.unwrap().clone()
}

fn ip(cluster: &Cluster, namespace: &str, app: &str) -> Ipv4Addr {
    let pod = pod(cluster, namespace, app);
    pod["status"]["podIP"].as_str().unwrap().parse().unwrap()
}

fn limits_are_set(cluster: &Cluster) {
    let pod = pod(cluster, "osm", "server");
    let containers = pod["spec"]["containers"].as_array().unwrap();
    let sidecar = containers.iter().find(|c| c["name"] == "envoy").unwrap();
    let limits = &sidecar["resources"]["limits"];
    assert_eq!(limits["cpu"], "900m");
    assert_eq!(limits["memory"], "300Mi");
}

/// `tulle import` translates what there is of OSM: its settings, and what the namespace says.
fn it_is_imported(cluster: &Cluster) {
    let said = cluster.tulle(&["import", "osm", "--cluster", "-o", "json"]);
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    let made = |kind: &str, name: &str| {
        let mut objects = told["objects"].as_array().unwrap().iter();
        let found = objects.find(|made| {
            let object = &made["object"];
            object["kind"] == kind && object["metadata"]["name"] == name
        });
        found.unwrap_or_else(|| panic!("{kind} {name}: {told:#}"))["object"].clone()
    };
    let mesh = &made("Mesh", "mesh")["spec"];
    assert_eq!(mesh["permissiveMode"], true, "{told:#}");
    assert_eq!(mesh["sidecar"]["cpuLimit"], "900m", "{told:#}");
    let labels = &made("Namespace", "osm")["metadata"]["labels"];
    assert_eq!(labels["tulle.dev/inject"], "enabled", "{told:#}");
    assert_eq!(labels["tulle.dev/metrics"], "enabled", "{told:#}");
    assert!(!said.contains("managedFields"), "{said}");
}

fn fetch(cluster: &Cluster, namespace: &str, app: &str, url: &str) -> String {
    let target = format!("deployment/{app}");
    let words = ["-c", "app"];
    let words = [&["-n", namespace, "exec", &target][..], &words, &["--"]].concat();
    let fetch = ["bookinfo", "fetch", url];
    let done = cluster.try_kubectl(&[&words[..], &fetch].concat());
    String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
}

/// The configuration reaches the sidecars some time after they are ready.
fn pods_answer_each_other(cluster: &Cluster) {
    let mut last = String::new();
    eventually("the server answers the client", || {
        let url = "http://server.osm:8080/secret-on-the-wire";
        let said = fetch(cluster, "osm", "client", url);
        if said != last {
            println!("{said}");
        }
        last = said;
        last.starts_with("200")
    });
}

/// A client without a sidecar is answered by its like, and not by a pod of the mesh.
fn strangers_are_refused(cluster: &Cluster) {
    let ask = |namespace, app| {
        let address = ip(cluster, namespace, app);
        let url = format!("http://{address}:8080/seen-on-the-wire");
        fetch(cluster, "osm-plain", "stranger", &url)
    };
    let said = ask("osm-plain", "plain");
    assert!(said.starts_with("200"), "{said}");
    let said = ask("osm", "server");
    assert!(!said.starts_with("200"), "{said}");
    println!("the stranger is told: {said}");
}

/// Between the two pods of the mesh there was nothing but TLS. The capture has what was plaintext.
fn only_tls(cluster: &Cluster, wire: &Wire) {
    let plain = ["plain", "stranger"].map(|app| ip(cluster, "osm-plain", app));
    let plain = BTreeSet::from(plain);
    let mut seen = wire.between(&plain);
    let marked = seen.find(|d| wire.has(*d, b"seen-on-the-wire"));
    assert!(wire.not_tls(marked.unwrap()).is_some());

    let [client, server] = ["client", "server"].map(|app| ip(cluster, "osm", app));
    let ours = BTreeSet::from([client, server]);
    let mut whole = BTreeSet::new();
    for direction in wire.between(&ours) {
        assert_eq!(wire.not_tls(direction), None, "{direction:?}");
        assert!(!wire.has(direction, b"secret-on-the-wire"), "{direction:?}");
        if wire.is_whole(direction) {
            whole.insert(*direction.0.ip());
        }
    }
    assert_eq!(whole, ours, "both directions, from the first byte");
}

/// OSM's own statistics are those of its WASM filter, in the client's sidecar.
fn statistics_are(cluster: &Cluster, there: bool) {
    let address = ip(cluster, "osm", "client");
    let metrics = cluster.curl(&format!("http://{address}:{METRICS_PORT}/stats/prometheus"));
    let counted = |name: &str| {
        let mut lines = metrics.lines().filter(|line| line.contains(name));
        lines.any(|line| line.contains("server") && !line.starts_with('#'))
    };
    assert!(counted("envoy_cluster_upstream_rq"), "{metrics}");
    for name in ["osm_request_total", "osm_request_duration_ms"] {
        assert_eq!(counted(name), there, "{name}: {metrics}");
    }
}
