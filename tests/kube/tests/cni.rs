//! The mesh with its CNI plugin: pods of a namespace of restricted pods, without a privilege, redirected by
//! their node; a node that comes to have the plugin late; and a node as it was when it is gone.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Cluster, MUTUAL_TLS, Node, await_webhooks, eventually, objects_with_cni};

/// Splits the output of `tulle install --cni`: the plugin's DaemonSet, and all else.
fn objects(cluster: &Cluster) -> (String, String) {
    let mut list = objects_with_cni(cluster);
    let items = list["items"].as_array_mut().unwrap();
    let plugin = items.extract_if(.., |item| item["kind"] == "DaemonSet");
    let plugin: Vec<Value> = plugin.collect();
    assert_eq!(plugin.len(), 1);
    (plugin[0].to_string(), list.to_string())
}

fn deploy(cluster: &Cluster, namespace: &str) {
    cluster.apply_file("cni.yaml", &[("@NAMESPACE@", namespace)]);
}

fn talk(cluster: &Cluster, url: &str) -> String {
    cluster
        .exec(
            "cni",
            "deployment/client",
            &["bookinfo", "talk", url, "hello"],
        )
        .1
}

/// Waits for an answer: the client's sidecar must learn its endpoints first.
fn is_answered(cluster: &Cluster, url: &str) {
    eventually(&format!("{url} is answered"), || {
        let said = talk(cluster, url);
        println!("{url}: {said}");
        said.starts_with("200")
    });
}

#[test]
fn nodes_redirect_the_traffic_of_pods_without_privileges() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let node = Node::new(&cluster);
    let before = node.configuration();
    let (plugin, rest) = objects(&cluster);
    cluster.apply(&rest);
    cluster.await_deployment("tulle-system", "tulle-controller");
    await_webhooks(&cluster);

    too_early(&cluster);
    cluster.apply(&plugin);
    cluster.await_daemon_set("tulle-cni", "tulle-cni");
    assert!(node.is_chained());
    // Those that came too early are made again.
    for name in ["web", "client"] {
        cluster.await_deployment("cni", name);
    }
    calls(&cluster);
    stays(&cluster, &node);
    cluster.await_finding("√ TK041 CNI plugin: on all of 1 nodes");

    // Nothing is left: neither in the cluster nor on the node.
    cluster.kubectl(&["delete", "namespace", "cni"]);
    let said = cluster.tulle(&["uninstall", "--force", "--yes", "--crds"]);
    assert!(
        said.contains("the CNI plugin is on no node any more"),
        "{said}"
    );
    assert_eq!(node.configuration(), before);
    assert!(!node.has_plugin());
    let namespaces = cluster.kubectl(&["get", "namespaces", "-o", "name"]);
    assert!(!namespaces.contains("tulle"), "{namespaces}");
}

/// A node that has no plugin yet starts no pod of the mesh.
fn too_early(cluster: &Cluster) {
    deploy(cluster, "cni");
    eventually("the pods have found no rules", || {
        let pods = cluster.get_json(&["-n", "cni", "pods"]);
        let pods = pods["items"].as_array().unwrap();
        pods.len() == 2
            && pods.iter().all(|pod| {
                let init = pod
                    .pointer("/status/initContainerStatuses/0")
                    .unwrap_or(&Value::Null);
                let ended =
                    ["state", "lastState"].map(|s| init[s]["terminated"]["exitCode"].clone());
                init["name"] == "tulle-init" && ended.contains(&79.into())
            })
    });
    // The container may just be starting again, without a word so far.
    eventually("they say why", || {
        let said = cluster.said("cni");
        said.contains("the pod's traffic is not redirected")
    });
    let pods = cluster.get_json(&["-n", "cni", "pods"]);
    for pod in pods["items"].as_array().unwrap() {
        assert!(
            pod["status"]["containerStatuses"][0]["state"]["waiting"].is_object(),
            "{pod}"
        );
    }
    for expected in [
        "× TK041 CNI plugin: there is no DaemonSet tulle-cni/tulle-cni",
        "× TK064",
    ] {
        cluster.await_finding(expected);
    }
}

/// Mutual TLS between pods that have no privilege, and in no other way.
fn calls(cluster: &Cluster) {
    is_answered(cluster, "http://web/path");
    let pods = cluster.get_json(&["-n", "cni", "pods", "-l", "app=web"]);
    let running = pods["items"].as_array().unwrap().iter().find(|pod| {
        pod["status"]["phase"] == "Running" && pod.pointer("/metadata/deletionTimestamp").is_none()
    });
    let web = running.unwrap();
    for privilege in ["NET_ADMIN", "\"runAsUser\":0", "hostPath"] {
        assert!(!web.to_string().contains(privilege), "{privilege}: {web}");
    }
    let address = web["status"]["podIP"].as_str().unwrap();
    eventually("the request is counted, after its last byte", || {
        let client = "source_principal=\"spiffe://cluster.local/ns/cni/sa/default\"";
        cluster.has_counted(address, &[client, MUTUAL_TLS])
    });
    // Past a sidecar of its own, as somebody outside of the mesh.
    let url = format!("http://{address}:8080/path");
    cluster.refuses_plaintext(&url);
}

/// The plugin outlives its DaemonSet's pods, and comes back when somebody takes it away.
fn stays(cluster: &Cluster, node: &Node) {
    cluster.kubectl(&["-n", "tulle-cni", "delete", "pods", "--all"]);
    assert!(node.is_chained());
    // One that is made now is redirected all the same.
    cluster.kubectl(&["-n", "cni", "rollout", "restart", "deployment/web"]);
    cluster.await_deployment("cni", "web");
    cluster.await_daemon_set("tulle-cni", "tulle-cni");
    // Calico and others do this when they start.
    let file = node.configurations.join("10-bridge.conflist");
    let without = &node.configuration()["10-bridge.conflist.tulle-saved"];
    std::fs::write(&file, without).unwrap();
    std::fs::remove_file(node.programs.join("tulle-cni")).unwrap();
    eventually("the plugin is there again", || {
        node.is_chained() && node.has_plugin()
    });
    cluster.kubectl(&["-n", "cni", "rollout", "restart", "deployment/web"]);
    cluster.await_deployment("cni", "web");
    is_answered(cluster, "http://web/again");
}
