//! The mesh in a cluster of IPv6 alone: names, mutual TLS, policies, DNS of sidecars, an Ingress, and a controller
//! that starts anew.

#![allow(clippy::unwrap_used)]

use tests_kube::{CONTROLLER, Cluster, MESH, MUTUAL_TLS, eventually, install_with};

const WITHOUT_PERMISSIONS: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: Mesh
metadata: { name: mesh }
spec: { permissiveMode: false, dns: true }
"#;

fn talk(cluster: &Cluster, who: &str, host: &str) -> String {
    let url = format!("http://{host}/path");
    let from = format!("deployment/{who}");
    cluster
        .exec("six", &from, &["bookinfo", "talk", &url, "hello"])
        .1
}

#[test]
fn a_cluster_without_ipv4() {
    let Some(cluster) = Cluster::with_ipv6_alone() else {
        return;
    };
    // The installation gives the controller rights in it.
    cluster.kubectl(&["create", "namespace", "six"]);
    install_with(&cluster, &["gateways.namespaces=[six]"]);
    cluster.apply(WITHOUT_PERMISSIONS);
    let annotate = ["annotate", "ingressclass", "tulle"];
    // There is no load balancer in this cluster.
    cluster.kubectl(&[&annotate[..], &["tulle.dev/service-type=ClusterIP"]].concat());
    cluster.apply_file("ipv6.yaml", &[]);
    for name in ["web", "client", "stranger"] {
        cluster.await_deployment("six", name);
    }
    let pods = cluster.get_json(&["-n", "six", "pods", "-l", "app=web"]);
    let pods = pods["items"].as_array().unwrap().iter();
    let pods: Vec<String> = pods
        .map(|pod| format!("[{}]", pod["status"]["podIP"].as_str().unwrap()))
        .collect();
    let service = cluster.get_json(&["-n", "six", "service", "web"]);
    let service = format!("[{}]", service["spec"]["clusterIP"].as_str().unwrap());

    called_as_everything(&cluster, &pods, &service);
    strangers_are_refused(&cluster, &pods);
    by_an_ingress(&cluster, &pods);
    cluster.kubectl(&["-n", MESH, "rollout", "restart", CONTROLLER]);
    cluster.await_deployment(MESH, "tulle-controller");
    cluster.kubectl(&["-n", "six", "rollout", "restart", "deployment/web"]);
    cluster.await_deployment("six", "web");
    eventually("new pods are called after the controller's restart", || {
        talk(&cluster, "client", "web").starts_with("200")
    });
    let checked = cluster.tulle(&["check", "-n", "six"]);
    assert!(!checked.contains('×'), "{checked}");
}

fn called_as_everything(cluster: &Cluster, pods: &[String], service: &str) {
    let mut hosts = vec![
        "web".to_owned(),
        "web.six.svc.cluster.local".to_owned(),
        service.to_owned(),
    ];
    hosts.extend(pods.iter().map(|pod| format!("{pod}:8080")));
    for host in &hosts {
        eventually(&format!("{host} is answered"), || {
            let said = talk(cluster, "client", host);
            println!("{host}: {said}");
            said.starts_with("200")
        });
    }
    let from_client = "source_principal=\"spiffe://cluster.local/ns/six/sa/client\"";
    for pod in pods {
        eventually("a pod has counted the client's calls", || {
            cluster.has_counted(pod, &[MUTUAL_TLS, from_client])
        });
        assert!(!cluster.has_counted(pod, &["connection_security_policy=\"none\""]));
    }
}

fn strangers_are_refused(cluster: &Cluster, pods: &[String]) {
    eventually("a stranger is denied", || {
        talk(cluster, "stranger", "web").contains("may not call service web.six on port 8080")
    });
    for pod in pods {
        let url = format!("http://{pod}:8080/path");
        cluster.refuses_plaintext(&url);
    }
}

fn by_an_ingress(cluster: &Cluster, pods: &[String]) {
    let mut address = String::new();
    eventually("the Ingress has an address", || {
        let ingress = cluster.get_json(&["-n", "six", "ingress", "web"]);
        let found = ingress.pointer("/status/loadBalancer/ingress/0/ip");
        address = found
            .and_then(|ip| ip.as_str())
            .unwrap_or_default()
            .to_owned();
        !address.is_empty()
    });
    assert!(address.contains(':'), "{address}");
    eventually("the Ingress is served", || {
        let url = format!("http://[{address}]/path");
        let done = cluster
            .command(&["exec", "curl", "--silent", &url])
            .output();
        String::from_utf8_lossy(&done.unwrap().stdout).contains("\"web\"")
    });
    let ingress = "source_principal=\"spiffe://cluster.local/ns/six/sa/tulle-ingress\"";
    eventually("it was mutual TLS", || {
        pods.iter()
            .any(|pod| cluster.has_counted(pod, &[MUTUAL_TLS, ingress]))
    });
}
