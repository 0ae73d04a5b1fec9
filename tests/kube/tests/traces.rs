//! Tests that every proxy on the way of a request reports it to a collector, as one trace.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::cell::RefCell;
use tests_kube::{Cluster, eventually, install_gateway_api, install_with};

const NAMESPACE: &str = "traced";
const PARENT: &str = "00f067aa0ba902b7";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Outside the mesh, as collectors mostly are.
const COLLECTOR: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: observability }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: collector, namespace: observability }
spec:
  selector: { matchLabels: { app: collector } }
  template:
    metadata: { labels: { app: collector } }
    spec:
      terminationGracePeriodSeconds: 3
      containers:
      - name: collector
        image: localhost/bookinfo:@VERSION@
        args: [collect, --bind, 0.0.0.0]
        readinessProbe: { httpGet: { path: /health, port: 4317 }, periodSeconds: 1, timeoutSeconds: 10 }
---
apiVersion: v1
kind: Service
metadata: { name: collector, namespace: observability }
spec: { selector: { app: collector }, ports: [{ port: 4317 }] }
"#;

const MESH: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: Mesh
metadata: { name: mesh }
spec:
  permissiveMode: true
  tracing:
    endpoint: collector.observability:4317
    sampling: 100%
    attributes: { deployment.environment.name: staging }
"#;

const GATEWAY: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: edge, namespace: traced }
spec:
  gatewayClassName: tulle
  infrastructure: { annotations: { tulle.dev/service-type: ClusterIP } }
  listeners: [{ name: http, port: 80, protocol: HTTP }]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: web, namespace: traced }
spec:
  parentRefs: [{ name: edge }]
  rules: [{ backendRefs: [{ name: web, port: 80 }] }]
"#;

/// Spans of a path, as the collector has them.
struct Collector<'a> {
    cluster: &'a Cluster,
    url: String,
}

impl Collector<'_> {
    /// Those of a request for this path: the one of the server's side last.
    fn spans(&self, path: &str) -> Vec<Value> {
        let told: Value = serde_json::from_str(&self.cluster.curl(&self.url)).unwrap();
        let mut spans = told.as_array().unwrap().clone();
        spans.retain(|span| span["attributes"]["url.path"] == path);
        spans.sort_by_key(|span| span["resource"]["service.name"] == "web.traced");
        spans
    }

    /// The two of a request, once they are there.
    fn pair(&self, path: &str) -> [Value; 2] {
        let found = RefCell::new(Vec::new());
        eventually("both spans are told", || {
            *found.borrow_mut() = self.spans(path);
            found.borrow().len() == 2
        });
        found.into_inner().try_into().unwrap()
    }
}

/// Asserts that two spans belong to one request: the first is the caller's, the second the
/// server's.
fn are_of_one_call([caller, server]: &[Value; 2], path: &str) {
    for span in [caller, server] {
        assert_eq!(span["trace"], caller["trace"], "{span:#}");
        assert_eq!(span["resource"]["deployment.environment.name"], "staging");
        for (key, value) in [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("url.path", path),
            ("tulle.service", "web.traced"),
            (
                "tulle.destination",
                "spiffe://cluster.local/ns/traced/sa/web",
            ),
        ] {
            assert_eq!(span["attributes"][key], value, "{key}: {span:#}");
        }
    }
    assert_eq!(server["kind"], "SERVER");
    assert_eq!(server["parent"], caller["id"], "{server:#}");
}

/// A span is that of a pod with this label, which stands for this service.
fn is_told_by(cluster: &Cluster, span: &Value, service: &str, label: &str) {
    assert_eq!(span["resource"]["service.name"], service, "{span:#}");
    let pods = cluster.get_json(&["-n", NAMESPACE, "pods", "-l", label]);
    let mut pods = pods["items"].as_array().unwrap().iter();
    let is = |pod: &Value| {
        let name = pod["metadata"]["name"].as_str().unwrap();
        span["resource"]["service.instance.id"] == format!("{name}.{NAMESPACE}")
    };
    assert!(pods.any(is), "{span:#}");
}

#[test]
fn a_request_is_one_trace_of_all_proxies_on_its_way() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install_gateway_api(&cluster);
    cluster.apply(&format!(
        "{{ apiVersion: v1, kind: Namespace, metadata: {{ name: {NAMESPACE} }} }}"
    ));
    install_with(&cluster, &[&format!("gateways.namespaces=[{NAMESPACE}]")]);
    cluster.apply(&COLLECTOR.replace("@VERSION@", env!("CARGO_PKG_VERSION")));
    cluster.apply(MESH);
    cluster.apply_file("traffic.yaml", &[("@NAMESPACE@", NAMESPACE)]);
    cluster.apply(GATEWAY);
    cluster.await_deployment("observability", "collector");
    for name in ["web", "client"] {
        cluster.await_deployment(NAMESPACE, name);
    }
    let address = |what: [&str; 2], pointer: &str| {
        let found = cluster.get_json(&["-n", what[0], "service", what[1]]);
        found
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap()
            .to_owned()
    };
    let collector = Collector {
        cluster: &cluster,
        url: format!(
            "http://{}:4317/",
            address(["observability", "collector"], "/spec/clusterIP")
        ),
    };

    // The client has no trace, so its sidecar begins one.
    let fetch = |path: &str, fields: &[&str]| {
        let url = format!("http://web{path}");
        let program = [&["bookinfo", "fetch", &url], fields].concat();
        let (good, said) = cluster.exec(NAMESPACE, "deployment/client", &program);
        assert!(good && said.starts_with("200"), "{said}");
        said
    };
    // Each proxy learns of web, and of the collector, by itself.
    eventually("both tell the collector", || {
        let warm = ["bookinfo", "fetch", "http://web/warm"];
        let (good, said) = cluster.exec(NAMESPACE, "deployment/client", &warm);
        good && said.starts_with("200") && collector.spans("/warm").len() >= 4
    });
    let said = fetch("/between", &[]);
    let pair = collector.pair("/between");
    are_of_one_call(&pair, "/between");
    let [client, server] = &pair;
    assert_eq!(client["kind"], "CLIENT");
    assert_eq!(client["parent"], "");
    let source = "spiffe://cluster.local/ns/traced/sa/client";
    for span in [client, server] {
        assert_eq!(span["attributes"]["tulle.source"], source, "{span:#}");
    }
    // The application goes on where its sidecar is.
    let id = |span: &Value, key: &str| span[key].as_str().unwrap().to_owned();
    let context = format!("00-{}-{}-01", id(server, "trace"), id(server, "id"));
    assert!(said.contains(&context), "{context}: {said}");
    is_told_by(&cluster, client, "client.traced", "app=client");
    is_told_by(&cluster, server, "web.traced", "app=web");

    // A request that comes with a trace stays in it, and a decision against sampling holds.
    fetch(
        "/known",
        &["-H", &format!("traceparent: 00-{TRACE}-{PARENT}-01")],
    );
    fetch(
        "/unwanted",
        &["-H", &format!("traceparent: 00-{TRACE}-{PARENT}-00")],
    );
    let pair = collector.pair("/known");
    are_of_one_call(&pair, "/known");
    assert_eq!(pair[0]["trace"], TRACE);
    assert_eq!(pair[0]["parent"], PARENT);

    // A request from outside enters by a gateway.
    cluster.await_deployment(NAMESPACE, "edge-tulle");
    let edge = address([NAMESPACE, "edge-tulle"], "/spec/clusterIP");
    eventually("the route is followed", || {
        let url = format!("http://{edge}/waits");
        let asked = cluster
            .command(&["net", "curl", "--silent", "--fail", &url])
            .output();
        asked.unwrap().status.success()
    });
    cluster.curl(&format!("http://{edge}/outside"));
    let pair = collector.pair("/outside");
    are_of_one_call(&pair, "/outside");
    let [gateway, _] = &pair;
    assert_eq!(
        (&gateway["kind"], &gateway["parent"]),
        (&"SERVER".into(), &"".into())
    );
    let source = "spiffe://cluster.local/ns/traced/sa/edge-tulle";
    for span in &pair {
        assert_eq!(span["attributes"]["tulle.source"], source, "{span:#}");
    }
    let label = "app.kubernetes.io/name=tulle-gateway";
    is_told_by(&cluster, gateway, "edge.traced", label);
    assert!(collector.spans("/unwanted").is_empty());

    cluster.kubectl(&["delete", "mesh.tulle.dev", "mesh"]);
    cluster.kubectl(&[
        "delete",
        "namespace",
        NAMESPACE,
        "observability",
        "--wait=false",
    ]);
}
