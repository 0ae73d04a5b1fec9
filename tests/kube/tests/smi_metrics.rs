//! SMI's metrics API on a real API server: who asks is authorized there, and what is told is what the
//! client counted.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::process::Output;
use std::time::{Duration, Instant};
use tests_kube::{Cluster, eventually, install_with, pki};

const NAMESPACE: &str = "smi-metrics";
const API: &str = "/apis/metrics.smi-spec.io/v1alpha1";
/// Half a minute after a look a window may begin with it: what is compared is told before.
const SOON: Duration = Duration::from_secs(25);
/// A service account that may read metrics of the namespace's Deployments, and nothing else.
const READER: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: { name: reader, namespace: smi-metrics }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: reader, namespace: smi-metrics }
rules: [{ apiGroups: [metrics.smi-spec.io], resources: [deployments], verbs: [get, list] }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: reader, namespace: smi-metrics }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader }
subjects: [{ kind: ServiceAccount, name: reader, namespace: smi-metrics }]
"#;

#[test]
fn traffic_is_told_to_who_may_see_it() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install_with(&cluster, &["monitoring.smiMetrics=true"]);
    let condition = "--for=condition=Available";
    cluster.kubectl(&[
        "wait",
        condition,
        "--timeout=300s",
        "apiservice/v1alpha1.metrics.smi-spec.io",
    ]);
    cluster.apply_file("traffic.yaml", &[("@NAMESPACE@", NAMESPACE)]);
    cluster.apply(READER);
    for name in ["web", "client"] {
        cluster.await_deployment(NAMESPACE, name);
    }
    eventually("the client reaches web", || {
        asks(&cluster, "web", "/") == 200
    });

    discovered(&cluster);
    counted(&cluster);
    refused(&cluster);
    guarded(&cluster);
    eventually("check finds it well", || {
        let well = cluster.tulle(&["check"]);
        well.contains("√ TK040 SMI's metrics API: answers, and is trusted by the mesh's root")
    });
}

/// The status that the client gets; it counts by it.
fn asks(cluster: &Cluster, service: &str, path: &str) -> u16 {
    let url = format!("http://{service}{path}");
    let (_, said) = cluster.exec(NAMESPACE, "deployment/client", &["bookinfo", "fetch", &url]);
    let status = said.split_whitespace().next().and_then(|s| s.parse().ok());
    status.unwrap_or_default()
}

fn try_get(cluster: &Cluster, path: &str, options: &[&str]) -> Output {
    let url = format!("{API}{path}");
    cluster.try_kubectl(&[&["get", "--raw", &url], options].concat())
}

fn get(cluster: &Cluster, path: &str) -> Value {
    let answer = try_get(cluster, path, &[]);
    assert!(answer.status.success(), "{path}: {answer:?}");
    serde_json::from_slice(&answer.stdout).unwrap()
}

/// Successes and failures.
fn counts(item: &Value) -> (u64, u64) {
    let count = |name: &str| {
        let mut all = item["metrics"].as_array().unwrap().iter();
        let found = all.find(|m| m["name"] == name).unwrap();
        found["value"].as_str().unwrap().parse().unwrap()
    };
    (count("success_count"), count("failure_count"))
}

/// Those of all items.
fn sum(list: &Value) -> (u64, u64) {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(counts)
        .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

fn discovered(cluster: &Cluster) {
    // The API server asks what there is by and by.
    eventually("its resources are discovered", || {
        let group = "--api-group=metrics.smi-spec.io";
        let listed = cluster.try_kubectl(&["api-resources", group, "-o", "name"]);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let mut all = ["deployments", "pods", "namespaces", "services"].into_iter();
        all.all(|resource| listed.contains(&format!("{resource}.metrics.smi-spec.io\n")))
    });
    // All groups are listed: an API that describes itself wrongly spoils the list for all.
    cluster.kubectl(&["api-resources"]);
    let kinds = get(cluster, "");
    assert_eq!(kinds["kind"], "APIResourceList");
    // The API server takes its OpenAPI in by and by.
    eventually("kubectl explains it", || {
        let explained = cluster.try_kubectl(&[
            "explain",
            "deployments",
            "--api-version=metrics.smi-spec.io/v1alpha1",
        ]);
        String::from_utf8_lossy(&explained.stdout).contains("timestamp")
    });
}

fn counted(cluster: &Cluster) {
    let of_web = format!("/namespaces/{NAMESPACE}/deployments/web");
    let of_client = format!("/namespaces/{NAMESPACE}/deployments/client");
    let looks = [
        of_web.clone(),
        format!("/namespaces/{NAMESPACE}/pods?labelSelector=app%3Dweb"),
        format!("/namespaces/{NAMESPACE}"),
        format!("/namespaces/{NAMESPACE}/services/web"),
        of_client.clone(),
        format!("{of_web}/edges"),
        format!("{of_client}/edges"),
    ];
    let (success, failure) = (6, 2);
    let mut told: Vec<Value> = Vec::new();
    eventually("all is told of the same requests", || {
        eventually("a window begins, with nothing in it", || {
            counts(&get(cluster, &of_web)) == (0, 0)
        });
        let paths = [
            "/",
            "/",
            "/status/503",
            "/",
            "/status/404",
            "/status/500",
            "/",
            "/",
        ];
        let statuses = paths.map(|path| asks(cluster, "web", path));
        assert_eq!(statuses, [200, 200, 503, 200, 404, 500, 200, 200]);
        assert_eq!(asks(cluster, "nobody", "/"), 503);
        let began = Instant::now();
        // Requests are counted after their last byte.
        eventually("they are counted", || {
            told = looks.iter().map(|path| get(cluster, path)).collect();
            let all = (success, failure);
            let is_all = counts(&told[0]) == all && sum(&told[6]) == (success, failure + 1);
            is_all || began.elapsed() > SOON
        });
        began.elapsed() <= SOON
    });
    let [
        web,
        pods,
        namespace,
        service,
        client,
        edges_of_web,
        edges_of_client,
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    let resource = json!({ "kind": "Deployment", "name": "web", "namespace": NAMESPACE });
    assert_eq!(web["resource"], resource);
    assert_eq!(counts(web), (success, failure), "{web}");
    let latencies: Vec<&str> = web["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["unit"] == "seconds")
        .map(|m| m["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        latencies,
        [
            "p99_response_latency",
            "p90_response_latency",
            "p50_response_latency"
        ]
    );
    let window: f64 = web["window"]
        .as_str()
        .unwrap()
        .trim_end_matches('s')
        .parse()
        .unwrap();
    assert!(window >= 2.0, "{web}");

    // The same by other ways of looking.
    assert_eq!(pods["kind"], "TrafficMetricsList");
    assert_eq!(pods["items"].as_array().unwrap().len(), 2, "{pods}");
    assert_eq!(sum(pods), (success, failure), "{pods}");
    for one in [namespace, service] {
        assert_eq!(counts(one), (success, failure), "{one}");
    }
    assert_eq!(counts(client), (0, 0));

    // Edges, seen from both ends.
    let peer =
        |name: &str, kind: &str| json!({ "kind": kind, "name": name, "namespace": NAMESPACE });
    let edges = edges_of_web;
    let [edge] = edges["items"].as_array().unwrap().as_slice() else {
        panic!("{edges}");
    };
    let from = json!({
        "direction": "from", "side": "server", "resource": peer("client", "Deployment"),
    });
    assert_eq!((&edge["edge"], counts(edge)), (&from, (success, failure)));
    let edges = edges_of_client;
    let [to_web, to_nobody] = edges["items"].as_array().unwrap().as_slice() else {
        panic!("{edges}");
    };
    assert_eq!(to_web["edge"]["direction"], "to");
    assert_eq!(to_web["edge"]["resource"], peer("web", "Deployment"));
    assert_eq!(counts(to_web), (success, failure), "{edges}");
    assert_eq!(to_nobody["edge"]["resource"], peer("nobody", "Service"));
    assert_eq!(counts(to_nobody), (0, 1), "{edges}");
}

fn refused(cluster: &Cluster) {
    let none = try_get(
        cluster,
        &format!("/namespaces/{NAMESPACE}/deployments/none"),
        &[],
    );
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(
        !none.status.success() && said.contains("not found"),
        "{none:?}"
    );

    let user = format!("--as=system:serviceaccount:{NAMESPACE}:reader");
    let as_reader = |path: &str| try_get(cluster, path, &[&user]);
    let allowed = as_reader(&format!("/namespaces/{NAMESPACE}/deployments/web"));
    assert!(allowed.status.success(), "{allowed:?}");
    for path in [
        format!("/namespaces/{NAMESPACE}/pods"),
        format!("/namespaces/{NAMESPACE}/deployments/web/edges"),
        format!("/namespaces/{NAMESPACE}"),
        "/namespaces/default/deployments".to_owned(),
        "/deployments".to_owned(),
    ] {
        let refused = as_reader(&path);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            said.contains("Forbidden") || said.contains("forbidden"),
            "{path}: {refused:?}"
        );
    }
}

/// Past the API server nobody comes in.
fn guarded(cluster: &Cluster) {
    let pods = cluster.get_json(&[
        "-n",
        "tulle-system",
        "pods",
        "-l",
        "app.kubernetes.io/name=tulle-controller",
    ]);
    let ip = pods["items"][0]["status"]["podIP"].as_str().unwrap();
    let url = format!("https://{ip}:15018{API}");
    let asked = |who: Option<&str>| {
        let mut curl =
            cluster.command(&["exec", "curl", "--silent", "--insecure", "--max-time", "20"]);
        curl.args(["--write-out", "%{http_code}", "--output", "/dev/null"]);
        if let Some(who) = who {
            let file = |ending: &str| pki().join(format!("{who}.{ending}"));
            curl.arg("--cert")
                .arg(file("crt"))
                .arg("--key")
                .arg(file("key"));
        }
        let done = curl.arg(&url).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert_eq!(
        asked(None),
        "000",
        "without a certificate there is no connection"
    );
    // Another client's certificate of the same authority is refused.
    assert_eq!(asked(Some("apiserver-kubelet")), "403");
    assert_eq!(asked(Some("front-proxy")), "200");
}
