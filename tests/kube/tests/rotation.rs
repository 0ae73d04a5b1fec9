//! The root of a cluster's mesh is replaced under load, with two controllers that are killed in the
//! middle of it: no request is lost, nothing of the application is restarted.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Instant;
use tests_kube::load::await_endpoints;
use tests_kube::{Cluster, eventually, install, root};

const NAMESPACE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: rotation, labels: { tulle.dev/inject: enabled } }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: rotation }
spec:
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: 8080, appProtocol: http }]
"#;

fn deployment(name: &str, replicas: u32, args: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        r#"
---
apiVersion: v1
kind: ServiceAccount
metadata: {{ name: {name}, namespace: rotation }}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: {name}, namespace: rotation }}
spec:
  replicas: {replicas}
  selector: {{ matchLabels: {{ app: {name} }} }}
  template:
    metadata: {{ labels: {{ app: {name} }} }}
    spec:
      serviceAccountName: {name}
      containers:
      - name: {name}
        image: "localhost/bookinfo:{version}"
        args: {args}
        ports: [{{ containerPort: 8080 }}]
        readinessProbe: {{ httpGet: {{ path: /, port: 8080 }}, periodSeconds: 1, timeoutSeconds: 10 }}
"#
    )
}

fn web() -> String {
    deployment(
        "web",
        2,
        r#"[echo, --bind, 0.0.0.0, --port, "8080", --name, web]"#,
    )
}

fn client() -> String {
    let args = r#"[load, --bind, 0.0.0.0, --port, "8080", "http://web/path"]"#;
    deployment("client", 1, args)
}

/// Returns the account of the client's requests: how many were answered, and the losses.
fn account(cluster: &Cluster) -> (u64, Value) {
    account_of(cluster, "deployment/client")
}

fn account_of(cluster: &Cluster, client: &str) -> (u64, Value) {
    let program = ["bookinfo", "fetch", "http://127.0.0.1:8080/"];
    let (_, said) = cluster.exec("rotation", client, &program);
    let json = said.find('{').map(|at| &said[at..]).unwrap_or_default();
    let mut json = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let account = json.next().unwrap_or_else(|| panic!("{said}")).unwrap();
    let count = |name: &str| account[name].as_u64().unwrap();
    (
        count("answeredKept") + count("answeredNew"),
        account["lost"].clone(),
    )
}

fn tulle(cluster: &Cluster, args: &[&str]) -> Option<Value> {
    let program = root().join("target/debug/tulle");
    let words = [&["exec", program.to_str()?, "ca"], args, &["-o", "json"]].concat();
    let done = cluster.command(&words).output().unwrap();
    // A controller that is asked may be killed meanwhile.
    serde_json::from_slice(&done.stdout).ok()
}

fn show(cluster: &Cluster) -> Value {
    let mut shown = None;
    eventually("a controller answers", || {
        shown = tulle(cluster, &["show"]);
        shown.is_some()
    });
    shown.unwrap()
}

/// Returns the step of the rotation from the Secret, which can be read even if the controller is away.
fn step(cluster: &Cluster) -> &'static str {
    let secret = cluster.get_json(&["-n", "tulle-system", "secret", "tulle-root"]);
    let has = |key: &str| secret["data"].get(key).is_some();
    match (has("next.crt.der"), has("previous.crt.der")) {
        (true, _) => "spreading",
        (_, true) => "renewing",
        _ => "steady",
    }
}

fn controllers(cluster: &Cluster) -> Vec<String> {
    let label = "app.kubernetes.io/name=tulle-controller";
    let pods = cluster.get_json(&["-n", "tulle-system", "pods", "-l", label]);
    let pods = pods["items"].as_array().unwrap().iter();
    pods.map(|p| p["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Kills a controller, as a loss of power would.
fn kill_one_controller(cluster: &Cluster) {
    let label = "app.kubernetes.io/name=tulle-controller";
    let pods = cluster.get_json(&["-n", "tulle-system", "pods", "-l", label]);
    let mut pods = pods["items"].as_array().unwrap().iter();
    // One that ends already would be killed in vain.
    let one = pods.find(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    let one = one.unwrap()["metadata"]["name"].as_str().unwrap();
    let words = [
        "-n",
        "tulle-system",
        "delete",
        "pod",
        one,
        "--force",
        "--grace-period=0",
    ];
    cluster.kubectl(&words);
}

fn scale_controllers(cluster: &Cluster, count: usize) {
    let replicas = format!("--replicas={count}");
    let deployment = "deployment/tulle-controller";
    cluster.kubectl(&["-n", "tulle-system", "scale", deployment, &replicas]);
    cluster.await_deployment("tulle-system", "tulle-controller");
    eventually("all controllers are there", || {
        controllers(cluster).len() == count
    });
}

/// Names of the application's pods with how often their containers were started again.
fn pods(cluster: &Cluster) -> BTreeSet<(String, u64)> {
    let pods = cluster.get_json(&["-n", "rotation", "pods"]);
    let pods = pods["items"].as_array().unwrap().iter();
    pods.map(|pod| {
        let statuses = |kind: &str| pod["status"][kind].as_array().cloned().unwrap_or_default();
        let all = [
            statuses("containerStatuses"),
            statuses("initContainerStatuses"),
        ]
        .concat();
        let restarts = all.iter().filter_map(|s| s["restartCount"].as_u64()).sum();
        (
            pod["metadata"]["name"].as_str().unwrap().to_owned(),
            restarts,
        )
    })
    .collect()
}

fn certificates(cluster: &Cluster, namespace: &str) -> usize {
    let map = cluster.get_json(&["-n", namespace, "configmap", "tulle-trust-bundle"]);
    let pem = map["data"]["ca.crt"].as_str().unwrap();
    pem.matches("BEGIN CERTIFICATE").count()
}

#[test]
fn the_root_is_replaced_and_no_request_is_lost() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    scale_controllers(&cluster, 2);
    cluster.apply(NAMESPACE);
    cluster.apply(&web());
    cluster.await_deployment("rotation", "web");
    await_endpoints(&cluster, "rotation", "web", 2);
    cluster.apply(&client());
    cluster.await_deployment("rotation", "client");
    eventually("the load goes on", || account(&cluster).0 > 50);
    let before = pods(&cluster);
    let old = show(&cluster);
    assert_eq!(old["step"], "steady", "{old:#}");

    let begun = Instant::now();
    // Each step lasts until it was seen, also on a busy machine; about as long as it takes until another
    // controller leads.
    let spreading = tulle(&cluster, &["rotate", "--hold", "12s", "--no-wait"]).unwrap();
    assert_eq!(spreading["roots"].as_array().unwrap().len(), 2);
    kill_one_controller(&cluster);
    eventually("pods are told of both roots", || {
        certificates(&cluster, "rotation") == 2
    });
    eventually("the new root signs", || step(&cluster) == "renewing");
    println!("spreading: {:?}", begun.elapsed());
    kill_one_controller(&cluster);
    eventually("the old root is removed", || step(&cluster) == "steady");
    println!("renewing: {:?}", begun.elapsed());

    let new = show(&cluster);
    assert_eq!(new["roots"].as_array().unwrap().len(), 1);
    assert_eq!(new["roots"][0]["sha256"], spreading["roots"][1]["sha256"]);
    assert_ne!(new["roots"][0]["sha256"], old["roots"][0]["sha256"]);
    for namespace in ["rotation", "default"] {
        eventually("one root is left", || {
            certificates(&cluster, namespace) == 1
        });
    }
    // The key of the old root is gone, and what belonged to the rotation.
    let secret = cluster.get_json(&["-n", "tulle-system", "secret", "tulle-root"]);
    let kept: Vec<_> = secret["data"].as_object().unwrap().keys().collect();
    assert_eq!(kept, ["root.crt.der", "root.key.der", "trust-domain"]);

    let so_far = account(&cluster).0;
    eventually("the load still goes on", || {
        account(&cluster).0 > so_far + 50
    });
    let (answered, lost) = account(&cluster);
    assert_eq!(lost, Value::Array(Vec::new()), "of {answered}");
    println!("{answered} requests, none lost");
    assert_eq!(pods(&cluster), before, "nothing was restarted");

    // A pod that comes now is injected (the API server knows the new root) and calls the others.
    cluster.apply(
        &client()
            .replace("name: client", "name: late")
            .replace("app: client", "app: late"),
    );
    cluster.await_deployment("rotation", "late");
    eventually("a new pod is answered", || {
        account_of(&cluster, "deployment/late").0 > 50
    });
    assert_eq!(
        account_of(&cluster, "deployment/late").1,
        Value::Array(Vec::new())
    );

    scale_controllers(&cluster, 1);
    cluster.kubectl(&["delete", "namespace", "rotation", "--wait=false"]);
}
