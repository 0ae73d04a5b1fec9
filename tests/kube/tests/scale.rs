//! Many services and many sidecars: how long a change takes to all of them, and what the controller
//! needs. The services have endpoints but no pods behind them, which the API server does not mind; the
//! sidecars are real ones with tokens of a service account, as processes of the node, since fifty pods
//! would measure the kubelet.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};
use tests_kube::{Cluster, eventually, install, root};

const SERVICES: usize = 200;
const ENDPOINTS: usize = 10;
/// Sidecars to which changes are timed, and how many there are when the controller is weighed.
const TIMED: usize = 20;
const ALL: usize = 50;
/// Changes that are timed.
const CHANGES: usize = 25;
const NAMESPACE: &str = "scale";
/// Memory limit of the controller, in MiB.
const MEMORY: u64 = 60;

fn service(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": format!("s{number}"), "namespace": NAMESPACE },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "appProtocol": "http" }] },
    })
}

/// The endpoints of a service; the last one's address ends in `last`.
fn slice(number: usize, last: usize) -> Value {
    let endpoint = |end: usize| {
        let address = format!("10.250.{number}.{end}");
        json!({ "addresses": [address], "conditions": { "ready": true } })
    };
    let endpoints: Vec<Value> = (1..ENDPOINTS).chain([last]).map(endpoint).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("s{number}"), "namespace": NAMESPACE,
            "labels": { "kubernetes.io/service-name": format!("s{number}") },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": endpoints,
    })
}

/// Sidecars that want every service, and the directory of their files.
struct Fleet {
    directory: PathBuf,
    sidecars: Vec<Child>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for sidecar in &mut self.sidecars {
            let _ = sidecar.kill();
            let _ = sidecar.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Fleet {
    fn new(cluster: &Cluster) -> Self {
        // The directory is in memory, like the volume of a pod.
        let directory = PathBuf::from(format!("/dev/shm/tulle-scale-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let fleet = Self {
            directory,
            sidecars: Vec::new(),
        };
        let token = [
            "create",
            "token",
            "default",
            "-n",
            NAMESPACE,
            "--audience",
            "tulle.dev",
        ];
        fs::write(fleet.file("token"), cluster.kubectl(&token).trim()).unwrap();
        let bundle = cluster.get_json(&["-n", NAMESPACE, "configmap", "tulle-trust-bundle"]);
        let bundle = bundle.pointer("/data/ca.crt").and_then(Value::as_str);
        fs::write(fleet.file("ca.crt"), bundle.unwrap()).unwrap();
        fleet
    }

    /// Starts as many as there are to be.
    fn grow(&mut self, cluster: &Cluster, count: usize) {
        let controller = cluster.get_json(&["-n", "tulle-system", "service", "tulle-controller"]);
        let controller = controller
            .pointer("/spec/clusterIP")
            .and_then(Value::as_str);
        for number in self.sidecars.len()..count {
            let config = self.config(number, controller.unwrap());
            let file = self.file(&format!("{number}.json"));
            fs::write(&file, config.to_string()).unwrap();
            let log = fs::File::create(self.file(&format!("{number}.log"))).unwrap();
            let sidecar = cluster
                .command(&["net"])
                .arg(root().join("target/debug/tulle-proxy"))
                .arg("--config")
                .arg(file)
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .stdin(Stdio::null())
                .spawn();
            self.sidecars.push(sidecar.unwrap());
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn snapshot(&self, number: usize) -> PathBuf {
        self.file(&format!("{number}.snapshot"))
    }

    /// Returns the webhook's configuration of a sidecar, except that connections are not redirected: each
    /// service has a listener.
    fn config(&self, number: usize, controller: &str) -> Value {
        let at = |port: usize| format!("127.1.0.{}:{port}", number + 1);
        let listeners: Vec<Value> = (0..SERVICES)
            .map(|service| {
                json!({
                    "address": at(20_000 + service), "kind": "upstream",
                    "service": format!("s{service}.{NAMESPACE}"), "port": 80,
                })
            })
            .collect();
        json!({
            "identity": format!("spiffe://cluster.local/ns/{NAMESPACE}/sa/default"),
            "control": {
                "address": format!("{controller}:15010"),
                "trustBundle": self.file("ca.crt"),
                "serviceAccountToken": self.file("token"),
                "service": format!("sidecar-{number}.{NAMESPACE}"),
                "snapshot": self.snapshot(number),
            },
            "admin": at(15000), "metrics": at(15020), "workers": 1,
            "listeners": listeners,
        })
    }

    /// Waits until each sidecar has taken over something with this text; when the last one had.
    fn await_all(&self, text: &str) -> Vec<SystemTime> {
        let mut times = Vec::new();
        for number in 0..self.sidecars.len() {
            eventually(&format!("{text} at sidecar {number}"), || {
                // Replaced as a whole, and its time is that of the whole.
                let at = |path: &Path| {
                    fs::metadata(path)
                        .ok()
                        .map(|m| (m.ino(), m.modified().unwrap()))
                };
                let before = at(&self.snapshot(number));
                let content = fs::read_to_string(self.snapshot(number)).unwrap_or_default();
                let same = before.is_some() && before == at(&self.snapshot(number));
                if same && content.contains(text) {
                    times.extend(before.map(|(_, modified)| modified));
                    return true;
                }
                false
            });
        }
        times
    }
}

/// Resident memory of the controller in MiB: all of it, and what is not of files.
fn memory(cluster: &Cluster) -> (u64, u64) {
    let find = "for p in /proc/[0-9]*; do if tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q '^[^ ]*tulle cluster-controller '; then cat $p/status; fi; done";
    let done = cluster
        .command(&["exec", "sh", "-c", find])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} of the controller: {text}"));
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            / 1024
    };
    (field("VmRSS:"), field("RssAnon:"))
}

#[test]
fn two_hundred_services_and_fifty_sidecars() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    println!("at first: {:?} MiB", memory(&cluster));
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    cluster.apply(&namespace.to_string());
    let all: Vec<Value> = (0..SERVICES)
        .flat_map(|n| [service(n), slice(n, ENDPOINTS)])
        .collect();
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": all }).to_string());
    println!("with services: {:?} MiB", memory(&cluster));
    eventually("what is trusted is there", || {
        let map = ["-n", NAMESPACE, "get", "configmap", "tulle-trust-bundle"];
        cluster.try_kubectl(&map).status.success()
    });
    let mut fleet = Fleet::new(&cluster);
    fleet.grow(&cluster, TIMED);
    let last = format!("10.250.{}.{ENDPOINTS}:", SERVICES - 1);
    fleet.await_all(&last);
    println!("with {TIMED} sidecars: {:?} MiB", memory(&cluster));

    let api = Api::new(&cluster);
    let mut took: Vec<Duration> = Vec::new();
    for change in 0..CHANGES {
        // Another address in one service after the other.
        let (number, last) = (change % SERVICES, 100 + change);
        let new = slice(number, last).to_string();
        let path =
            format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/s{number}");
        let sent = api.put(&path, &new);
        let times = fleet.await_all(&format!("10.250.{number}.{last}:"));
        took.extend(
            times
                .iter()
                .map(|t| t.duration_since(sent).unwrap_or_default()),
        );
    }
    took.sort_unstable();
    let quantile = |share: usize| took[(took.len() - 1) * share / 100];
    println!(
        "one endpoint changed, {CHANGES} times, at each of {TIMED} sidecars: p50 {:?}, p99 {:?}, most {:?}",
        quantile(50),
        quantile(99),
        quantile(100)
    );
    fleet.grow(&cluster, ALL);
    fleet.await_all(&last);
    let (all, own) = memory(&cluster);
    println!("with {ALL} sidecars the controller has {all} MiB, {own} of it its own");
    assert!(
        own <= MEMORY,
        "the controller has {own} MiB of its own, more than {MEMORY}"
    );

    drop(fleet);
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"]);
}

/// Asks the API server without kubectl, whose start takes longer than what is measured.
struct Api<'a> {
    cluster: &'a Cluster,
    server: String,
    authority: String,
    token: String,
}

impl<'a> Api<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let config = cluster.kubectl(&["config", "view", "--raw", "-o", "json"]);
        let config: Value = serde_json::from_str(&config).unwrap();
        let text = |path: &str| {
            config
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap()
                .to_owned()
        };
        Self {
            cluster,
            server: text("/clusters/0/cluster/server"),
            authority: text("/clusters/0/cluster/certificate-authority"),
            token: text("/users/0/user/token"),
        }
    }

    /// Replaces an object; when it was asked for, which is before the API server knew.
    fn put(&self, path: &str, object: &str) -> SystemTime {
        let url = format!("{}{path}", self.server);
        let bearer = format!("Authorization: Bearer {}", self.token);
        let began = SystemTime::now();
        let curl = self
            .cluster
            .command(&["net", "curl", "--silent", "--fail", "--output", "/dev/null"])
            .args(["--cacert", &self.authority, "--header", &bearer])
            .args(["--header", "Content-Type: application/json"])
            .args(["--request", "PUT", "--data", object, &url])
            .status();
        assert!(curl.unwrap().success(), "{path}");
        began
    }
}
