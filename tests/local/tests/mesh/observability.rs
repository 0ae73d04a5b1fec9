//! Prometheus beside a host's mesh, by the command of `demo/observability`: it finds every proxy, reads the rules, and
//! every query of the dashboards finds what is there.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command};
use tests_local::{Client, Demo, RATING, eventually, free_port};

/// Metrics that only a controller of a cluster has, or that something has to go wrong for.
const ELSEWHERE: [&str; 2] = ["tulle_controller_", "process_"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

struct Prometheus {
    process: Child,
    address: String,
}

impl Prometheus {
    fn start(demo: &Demo) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let tulle = demo.command();
        let which_mesh = tulle.get_envs().filter_map(|(n, v)| Some((n, v?)));
        let process = Command::new(root().join("demo/observability/run.sh"))
            .envs(which_mesh)
            .env("TULLE", tulle.get_program())
            .env("PROMETHEUS", &address)
            .env("STATE", demo.path().join("observability"))
            .spawn()
            .unwrap();
        Self { process, address }
    }

    fn get(&self, target: &str) -> Option<Value> {
        let address = self.address.parse().unwrap();
        let answer = Client::try_connect(address).ok()?.get(target);
        serde_json::from_slice(&answer.body).ok()
    }

    /// How many series a query finds.
    fn found(&self, query: &str) -> usize {
        let query: String = query
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => {
                    char::from(byte).to_string()
                }
                other => format!("%{other:02X}"),
            })
            .collect();
        let answer = self.get(&format!("/api/v1/query?query={query}"));
        let answer = answer.unwrap_or_default();
        assert_ne!(answer["status"], "error", "{answer}");
        answer["data"]["result"].as_array().map_or(0, Vec::len)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // The script ends what it has started.
        let _ = Command::new("kill")
            .arg(self.process.id().to_string())
            .status();
        let _ = self.process.wait();
    }
}

/// Every query of the dashboards, about the services and workloads of the demo.
fn queries() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(root().join("deploy/dashboards")).unwrap() {
        let path = file.unwrap().path();
        let dashboard: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        let targets = panels.filter_map(|p| p["targets"].as_array()).flatten();
        for query in targets.filter_map(|t| t["expr"].as_str()) {
            let query = query
                .replace("$__rate_interval", "1m")
                .replace("$service", "ratings")
                .replace("$workload", "ratings");
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            found.push((name, query));
        }
    }
    found
}

/// Whether a query can find something in a mesh of a host that works: there are no failures, no TCP, and `ratings`
/// calls nobody.
fn has_something(query: &str) -> bool {
    !ELSEWHERE.iter().any(|prefix| query.contains(prefix))
        && ![
            "istio_tcp_",
            "response_flags!=",
            "source_workload=\"ratings\"",
        ]
        .iter()
        .any(|what| query.contains(what))
        && !query.contains("=~\"5..\"")
}

#[test]
fn prometheus_beside_the_demo_answers_every_dashboard() {
    let version = Command::new("prometheus").arg("--version").output();
    assert!(
        version.is_ok(),
        "no prometheus: Debian's package of this name brings it"
    );
    let demo = Demo::start_on_loopback(|text| text);
    let prometheus = Prometheus::start(&demo);
    let proxies: BTreeSet<String> = demo.status()["proxies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|proxy| proxy["workload"].as_str().unwrap().to_owned())
        .collect();
    eventually("every proxy is scraped", || {
        let targets = prometheus.get("/api/v1/targets").unwrap_or_default();
        let active = targets["data"]["activeTargets"].as_array();
        let up: BTreeSet<String> = active
            .into_iter()
            .flatten()
            .filter(|target| target["health"] == "up")
            .filter_map(|target| Some(target["labels"]["proxy"].as_str()?.to_owned()))
            .collect();
        up == proxies
    });
    let rules = prometheus.get("/api/v1/rules").unwrap();
    let groups = rules["data"]["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1, "{rules}");

    let mut open: BTreeMap<String, String> = BTreeMap::new();
    for (dashboard, query) in queries() {
        // One that finds nothing here must still be one that Prometheus understands.
        prometheus.found(&query);
        if has_something(&query) {
            open.insert(query, dashboard);
        }
    }
    assert!(open.len() > 20, "{open:#?}");
    eventually("every query finds something", || {
        for _ in 0..5 {
            assert_eq!(demo.get(&format!("/ratings/{RATING}")).status(), 200);
        }
        open.retain(|query, _| prometheus.found(query) == 0);
        open.is_empty()
    });
}
