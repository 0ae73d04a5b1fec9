//! `tulle import --cluster`: which requests it sends an API server, and what it makes of the answers. The API server
//! here answers as a real one answers an account with the rights that a test names; `tests/kube` does the same with meshes
//! that are installed.

#![allow(clippy::unwrap_used)] // a helper of tests may fail like a test

mod common;

use common::{Answer, Mesh};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// A kind: group, versions from the preferred one on, kind, plural.
type Kind = (
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static str,
);

const PLAIN: [Kind; 6] = [
    ("", &["v1"], "Namespace", "namespaces"),
    ("", &["v1"], "Service", "services"),
    ("apps", &["v1"], "Deployment", "deployments"),
    ("apps", &["v1"], "StatefulSet", "statefulsets"),
    ("apps", &["v1"], "DaemonSet", "daemonsets"),
    ("batch", &["v1"], "CronJob", "cronjobs"),
];

/// Content of the API server, and who may ask for it.
#[derive(Default)]
struct Content {
    kinds: Vec<Kind>,
    objects: Vec<Value>,
    /// Plurals that may not be listed.
    forbidden: BTreeSet<&'static str>,
    /// Requests so far, with their methods.
    seen: Vec<String>,
}

struct ApiServer {
    content: Arc<Mutex<Content>>,
    mesh: Mesh,
}

impl ApiServer {
    /// Serves these kinds and objects on a port of its own; the kubeconfig of `mesh` leads there.
    fn start(kinds: &[Kind], objects: &str) -> Self {
        let documents = objects.split("---\n").filter(|d| !d.trim().is_empty());
        let objects = documents
            .map(|d| serde_json::from_str(d).unwrap())
            .collect();
        let content = Content {
            kinds: [&PLAIN[..], kinds].concat(),
            objects,
            ..Content::default()
        };
        let content = Arc::new(Mutex::new(content));
        let served = Arc::clone(&content);
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(serve(listener, served));
        });
        let mesh = Mesh::new();
        mesh.write(
            "kubeconfig",
            &json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{port}") } }],
                "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
                "users": [{ "name": "u", "user": { "token": "t" } }],
            })
            .to_string(),
        );
        Self { content, mesh }
    }

    /// Imports; whatever comes of it, nothing but GET was sent.
    fn import(&self, words: &[&str]) -> Answer {
        self.content.lock().unwrap().seen.clear();
        let options = ["--cluster", "--kubeconfig", "kubeconfig"];
        let answer = self
            .mesh
            .tulle(&[&["import"][..], words, &options].concat());
        let seen = self.seen();
        assert!(!seen.is_empty(), "{answer:?}");
        assert!(seen.iter().all(|r| r.starts_with("GET /")), "{seen:#?}");
        answer
    }

    fn seen(&self) -> Vec<String> {
        self.content.lock().unwrap().seen.clone()
    }

    fn change(&self, change: impl FnOnce(&mut Content)) {
        change(&mut self.content.lock().unwrap());
    }
}

async fn serve(listener: std::net::TcpListener, content: Arc<Mutex<Content>>) {
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let content = Arc::clone(&content);
        let service = service_fn(move |request: Request<Incoming>| {
            let (status, body) = content.lock().unwrap().answer(&request);
            async move {
                let mut response = Response::new(Full::from(body.to_string()));
                *response.status_mut() = status;
                let kind = "application/json".parse().unwrap();
                response.headers_mut().insert("content-type", kind);
                Ok::<Response<Full<Bytes>>, Infallible>(response)
            }
        });
        let http = hyper::server::conn::http1::Builder::new();
        tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
    }
}

impl Content {
    fn answer(&mut self, request: &Request<Incoming>) -> (StatusCode, Value) {
        self.seen
            .push(format!("{} {}", request.method(), request.uri()));
        let path = request.uri().path().trim_start_matches('/');
        let query = request.uri().query().unwrap_or_default();
        let path: Vec<&str> = path.split('/').collect();
        match path.as_slice() {
            _ if request.method() != "GET" => failure(StatusCode::METHOD_NOT_ALLOWED, "only GET"),
            ["apis"] => (StatusCode::OK, self.groups()),
            ["apis", group, version] => self.resources(group, version),
            ["api", version, rest @ ..] => self.list("", version, rest, query),
            ["apis", group, version, rest @ ..] => self.list(group, version, rest, query),
            _ => failure(StatusCode::NOT_FOUND, "no such path"),
        }
    }

    fn groups(&self) -> Value {
        let names: BTreeSet<&str> = self.kinds.iter().map(|k| k.0).collect();
        let group = |name: &&str| {
            let kinds = self.kinds.iter().filter(|k| k.0 == *name);
            let longest = kinds.map(|k| k.1).max_by_key(|versions| versions.len());
            let version = |v: &&str| json!({ "groupVersion": format!("{name}/{v}"), "version": v });
            let versions: Vec<Value> = longest.unwrap().iter().map(version).collect();
            json!({ "name": name, "preferredVersion": versions[0], "versions": versions })
        };
        let groups: Vec<Value> = names.iter().filter(|n| !n.is_empty()).map(group).collect();
        json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
    }

    fn resources(&self, group: &str, version: &str) -> (StatusCode, Value) {
        let kinds = self.kinds.iter();
        let kinds = kinds.filter(|(g, versions, ..)| *g == group && versions.contains(&version));
        let resource = |(_, _, kind, plural): &Kind| {
            let status = json!({
                "name": format!("{plural}/status"), "namespaced": true, "kind": kind, "verbs": ["get", "patch", "update"],
            });
            let whole = json!({
                "name": plural, "namespaced": true, "kind": kind,
                "verbs": ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
            });
            [status, whole]
        };
        let all: Vec<Value> = kinds.flat_map(resource).collect();
        let version = format!("{group}/{version}");
        (
            StatusCode::OK,
            json!({ "kind": "APIResourceList", "groupVersion": version, "resources": all }),
        )
    }

    /// A list, one object a page; or a namespace.
    fn list(&self, group: &str, version: &str, rest: &[&str], query: &str) -> (StatusCode, Value) {
        let (namespace, plural) = match rest {
            ["namespaces", name] => {
                let mut all = self.objects.iter();
                let found =
                    all.find(|o| o["kind"] == "Namespace" && o["metadata"]["name"] == *name);
                return match found {
                    Some(found) => (StatusCode::OK, found.clone()),
                    None => failure(StatusCode::NOT_FOUND, "no such namespace"),
                };
            }
            ["namespaces", namespace, plural] => (Some(*namespace), *plural),
            [plural] => (None, *plural),
            _ => return failure(StatusCode::NOT_FOUND, "no such path"),
        };
        let mut kinds = self.kinds.iter();
        let found = kinds.find(|k| k.0 == group && k.1.contains(&version) && k.3 == plural);
        let Some((_, _, kind, _)) = found else {
            return failure(
                StatusCode::NOT_FOUND,
                "the server could not find the requested resource",
            );
        };
        if self.forbidden.contains(plural) {
            let dot = if group.is_empty() { "" } else { "." };
            return failure(
                StatusCode::FORBIDDEN,
                &format!(
                    "{plural}{dot}{group} is forbidden: User \"reader\" cannot list resource \"{plural}\" in API group \"{group}\" at the cluster scope"
                ),
            );
        }
        let is_meant = |o: &&Value| {
            let version = o["apiVersion"].as_str().unwrap();
            let of = version.split_once('/').map_or("", |(group, _)| group);
            o["kind"] == *kind
                && of == group
                && namespace.is_none_or(|n| o["metadata"]["namespace"] == n)
        };
        let mut items: Vec<Value> = self.objects.iter().filter(is_meant).cloned().collect();
        // Objects of built-in kinds do not say in lists what they are.
        if !group.contains("istio") && !group.contains("openservicemesh") && !group.contains("smi")
        {
            for item in &mut items {
                let fields = item.as_object_mut().unwrap();
                fields.remove("kind");
                fields.remove("apiVersion");
            }
        }
        // The text is none that may stand in a query as it is.
        let after = query
            .split("continue=next%26")
            .nth(1)
            .and_then(|n| n.parse::<usize>().ok());
        let after = after.unwrap_or(0);
        let mut metadata = json!({ "resourceVersion": "7" });
        if after + 1 < items.len() {
            metadata["continue"] = format!("next&{}", after + 1).into();
        }
        let page: Vec<Value> = items.into_iter().skip(after).take(1).collect();
        (
            StatusCode::OK,
            json!({ "kind": format!("{kind}List"), "metadata": metadata, "items": page }),
        )
    }
}

fn failure(status: StatusCode, message: &str) -> (StatusCode, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": status.as_u16(),
    });
    (status, body)
}

const ISTIO: [Kind; 5] = [
    (
        "networking.istio.io",
        &["v1", "v1beta1", "v1alpha3"],
        "VirtualService",
        "virtualservices",
    ),
    (
        "networking.istio.io",
        &["v1", "v1beta1", "v1alpha3"],
        "DestinationRule",
        "destinationrules",
    ),
    // No newer version has it.
    (
        "networking.istio.io",
        &["v1alpha3"],
        "EnvoyFilter",
        "envoyfilters",
    ),
    (
        "security.istio.io",
        &["v1", "v1beta1"],
        "AuthorizationPolicy",
        "authorizationpolicies",
    ),
    // Nobody's.
    ("example.com", &["v1"], "VirtualService", "virtualservices"),
];

const ISTIO_OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"istio-injection": "enabled"}}}
---
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
 "spec": {"clusterIP": "10.0.0.7", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api", "namespace": "other"},
 "spec": {"selector": {"app": "api"}, "ports": [{"port": 81}]}}
---
{"apiVersion": "apps/v1", "kind": "Deployment",
 "metadata": {"name": "web", "namespace": "shop", "uid": "u", "managedFields": [{"manager": "kubectl"}]},
 "spec": {"template": {"metadata": {"annotations": {"traffic.sidecar.istio.io/excludeOutboundPorts": "3306"}}}},
 "status": {"replicas": 1}}
---
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "istiod", "namespace": "istio-system"},
 "spec": {"template": {"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}}}}
---
{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "night", "namespace": "shop"},
 "spec": {"jobTemplate": {"spec": {"template": {"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}}}}}}
---
{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "b", "namespace": "shop"},
 "spec": {"hosts": ["web"], "http": [{"route": [{"destination": {"host": "web"}}]}]}}
---
{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "a", "namespace": "shop"},
 "spec": {"hosts": ["web"], "tcp": [{"match": [{"port": 80}], "route": [{"destination": {"host": "api.other.svc.cluster.local"}}]}]}}
---
{"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "metadata": {"name": "d", "namespace": "other", "generation": 3},
 "spec": {"host": "api", "trafficPolicy": {"loadBalancer": {"simple": "RANDOM"}}}, "status": {"conditions": []}}
---
{"apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", "metadata": {"name": "e", "namespace": "shop"}, "spec": {}}
---
{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "p", "namespace": "shop"},
 "spec": {"selector": {"matchLabels": {"app": "web"}}, "rules": [{"from": [{"source": {"serviceAccounts": ["other/api"]}}]}]}}
---
{"apiVersion": "example.com/v1", "kind": "VirtualService", "metadata": {"name": "foreign", "namespace": "shop"},
 "spec": {"hosts": ["web"], "tls": []}}
"#;

/// The names and kinds of what is made, in their order.
fn made(answer: &Answer) -> Vec<String> {
    let told: Value =
        serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
    let name = |made: &Value| {
        let (object, field) = (&made["object"], |f: &str| {
            made["object"]["metadata"][f].as_str()
        });
        let namespace = field("namespace").map_or(String::new(), |n| format!("{n}/"));
        format!(
            "{} {namespace}{}",
            object["kind"].as_str().unwrap(),
            field("name").unwrap()
        )
    };
    told["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(name)
        .collect()
}

#[test]
fn what_a_cluster_has_is_translated_as_files_are() {
    let server = ApiServer::start(&ISTIO, ISTIO_OBJECTS);
    let answer = server.import(&["istio", "-o", "json"]);
    // The EnvoyFilter is in a version that the group does not prefer, and lost.
    assert_eq!(answer.code, 79, "{answer:?}");
    assert_eq!(
        made(&answer),
        [
            "Namespace shop",
            "Deployment shop/web",
            "CronJob shop/night",
            "AuthorizationPolicy shop/p",
            "TrafficPolicy other/d",
            "TCPRoute shop/a",
            "HTTPRoute shop/b",
        ]
    );
    let told: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(told["lost"].as_array().unwrap().len(), 1, "{answer:?}");
    assert_eq!(told["lost"][0]["object"], "EnvoyFilter shop/e");
    for field in [
        "managedFields",
        "resourceVersion",
        "status",
        "uid",
        "foreign",
        "istiod",
    ] {
        assert!(!answer.out.contains(field), "{field}: {answer:?}");
    }
    let skipped = "not served by this cluster, so left out: PeerAuthentication, RequestAuthentication, Gateway, ServiceEntry\n";
    assert!(answer.err.contains(skipped), "{answer:?}");

    // The order is not the API server's.
    server.change(|content| content.objects.reverse());
    let again = server.import(&["istio", "-o", "json"]);
    assert_eq!((again.code, &again.out), (79, &answer.out));
    assert!(again.err.contains(skipped), "{again:?}");

    // The same objects in a file become the same.
    let own = server.content.lock().unwrap().objects.clone();
    let own = own.into_iter().filter(|o| {
        let group = o["apiVersion"].as_str().unwrap();
        !group.starts_with("example.com") && o["metadata"]["namespace"] != "istio-system"
    });
    let list = json!({ "kind": "List", "items": own.collect::<Vec<Value>>() });
    server.mesh.write("list.json", &list.to_string());
    let file = server
        .mesh
        .tulle(&["import", "istio", "list.json", "-o", "json"]);
    assert_eq!(file.code, 79, "{file:?}");
    let objects = |answer: &Answer| {
        let mut told: Value = serde_json::from_str(&answer.out).unwrap();
        let mut all: Vec<Value> = told["objects"].as_array_mut().unwrap().drain(..).collect();
        all.sort_by_key(Value::to_string);
        (all, told["lost"].clone())
    };
    assert_eq!(objects(&file), objects(&answer));
}

#[test]
fn a_namespace_alone_is_asked_for_alone() {
    let server = ApiServer::start(&ISTIO, ISTIO_OBJECTS);
    let answer = server.import(&["istio", "-n", "other", "-o", "json"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(made(&answer), ["TrafficPolicy other/d"]);
    let lists = server.seen().into_iter().filter(|r| r.contains("limit="));
    let lists: Vec<String> = lists.collect();
    assert!(!lists.is_empty());
    for list in lists {
        assert!(list.contains("/namespaces/other/"), "{list}");
    }
    let answer = server.import(&["istio", "-n", "missing"]);
    assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{answer:?}");
    assert!(
        answer.err.contains("there is no namespace missing"),
        "{answer:?}"
    );
}

/// Half of a mesh would look like all of it.
#[test]
fn a_kind_that_may_not_be_listed_ends_it_and_is_named() {
    let server = ApiServer::start(&ISTIO, ISTIO_OBJECTS);
    for (plural, named) in [
        (
            "destinationrules",
            "listing destinationrules.networking.istio.io of all namespaces",
        ),
        ("services", "listing services of all namespaces"),
        (
            "statefulsets",
            "listing statefulsets.apps of all namespaces",
        ),
    ] {
        server.change(|content| content.forbidden = BTreeSet::from([plural]));
        let answer = server.import(&["istio"]);
        assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{answer:?}");
        assert!(answer.err.contains(named), "{answer:?}");
        assert!(answer.err.contains("cannot list resource"), "{answer:?}");
        assert!(answer.err.contains("what to do"), "{answer:?}");
    }
    // One that is not this mesh's is not asked for.
    server.change(|content| content.forbidden = BTreeSet::from(["secrets"]));
    assert_eq!(server.import(&["istio"]).code, 79);
}

#[test]
fn a_cluster_without_the_mesh_is_told() {
    let server = ApiServer::start(&ISTIO, ISTIO_OBJECTS);
    let answer = server.import(&["linkerd"]);
    assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{answer:?}");
    for part in ["has no kind of that mesh", "ServiceProfile", "--context"] {
        assert!(answer.err.contains(part), "{part}: {answer:?}");
    }
    // Either files or a cluster, and a namespace is a cluster's.
    for words in [
        &["import", "istio"][..],
        &["import", "istio", "--cluster", "file.yaml"],
        &["import", "istio", "file.yaml", "-n", "shop"],
    ] {
        assert_eq!(server.mesh.tulle(words).code, 64, "{words:?}");
    }
}

/// OSM's settings are in the namespace of its own workloads, which are left out.
#[test]
fn osm_is_read_with_smi() {
    let kinds: [Kind; 4] = [
        (
            "config.openservicemesh.io",
            &["v1alpha2", "v1alpha1"],
            "MeshConfig",
            "meshconfigs",
        ),
        (
            "policy.openservicemesh.io",
            &["v1alpha1"],
            "Egress",
            "egresses",
        ),
        (
            "access.smi-spec.io",
            &["v1alpha3"],
            "TrafficTarget",
            "traffictargets",
        ),
        // It answers numbers, and is asked for none.
        (
            "metrics.smi-spec.io",
            &["v1alpha1"],
            "TrafficMetrics",
            "pods",
        ),
    ];
    let server = ApiServer::start(
        &kinds,
        r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bookstore",
             "labels": {"openservicemesh.io/monitored-by": "osm"}}}
---
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "osm-controller", "namespace": "osm-system"},
 "spec": {"template": {"metadata": {"annotations": {"openservicemesh.io/metrics": "enabled"}}}}}
---
{"apiVersion": "config.openservicemesh.io/v1alpha2", "kind": "MeshConfig",
 "metadata": {"name": "osm-mesh-config", "namespace": "osm-system", "resourceVersion": "5"},
 "spec": {"traffic": {"enableEgress": false, "enablePermissiveTrafficPolicyMode": false}}}
---
{"apiVersion": "access.smi-spec.io/v1alpha3", "kind": "TrafficTarget", "metadata": {"name": "t", "namespace": "bookstore"},
 "spec": {"destination": {"kind": "ServiceAccount", "name": "a", "namespace": "bookstore"},
  "sources": [{"kind": "ServiceAccount", "name": "b", "namespace": "bookstore"}]}}
"#,
    );
    let answer = server.import(&["osm", "-o", "json"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(
        made(&answer),
        [
            "Namespace bookstore",
            "Mesh mesh",
            "TrafficTarget bookstore/t"
        ]
    );
    assert!(
        server.seen().iter().all(|r| !r.contains("metrics.smi")),
        "{:?}",
        server.seen()
    );
    assert!(
        answer
            .err
            .contains("left out: IngressBackend, UpstreamTrafficSetting, Retry"),
        "{answer:?}"
    );
}
