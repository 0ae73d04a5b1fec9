//! Services and pods of both IP families, and services that are but another name.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Cluster, OnNode, eventually, install};

/// The node, which is neither a pod nor a service.
const NODE: &str = "10.200.0.2";

fn talk(cluster: &Cluster, host: &str) -> String {
    let url = format!("http://{host}/path");
    let words = ["bookinfo", "talk", url.as_str(), "hello"];
    cluster.exec("families", "deployment/client", &words).1
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn in_url(address: &str) -> String {
    match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    }
}

#[test]
fn both_families_and_other_names() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    let node = NODE.replace('.', "-");
    cluster.apply_file("families.yaml", &[("@NODE@", &node)]);
    for name in ["web", "client"] {
        cluster.await_deployment("families", name);
    }
    by_addresses(&cluster);
    by_other_names(&cluster);
    cluster.kubectl(&["delete", "namespace", "families", "--wait=false"]);
}

fn by_addresses(cluster: &Cluster) {
    let mut hosts = vec!["web".to_owned(), "web-six".to_owned()];
    let both = cluster.get_json(&["-n", "families", "service", "web"]);
    let both = texts(&both["spec"]["clusterIPs"]);
    assert_eq!(both.len(), 2, "the cluster has both families");
    hosts.extend(both.iter().map(|ip| in_url(ip)));
    let pods = cluster.get_json(&["-n", "families", "pods", "-l", "app=web"]);
    let pods = pods["items"].as_array().unwrap();
    let ips: Vec<&str> = pods
        .iter()
        .flat_map(|pod| pod["status"]["podIPs"].as_array().unwrap())
        .map(|ip| ip["ip"].as_str().unwrap())
        .collect();
    assert_eq!(ips.len(), 4);
    hosts.extend(ips.iter().map(|ip| format!("{}:8080", in_url(ip))));
    for host in &hosts {
        // The client's sidecar must learn its endpoints first; before that no request is sent or counted.
        eventually(&format!("{host} is answered"), || {
            let said = talk(cluster, host);
            println!("{host}: {said}");
            said.starts_with("200")
        });
    }
    // Each of them was mutual TLS.
    let count = |lines: &[&str]| -> usize {
        let counts = lines.iter().map(|l| l.rsplit(' ').next().unwrap());
        counts.map(|count| count.parse::<usize>().unwrap()).sum()
    };
    eventually("all are counted, the last one after its last byte", || {
        let seen: String = ips
            .iter()
            .filter(|ip| ip.contains(':'))
            .map(|ip| cluster.curl(&format!("http://[{ip}]:15020/metrics")))
            .collect();
        let lines = seen.lines().filter(|l| {
            l.starts_with("istio_requests_total") && l.contains("reporter=\"destination\"")
        });
        let (mutual, other): (Vec<&str>, Vec<&str>) =
            lines.partition(|l| l.contains("connection_security_policy=\"mutual_tls\""));
        assert!(other.is_empty() && count(&mutual) <= hosts.len(), "{seen}");
        count(&mutual) == hosts.len()
    });
    // Nobody comes in by the other family without an identity.
    for ip in ips {
        let url = format!("http://{}:8080/path", in_url(ip));
        cluster.refuses_plaintext(&url);
    }
}

fn by_other_names(cluster: &Cluster) {
    // An alias of a service of the mesh reaches that service.
    eventually("the alias is answered", || {
        talk(cluster, "alias").starts_with("200")
    });
    // An alias of something outside is treated like its address.
    let _server = OnNode::serve(cluster, NODE, 8099);
    let said = talk(cluster, "node:8099");
    assert!(
        said.contains("no_service") && said.contains("allowEgress is false"),
        "{said}"
    );
    let mesh = |egress: bool| {
        cluster.apply(&format!(
            r#"{{ "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": {{ "name": "mesh" }},
                 "spec": {{ "permissiveMode": true, "allowEgress": {egress} }} }}"#
        ));
    };
    mesh(true);
    eventually("it is reached", || {
        let fetch = ["bookinfo", "fetch", "http://node:8099/"];
        cluster
            .exec("families", "deployment/client", &fetch)
            .1
            .contains("Directory listing")
    });
    cluster.kubectl(&["delete", "mesh", "mesh"]);
}
