//! Clients outside the mesh ask a Gateway without end, over HTTP, HTTPS and HTTP/2, on connections that they
//! keep and on new ones. Meanwhile everything about it changes, and nothing is lost.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use tests_kube::load::{Load, await_endpoints, rollout};
use tests_kube::{
    CONTROLLER, Certificate, Cluster, MESH, eventually, install_gateway_api, install_with, root,
};

const HOST: &str = "shop.example";
const DEPLOYMENT: &str = "deployment/edge-tulle";
/// The controller gets its rights for Gateways there before anything else is made there.
const NAMESPACE: &str = "{ apiVersion: v1, kind: Namespace, metadata: { name: life, labels: { tulle.dev/inject: enabled } } }";
/// Changes of the route.
const TURNS: u32 = 20;

#[test]
fn clients_outside_do_not_notice() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install_gateway_api(&cluster);
    cluster.apply(NAMESPACE);
    install_with(&cluster, &["gateways.namespaces=[life]"]);
    cluster.apply_file("life.yaml", &[]);
    let directory = tempfile::tempdir().unwrap();
    let certificates =
        ["first", "second"].map(|name| Certificate::new(directory.path(), name, HOST));
    let [first, second] = &certificates;
    let roots = directory.path().join("roots.pem");
    std::fs::write(&roots, first.text.clone() + &second.text).unwrap();
    first.install(&cluster, "life", "shop");
    gateway(&cluster, &["http", "https"]);
    route(&cluster, 0);
    cluster.await_deployment("life", "server");
    await_endpoints(&cluster, "life", "server", 2);
    let address = address(&cluster);
    let edge = Edge {
        cluster: &cluster,
        address: &address,
    };
    cluster.await_deployment("life", "edge-tulle");
    everywhere("the first route is followed", || edge.turn(80, &[]) == "0");
    everywhere("the first certificate is shown", || edge.shows(first));

    let outside = [
        Outside::start("8107", &address, &roots, &[]),
        Outside::start("8108", &address, &roots, &["--http2"]),
    ];
    let mut loads = outside
        .each_ref()
        .map(|o| Load::at(&cluster, format!("http://127.0.0.1:{}/", o.port)));
    let mut goes_on = |while_what: &str| {
        for load in &mut loads {
            load.goes_on(while_what);
        }
    };
    goes_on("at first");

    rollout(&cluster, "life", DEPLOYMENT);
    goes_on("a rolling update of the gateway");
    rollout(&cluster, "life", "deployment/server");
    goes_on("a rolling update of the server");

    second.install(&cluster, "life", "shop");
    everywhere("the second certificate is shown", || edge.shows(second));
    everywhere("the first one is not", || !edge.shows(first));
    goes_on("another certificate");

    for turn in 1..=TURNS {
        route(&cluster, turn);
        let turn = turn.to_string();
        eventually("the route has changed", || edge.turn(80, &[]) == turn);
    }
    goes_on("changes of the route");

    rollout(&cluster, MESH, CONTROLLER);
    goes_on("a restart of the controller");

    let uids = || {
        let pods = cluster.get_json(&[
            "-n",
            "life",
            "pods",
            "-l",
            "app.kubernetes.io/name=tulle-gateway",
        ]);
        let pods = pods["items"].as_array().unwrap().clone();
        let mut uids: Vec<Value> = pods.iter().map(|p| p["metadata"]["uid"].clone()).collect();
        uids.sort_by_key(Value::to_string);
        uids
    };
    let settled = |before: &[Value]| {
        eventually("the pods are new", || {
            let now = uids();
            now.len() == 2 && before.iter().all(|uid| !now.contains(uid))
        });
    };
    // Those before have to end.
    eventually("there are two pods", || uids().len() == 2);
    let before = uids();
    gateway(&cluster, &["http", "https", "more"]);
    settled(&before);
    cluster.await_deployment("life", "edge-tulle");
    eventually("the new listener serves", || {
        edge.turn(8080, &[]) == TURNS.to_string()
    });
    goes_on("one more listener");
    let before = uids();
    gateway(&cluster, &["http", "https"]);
    settled(&before);
    cluster.await_deployment("life", "edge-tulle");
    goes_on("one listener less");

    drop(outside);
    cluster.kubectl(&["delete", "namespace", "life", "--wait=false"]);
}

/// Waits until something holds of both pods, each of which learns of it by itself: connections come to
/// either of them by chance.
fn everywhere(what: &str, holds: impl Fn() -> bool) {
    eventually(what, || (0..10).all(|_| holds()));
}

/// A gateway of two pods with these of its listeners.
fn gateway(cluster: &Cluster, names: &[&str]) {
    let all = json!([
        { "name": "http", "port": 80, "protocol": "HTTP" },
        { "name": "https", "port": 443, "protocol": "HTTPS", "hostname": HOST,
          "tls": { "certificateRefs": [{ "name": "shop" }] } },
        { "name": "more", "port": 8080, "protocol": "HTTP" },
    ]);
    let mut listeners = all.as_array().unwrap().clone();
    listeners.retain(|l| names.contains(&l["name"].as_str().unwrap()));
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": "edge", "namespace": "life" },
        "spec": {
            "gatewayClassName": "tulle",
            "infrastructure": { "annotations": { "tulle.dev/service-type": "ClusterIP", "tulle.dev/replicas": "2" } },
            "listeners": listeners,
        },
    });
    cluster.apply(&gateway.to_string());
}

/// The route, whose answers say which turn it is.
fn route(cluster: &Cluster, turn: u32) {
    let says = json!({ "set": [{ "name": "x-turn", "value": turn.to_string() }] });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": "server", "namespace": "life" },
        "spec": {
            "parentRefs": [{ "name": "edge" }],
            "hostnames": [HOST],
            "rules": [{
                "filters": [{ "type": "ResponseHeaderModifier", "responseHeaderModifier": says }],
                "backendRefs": [{ "name": "server", "port": 80 }],
            }],
        },
    });
    cluster.apply(&route.to_string());
}

/// Where clients reach it, once there is something.
fn address(cluster: &Cluster) -> String {
    let mut address = String::new();
    eventually("the gateway has an address", || {
        let gateway = cluster.get_json(&["-n", "life", "gateway", "edge"]);
        let told = gateway.pointer("/status/addresses/0/value");
        address = told.and_then(Value::as_str).unwrap_or_default().to_owned();
        !address.is_empty()
    });
    address
}

/// The gateway as one request sees it.
struct Edge<'a> {
    cluster: &'a Cluster,
    address: &'a str,
}

impl Edge<'_> {
    /// The turn of the route that answers; nothing, if none does.
    fn turn(&self, port: u16, options: &[&str]) -> String {
        let scheme = if port == 443 { "https" } else { "http" };
        let resolve = format!("{HOST}:{port}:{}", self.address);
        let url = format!("{scheme}://{HOST}:{port}/path");
        let asked = self
            .cluster
            .command(&[
                "net",
                "curl",
                "--silent",
                "--max-time",
                "20",
                "--output",
                "/dev/null",
            ])
            .args(["--write-out", "%header{x-turn}", "--resolve", &resolve])
            .args(options)
            .arg(url)
            .output();
        String::from_utf8(asked.unwrap().stdout).unwrap()
    }

    fn shows(&self, certificate: &Certificate) -> bool {
        let file = certificate.file.to_str().unwrap();
        !self.turn(443, &["--cacert", file]).is_empty()
    }
}

/// A client on the node, outside the mesh; ended with the value.
struct Outside {
    process: Child,
    port: &'static str,
}

impl Outside {
    fn start(port: &'static str, address: &str, roots: &Path, manner: &[&str]) -> Self {
        let urls = ["http", "https"]
            .map(|scheme| ["path", "delay/0.5"].map(|path| format!("{scheme}://{HOST}/{path}")));
        let cluster = Cluster::get().unwrap();
        let process = cluster
            .command(&["net"])
            .arg(root().join("target/debug/bookinfo"))
            .args(["load", "--port", port, "--lanes", "2", "--pause", "50"])
            .args(["--connect", address, "--roots"])
            .arg(roots)
            .args(manner)
            .args(urls.concat())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = process.unwrap();
        let mut line = String::new();
        let said = BufReader::new(process.stdout.take().unwrap()).read_line(&mut line);
        assert!(said.unwrap() > 0, "the client has ended");
        Self { process, port }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
