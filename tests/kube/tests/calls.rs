//! Where a call goes: any port of a pod, as Kubernetes has it, and of a Service's endpoints those that the
//! Service and its EndpointSlices say. At last the controller with a role that is older than it.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::collections::BTreeSet;
use tests_kube::load::{rollout, scale};
use tests_kube::{
    CONTROLLER, Cluster, MESH, OnNode, eventually, install, install_gateway_api, install_with,
};

const PODS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: calls, labels: { tulle.dev/inject: enabled } }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: calls }
spec:
  replicas: 3
  selector: { matchLabels: { app: web } }
  template:
    metadata:
      labels: { app: web }
      annotations: { tulle.dev/exclude-inbound-ports: "9091" }
    spec:
      terminationGracePeriodSeconds: 3
      containers:
      - &echo
        name: web
        image: "@IMAGE@"
        env: [{ name: POD, valueFrom: { fieldRef: { fieldPath: metadata.name } } }]
        args: [echo, --bind, 0.0.0.0, --port, "8080", --name, $(POD)]
      - { <<: *echo, name: undeclared, args: [echo, --bind, 0.0.0.0, --port, "9090", --name, $(POD)] }
      - { <<: *echo, name: direct, args: [echo, --bind, 0.0.0.0, --port, "9091", --name, $(POD)] }
      - { <<: *echo, name: hidden, args: [echo, --bind, 127.0.0.1, --port, "9092", --name, $(POD)] }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: outside, namespace: calls }
spec:
  selector: { matchLabels: { app: outside } }
  template:
    metadata: { labels: { app: outside, tulle.dev/inject: disabled } }
    spec:
      terminationGracePeriodSeconds: 3
      containers:
      - { name: web, image: "@IMAGE@", args: [echo, --bind, 0.0.0.0, --port, "9090", --name, outside] }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: client, namespace: calls }
spec:
  selector: { matchLabels: { app: client } }
  template:
    metadata: { labels: { app: client } }
    spec:
      terminationGracePeriodSeconds: 3
      containers:
      - { name: client, image: "@IMAGE@", args: [echo, --bind, 127.0.0.1, --port, "8081", --name, client] }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: calls }
spec:
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: 8080, appProtocol: http }]
---
apiVersion: v1
kind: Service
metadata: { name: near, namespace: calls }
spec:
  ports: [{ name: http, port: 80, targetPort: 8080, appProtocol: http }]
"#;

const CLOSED: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: { name: closed, namespace: calls }
spec:
  targetRefs: [{ kind: Service, name: web }]
  action: Deny
  rules: [{ from: { serviceAccounts: [default] }, to: { ports: [9090] } }]
"#;

#[test]
fn calls_go_where_kubernetes_says() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    let image = format!("localhost/bookinfo:{}", env!("CARGO_PKG_VERSION"));
    cluster.apply(&PODS.replace("@IMAGE@", &image));
    for name in ["web", "outside", "client"] {
        cluster.await_deployment("calls", name);
    }
    any_port_of_a_pod(&cluster);
    clients_stay_with_their_endpoint(&cluster);
    near_endpoints(&cluster);
    an_egress_gateway(&cluster);
    a_kept_egress_gateway(&cluster);
    an_older_role(&cluster);
    cluster.kubectl(&["delete", "namespace", "calls", "--wait=false"]);
}

fn talk(cluster: &Cluster, host: &str) -> String {
    let url = format!("http://{host}/path");
    let words = ["bookinfo", "talk", url.as_str(), "hello"];
    cluster.exec("calls", "deployment/client", &words).1
}

/// The pods of a Deployment that are not about to end.
fn pods(cluster: &Cluster, app: &str) -> Vec<Value> {
    let label = format!("app={app}");
    let pods = cluster.get_json(&["-n", "calls", "pods", "-l", &label]);
    let pods = pods["items"].as_array().unwrap().iter();
    let living = pods.filter(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    living.cloned().collect()
}

fn ip(pod: &Value) -> &str {
    pod["status"]["podIP"].as_str().unwrap()
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap()
}

/// The namespace is strict, and no container declares a port.
fn any_port_of_a_pod(cluster: &Cluster) {
    let web = &pods(cluster, "web")[0];
    let outside = &pods(cluster, "outside")[0];
    let answers = |host: &str, expected: &str| {
        eventually(&format!("{host} answers {expected:?}"), || {
            let said = talk(cluster, host);
            println!("{host}: {said}");
            said.contains(expected)
        });
    };
    let at = |port: u16| format!("{}:{port}", ip(web));
    answers(&at(9090), name(web));
    answers(&format!("{}:9090", ip(outside)), "outside");
    // Both without its sidecar.
    answers(&at(9091), name(web));
    let metrics = format!("http://{}/metrics", at(15020));
    let scraped = cluster.exec(
        "calls",
        "deployment/client",
        &["bookinfo", "fetch", &metrics],
    );
    assert!(scraped.1.contains("tulle_config_generation"), "{scraped:?}");
    // A port on loopback stays hidden, and a port without a listener answers nobody.
    for port in [9092, 9999] {
        let said = talk(cluster, &at(port));
        assert!(said.starts_with("503"), "{port}: {said}");
    }
    let mutual = |line: &&str| {
        line.starts_with("istio_requests_total")
            && line.contains("\"mutual_tls\"")
            && line.contains("\"200\"")
    };
    eventually("it was mutual TLS", || {
        let page = cluster.curl(&format!("http://{}/metrics", at(15020)));
        page.lines()
            .filter(mutual)
            .any(|line| line.contains("reporter=\"destination\""))
    });
    let url = format!("http://{}/path", at(9090));
    cluster.refuses_plaintext(&url);
    cluster.apply(CLOSED);
    answers(&at(9090), "AuthorizationPolicy/closed.calls denies it");
    cluster.kubectl(&["-n", "calls", "delete", "authorizationpolicy", "closed"]);
    answers(&at(9090), name(web));
}

/// The pods that answer twelve calls.
fn answering(cluster: &Cluster, service: &str) -> BTreeSet<String> {
    let url = format!("http://{service}/path");
    let words = [&["bookinfo", "talk", &url][..], &["hello"; 12]].concat();
    tests_kube::answering(cluster.exec("calls", "deployment/client", &words).1)
}

fn answered_by(cluster: &Cluster, service: &str, holds: impl Fn(&BTreeSet<String>) -> bool) {
    eventually(&format!("{service} is answered as it shall be"), || {
        let names = answering(cluster, service);
        println!("{service}: {names:?}");
        holds(&names)
    });
}

fn patch(cluster: &Cluster, service: &str, spec: &Value) {
    let patch = json!({ "spec": spec }).to_string();
    cluster.kubectl(&["-n", "calls", "patch", "service", service, "-p", &patch]);
}

fn clients_stay_with_their_endpoint(cluster: &Cluster) {
    answered_by(cluster, "web", |names| names.len() == 3);
    patch(cluster, "web", &json!({ "sessionAffinity": "ClientIP" }));
    answered_by(cluster, "web", |names| names.len() == 1);
    let first = answering(cluster, "web");
    assert_eq!((first.len(), answering(cluster, "web")), (1, first));
    patch(cluster, "web", &json!({ "sessionAffinity": "None" }));
    answered_by(cluster, "web", |names| names.len() == 3);
}

fn near_endpoints(cluster: &Cluster) {
    let pods = pods(cluster, "web");
    let node = pods[0]["spec"]["nodeName"].as_str().unwrap();
    // As if the others were on another node, or meant for another zone.
    let slice = |own: usize, hints: bool| {
        let endpoints = pods.iter().enumerate().map(|(i, pod)| {
            let here = i == own;
            let zone = if here { "here" } else { "there" };
            let mut endpoint = json!({
                "addresses": [ip(pod)], "conditions": { "ready": true },
                "nodeName": if here { node } else { "elsewhere" },
                "targetRef": { "kind": "Pod", "namespace": "calls", "name": name(pod) },
            });
            if hints {
                endpoint["hints"] = json!({ "forZones": [{ "name": zone }] });
            }
            endpoint
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": "near", "namespace": "calls", "labels": { "kubernetes.io/service-name": "near" },
            },
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
            "endpoints": endpoints.collect::<Vec<_>>(),
        });
        cluster.apply(&slice.to_string());
    };
    let only = |index: usize| {
        let name = name(&pods[index]).to_owned();
        move |names: &BTreeSet<String>| *names == BTreeSet::from([name.clone()])
    };
    slice(1, false);
    answered_by(cluster, "near", |names| names.len() == 3);
    patch(
        cluster,
        "near",
        &json!({ "internalTrafficPolicy": "Local" }),
    );
    answered_by(cluster, "near", only(1));
    slice(pods.len(), false);
    answered_by(cluster, "near", |said| {
        said.iter().all(|s| s.contains("no_endpoint"))
    });
    patch(
        cluster,
        "near",
        &json!({ "internalTrafficPolicy": "Cluster" }),
    );
    answered_by(cluster, "near", |names| names.len() == 3);

    let zone = |text: &str| {
        let zone = format!("topology.kubernetes.io/zone{text}");
        cluster.kubectl(&["label", "--overwrite", "node", node, &zone]);
    };
    zone("=here");
    slice(2, true);
    answered_by(cluster, "near", only(2));
    zone("=nowhere");
    answered_by(cluster, "near", |names| names.len() == 3);
    zone("-");
}

/// A Deployment with a sidecar, whatever its container does, and a Service of it.
const GATEWAY: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: way-out, namespace: calls }
spec:
  selector: { matchLabels: { app: way-out } }
  template:
    metadata: { labels: { app: way-out } }
    spec:
      terminationGracePeriodSeconds: 3
      containers:
      - { name: idle, image: "@IMAGE@", args: [echo, --bind, 127.0.0.1, --port, "8081", --name, idle] }
---
apiVersion: v1
kind: Service
metadata: { name: way-out, namespace: calls }
spec: { selector: { app: way-out }, ports: [{ port: 3128 }] }
"#;

const EGRESS: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: Egress
metadata: { name: node, namespace: calls }
spec:
  ipAddresses: [10.200.0.2/32]
  ports: [{ number: 8099, protocol: http }]
  gateway: { service: @SERVICE@, port: 3128 }
"#;

fn egress(cluster: &Cluster, service: &str) {
    cluster.apply(&EGRESS.replace("@SERVICE@", service));
}

/// Waits until the client's call to the server on the node is answered so.
fn fetches(cluster: &Cluster, expected: &str) {
    let words = ["bookinfo", "fetch", "http://10.200.0.2:8099/"];
    eventually(&format!("the node is fetched with {expected}"), || {
        let said = cluster.exec("calls", "deployment/client", &words).1;
        println!("{said}");
        said.contains(expected)
    });
}

/// Waits until a condition of an object has this status; returns its message.
fn await_condition(cluster: &Cluster, object: &[&str], kind: &str, expected: &str) -> String {
    let mut message = String::new();
    eventually(&format!("{kind} of {object:?} is {expected}"), || {
        let object = cluster.get_json(&[&["-n", "calls"], object].concat());
        let conditions = object["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let found = conditions.find(|c| c["type"] == kind && c["status"] == expected);
        let said = found.map(|c| c["message"].as_str().unwrap_or_default().to_owned());
        said.map(|said| message = said).is_some()
    });
    message
}

fn an_egress_gateway(cluster: &Cluster) {
    let _server = OnNode::serve(cluster, "10.200.0.2", 8099);
    let resolved = |expected: &str| {
        await_condition(cluster, &["egress", "node"], "ResolvedRefs", expected);
    };
    egress(cluster, "way-out");
    resolved("False");
    fetches(cluster, "no_service");
    let image = format!("localhost/bookinfo:{}", env!("CARGO_PKG_VERSION"));
    cluster.apply(&GATEWAY.replace("@IMAGE@", &image));
    cluster.await_deployment("calls", "way-out");
    resolved("True");
    fetches(cluster, "Directory listing");
    // It was by that way: without it there is none.
    scale(cluster, "calls", "deployment/way-out", 0);
    fetches(cluster, "no_endpoint");
    cluster.kubectl(&["-n", "calls", "delete", "egress", "node"]);
}

/// The same by a Gateway, for which the controller keeps the Deployment and the Service.
const KEPT: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: kept, namespace: calls }
spec:
  gatewayClassName: tulle-egress
  listeners: [{ name: connect, port: 3128, protocol: tulle.dev/CONNECT }]
"#;

fn a_kept_egress_gateway(cluster: &Cluster) {
    install_gateway_api(cluster);
    install_with(cluster, &["gateways.namespaces=[calls]"]);
    let _server = OnNode::serve(cluster, "10.200.0.2", 8099);
    cluster.apply(KEPT);
    let programmed =
        |expected: &str| await_condition(cluster, &["gateway", "kept"], "Programmed", expected);
    let way = programmed("True");
    assert!(way.contains("service: kept-tulle, port: 3128"), "{way}");
    let label = ["-l", "gateway.networking.k8s.io/gateway-name=kept"];
    let pods = || {
        let pods = cluster.get_json(&[&["-n", "calls", "pods"], &label[..]].concat());
        pods["items"].as_array().unwrap().clone()
    };
    let gateway = pods()[0].clone();
    let containers = gateway["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    assert!(gateway["spec"].get("initContainers").is_none());

    // A gateway alone lets nothing out.
    fetches(cluster, "no_service");
    egress(cluster, "kept-tulle");
    fetches(cluster, "Directory listing");
    // The gateway knows who came.
    let metrics = format!("http://{}:15020/metrics", ip(&gateway));
    let client = "source_principal=\"spiffe://cluster.local/ns/calls/sa/default\"";
    eventually("the gateway counts its caller", || {
        let metrics = cluster.curl(&metrics);
        let mut tunnels = metrics
            .lines()
            .filter(|l| l.starts_with("istio_tcp_connections_opened_total"));
        tunnels.any(|l| l.contains(client) && l.contains("\"mutual_tls\""))
    });
    // No Egress names this port.
    let words = ["bookinfo", "fetch", "http://10.200.0.2:8098/"];
    let said = cluster.exec("calls", "deployment/client", &words).1;
    assert!(said.contains("egress_denied"), "{said}");
    // A caller without a certificate gets no tunnel.
    let proxy = format!("http://{}:3128", ip(&gateway));
    let tunnel = ["exec", "curl", "--silent", "--show-error", "--proxytunnel"];
    let done = cluster
        .command(&tunnel)
        .args([
            "--max-time",
            "20",
            "--proxy",
            &proxy,
            "http://10.200.0.2:8099/",
        ])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && error.contains("403"), "{error}");

    rollout(cluster, "calls", "deployment/kept-tulle");
    eventually("another pod serves", || {
        pods().iter().all(|p| name(p) != name(&gateway))
    });
    fetches(cluster, "Directory listing");
    programmed("True");
    // It was by that way: without it there is none.
    scale(cluster, "calls", "deployment/kept-tulle", 0);
    fetches(cluster, "no_endpoint");
    programmed("False");
    scale(cluster, "calls", "deployment/kept-tulle", 1);
    fetches(cluster, "Directory listing");
    cluster.kubectl(&["-n", "calls", "delete", "gateway", "kept"]);
    await_condition(cluster, &["egress", "node"], "ResolvedRefs", "False");
    fetches(cluster, "no_service");
    cluster.kubectl(&["-n", "calls", "delete", "egress", "node"]);
}

/// A ClusterRole from before there were Ingresses. A controller that starts with it becomes ready.
fn an_older_role(cluster: &Cluster) {
    let role = ["clusterrole", "tulle-controller"];
    let mut older = cluster.get_json(&role);
    let rules = older["rules"].as_array_mut().unwrap();
    let before = rules.clone();
    rules.retain(|rule| rule["apiGroups"] != json!(["networking.k8s.io"]));
    assert!(rules.len() < before.len(), "{before:?}");
    let replace = |rules: &Value| {
        let patch = json!({ "rules": rules }).to_string();
        cluster.kubectl(&["patch", role[0], role[1], "--type=merge", "-p", &patch]);
    };
    replace(&older["rules"]);
    cluster.kubectl(&["-n", MESH, "rollout", "restart", CONTROLLER]);
    cluster.await_deployment(MESH, "tulle-controller");
    // The pod that the log comes from may be the one that ends.
    eventually("the controller says that its role is older", || {
        let log = cluster.kubectl(&["-n", MESH, "logs", CONTROLLER]);
        log.contains("its ClusterRole is of an older version")
    });
    replace(&json!(before));
    cluster.kubectl(&["-n", MESH, "rollout", "restart", CONTROLLER]);
    cluster.await_deployment(MESH, "tulle-controller");
}
