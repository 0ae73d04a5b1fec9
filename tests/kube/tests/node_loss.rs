//! A node that is lost and comes back: its link is cut while clients of both nodes ask servers of both without end.
//!
//! For 20 s Kubernetes itself notices nothing: who calls the lost servers finds out by himself. When the
//! link is away for longer, Kubernetes takes the servers out.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tests_kube::load::await_endpoints;
use tests_kube::{Cluster, eventually, install_with, pause};

/// Kubernetes calls a node lost after 50 s.
const SHORT: Duration = Duration::from_secs(20);
/// The Mesh's limit for a request, and the client's own; who waits for an answer at all has given up after it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Clients of each service on each node.
const SERVICES: [(&str, &str); 2] = [("usual", "10.96.100.1"), ("guarded", "10.96.100.2")];

const CLIENT: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: { name: @NAME@, namespace: loss }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: @NAME@, namespace: loss }
spec:
  selector: { matchLabels: { app: @NAME@ } }
  template:
    metadata:
      labels: { app: @NAME@ }
      annotations: { tulle.dev/exclude-inbound-ports: "8107" } # the test asks it from outside
    spec:
      serviceAccountName: @NAME@
      nodeSelector: { kubernetes.io/hostname: @NODE@ }
      containers:
      - name: load
        image: "@IMAGE@"
        args: [load, --bind, 0.0.0.0, --lanes, "2", --pause, "50", "http://@ADDRESS@/path"]
        ports: [{ containerPort: 8107 }]
        readinessProbe: { httpGet: { path: /health, port: 8107 }, periodSeconds: 1, timeoutSeconds: 10 }
"#;

#[test]
fn a_lost_node_comes_back() {
    let Some(cluster) = Cluster::with_nodes(2) else {
        return;
    };
    // Its own node is not the one that is lost.
    let here = r#"controller.nodeSelector={"kubernetes.io/hostname":"node1"}"#;
    install_with(&cluster, &[here]);
    cluster.apply_file("node-loss.yaml", &[]);
    cluster.await_daemon_set("loss", "server");
    for (service, _) in SERVICES {
        await_endpoints(&cluster, "loss", service, 2);
    }
    let clients = [1, 2]
        .map(|node| SERVICES.map(|(name, address)| Client::start(&cluster, name, address, node)));
    let clients = clients.as_flattened();
    let all = Clients {
        cluster: &cluster,
        clients,
    };
    all.everybody_is_served("at first");
    assert_eq!(all.lost(), [0; 4], "before anything happened");

    a_short_loss(&all);
    a_long_loss(&all);
    cluster.kubectl(&["delete", "namespace", "loss", "--wait=false"]);
}

/// For 20 s: shorter than Kubernetes takes to notice.
fn a_short_loss(all: &Clients<'_>) {
    let since = all.readiness();
    let before = all.accounts();
    all.link("cut");
    let begun = Instant::now();
    // The clients whose policy looks after it leave the other node's server out, on either side.
    for client in all.clients.iter().filter(|c| c.service == "guarded") {
        let what = format!("{} leaves the lost server out", client.name);
        eventually(&what, || client.left_out(all.cluster) == 1);
        println!("{what} after {:?} or less", begun.elapsed());
    }
    pause("the link is cut", SHORT.saturating_sub(begun.elapsed()));
    for (client, before) in all.clients.iter().zip(&before) {
        let account = client.account(all.cluster);
        println!("cut for {:?}, {}: {account}", begun.elapsed(), client.name);
        assert!(
            answered(&account) > answered(before),
            "{}: {account}",
            client.name
        );
    }
    all.link("mend");
    let mended = Instant::now();
    all.everybody_is_served("the link is back");
    println!(
        "both servers serve all clients {:?} after the link is back",
        mended.elapsed()
    );
    all.calm();
    assert_eq!(all.readiness(), since, "Kubernetes has noticed nothing");
    for client in all.clients {
        let account = client.account(all.cluster);
        println!("after the short loss, {}: {account}", client.name);
        match client.service {
            "guarded" => assert_eq!(lost(&account), 0, "{}: {account:#}", client.name),
            // A connection that was there leads nowhere, and the Mesh's limit of a request ends the wait.
            _ => only_waited_in_vain(client, &account),
        }
    }
    all.nobody_loses_any_more("after the short loss");
    the_other_node_is_told(all.cluster);
}

/// Sidecars of the other node know a Service that is new: the controller reaches them again.
fn the_other_node_is_told(cluster: &Cluster) {
    let late = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "late", "namespace": "loss" },
        "spec": {
            "clusterIP": "10.96.100.3", "selector": { "app": "server" },
            "ports": [{ "name": "http", "port": 80, "targetPort": 8104, "appProtocol": "http" }],
        },
    });
    cluster.apply(&late.to_string());
    eventually("a new Service is known on the other node", || {
        let words = ["bookinfo", "fetch", "http://10.96.100.3/path"];
        let said = cluster.exec("loss", "deployment/usual-2", &words).1;
        said.starts_with("200")
    });
}

/// Until Kubernetes calls the node lost.
fn a_long_loss(all: &Clients<'_>) {
    all.link("cut");
    let begun = Instant::now();
    eventually("Kubernetes calls the node lost", || {
        all.readiness()["status"] == "Unknown"
    });
    println!("Kubernetes calls the node lost after {:?}", begun.elapsed());
    eventually("its server is no endpoint", || {
        let slices = [
            "-n",
            "loss",
            "endpointslices",
            "-l",
            "kubernetes.io/service-name=usual",
        ];
        let slices = all.cluster.get_json(&slices);
        let endpoints = slices["items"][0]["endpoints"].as_array().unwrap();
        endpoints
            .iter()
            .all(|e| (e["conditions"]["ready"] == true) == (e["nodeName"] == "node1"))
    });
    println!("its server is no endpoint after {:?}", begun.elapsed());
    // The other node's clients keep what they were told, since nobody can tell them anything else.
    let here = Clients {
        cluster: all.cluster,
        clients: &all.clients[..2],
    };
    here.calm();
    here.nobody_loses_any_more("while the node is lost");
    all.link("mend");
    let mended = Instant::now();
    eventually("the node is ready again", || {
        all.readiness()["status"] == "True"
    });
    await_endpoints(all.cluster, "loss", "usual", 2);
    all.everybody_is_served("the node is back");
    println!(
        "both servers serve all clients {:?} after the link is back",
        mended.elapsed()
    );
    all.calm();
    for (client, account) in all.clients.iter().zip(all.accounts()) {
        println!("after the long loss, {}: {account}", client.name);
        if client.service == "guarded" {
            assert_eq!(lost(&account), 0, "{}: {account:#}", client.name);
        }
    }
    all.nobody_loses_any_more("after the long loss");
}

/// Requests that got no answer before their time was over.
const CUT_OFF: [&str; 6] = [
    "unresolved",
    "nobody",
    "refused",
    "endedKept",
    "endedNew",
    "cut",
];

fn count(account: &Value, kinds: &[&str]) -> u64 {
    kinds
        .iter()
        .map(|kind| account[kind].as_u64().unwrap())
        .sum()
}

fn answered(account: &Value) -> u64 {
    count(account, &["answeredKept", "answeredNew"])
}

fn lost(account: &Value) -> u64 {
    count(account, &CUT_OFF) + count(account, &["status", "late"])
}

/// Nothing was refused or cut off: whoever was not answered had waited as long as the Mesh or the client itself
/// allows, or was told by the sidecar that the server was not reached.
fn only_waited_in_vain(client: &Client, account: &Value) {
    assert_eq!(count(account, &CUT_OFF), 0, "{}: {account:#}", client.name);
    assert!(
        lost(account) > 0,
        "{}: the link was not cut: {account:#}",
        client.name
    );
}

/// A client that asks one service without end, on one node.
struct Client {
    service: &'static str,
    name: String,
    node: usize,
    ip: String,
}

impl Client {
    fn start(cluster: &Cluster, service: &'static str, address: &str, node: usize) -> Self {
        let name = format!("{service}-{node}");
        let image = format!("localhost/bookinfo:{}", env!("CARGO_PKG_VERSION"));
        let words = [
            ("@NAME@", name.as_str()),
            ("@NODE@", &format!("node{node}")),
            ("@ADDRESS@", address),
            ("@IMAGE@", &image),
        ];
        let text = words.iter().fold(CLIENT.to_owned(), |text, (word, meant)| {
            text.replace(word, meant)
        });
        cluster.apply(&text);
        cluster.await_deployment("loss", &name);
        let pods = cluster.get_json(&["-n", "loss", "pods", "-l", &format!("app={name}")]);
        let ip = pods
            .pointer("/items/0/status/podIP")
            .unwrap()
            .as_str()
            .unwrap()
            .to_owned();
        Self {
            service,
            name,
            node,
            ip,
        }
    }

    /// Asks it where it is: also while nobody else can.
    fn ask(&self, cluster: &Cluster, port: u16, path: &str) -> String {
        curl(
            cluster,
            self.node,
            &format!("http://{}:{port}/{path}", self.ip),
        )
    }

    fn account(&self, cluster: &Cluster) -> Value {
        serde_json::from_str(&self.ask(cluster, 8107, "")).unwrap()
    }

    /// Endpoints that its sidecar leaves out because they failed.
    fn left_out(&self, cluster: &Cluster) -> u64 {
        let metrics = self.ask(cluster, 15020, "metrics");
        let lines = metrics
            .lines()
            .filter(|line| line.starts_with("tulle_endpoints_ejected{"));
        lines
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
            .sum()
    }
}

fn curl(cluster: &Cluster, node: usize, url: &str) -> String {
    let words = ["net", "curl", "--silent", "--show-error", "--fail", url];
    let done = cluster.on(node, &words).output().unwrap();
    assert!(
        done.status.success(),
        "{url}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

struct Clients<'a> {
    cluster: &'a Cluster,
    clients: &'a [Client],
}

impl Clients<'_> {
    fn accounts(&self) -> Vec<Value> {
        self.clients
            .iter()
            .map(|client| client.account(self.cluster))
            .collect()
    }

    fn lost(&self) -> Vec<u64> {
        self.accounts().iter().map(lost).collect()
    }

    /// Cuts or mends the link of the second node.
    fn link(&self, command: &str) {
        let done = self.cluster.on(2, &[command]).output().unwrap();
        assert!(done.status.success(), "{command}: {done:?}");
    }

    /// The condition `Ready` of the second node.
    fn readiness(&self) -> Value {
        let node = self.cluster.get_json(&["node", "node2"]);
        let mut conditions = node["status"]["conditions"].as_array().unwrap().iter();
        let ready = conditions.find(|c| c["type"] == "Ready").unwrap();
        let field = |name: &str| ready[name].clone();
        json!({ "status": field("status"), "since": field("lastTransitionTime") })
    }

    /// Requests of each client to the server of each node so far.
    fn served(&self) -> Vec<u64> {
        let pods = self
            .cluster
            .get_json(&["-n", "loss", "pods", "-l", "app=server"]);
        let pods = pods["items"].as_array().unwrap();
        let metrics = pods.iter().map(|pod| {
            let node = if pod["spec"]["nodeName"] == "node1" {
                1
            } else {
                2
            };
            let ip = pod["status"]["podIP"].as_str().unwrap();
            curl(self.cluster, node, &format!("http://{ip}:15020/metrics"))
        });
        let metrics: Vec<String> = metrics.collect();
        let of = |page: &String, client: &Client| {
            let who = format!(
                "source_principal=\"spiffe://cluster.local/ns/loss/sa/{}\"",
                client.name
            );
            let lines = page.lines().filter(|line| {
                line.starts_with("istio_requests_total{")
                    && line.contains(&who)
                    && line.contains("\"mutual_tls\"")
            });
            lines
                .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
                .sum()
        };
        metrics
            .iter()
            .flat_map(|page| self.clients.iter().map(move |client| of(page, client)))
            .collect()
    }

    /// Waits until both servers have had more requests of each client.
    fn everybody_is_served(&self, when: &str) {
        let before = self.served();
        eventually(&format!("both servers serve all clients, {when}"), || {
            let now = self.served();
            now.len() == before.len()
                && now
                    .iter()
                    .zip(&before)
                    .all(|(now, before)| *now > before + 5)
        });
    }

    /// Waits until requests that were under way have ended, one way or another.
    fn calm(&self) {
        let (mut last, mut since) = (self.lost(), Instant::now());
        eventually("requests that were under way have ended", || {
            let now = self.lost();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() > PATIENCE
        });
    }

    fn nobody_loses_any_more(&self, when: &str) {
        let before = self.accounts();
        eventually(&format!("each client is answered, {when}"), || {
            let now = self.accounts();
            now.iter()
                .zip(&before)
                .all(|(now, before)| answered(now) > answered(before) + 100)
        });
        let lost = |accounts: &[Value]| accounts.iter().map(lost).collect::<Vec<_>>();
        assert_eq!(lost(&self.accounts()), lost(&before), "{when}: {before:?}");
    }
}
