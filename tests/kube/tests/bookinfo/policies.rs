//! Tests policies on bookinfo: allowed callers, authorization requests, and traffic that may leave.

use super::{addresses, fetch};
use serde_json::json;
use std::process::{Child, Stdio};
use tests_kube::{Cluster, eventually, root};

const PAGE: &str = "http://productpage/productpage";
/// The node's own address, which belongs to nothing in the mesh.
const OUTSIDE: &str = "10.200.0.2:8999";

pub(crate) fn hold(cluster: &Cluster) {
    who_may_call(cluster);
    one_of_the_reviews(cluster);
    who_may_leave(cluster);
    bad_ones_disturb_nobody(cluster);
    cluster.kubectl(&["delete", "mesh", "mesh"]);
}

fn mesh(cluster: &Cluster, permissive: bool) {
    let mesh = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": "mesh" },
        "spec": { "permissiveMode": permissive },
    });
    cluster.apply(&mesh.to_string());
}

/// The page as soon as it is whole.
fn whole_page(cluster: &Cluster, when: &str) {
    let mut page = String::new();
    let whole = |page: &str| {
        page.starts_with("200") && !page.contains("Not available") && !page.contains("no rating")
    };
    eventually(&format!("a whole page {when}"), || {
        page = fetch(cluster, PAGE);
        whole(&page)
    });
}

/// The visitor may not ask them directly. Each sidecar learns of it by itself: that of the page may
/// have known before.
fn ratings_refuse(cluster: &Cluster) {
    eventually("the ratings refuse the visitor", || {
        fetch(cluster, "http://ratings:8101/ratings/1").starts_with("403 denied")
    });
}

fn who_may_call(cluster: &Cluster) {
    // Nobody may, unless something says so.
    mesh(cluster, false);
    eventually("nobody may call the page", || {
        fetch(cluster, PAGE).starts_with("403 denied")
    });
    cluster.apply_file("bookinfo-policies.yaml", &[]);
    whole_page(cluster, "with TrafficTargets");
    ratings_refuse(cluster);
    // Another method than the group's is not allowed to those who may read.
    let program = ["bookinfo", "talk", "http://ratings:8101/ratings", "{}"];
    let (_, post) = cluster.exec("bookinfo", "deployment/reviews-v1", &program);
    assert!(post.starts_with("403 denied"), "{post}");

    // Taken away, it is refused at once; what does not need it goes on.
    cluster.kubectl(&["-n", "bookinfo", "delete", "traffictarget", "ratings"]);
    eventually("the page has no ratings", || {
        let page = fetch(cluster, PAGE);
        page.starts_with("200") && page.contains("403") && page.contains("no rating")
    });
    cluster.apply_file("bookinfo-policies.yaml", &[]);
    whole_page(cluster, "with the TrafficTarget again");

    // A deny rule wins, even where everything else is allowed.
    mesh(cluster, true);
    let deny = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": { "name": "no-health", "namespace": "bookinfo" },
        "spec": {
            "targetRefs": [{ "kind": "Service", "name": "details" }], "action": "Deny",
            "rules": [{ "to": { "paths": [{ "type": "Exact", "value": "/health" }] } }],
        },
    });
    cluster.apply(&deny.to_string());
    eventually("the policy denies, by its name", || {
        let said = fetch(cluster, "http://details:8103/health");
        said.starts_with("403 denied") && said.contains("AuthorizationPolicy/no-health")
    });
    whole_page(cluster, "beside the policy");
    cluster.kubectl(&[
        "-n",
        "bookinfo",
        "delete",
        "authorizationpolicy",
        "no-health",
    ]);
    eventually("without the policy all is allowed", || {
        fetch(cluster, "http://details:8103/health").starts_with("200")
    });
}

/// A TrafficSplit sends all to one version, then to another.
fn one_of_the_reviews(cluster: &Cluster) {
    let service = |version: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": format!("reviews-{version}"), "namespace": "bookinfo" },
            "spec": {
                "selector": { "app": "reviews", "version": version },
                "ports": [{ "name": "http", "port": 8102, "appProtocol": "http" }],
            },
        })
    };
    let split = |version: &str| {
        json!({
            "apiVersion": "split.smi-spec.io/v1alpha4", "kind": "TrafficSplit",
            "metadata": { "name": "reviews", "namespace": "bookinfo" },
            "spec": {
                "service": "reviews",
                "backends": [{ "service": format!("reviews-{version}"), "weight": 1 }],
            },
        })
    };
    for version in ["v2", "v3"] {
        cluster.apply(&service(version).to_string());
        cluster.apply(&split(version).to_string());
        eventually(&format!("all requests go to {version}"), || {
            let before = asked(cluster);
            for _ in 0..4 {
                fetch(cluster, PAGE);
            }
            let after = asked(cluster);
            let grown = before.iter().zip(&after).filter(|(b, a)| a.1 > b.1);
            let grown: Vec<&str> = grown.map(|(_, (pod, _))| pod.as_str()).collect();
            grown.len() == 1 && grown[0].starts_with(&format!("reviews-{version}-"))
        });
    }
    cluster.kubectl(&["-n", "bookinfo", "delete", "trafficsplit", "reviews"]);
}

/// How many requests each pod of the reviews has had.
fn asked(cluster: &Cluster) -> Vec<(String, f64)> {
    let pods = addresses(cluster, "bookinfo");
    let reviews = pods
        .into_iter()
        .filter(|(name, _)| name.starts_with("reviews-"));
    reviews
        .map(|(name, ip)| {
            let metrics = cluster.curl(&format!("http://{ip}:15020/metrics"));
            let lines = metrics.lines().filter(|line| {
                line.starts_with("istio_requests_total")
                    && line.contains("reporter=\"destination\"")
            });
            let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            (name, counts.sum())
        })
        .collect()
}

/// Somebody who is not of the cluster.
struct Outside(Child);

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn who_may_leave(cluster: &Cluster) {
    let (ip, port) = OUTSIDE.split_once(':').unwrap();
    let outside = cluster
        .command(&["net"])
        .arg(root().join("target/debug/bookinfo"))
        .args(["echo", "--bind", ip, "--port", port])
        .stdout(Stdio::null())
        .spawn();
    let _outside = Outside(outside.unwrap());
    let url = format!("http://{OUTSIDE}/");
    eventually("who is outside is there", || {
        let mut curl = cluster.command(&["net", "curl", "-s", "-o", "/dev/null", &url]);
        curl.status().unwrap().success()
    });
    let said = fetch(cluster, &url);
    assert!(said.starts_with("502 no_service"), "{said}");
    let egress = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "Egress",
        "metadata": { "name": "outside", "namespace": "bookinfo" },
        "spec": {
            "sources": [{ "kind": "ServiceAccount", "name": "visitor", "namespace": "bookinfo" }],
            "ipAddresses": [format!("{ip}/32")],
            "ports": [{ "number": 8999, "protocol": "http" }],
        },
    });
    cluster.apply(&egress.to_string());
    eventually("the visitor may leave", || {
        fetch(cluster, &url).starts_with("200")
    });
    let program = ["bookinfo", "fetch", &url];
    // Each sidecar learns of it by itself.
    eventually("details may not", || {
        let (_, said) = cluster.exec("bookinfo", "deployment/details", &program);
        assert!(!said.starts_with("200"), "{said}");
        said.starts_with("403 egress_denied")
    });
    cluster.kubectl(&["-n", "bookinfo", "delete", "egress", "outside"]);
}

fn bad_ones_disturb_nobody(cluster: &Cluster) {
    mesh(cluster, false);
    whole_page(cluster, "with TrafficTargets alone");
    ratings_refuse(cluster);
    cluster.apply_file("bad.yaml", &[]);
    let another = root().join("tests/kube/manifests/another-mesh.yaml");
    let refused = cluster.try_kubectl(&["apply", "-f", another.to_str().unwrap()]);
    assert!(!refused.status.success(), "a second Mesh: {refused:?}");
    let direct = fetch(cluster, "http://ratings:8101/ratings/1");
    assert!(
        direct.starts_with("403 denied"),
        "a target without its group: {direct}"
    );
    let page = fetch(cluster, PAGE);
    assert!(
        page.starts_with("200") && !page.contains("no rating"),
        "{page}"
    );
    // The split to nowhere concerns only the one who is split.
    cluster.kubectl(&["-n", "bookinfo", "delete", "trafficsplit", "nowhere"]);
    whole_page(cluster, "without what was bad");
}
