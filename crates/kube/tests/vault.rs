//! Requests to Vault's PKI engine, and its answers: over TLS, against a server that keeps to Vault's
//! HTTP API (login, sign, authorities) and signs with an authority of its own.
#![allow(clippy::unwrap_used)]

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tulle_control::ca::issuer::{CertificateRequest, IssueError, Issuer, throwaway_request};
use tulle_control::ca::roots::Roots;
use tulle_control::ca::{self, Authority};
use tulle_kube::issuer::{Vault, VaultAuth, VaultSettings};
use tulle_model::identity::SpiffeId;

const ID: &str = "spiffe://cluster.local/ns/shop/sa/web";

struct Server {
    authority: Authority,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sealed: bool,
    logins: u32,
    revoked: bool,
}

impl Server {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = format!("{} {}", request.method(), request.uri().path());
        let token = request.headers().get("x-vault-token").cloned();
        let token = token.map(|t| t.to_str().unwrap().to_owned());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let errors = |status, why: &str| (status, json!({ "errors": [why] }).to_string());
        let (status, text) = if self.state.lock().unwrap().sealed {
            errors(StatusCode::SERVICE_UNAVAILABLE, "Vault is sealed")
        } else {
            match path.as_str() {
                "POST /v1/auth/cluster/login" => self.login(&body),
                "POST /v1/mesh-pki/sign/workloads" => self.sign(token.as_deref(), &body),
                // Vault answers nothing for an engine whose only authority is its root.
                "GET /v1/mesh-pki/ca_chain" => (StatusCode::OK, String::new()),
                "GET /v1/mesh-pki/ca/pem" => (StatusCode::OK, self.authority.bundle_pem()),
                _ => errors(StatusCode::NOT_FOUND, "no handler for route"),
            }
        };
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    }

    fn login(&self, body: &Value) -> (StatusCode, String) {
        if body["role"] != "tulle" || body["jwt"] != "token-of-the-pod" {
            let why = json!({ "errors": ["permission denied"] });
            return (StatusCode::FORBIDDEN, why.to_string());
        }
        let mut state = self.state.lock().unwrap();
        state.logins += 1;
        state.revoked = false;
        let auth = json!({ "client_token": format!("s.{}", state.logins), "lease_duration": 3600 });
        (StatusCode::OK, json!({ "auth": auth }).to_string())
    }

    fn sign(&self, token: Option<&str>, body: &Value) -> (StatusCode, String) {
        let state = self.state.lock().unwrap();
        if state.revoked || token != Some(&format!("s.{}", state.logins)) {
            let why = json!({ "errors": ["permission denied"] });
            return (StatusCode::FORBIDDEN, why.to_string());
        }
        assert_eq!(body["uri_sans"], ID);
        assert_eq!(body["ttl"], "3600s");
        let csr = pem::parse(body["csr"].as_str().unwrap()).unwrap();
        assert_eq!(csr.tag(), "CERTIFICATE REQUEST");
        let request = ca::VerifiedCsr::parse(csr.contents()).unwrap();
        let (hour, now) = (Duration::from_secs(3600), SystemTime::now());
        let id = SpiffeId::parse(ID).unwrap();
        let issued = self
            .authority
            .issue(&request, &id, None, hour, now)
            .unwrap();
        let leaf = pem::encode(&pem::Pem::new("CERTIFICATE", issued.certificate.to_vec()));
        let root = self.authority.bundle_pem();
        let data = json!({ "certificate": leaf, "issuing_ca": root, "ca_chain": [root] });
        (StatusCode::OK, json!({ "data": data }).to_string())
    }
}

/// A server on loopback, and the settings to reach it.
async fn start(directory: &Path) -> (Arc<Server>, VaultSettings) {
    let own = Authority::from_roots(Roots::generate().unwrap()).unwrap();
    let hour = Duration::from_secs(3600);
    let made = own.issue_server(&["localhost".to_owned()], hour, SystemTime::now());
    let (certificate, key) = made.unwrap();
    let chain = vec![CertificateDer::from(certificate.certificate.to_vec())];
    let tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from(key))
        .unwrap();
    let tls = TlsAcceptor::from(Arc::new(tls));
    let server = Arc::new(Server {
        authority: Authority::from_roots(Roots::generate().unwrap()).unwrap(),
        state: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = server.clone();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let Ok(io) = tls.accept(tcp).await else {
                continue;
            };
            let server = serving.clone();
            let service = service_fn(move |request| {
                let server = server.clone();
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(io), service));
        }
    });
    let (ca, token) = (directory.join("ca.crt"), directory.join("token"));
    std::fs::write(&ca, own.bundle_pem()).unwrap();
    std::fs::write(&token, "token-of-the-pod\n").unwrap();
    let settings = VaultSettings {
        address: format!("https://localhost:{port}"),
        mount: "mesh-pki".into(),
        role: "workloads".into(),
        ca,
        auth: VaultAuth::Kubernetes {
            mount: "cluster".into(),
            role: "tulle".into(),
            token,
        },
    };
    (server, settings)
}

fn asked() -> CertificateRequest {
    let identity = SpiffeId::parse(ID).unwrap();
    CertificateRequest {
        csr_der: throwaway_request(&identity).unwrap(),
        identity,
        lifetime: Duration::from_secs(3600),
    }
}

#[tokio::test]
async fn vault_signs_and_its_troubles_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let (server, settings) = start(directory.path()).await;
    let vault = Vault::new(settings.clone()).unwrap();
    let root = server.authority.root().to_vec();
    assert_eq!(vault.roots().await.unwrap(), std::slice::from_ref(&root));
    for _ in 0..3 {
        let signed = vault.sign(asked()).await.unwrap();
        // The chain is the leaf alone; the root is not part of it.
        assert_eq!(signed.chain_der.len(), 1);
        assert_ne!(signed.chain_der[0], root);
    }
    assert_eq!(server.state.lock().unwrap().logins, 1, "one login serves");

    // A token that was revoked is given up: the next request logs in again.
    server.state.lock().unwrap().revoked = true;
    let refused = vault.sign(asked()).await.unwrap_err();
    assert!(matches!(&refused, IssueError::Refused(why) if why.contains("permission denied")));
    assert!(vault.sign(asked()).await.is_ok());
    assert_eq!(server.state.lock().unwrap().logins, 2);

    // Sealed: that passes.
    server.state.lock().unwrap().sealed = true;
    let away = vault.sign(asked()).await.unwrap_err();
    assert!(
        matches!(&away, IssueError::Unavailable(why) if why.contains("sealed")),
        "{away}"
    );
    assert!(vault.roots().await.is_err());
    server.state.lock().unwrap().sealed = false;

    // Another role; another authority of the server; no server.
    let wrong_role = VaultSettings {
        role: "other".into(),
        ..settings.clone()
    };
    let refused = Vault::new(wrong_role)
        .unwrap()
        .sign(asked())
        .await
        .unwrap_err();
    assert!(matches!(refused, IssueError::Refused(_)), "{refused}");
    std::fs::write(&settings.ca, server.authority.bundle_pem()).unwrap();
    let stranger = Vault::new(settings.clone())
        .unwrap()
        .sign(asked())
        .await
        .unwrap_err();
    assert!(
        matches!(&stranger, IssueError::Unavailable(why) if why.contains("ertificate")),
        "{stranger}"
    );
    let nowhere = VaultSettings {
        address: "https://localhost:1".into(),
        ..settings.clone()
    };
    let nowhere = Vault::new(nowhere)
        .unwrap()
        .sign(asked())
        .await
        .unwrap_err();
    assert!(matches!(nowhere, IssueError::Unavailable(_)), "{nowhere}");
    assert!(
        Vault::new(VaultSettings {
            address: "http://localhost:1".into(),
            ..settings
        })
        .is_err()
    );
}
