//! SMI's metrics API over real sockets: other clients of its port cannot keep the API server's front proxy out.
//! `tests/kube/tests/smi_metrics.rs` asks it through a real API server; here one only says who its front proxy is.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../control/tests/common/alone.rs"]
mod alone;

use alone::cluster;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::{Client, Config as ClientConfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig as Tls, RootCertStore};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tulle_control::ca::Authority;
use tulle_control::ca::roots::Roots;
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{Controller, ControllerConfig, HOST_AWAY, StoreKind};
use tulle_kube::smi;
use tulle_model::identity::SpiffeId;

const LONG: Duration = Duration::from_secs(60);
const NAME: &str = "tulle-controller.tulle-system.svc";
/// Where the API server connects from, and somebody else.
const NODE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const HELD: u16 = 2_000;

/// Says that its front proxy has a certificate of this authority, and nothing else.
async fn api_server(authority: String) -> Client {
    let listener = TcpListener::bind((NODE, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let map = json!({
        "metadata": {
            "name": "extension-apiserver-authentication", "namespace": "kube-system", "uid": "1",
            "resourceVersion": "1",
        },
        "data": {
            "requestheader-client-ca-file": authority, "requestheader-allowed-names": "[]",
        },
    });
    let list = json!({
        "apiVersion": "v1", "kind": "ConfigMapList", "metadata": { "resourceVersion": "1" },
        "items": [map],
    });
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let list = list.to_string();
            let service = service_fn(move |request: Request<Incoming>| {
                let list = list.clone();
                async move {
                    // Nothing happens to it.
                    if request.uri().query().is_some_and(|q| q.contains("watch=")) {
                        std::future::pending::<()>().await;
                    }
                    let mut response = Response::new(Full::<Bytes>::from(list));
                    let kind = "application/json".parse().unwrap();
                    response.headers_mut().insert("content-type", kind);
                    Ok::<_, Infallible>(response)
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    let address = format!("http://{address}").parse().unwrap();
    Client::try_from(ClientConfig::new(address)).unwrap()
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Asks for what the API has as its front proxy does.
async fn ask(tls: &TlsConnector, to: SocketAddr) -> std::io::Result<String> {
    let tcp = connect(NODE, to).await;
    let mut tls = tls.connect(NAME.try_into().unwrap(), tcp).await?;
    let head = format!(
        "GET /apis/{}/{} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        smi::GROUP,
        smi::VERSION
    );
    tls.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn front_proxy(authority: &Authority, servers: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(servers.as_bytes()).unwrap();
    roots.add(root).unwrap();
    let id = SpiffeId::parse("spiffe://cluster.local/ns/kube-system/sa/apiserver").unwrap();
    let hour = Duration::from_secs(3600);
    let made = authority.issue_with_key(&id, hour, SystemTime::now());
    let (issued, key) = made.unwrap();
    let chain = vec![CertificateDer::from(issued.certificate.to_vec())];
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = Tls::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key.into())
        .unwrap();
    TlsConnector::from(Arc::new(config))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_do_not_keep_the_front_proxy_out() {
    let directory = tempfile::tempdir().unwrap();
    let config = ControllerConfig {
        socket: directory.path().join("run/control.sock"),
        state_dir: directory.path().to_owned(),
        listen: (NODE, 0).into(),
        store: StoreKind::Memory,
        metrics: None,
        host_away: HOST_AWAY,
        least_key_refresh: LEAST_REFRESH,
        observe: false,
    };
    let cluster = cluster("cluster.local");
    let controller = Controller::start_in_cluster(config, cluster).await.unwrap();
    let feed = controller.feed();
    let authority = Authority::from_roots(Roots::generate().unwrap()).unwrap();
    let tls = front_proxy(&authority, &feed.bundles().pem());
    let listener = TcpListener::bind((NODE, 0)).await.unwrap();
    let to = listener.local_addr().unwrap();
    let client = api_server(authority.bundle_pem()).await;
    tokio::spawn(smi::serve(client, feed, listener, vec![NAME.into()]));
    let begin = Instant::now();
    while ask(&tls, to).await.is_err() {
        assert!(begin.elapsed() < LONG, "it does not learn who may ask");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut held = Vec::new();
    for number in 0..HELD {
        // Most are of one address, and there are as many other addresses as places.
        let [high, low] = number.to_be_bytes();
        let from = match number % 8 {
            0 => Ipv4Addr::new(127, 1, high, low),
            _ => OTHER,
        };
        let mut stream = connect(from, to).await;
        if number % 2 == 0 {
            // It may have had to go already.
            let _ = stream.write_all(b"\x16\x03\x01\x02").await;
        }
        held.push(stream);
    }
    for _ in 0..20 {
        let answer = timeout(LONG, ask(&tls, to)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["kind"], "APIResourceList", "{body}");
    }
}
