//! An API server that has what a test says, and answers as a real one answers an account with the rights that the test names.

use crate::common::{Answer, Mesh};
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
pub(crate) type Kind = (
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
pub(crate) struct Content {
    kinds: Vec<Kind>,
    pub(crate) objects: Vec<Value>,
    /// Plurals that may not be listed.
    pub(crate) forbidden: BTreeSet<&'static str>,
    /// Requests so far, with their methods.
    seen: Vec<String>,
}

pub(crate) struct ApiServer {
    pub(crate) content: Arc<Mutex<Content>>,
    pub(crate) mesh: Mesh,
}

impl ApiServer {
    /// Serves these kinds and objects on a port of its own; the kubeconfig of `mesh` leads there.
    pub(crate) fn start(kinds: &[Kind], objects: &str) -> Self {
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
    pub(crate) fn import(&self, words: &[&str]) -> Answer {
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

    pub(crate) fn seen(&self) -> Vec<String> {
        self.content.lock().unwrap().seen.clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Content)) {
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
        // Objects of built-in kinds, whose groups have no domain, do not say in lists what they are.
        if !group.contains('.') {
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
