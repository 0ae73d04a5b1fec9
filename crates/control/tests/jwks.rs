//! Keys of tokens that are fetched: a real controller and a server on loopback, which only the Mesh's
//! `networks` allow it to ask.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Stream, body, config, names, start_as, workload};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tulle_api::v1;
use tulle_control::ControllerConfig;
use tulle_model::resource::{Filter, Resource};

/// An issuer's HTTPS server.
struct Server {
    port: u16,
    roots: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Answers by path.
    answers: BTreeMap<String, String>,
    /// Paths in the order they came.
    asked: Vec<String>,
    connections: usize,
}

impl Server {
    async fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(vec!["localhost".into()]).unwrap();
        let loopback: IpAddr = [127, 0, 0, 1].into();
        leaf.subject_alt_names.push(SanType::IpAddress(loopback));
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            roots: root.pem(),
            state: Arc::default(),
        };
        let state = server.state.clone();
        tokio::spawn(async move {
            let tls = TlsAcceptor::from(Arc::new(tls));
            while let Ok((tcp, _)) = listener.accept().await {
                state.lock().unwrap().connections += 1;
                let (tls, state) = (tls.clone(), state.clone());
                tokio::spawn(async move {
                    let mut stream = tls.accept(tcp).await.ok()?;
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.ok()?);
                    }
                    let head = String::from_utf8(head).ok()?;
                    let path = head.split(' ').nth(1)?.to_owned();
                    let answer = {
                        let mut state = state.lock().unwrap();
                        state.asked.push(path.clone());
                        state.answers.get(&path).cloned().unwrap_or_default()
                    };
                    stream.write_all(answer.as_bytes()).await.ok()?;
                    stream.shutdown().await.ok()
                });
            }
        });
        server
    }

    fn uri(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    fn answer(&self, path: &str, status: &str, fields: &str, body: &str) {
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{fields}\r\n{body}",
            body.len()
        );
        let mut state = self.state.lock().unwrap();
        state.answers.insert(path.to_owned(), answer);
    }

    fn keys(&self, path: &str, id: &str) {
        let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": id,
                          "x": "THBRoioHyeBpfLlo60wwU5ipsutRrw3bskXEOTjW4hg" });
        let set = json!({ "keys": [key] }).to_string();
        self.answer(path, "200 OK", "cache-control: max-age=0\r\n", &set);
    }
}

/// The Mesh that lists the server with these networks.
fn mesh(server: &Server, networks: &Value) -> Value {
    let host = json!({ "host": "127.0.0.1", "port": server.port, "roots": server.roots,
                       "networks": networks });
    json!({ "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": "mesh" },
            "spec": { "jwks": { "hosts": [host] } } })
}

fn authentication(name: &str, uri: &str) -> Value {
    let jwt = json!({ "providers": [{ "issuer": "i", "jwksUri": uri }] });
    json!({ "apiVersion": "tulle.dev/v1alpha1", "kind": "Authentication",
            "metadata": { "name": name },
            "spec": { "targetRefs": [{ "kind": "Service", "name": name }], "jwt": jwt } })
}

fn quick(directory: &Path) -> ControllerConfig {
    ControllerConfig {
        least_key_refresh: Duration::from_millis(50),
        observe: false,
        ..config(directory)
    }
}

/// Waits for a problem with this text; returns it.
async fn problem(mesh: &mut common::Mesh, text: &str) -> String {
    let waited = tokio::time::timeout(Duration::from_mins(2), async {
        loop {
            let status = mesh.objects.status(v1::StatusRequest::default()).await;
            let problems = status.unwrap().into_inner().problems;
            if let Some(found) = problems.iter().find(|p| p.contains(text)) {
                return found.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let waited = waited.await;
    waited.unwrap_or_else(|_| panic!("no problem says {text:?}"))
}

/// Returns the filter for the requests to port 80.
fn demand(update: &v1::ConfigUpdate) -> Filter {
    let Resource::Inbound(inbound) = body(update, "inbound/a") else {
        panic!("no inbound resource");
    };
    inbound.ports[0].rules[0].filters[0].clone()
}

/// Waits until the sidecar receives a set with this key.
async fn told(stream: &mut Stream, id: &str) {
    loop {
        let update = stream.accept().await;
        if let Filter::Jwt(jwt) = demand(&update)
            && jwt.providers[0].jwks.contains(&format!("\"{id}\""))
        {
            return;
        }
    }
}

#[tokio::test]
async fn keys_are_fetched_followed_and_kept() {
    let server = Server::start().await;
    let directory = tempfile::tempdir().unwrap();
    let mut mesh_ = start_as(quick(directory.path())).await;
    server.answer("/keys", "503 Busy", "", "");
    let uri = server.uri("/keys");
    let spec = mesh(&server, &json!(["127.0.0.1"]));
    mesh_
        .apply(&[spec, workload("a", 80), authentication("a", &uri)])
        .await;
    mesh_.place("a", 80, 40001).await;
    let identity = mesh_.join("svc/a").await;

    let none = problem(&mut mesh_, "it answers 503").await;
    assert!(none.starts_with("Authentication/a: "), "{none}");
    assert!(none.contains("requests that need a token"), "{none}");
    let mut stream = mesh_.stream(&identity).await;
    stream.subscribe(&["inbound/a"]).await;
    let first = demand(&stream.accept().await);
    assert!(
        matches!(&first, Filter::Respond(answer) if answer.status == 500),
        "{first:?}"
    );

    server.keys("/keys", "one");
    told(&mut stream, "one").await;
    server.keys("/keys", "two");
    told(&mut stream, "two").await;

    server.answer("/keys", "500 No", "", "");
    let stale = problem(&mut mesh_, "it answers 500").await;
    assert!(stale.contains("the last good set stays in use"), "{stale}");
    let mut another = mesh_.stream(&identity).await;
    another.subscribe(&["inbound/a"]).await;
    told(&mut another, "two").await;

    // The same after a restart, though the server still gives none.
    drop((stream, another));
    mesh_.running.shutdown().await;
    let mut mesh_ = start_as(quick(directory.path())).await;
    mesh_.place("a", 80, 40001).await;
    let mut stream = mesh_.stream(&identity).await;
    stream.subscribe(&["inbound/a"]).await;
    told(&mut stream, "two").await;
    problem(&mut mesh_, "the last good set stays in use").await;

    // A set whose host is not listed any more is not used any more.
    let spec = json!({ "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh",
                       "metadata": { "name": "mesh" }, "spec": {} });
    mesh_.apply(&[spec]).await;
    problem(&mut mesh_, "the Mesh does not list").await;
    loop {
        if matches!(demand(&stream.accept().await), Filter::Respond(_)) {
            break;
        }
    }
}

/// Two workloads, of which `a` demands tokens whose keys this server has.
async fn held(directory: &Path, server: &Server) -> (common::Mesh, Stream) {
    let mut mesh_ = start_as(quick(directory)).await;
    mesh_.running.feed().hold_for_keys();
    let objects = [
        mesh(server, &json!(["127.0.0.1"])),
        workload("a", 80),
        workload("b", 80),
        authentication("a", &server.uri("/keys")),
    ];
    mesh_.apply(&objects).await;
    mesh_.place("a", 80, 40001).await;
    let identity = mesh_.join("svc/a").await;
    let stream = mesh_.stream(&identity).await;
    stream.subscribe(&["inbound/a", "service/b"]).await;
    (mesh_, stream)
}

#[tokio::test]
async fn a_silent_issuer_holds_only_what_needs_its_keys_and_not_for_ever() {
    let mut server = Server::start().await;
    // The kernel takes connections, and nobody ever reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    server.port = silent.local_addr().unwrap().port();
    let directory = tempfile::tempdir().unwrap();
    let (mesh_, mut stream) = held(directory.path(), &server).await;
    assert_eq!(names(&stream.accept().await), ["service/b"]);

    let feed = mesh_.running.feed();
    feed.await_keys(Duration::from_millis(100)).await;
    let late = stream.accept().await;
    assert_eq!(names(&late), ["inbound/a"]);
    assert!(matches!(demand(&late), Filter::Respond(answer) if answer.status == 500));
}

#[tokio::test]
async fn what_needs_keys_comes_once_with_them_or_without_if_there_are_none() {
    let server = Server::start().await;
    server.keys("/keys", "one");
    let directory = tempfile::tempdir().unwrap();
    let (_mesh, mut stream) = held(directory.path(), &server).await;
    let with_inbound = async |stream: &mut Stream| loop {
        let update = stream.accept().await;
        if names(&update).contains(&"inbound/a") {
            return demand(&update);
        }
    };
    let demanded = with_inbound(&mut stream).await;
    assert!(matches!(demanded, Filter::Jwt(_)), "{demanded:?}");

    server.answer("/keys", "503 Busy", "", "");
    let directory = tempfile::tempdir().unwrap();
    let (_mesh, mut stream) = held(directory.path(), &server).await;
    let demanded = with_inbound(&mut stream).await;
    assert!(matches!(demanded, Filter::Respond(_)), "{demanded:?}");
}

#[tokio::test]
async fn what_is_no_set_is_not_taken() {
    let server = Server::start().await;
    let directory = tempfile::tempdir().unwrap();
    let mut mesh_ = start_as(quick(directory.path())).await;
    let location = format!("location: {}\r\n", server.uri("/other"));
    server.answer("/moved", "302 Found", &location, "");
    server.keys("/other", "other");
    let large = format!("{{\"keys\":[]{}}}", " ".repeat(65 * 1024));
    server.answer("/large", "200 OK", "", &large);
    server.answer("/text", "200 OK", "", "<html>");
    server.answer("/empty", "200 OK", "", "{\"keys\":[]}");
    let expected = [
        ("moved", "redirects are not followed"),
        ("large", "more than 65536 bytes"),
        ("text", "no JSON"),
        ("empty", "no key for"),
        ("broken", "not fetched"),
    ];
    mesh_.apply(&[mesh(&server, &json!(["127.0.0.0/8"]))]).await;
    for (name, _) in expected {
        let uri = server.uri(&format!("/{name}"));
        let objects = [workload(name, 80), authentication(name, &uri)];
        mesh_.apply(&objects).await;
    }
    for (name, text) in expected {
        let found = problem(&mut mesh_, &format!("/{name} are not fetched: ")).await;
        assert!(found.contains(text), "{found}");
    }
    let asked = server.state.lock().unwrap().asked.clone();
    assert!(!asked.iter().any(|path| path == "/other"), "{asked:?}");
}

#[tokio::test]
async fn loopback_is_not_asked_unless_the_mesh_lists_it() {
    let server = Server::start().await;
    server.keys("/keys", "one");
    let directory = tempfile::tempdir().unwrap();
    let mut mesh_ = start_as(quick(directory.path())).await;
    mesh_
        .apply(&[
            mesh(&server, &json!([])),
            workload("a", 80),
            authentication("a", &server.uri("/keys")),
            workload("b", 80),
            // Another port of a host that is listed.
            authentication("b", "https://127.0.0.1:1/keys"),
        ])
        .await;
    let found = problem(&mut mesh_, "no address that may be asked").await;
    assert!(found.starts_with("Authentication/a: "), "{found}");
    let found = problem(&mut mesh_, "does not list 127.0.0.1:1 among").await;
    assert!(found.starts_with("Authentication/b: "), "{found}");
    // Networks without the address.
    mesh_.apply(&[mesh(&server, &json!(["10.0.0.0/8"]))]).await;
    problem(&mut mesh_, "no address that may be asked").await;
    assert_eq!(server.state.lock().unwrap().connections, 0);
    mesh_.apply(&[mesh(&server, &json!(["127.0.0.1"]))]).await;
    mesh_.place("a", 80, 40001).await;
    let identity = mesh_.join("svc/a").await;
    let mut stream = mesh_.stream(&identity).await;
    stream.subscribe(&["inbound/a"]).await;
    told(&mut stream, "one").await;
}
