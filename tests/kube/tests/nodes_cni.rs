//! The CNI plugin on two nodes: each redirects its own pods, which reach each other; and each is as it was when the
//! mesh is gone. How one node comes to have the plugin late, and keeps it, is in `cni.rs`.

#![allow(clippy::unwrap_used)]

use serde_json::json;
use tests_kube::{Cluster, MUTUAL_TLS, Node, await_webhooks, eventually, objects_with_cni};

#[test]
fn each_node_redirects_its_pods() {
    let Some(cluster) = Cluster::with_nodes(2) else {
        return;
    };
    let nodes = [1, 2].map(|number| Node::numbered(&cluster, number));
    let before = nodes.each_ref().map(Node::configuration);
    assert_ne!(
        before[0], before[1],
        "each node has a configuration of its own"
    );
    cluster.apply(&objects_with_cni(&cluster).to_string());
    cluster.await_deployment("tulle-system", "tulle-controller");
    await_webhooks(&cluster);
    cluster.await_daemon_set("tulle-cni", "tulle-cni");
    for node in &nodes {
        assert!(node.is_chained() && node.has_plugin());
    }
    cluster.await_finding("√ TK041 CNI plugin: on all of 2 nodes");

    cluster.apply_file("cni.yaml", &[("@NAMESPACE@", "cni")]);
    for (client, web) in [(1, 2), (2, 1)] {
        for (name, node) in [("client", client), ("web", web)] {
            let selector = json!({ "kubernetes.io/hostname": format!("node{node}") });
            let patch = json!({ "spec": { "template": { "spec": { "nodeSelector": selector } } } });
            let deployment = format!("deployment/{name}");
            let patch = ["patch", &deployment, "-p", &patch.to_string()].map(str::to_owned);
            let words = ["-n", "cni"].map(str::to_owned).into_iter().chain(patch);
            let words: Vec<String> = words.collect();
            cluster.kubectl(&words.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for name in ["client", "web"] {
            cluster.await_deployment("cni", name);
        }
        calls_from(&cluster, client, web);
    }

    cluster.kubectl(&["delete", "namespace", "cni"]);
    let said = cluster.tulle(&["uninstall", "--force", "--yes", "--crds"]);
    assert!(
        said.contains("the CNI plugin is on no node any more"),
        "{said}"
    );
    for (node, before) in nodes.iter().zip(before) {
        assert_eq!(node.configuration(), before);
        assert!(!node.has_plugin());
    }
}

/// Mutual TLS from one node to the other, and refusal of a caller who has none.
fn calls_from(cluster: &Cluster, client: usize, web: usize) {
    eventually(&format!("node{web} answers node{client}"), || {
        let words = ["bookinfo", "talk", "http://web/path", "hello"];
        let said = cluster.exec("cni", "deployment/client", &words).1;
        said.starts_with("200")
    });
    let pods = cluster.get_json(&["-n", "cni", "pods", "-l", "app=web"]);
    let mut pods = pods["items"].as_array().unwrap().iter();
    let pod = pods.find(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    let pod = pod.unwrap();
    assert_eq!(pod["spec"]["nodeName"], format!("node{web}"));
    let address = pod["status"]["podIP"].as_str().unwrap();
    eventually("the request is counted, after its last byte", || {
        let client = "source_principal=\"spiffe://cluster.local/ns/cni/sa/default\"";
        cluster.has_counted(address, &[client, MUTUAL_TLS])
    });
    for node in 1..=2 {
        let url = format!("http://{address}:8080/path");
        let refused = cluster
            .on(node, &["net", "curl", "--silent", &url])
            .output();
        let refused = String::from_utf8_lossy(&refused.unwrap().stdout).into_owned();
        assert!(
            refused.contains("plaintext_refused"),
            "node{node}: {refused}"
        );
    }
}
