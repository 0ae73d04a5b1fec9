//! An application as it is found in clusters, put into the mesh by its namespace's label alone: what
//! its users notice (nothing), and what is on the wire between its pods (TLS, and nothing else).

#![allow(clippy::unwrap_used)]

mod policies;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use tests_kube::{Cluster, eventually, install};

const REVIEWS: &str = r#"
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: reviews-@VERSION@, namespace: bookinfo }
spec:
  selector: { matchLabels: { app: reviews, version: "@VERSION@" } }
  template:
    metadata: { labels: { app: reviews, version: "@VERSION@" } }
    spec:
      serviceAccountName: reviews
      containers:
      - name: reviews
        image: "@IMAGE@"
        args: [reviews, --bind, 0.0.0.0]
        ports: [{ containerPort: 8102 }]
        readinessProbe: { httpGet: { path: /health, port: 8102 }, periodSeconds: 1, timeoutSeconds: 10 }
"#;

fn start(cluster: &Cluster) {
    let reviews: String = ["v1", "v2", "v3"]
        .iter()
        .map(|version| REVIEWS.replace("@VERSION@", version))
        .collect();
    let programs = cluster.command(&["programs"]).output().unwrap();
    let programs = String::from_utf8(programs.stdout).unwrap();
    let kube = format!("{}/kube", programs.trim());
    // A program that is started as a probe takes longer than a second on a busy machine.
    let probe = (
        "periodSeconds: 2 }",
        "periodSeconds: 2, timeoutSeconds: 10 }",
    );
    let words = [("@REVIEWS@", reviews.as_str()), ("@KUBE@", &kube), probe];
    cluster.apply_file("bookinfo.yaml", &words);
    for name in [
        "visitor",
        "productpage",
        "details",
        "reviews-v1",
        "reviews-v2",
        "reviews-v3",
        "ratings",
        "db",
    ] {
        cluster.await_deployment("bookinfo", name);
    }
}

/// Returns the visitor's answer to a GET.
fn fetch(cluster: &Cluster, url: &str) -> String {
    let program = ["bookinfo", "fetch", url];
    cluster.exec("bookinfo", "deployment/visitor", &program).1
}

/// Addresses of a namespace's pods, by their names.
fn addresses(cluster: &Cluster, namespace: &str) -> BTreeMap<String, Ipv4Addr> {
    let pods = cluster.get_json(&["-n", namespace, "pods"]);
    let pods = pods["items"].as_array().unwrap().iter();
    let pods = pods.filter_map(|pod| {
        let ip = pod["status"]["podIP"].as_str()?.parse().ok()?;
        Some((pod["metadata"]["name"].as_str()?.to_owned(), ip))
    });
    pods.collect()
}

#[test]
fn bookinfo_notices_nothing() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    let capture = cluster.capture();
    start(&cluster);

    the_page_is_whole(&cluster);
    etcd_is_a_cluster(&cluster);
    others(&cluster);

    // Plaintext, so that it is known to be seen.
    eventually("the pods without sidecars are ready", || {
        addresses(&cluster, "plain").len() == 2
    });
    let plain = addresses(&cluster, "plain");
    let url = format!("http://{}:8104/seen-on-the-wire", plain["server"]);
    eventually("plaintext between pods that are not of the mesh", || {
        let asked = ["bookinfo", "fetch", &url];
        cluster
            .exec("plain", "pod/client", &asked)
            .1
            .starts_with("200")
    });

    let pods = addresses(&cluster, "bookinfo");
    let controller = addresses(&cluster, "tulle-system");
    let wire = capture.end();
    let outsiders: BTreeSet<Ipv4Addr> = plain.values().copied().collect();
    let seen = wire.between(&outsiders);
    let seen: Vec<_> = seen.filter(|d| wire.has(*d, b"seen-on-the-wire")).collect();
    assert!(!seen.is_empty(), "the capture does not see what pods say");
    assert!(wire.not_tls(seen[0]).is_some());

    let ours: BTreeSet<Ipv4Addr> = pods.values().chain(controller.values()).copied().collect();
    let mut edges = BTreeSet::new();
    let named = |ip: &Ipv4Addr| {
        let pod = pods.iter().find(|(_, own)| *own == ip);
        let pod = pod.map_or("controller", |(name, _)| name);
        // Deployments add two words to the names of their pods.
        let known = [
            "visitor",
            "productpage",
            "details",
            "reviews",
            "ratings",
            "db",
            "etcd",
        ];
        let known = known.into_iter().find(|name| pod.starts_with(name));
        known.unwrap_or(pod).to_owned()
    };
    for direction in wire.between(&ours) {
        let edge = (named(direction.0.ip()), named(direction.1.ip()));
        assert_eq!(wire.not_tls(direction), None, "{edge:?} {direction:?}");
        if wire.is_whole(direction) {
            edges.insert(edge);
        }
    }
    for (from, to) in [
        ("visitor", "productpage"),
        ("productpage", "details"),
        ("productpage", "reviews"),
        ("reviews", "ratings"),
        ("visitor", "db"),
        ("etcd", "etcd"),
        ("visitor", "etcd"),
        ("visitor", "controller"),
    ] {
        let edge = (from.to_owned(), to.to_owned());
        assert!(edges.contains(&edge), "{edge:?} is not among {edges:?}");
    }

    policies::hold(&cluster);
    cluster.kubectl(&["delete", "namespace", "bookinfo", "plain", "--wait=false"]);
}

/// Every part of the page is there, called by whom it should be, and each version of the reviews has
/// its share.
fn the_page_is_whole(cluster: &Cluster) {
    // The page is whole as soon as each sidecar knows its endpoints.
    eventually("the page is whole", || {
        let page = fetch(cluster, "http://productpage/productpage");
        let callers = ["visitor", "productpage", "reviews"];
        let ids = callers.map(|c| format!("spiffe://cluster.local/ns/bookinfo/sa/{c}"));
        let mut wrong = ["Not available", "no rating", "no verified identity"].into_iter();
        let is_whole = page.starts_with("200")
            && ids.iter().all(|id| page.contains(id))
            && !wrong.any(|wrong| page.contains(wrong));
        if !is_whole {
            println!("{page}");
        }
        is_whole
    });
    eventually("each version of the reviews was asked", || {
        fetch(cluster, "http://productpage.bookinfo/productpage");
        let pods = addresses(cluster, "bookinfo");
        let mut reviews = pods.iter().filter(|(name, _)| name.starts_with("reviews-"));
        reviews.all(|(_, ip)| {
            let page = "source_principal=\"spiffe://cluster.local/ns/bookinfo/sa/productpage\"";
            cluster.has_counted(ip, &[page, tests_kube::MUTUAL_TLS])
        })
    });
}

/// A StatefulSet whose pods find each other by their own names, and what one is told all know.
fn etcd_is_a_cluster(cluster: &Cluster) {
    eventually("etcd is ready", || {
        let set = cluster.get_json(&["-n", "bookinfo", "statefulset", "etcd"]);
        set["status"]["readyReplicas"].as_u64() == Some(3)
    });
    let tell = |member: &str, what: &str, words: &str| {
        let url = format!("http://{member}:2379/v3/kv/{what}");
        let talk = ["bookinfo", "talk", &url, words];
        cluster.exec("bookinfo", "deployment/visitor", &talk).1
    };
    // `colour` and `green`, in base64 as etcd wants it. Its members may just be choosing a leader, and
    // their names be new to the DNS.
    eventually("etcd is told", || {
        let said = tell(
            "etcd-1.etcd.bookinfo.svc",
            "put",
            r#"{"key": "Y29sb3Vy", "value": "Z3JlZW4="}"#,
        );
        println!("put: {said}");
        said.starts_with("200")
    });
    eventually("all of etcd knows", || {
        let said = tell("etcd-2.etcd", "range", r#"{"key": "Y29sb3Vy"}"#);
        println!("range: {said}");
        said.contains("Z3JlZW4=")
    });
    eventually("etcd is healthy", || {
        let health = fetch(cluster, "http://etcd-2.etcd:2379/health");
        println!("health: {health}");
        health.starts_with("200")
    });
}

fn others(cluster: &Cluster) {
    // The server speaks first, and the client receives it before it has sent anything.
    let talk = ["bookinfo", "talk", "tcp://db:3306", "select"];
    eventually("the database is heard", || {
        let (_, said) = cluster.exec("bookinfo", "deployment/visitor", &talk);
        println!("db: {said}");
        said == "db is ready\ndb heard select\n"
    });
    // An application that calls itself by its Service.
    let own = ["bookinfo", "fetch", "http://details:8103/health"];
    eventually("details calls itself", || {
        let (_, said) = cluster.exec("bookinfo", "deployment/details", &own);
        println!("details: {said}");
        said.starts_with("200")
    });
    // All probes of all containers.
    eventually("the pod with every kind of probe is ready", || {
        let pod = cluster.get_json(&["-n", "bookinfo", "pod", "probed"]);
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    });
    let pod = cluster.get_json(&["-n", "bookinfo", "pod", "probed"]);
    let restarts: Vec<&Value> = pod["status"]["containerStatuses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["restartCount"])
        .collect();
    assert!(restarts.iter().all(|n| n.as_u64() == Some(0)), "{pod}");
    eventually("the job has ended", || {
        let job = cluster.get_json(&["-n", "bookinfo", "job", "once"]);
        job.pointer("/status/succeeded") == Some(&1.into())
    });
}
