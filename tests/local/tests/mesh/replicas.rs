//! Replicas of a service come and go under load, and nobody notices.

use serde_json::Value;
use tests_local::{Demo, Load, RATING, can_redirect, eventually};

/// A second workload of the service `ratings`, whose application takes its time to start.
pub(super) fn replica(demo: &Demo) -> String {
    let manifest = std::fs::read_to_string(&demo.manifest).unwrap();
    let is_ratings = |d: &&str| d.contains("kind: Workload") && d.contains("name: ratings\n");
    let ratings = manifest.split("---\n").find(is_ratings).unwrap();
    ratings
        .replace(
            "  name: ratings\nspec:\n",
            "  name: ratings-2\nspec:\n  service: ratings\n",
        )
        .replace(
            "  command: [",
            "  command: [/bin/sh, -c, 'sleep 1; exec \"$@\"', sh, ",
        )
}

fn requests_received(demo: &Demo, workload: &str) -> u64 {
    let metrics = demo.admin(workload, "/metrics").text();
    let counted = metrics.lines().filter(|l| {
        l.starts_with("istio_requests_total{") && l.contains("reporter=\"destination\"")
    });
    counted
        .map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

pub(super) fn is_ready(demo: &Demo, workload: &str) -> bool {
    let status = demo.status();
    let services = status["services"].as_array().unwrap();
    services
        .iter()
        .flat_map(|s| s["workloads"].as_array().unwrap())
        .any(|w| w["name"] == workload && w["ready"] == true)
}

pub(super) fn endpoints(demo: &Demo) -> usize {
    let config: Value =
        serde_json::from_slice(&demo.admin("gateway.ingress", "/config").body).unwrap();
    let ports = config["services"]["ratings"]["ports"]
        .as_array()
        .unwrap()
        .clone();
    ports[0]["endpoints"].as_array().unwrap().len()
}

#[test]
fn a_replica_comes_and_goes_without_a_failed_request() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let (direct, by_gateway) = (
        format!("/ratings/{RATING}"),
        format!("/bookinfo-ratings/ratings/{RATING}"),
    );
    let second = replica(&demo);
    assert!(second.contains("name: ratings-2") && second.contains("service: ratings"));
    let file = demo.write("replica.yaml", &second);
    let load = Load::gets(demo.ingress, 6, &[&direct, &by_gateway]);
    for _ in 0..3 {
        demo.apply(&file);
        eventually("it is ready", || is_ready(&demo, "ratings-2"));
        eventually("both are used", || endpoints(&demo) == 2);
        eventually("it has its share", || {
            requests_received(&demo, "ratings-2") > 20
        });
        let deleted = demo.tulle(&["delete", "workload", "ratings-2"]);
        assert_eq!(deleted.code, 0, "{deleted:?}");
        eventually("it is gone", || {
            endpoints(&demo) == 1 && !demo.left().iter().any(|l| l.contains("ratings-2"))
        });
        load.await_more(50);
    }
    load.assert_no_failure();
}
