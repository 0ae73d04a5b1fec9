//! Pods of two nodes in one mesh: what is on the wire between the nodes, and where a call goes when Kubernetes
//! says that a node or a zone matters. Clients outside come in by either node (`edge.rs`).

#![allow(clippy::unwrap_used)]

mod edge;
mod near;

use serde_json::Value;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use tests_kube::{Cluster, MUTUAL_TLS, eventually, install};

#[test]
fn pods_of_two_nodes_are_one_mesh() {
    let Some(cluster) = Cluster::with_nodes(2) else {
        return;
    };
    install(&cluster);
    let nodes = Nodes(&cluster);
    for node in 1..=2 {
        nodes.has_agent(node, true);
    }
    let capture = cluster.capture_on("node0");
    cluster.apply_file("nodes.yaml", &[]);
    for name in ["agent", "client"] {
        cluster.await_daemon_set("nodes", name);
    }
    cluster.await_daemon_set("nodes-plain", "plain");
    one_sidecar_on_each_node(&nodes);
    mutual_tls(&nodes);
    strangers_are_refused(&nodes);
    only_tls(&nodes, &capture.end());
    near::own_node(&nodes);
    near::own_zone(&nodes);
    edge::host_ports(&nodes);
    edge::a_gateway(&nodes);
    let both = ["nodes", "nodes-plain", "--wait=false"];
    cluster.kubectl(&[&["delete", "namespace"], &both[..]].concat());
    for node in 1..=2 {
        nodes.has_agent(node, false);
    }
}

/// The objects of `nodes.yaml`. Each server calls itself as its node.
struct Nodes<'a>(&'a Cluster);

impl Nodes<'_> {
    /// Whether the node has a pod of the DaemonSet `agent`.
    fn has_agent(&self, node: usize, has: bool) {
        let label = if has { "agent=here" } else { "agent-" };
        let node = format!("node{node}");
        self.0
            .kubectl(&["label", "--overwrite", "node", &node, label]);
    }

    /// Pods that are not about to end, of a node.
    fn pods(&self, namespace: &str, app: &str, node: usize) -> Vec<Value> {
        let label = format!("app={app}");
        let field = format!("spec.nodeName=node{node}");
        let found = [
            "-n",
            namespace,
            "pods",
            "-l",
            &label,
            "--field-selector",
            &field,
        ];
        let found = self.0.get_json(&found);
        let pods = found["items"].as_array().unwrap().iter();
        let living = pods.filter(|pod| pod["metadata"].get("deletionTimestamp").is_none());
        living.cloned().collect()
    }

    fn ip(&self, namespace: &str, app: &str, node: usize) -> Ipv4Addr {
        let pods = self.pods(namespace, app, node);
        pods[0]["status"]["podIP"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Runs a program in the client of a node.
    fn client(&self, node: usize, program: &[&str]) -> String {
        let pods = self.pods("nodes", "client", node);
        let pod = format!("pod/{}", pods[0]["metadata"]["name"].as_str().unwrap());
        self.0.exec("nodes", &pod, program).1
    }

    /// The servers that answer twelve calls of a node's client; what was said instead, if none did.
    fn answering(&self, node: usize, host: &str) -> BTreeSet<String> {
        let url = format!("http://{host}/path");
        let words = [&["bookinfo", "talk", &url][..], &["secret-on-the-wire"; 12]].concat();
        tests_kube::answering(self.client(node, &words))
    }

    /// Waits until a node's client is answered by these nodes and no other.
    fn answered_by(&self, node: usize, host: &str, servers: &[usize]) {
        let servers: BTreeSet<_> = servers.iter().map(|s| format!("node{s}")).collect();
        eventually(
            &format!("{host} of node{node} is answered by {servers:?}"),
            || {
                let names = self.answering(node, host);
                println!("node{node}, {host}: {names:?}");
                names == servers
            },
        );
    }

    /// Waits until a node's client hears why nobody answers.
    fn hears(&self, node: usize, host: &str, reason: &str) {
        eventually(
            &format!("{host} of node{node} is answered {reason}"),
            || {
                let said = self.answering(node, host);
                println!("node{node}, {host}: {said:?}");
                said.iter().all(|said| said.contains(reason))
            },
        );
    }
}

/// DaemonSets are injected like anything else: a pod, and a sidecar, on each node.
fn one_sidecar_on_each_node(nodes: &Nodes<'_>) {
    for (app, node) in [("agent", 1), ("agent", 2), ("client", 1), ("client", 2)] {
        let pods = nodes.pods("nodes", app, node);
        assert_eq!(pods.len(), 1, "{app} on node{node}: {pods:?}");
        let sidecars = pods[0]["spec"]["initContainers"].as_array().unwrap().iter();
        let sidecars = sidecars.filter(|c| c["name"] == "tulle-proxy");
        assert_eq!(sidecars.count(), 1, "{app} on node{node}: {pods:?}");
    }
}

fn mutual_tls(nodes: &Nodes<'_>) {
    for (from, to) in [(1, 2), (2, 1)] {
        let ip = nodes.ip("nodes", "agent", to);
        nodes.answered_by(from, &format!("{ip}:8080"), &[to]);
        // Either of them answers for the Service.
        nodes.answered_by(from, "agent", &[1, 2]);
        eventually("the request is counted, after its last byte", || {
            let labels = [
                "reporter=\"destination\"",
                "source_principal=\"spiffe://cluster.local/ns/nodes/sa/client\"",
                "destination_principal=\"spiffe://cluster.local/ns/nodes/sa/agent\"",
                MUTUAL_TLS,
            ];
            nodes.0.has_counted(ip, &labels)
        });
    }
}

/// Pods without a sidecar are heard by each other on another node, and by no pod of the mesh there.
fn strangers_are_refused(nodes: &Nodes<'_>) {
    for (from, to) in [(1, 2), (2, 1)] {
        let pods = nodes.pods("nodes-plain", "plain", from);
        let pod = format!("pod/{}", pods[0]["metadata"]["name"].as_str().unwrap());
        let fetch = |url: &str, expected: &str| {
            eventually(
                &format!("{url} of node{from} is answered {expected}"),
                || {
                    let said = nodes
                        .0
                        .exec("nodes-plain", &pod, &["bookinfo", "fetch", url])
                        .1;
                    said.starts_with(expected)
                },
            );
        };
        let ip = nodes.ip("nodes-plain", "plain", to);
        fetch(&format!("http://{ip}:8104/seen-on-the-wire"), "200");
        let ip = nodes.ip("nodes", "agent", to);
        fetch(&format!("http://{ip}:8080/"), "403 plaintext_refused");
    }
}

/// Between pods of the mesh on different nodes there was nothing but TLS. The capture has what was plaintext.
fn only_tls(nodes: &Nodes<'_>, wire: &tests_kube::Wire) {
    let plain = BTreeSet::from([1, 2].map(|node| nodes.ip("nodes-plain", "plain", node)));
    let seen = wire.between(&plain);
    let seen: Vec<_> = seen.filter(|d| wire.has(*d, b"seen-on-the-wire")).collect();
    assert!(
        !seen.is_empty(),
        "the capture does not see what the nodes say"
    );
    assert!(wire.not_tls(seen[0]).is_some());

    let of_node = |node| ["agent", "client"].map(|app| nodes.ip("nodes", app, node));
    let (first, second) = (of_node(1), of_node(2));
    let controller = nodes.0.get_json(&["-n", "tulle-system", "pods"]);
    let controller = controller["items"].as_array().unwrap().iter();
    let controller = controller.filter_map(|pod| pod["status"]["podIP"].as_str()?.parse().ok());
    let ours: BTreeSet<_> = first.into_iter().chain(second).chain(controller).collect();
    let mut whole = BTreeSet::new();
    for direction in wire.between(&ours) {
        assert_eq!(wire.not_tls(direction), None, "{direction:?}");
        assert!(!wire.has(direction, b"secret-on-the-wire"), "{direction:?}");
        if wire.is_whole(direction) {
            whole.insert((*direction.0.ip(), *direction.1.ip()));
        }
    }
    // A server, then a client.
    for edge in [(first[1], second[0]), (second[1], first[0])] {
        assert!(whole.contains(&edge), "{edge:?} is not among {whole:?}");
    }
}
