//! Both studies of `tulle bench` between pods: every sample is valid, with proof of mutual TLS, and has CPU
//! and memory of the sidecars.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Cluster, install_with, study};

/// Longer than a kubelet takes to look twice.
const SECONDS: u32 = 30;

/// Counts; figures that every machine agrees on.
fn check(sample: &Value) {
    println!("{sample:#}");
    assert!(sample.get("invalid").is_none(), "{sample:#}");
    let figure = |name: &str| sample["figures"][name].as_f64();
    assert!(figure("requests").unwrap() > 100.0);
    assert_eq!(figure("errors"), Some(0.0));
    let measured = figure("cpu_us_per_request").is_some_and(|cpu| cpu > 0.0);
    assert_eq!(measured, sample["peer"] == "tulle", "{sample:#}");
    if measured {
        assert!(figure("rss_peak_mib").unwrap() > 1.0);
        let evidence = sample["evidence"].to_string();
        assert!(evidence.contains("mutual_tls"), "{evidence}");
        assert!(evidence.contains("refused to"), "{evidence}");
    }
}

#[test]
fn both_studies_run_between_pods() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install_with(&cluster, &["gateways.allNamespaces=true"]);
    let samples = study(
        &cluster,
        SECONDS,
        &[
            "sweep",
            "--modes",
            "both,baseline",
            "--connections",
            "4",
            "--qps",
            "100",
        ],
    );
    assert_eq!(samples.len(), 2);
    samples.iter().for_each(check);
    let samples = study(
        &cluster,
        SECONDS,
        &["seeds", "--cpu", "0.5", "--connections", "4"],
    );
    assert_eq!(samples.len(), 4, "two paths, with sidecars and without");
    samples.iter().for_each(check);
    let samples = study(
        &cluster,
        SECONDS,
        &["seeds", "--cpu", "0.5", "--connections", "4", "--ingress"],
    );
    assert_eq!(samples.len(), 4, "by an Ingress, with sidecars and without");
    samples.iter().for_each(check);
    let by_ingress = |sample: &&Value| {
        let evidence = sample["evidence"].to_string();
        evidence.contains("/sa/tulle-bench-ingress -> ")
    };
    assert_eq!(samples.iter().filter(by_ingress).count(), 2);
    let classes = cluster.get_json(&["ingressclasses"]);
    let left = classes["items"].as_array().into_iter().flatten();
    let mut left = left.filter(|class| class["metadata"]["name"] == "tulle-bench");
    assert!(left.next().is_none(), "the class is left behind");
}
