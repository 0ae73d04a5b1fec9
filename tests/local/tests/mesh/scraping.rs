//! Prometheus on a host: one file names every proxy, and a gateway is always at the same port.

use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;
use tests_local::{Client, Demo, can_redirect, eventually, signal};

fn file(demo: &Demo) -> PathBuf {
    let status = demo.status();
    status["mesh"]["metrics_targets"].as_str().unwrap().into()
}

/// Where the file sends a scraper, by proxy.
fn targets(demo: &Demo) -> BTreeMap<String, SocketAddr> {
    let text = std::fs::read_to_string(file(demo)).unwrap();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut found = BTreeMap::new();
    for target in &all {
        let labels = &target["labels"];
        assert_eq!(labels["mesh"], demo.name(), "{text}");
        assert_eq!(labels["host"], "", "{text}");
        let [address] = target["targets"].as_array().unwrap().as_slice() else {
            panic!("{text}");
        };
        let proxy = labels["proxy"].as_str().unwrap().to_owned();
        let address = address.as_str().unwrap().parse().unwrap();
        assert_eq!(found.insert(proxy, address), None, "{text}");
    }
    found
}

/// Every proxy is in the file, in the status, and answers there with its own metrics.
fn scrape(demo: &Demo) -> BTreeMap<String, SocketAddr> {
    let targets = targets(demo);
    let status = demo.status();
    let proxies = status["proxies"].as_array().unwrap();
    let shown: BTreeMap<String, SocketAddr> = proxies
        .iter()
        .map(|p| {
            let metrics = p["metrics"].as_str().unwrap().parse().unwrap();
            (p["workload"].as_str().unwrap().to_owned(), metrics)
        })
        .collect();
    assert_eq!(targets, shown);
    for (proxy, address) in &targets {
        let answer = Client::connect(*address).get("/metrics");
        assert_eq!(answer.status(), 200, "{proxy}");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(text.contains("# TYPE tulle_"), "{proxy}: {text}");
    }
    let mode = std::fs::metadata(file(demo)).unwrap().mode();
    assert_eq!(mode & 0o777, 0o644, "Prometheus is another user");
    targets
}

/// One target for the whole mesh, as long as the command runs.
fn scrape_one_target(demo: &Demo) {
    let mut serving = demo
        .interruptible()
        .args(["metrics", "--serve", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(serving.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let rest = line.strip_prefix("http://").unwrap();
    let address: SocketAddr = rest.split_once('/').unwrap().0.parse().unwrap();
    let answer = Client::connect(address).get("/metrics");
    assert_eq!(answer.status(), 200, "{line}");
    let samples = tulle_model::samples::parse(&answer.text());
    let up = samples.iter().filter(|s| s.name == "tulle_proxy_up");
    let up: BTreeMap<&str, f64> = up.map(|s| (s.label("proxy"), s.value)).collect();
    let all = targets(demo);
    assert_eq!(up, all.keys().map(|proxy| (&**proxy, 1.0)).collect());
    assert_eq!(Client::connect(address).get("/").status(), 404);
    signal(i32::try_from(serving.id()).unwrap(), Signal::INT);
    assert_eq!(serving.wait().unwrap().code(), Some(0));
}

fn check(demo: &Demo) {
    let before = scrape(demo);
    scrape_one_target(demo);
    let gateway = before["gateway.ingress"];
    assert!((15020..15100).contains(&gateway.port()), "{gateway}");
    let admin = demo.proxy("gateway.ingress")["admin"].clone();
    let admin: SocketAddr = admin.as_str().unwrap().parse().unwrap();
    assert!((15100..15180).contains(&admin.port()), "{admin}");

    // The gateway stays where it is, restarted by itself and with the whole mesh.
    assert_eq!(demo.tulle(&["restart", "ingress"]).code, 0);
    assert_eq!(scrape(demo)["gateway.ingress"], gateway);
    let path = file(demo);
    assert_eq!(demo.tulle(&["down"]).code, 0);
    assert!(!path.exists(), "there is nothing to scrape");
    demo.up();
    assert_eq!(scrape(demo)["gateway.ingress"], gateway);
    let again = demo.proxy("gateway.ingress")["admin"].clone();
    assert_eq!(again.as_str().unwrap(), admin.to_string());

    // A workload that is gone is not scraped.
    assert_eq!(demo.tulle(&["delete", "workload", "ratings"]).code, 0);
    eventually("it is no target any more", || {
        !targets(demo).contains_key("ratings")
    });
}

#[test]
fn one_file_tells_prometheus_where_every_proxy_of_a_host_is() {
    check(&Demo::start_without_privileges(|text| text));
}

#[test]
fn the_same_in_namespaces() {
    if can_redirect() {
        check(&Demo::start(|text| text));
    }
}
