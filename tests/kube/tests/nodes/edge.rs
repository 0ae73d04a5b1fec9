//! Clients outside the cluster, who come in by one node or another: ports of a node, and the Service of a Gateway.

use crate::Nodes;
use serde_json::{Value, json};
use tests_kube::{Neighbour, eventually, install_gateway_api, install_with};

const NODES: [&str; 2] = ["10.200.0.2", "10.200.0.3"];

/// A client at this address may call without a certificate.
const ALLOWED: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: AccessControl
metadata: { name: neighbour, namespace: nodes }
spec:
  backends: [{ name: agent }]
  sources: [{ kind: IPRange, name: @ADDRESS@/32 }]
"#;

/// The name that an echo gives in its answer.
fn name(answer: &str) -> Value {
    let body = answer.strip_prefix("200 ").unwrap_or_default();
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    body["name"].clone()
}

/// A `hostPort` leads to the pod of that node: in plaintext, which a strict sidecar refuses unless a policy
/// or an excluded port says otherwise. The client's address is its own.
pub(crate) fn host_ports(nodes: &Nodes<'_>) {
    let neighbour = Neighbour::new(nodes.0);
    let at = |number: usize, port: u16| format!("http://{}:{port}/path", NODES[number - 1]);
    for node in 1..=2 {
        let own = json!(format!("node{node}"));
        let refused = |said: &str| said.starts_with("403 ") && said.contains("plaintext_refused");
        neighbour.gets(&at(node, 8088), &[], refused);
        neighbour.gets(&at(node, 8089), &[], |said| name(said) == own);
    }
    nodes
        .0
        .apply(&ALLOWED.replace("@ADDRESS@", neighbour.address));
    for node in 1..=2 {
        let own = json!(format!("node{node}"));
        neighbour.gets(&at(node, 8088), &[], |said| name(said) == own);
    }
    nodes
        .0
        .kubectl(&["-n", "nodes", "delete", "accesscontrol", "neighbour"]);
    // A node without the pod has no such port.
    nodes.has_agent(2, false);
    neighbour.gets(&at(2, 8089), &[], |said| said.starts_with("000 "));
    nodes.has_agent(2, true);
    neighbour.gets(&at(2, 8089), &[], |said| name(said) == json!("node2"));
}

/// Where a load balancer would be.
const BALANCER: &str = "192.0.2.10";

/// A Gateway of one pod, on the second node. The load balancer is played: Kubernetes is told its address, and the
/// neighbour sends what is for it to the node that it chooses.
pub(crate) fn a_gateway(nodes: &Nodes<'_>) {
    let cluster = nodes.0;
    install_gateway_api(cluster);
    install_with(cluster, &["gateways.namespaces=[nodes]"]);
    cluster.kubectl(&["cordon", "node1"]);
    gateway(nodes, "first");
    cluster.await_deployment("nodes", "edge-tulle");
    let balancer = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": BALANCER }] } } });
    let patch = |subresource: &str, patch: &Value| {
        let patch = patch.to_string();
        let words = [
            "-n",
            "nodes",
            "patch",
            "service",
            "edge-tulle",
            "--type=merge",
            "-p",
            &patch,
        ];
        let subresource = (!subresource.is_empty()).then(|| format!("--subresource={subresource}"));
        let words = words.into_iter().chain(subresource.as_deref());
        cluster.kubectl(&words.collect::<Vec<_>>());
    };
    patch("status", &balancer);
    eventually("the Gateway has the balancer's address", || {
        let gateway = cluster.get_json(&["-n", "nodes", "gateway", "edge"]);
        gateway.pointer("/status/addresses/0/value") == Some(&json!(BALANCER))
    });
    let service = || cluster.get_json(&["-n", "nodes", "service", "edge-tulle"]);
    let node_port = service()["spec"]["ports"][0]["nodePort"].as_u64().unwrap();

    let neighbour = Neighbour::new(cluster);
    let own = json!(neighbour.address);
    let by_balancer = format!("http://{BALANCER}/path");
    let is_served = |said: &str| !client_of(said).is_null();
    for node in NODES {
        // Kubernetes' default: every node leads to the pod, in its own name.
        neighbour.reaches_by(BALANCER, node);
        for url in [&by_balancer, &format!("http://{node}:{node_port}/path")] {
            let said = neighbour.gets(url, &[], is_served);
            assert_ne!(client_of(&said), own, "{url} by {node}: {said}");
        }
    }

    // Only nodes with a pod of it, and with the client's address.
    patch("", &json!({ "spec": { "externalTrafficPolicy": "Local" } }));
    let only_the_second = || {
        let health = service()["spec"]["healthCheckNodePort"].as_u64().unwrap();
        for (node, healthy) in NODES.into_iter().zip(["503 ", "200 "]) {
            let url = format!("http://{node}:{health}/healthz");
            neighbour.gets(&url, &[], |said| said.starts_with(healthy));
        }
        for (node, serves) in NODES.into_iter().zip([false, true]) {
            neighbour.reaches_by(BALANCER, node);
            for url in [&by_balancer, &format!("http://{node}:{node_port}/path")] {
                neighbour.gets(url, &[], |said| match serves {
                    true => client_of(said) == own,
                    false => said.starts_with("000 "),
                });
            }
        }
    };
    only_the_second();
    // The field that the user has set stays when the controller writes it again.
    gateway(nodes, "second");
    eventually("the Service is written again", || {
        service()["metadata"]["labels"]["turn"] == "second"
    });
    cluster.await_deployment("nodes", "edge-tulle");
    only_the_second();

    cluster.kubectl(&["uncordon", "node1"]);
    cluster.kubectl(&["-n", "nodes", "delete", "gateway", "edge"]);
}

/// The client's address as the server was told it; nothing if it was not asked.
fn client_of(answer: &str) -> Value {
    let body = answer.strip_prefix("200 ").unwrap_or_default();
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    body["headers"]["x-forwarded-for"].clone()
}

fn gateway(nodes: &Nodes<'_>, turn: &str) {
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": "edge", "namespace": "nodes" },
        "spec": {
            "gatewayClassName": "tulle",
            "infrastructure": { "labels": { "turn": turn } },
            "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP" }],
        },
    });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": "agent", "namespace": "nodes" },
        "spec": {
            "parentRefs": [{ "name": "edge" }],
            "rules": [{ "backendRefs": [{ "name": "agent", "port": 80 }] }],
        },
    });
    for object in [gateway, route] {
        nodes.0.apply(&object.to_string());
    }
}
