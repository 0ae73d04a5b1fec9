//! The controller's servers for the API server and the kubelet, over real sockets: other clients cannot keep
//! either out, and take little memory.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../control/tests/common/alone.rs"]
mod alone;
#[path = "../../control/tests/common/group.rs"]
mod group;

use alone::cluster;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tulle_control::ca::Authority;
use tulle_control::ca::roots::Roots;
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{Controller, ControllerConfig, HOST_AWAY, RunningController, StoreKind};
use tulle_kube::scrape::Unscraped;
use tulle_kube::webhook::{Bodies, Webhook, client_roots};
use tulle_model::identity::SpiffeId;
use tulle_net::socket::raise_descriptor_limit;

/// Where the API server and the kubelet connect from, and somebody else.
const NODE: u8 = 1;
const OTHER: u8 = 2;
const SILENT: usize = 1000;
const SLOW: usize = 1000;
/// Posts at a time, and what each sends.
const POSTS: usize = 110;
const LONGEST: usize = 4 << 20;
const LONGEST_READ: usize = 70_000;
const GROWTH: u64 = 64 << 20;
const LONG: Duration = Duration::from_secs(60);
const NAME: &str = "tulle-controller.tulle-system.svc";

/// Lets one test run at a time: they measure the memory of the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());

struct Servers {
    webhook: SocketAddr,
    health: SocketAddr,
    tls: TlsConnector,
    roots: RootCertStore,
    /// Certificate of the root.
    pem: String,
    /// `None`: in another process.
    _running: Option<(RunningController, tempfile::TempDir)>,
}

async fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn start() -> Servers {
    start_for(None).await
}

/// The same with authorities for clients of the webhook.
async fn start_for(client_roots: Option<Arc<RootCertStore>>) -> Servers {
    raise_descriptor_limit();
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let config = ControllerConfig {
        socket: run.join("control.sock"),
        state_dir: directory.path().to_owned(),
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        store: StoreKind::Memory,
        metrics: None,
        host_away: HOST_AWAY,
        least_key_refresh: LEAST_REFRESH,
        observe: false,
    };
    let cluster = cluster("cluster.local");
    let controller = Controller::start_in_cluster(config, cluster).await.unwrap();
    let feed = controller.feed();

    let settings = json!({
        "image": "proxy", "controller": "tulle-controller:15010", "trustDomain": "cluster.local",
    });
    let (_, missing) = watch::channel(Default::default());
    let server = Webhook {
        settings: Arc::new(serde_json::from_value(settings).unwrap()),
        mesh: watch::channel(Default::default()).1,
        missing,
        unscraped: Unscraped::default(),
        bodies: Bodies::default(),
        client_roots,
    };
    let mut roots = RootCertStore::empty();
    let pem = feed.bundles().pem();
    roots
        .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    let (listener, health) = bind().await;
    tokio::spawn(server.clone().serve_health(listener));
    let (listener, webhook) = bind().await;
    tokio::spawn(server.serve(listener, feed, vec![NAME.into()]));
    Servers {
        webhook,
        health,
        tls: connector(&roots, None),
        roots,
        pem,
        _running: Some((controller, directory)),
    }
}

/// A client of servers of these roots, with a certificate of this authority.
fn connector(roots: &RootCertStore, of: Option<&Authority>) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots.clone());
    let config = match of {
        None => config.with_no_client_auth(),
        Some(authority) => {
            let id = SpiffeId::parse("spiffe://cluster.local/ns/kube-system/sa/apiserver").unwrap();
            let hour = Duration::from_secs(3600);
            let made = authority.issue_with_key(&id, hour, SystemTime::now());
            let (issued, key) = made.unwrap();
            let chain = vec![CertificateDer::from(issued.certificate.to_vec())];
            config.with_client_auth_cert(chain, key.into()).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

async fn connect(host: u8, to: SocketAddr) -> TcpStream {
    connect_from(Ipv4Addr::new(127, 0, 0, host), to).await
}

async fn connect_from(host: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((host, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// The status of what is answered to this, and its body; `None`: the connection was cut.
async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    head: &str,
    body: &[u8],
) -> Option<(u16, String)> {
    let length = body.len();
    let head = format!(
        "{head} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    for part in body.chunks(16 * 1024) {
        // It may be refused before it has come.
        if stream.write_all(part).await.is_err() {
            break;
        }
    }
    let _ = stream.flush().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1)?.parse().ok()?;
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Some((status, body.unwrap_or_default()))
}

impl Servers {
    async fn shake(&self, host: u8) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = connect(host, self.webhook).await;
        self.tls.connect(NAME.try_into().unwrap(), tcp).await
    }

    async fn shake_as(&self, of: &Authority) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = connect(NODE, self.webhook).await;
        let tls = connector(&self.roots, Some(of));
        tls.connect(NAME.try_into().unwrap(), tcp).await
    }

    /// Asserts that requests of the API server and the kubelet are answered.
    async fn answer_the_node(&self) {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "7", "kind": { "group": "split.smi-spec.io", "kind": "TrafficSplit" },
                "operation": "CREATE",
                "object": {
                    "apiVersion": "split.smi-spec.io/v1alpha4", "kind": "TrafficSplit",
                    "metadata": { "name": "s", "namespace": "shop" },
                    "spec": { "service": "a", "backends": [{ "service": "b", "weight": 1 }] },
                },
            },
        })
        .to_string();
        let asking = async {
            let tls = self.shake(NODE).await.unwrap();
            let answer = ask(tls, "POST /validate", review.as_bytes()).await;
            let (status, body) = answer.unwrap();
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                (status, &body["response"]["allowed"]),
                (200, &true.into()),
                "{body}"
            );
            let live = ask(connect(NODE, self.health).await, "GET /live", b"").await;
            assert_eq!(live, Some((200, "live\n".into())));
        };
        timeout(LONG, asking).await.unwrap();
    }
}

/// Without `webhook.clientCA` others are answered, too: see `answer_the_node`.
#[tokio::test]
async fn only_clients_with_a_certificate_are_answered_where_one_is_asked_for() {
    let _alone = ALONE.lock().await;
    assert!(client_roots("").unwrap().is_none());
    assert!(client_roots("no PEM").is_err());
    let [clients, others] =
        [(); 2].map(|()| Authority::from_roots(Roots::generate().unwrap()).unwrap());
    let mut servers = start_for(client_roots(&clients.bundle_pem()).unwrap()).await;
    for path in ["POST /inject", "POST /validate"] {
        let tls = servers.shake(NODE).await.unwrap();
        let (status, why) = ask(tls, path, b"{}").await.unwrap();
        assert_eq!(status, 403);
        assert!(why.contains("webhook.clientCA"), "{why}");
        // Reviews are on no other port.
        let health = connect(NODE, servers.health).await;
        assert_eq!(ask(health, path, b"{}").await.unwrap().0, 403);
    }
    let stranger = servers.shake_as(&others).await;
    let answer = match stranger {
        Ok(tls) => ask(tls, "POST /validate", b"{}").await,
        Err(_) => None,
    };
    assert_eq!(answer, None);
    servers.tls = connector(&servers.roots, Some(&clients));
    servers.answer_the_node().await;
}

async fn hold(host: u8, to: SocketAddr, begin: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for number in 0..SILENT + SLOW {
        let mut stream = connect(host, to).await;
        if number >= SILENT {
            // It may have had to go already.
            let _ = stream.write_all(begin).await;
        }
        held.push(stream);
    }
    held
}

#[tokio::test]
async fn idle_connections_keep_neither_the_api_server_nor_the_kubelet_out() {
    let _alone = ALONE.lock().await;
    let servers = start().await;
    servers.answer_the_node().await;
    for (port, begin) in [
        (servers.webhook, b"\x16\x03\x01\x02".as_slice()),
        (servers.health, b"GET /li".as_slice()),
    ] {
        for host in [OTHER, NODE] {
            let held = hold(host, port, begin).await;
            for _ in 0..10 {
                servers.answer_the_node().await;
            }
            drop(held);
        }
    }
}

/// There are as many sources as places, each with a body that never ends: nobody holds more than another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_of_many_sources_keep_the_api_server_out_for_no_time() {
    const SOURCES: u16 = 300;
    let _alone = ALONE.lock().await;
    let servers = start().await;
    servers.answer_the_node().await;
    let (came, mut all) = watch::channel(0);
    let came = Arc::new(came);
    let mut posts = tokio::task::JoinSet::new();
    for number in 0..SOURCES {
        let [high, low] = number.to_be_bytes();
        let host = Ipv4Addr::new(127, 1, high, low);
        let (tls, to, came) = (servers.tls.clone(), servers.webhook, came.clone());
        posts.spawn(async move {
            let mut first = true;
            // It comes again as often as it is cut.
            loop {
                let tcp = connect_from(host, to).await;
                let Ok(mut tls) = tls.connect(NAME.try_into().unwrap(), tcp).await else {
                    continue;
                };
                let head = b"POST /validate HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n{";
                if tls.write_all(head).await.is_ok() && tls.flush().await.is_ok() {
                    if std::mem::take(&mut first) {
                        came.send_modify(|count| *count += 1);
                    }
                    let _ = tls.read(&mut [0]).await;
                }
            }
        });
    }
    let here = all.wait_for(|count| *count >= SOURCES);
    timeout(LONG, here).await.unwrap().unwrap();
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let asked = Instant::now();
        servers.answer_the_node().await;
        longest = longest.max(asked.elapsed());
    }
    println!(
        "20 reviews in {:?}, the longest {longest:?}",
        begin.elapsed()
    );
    // A body may take 10 seconds.
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}

/// Serves reviews in a container, until the test that has started it ends it.
async fn in_a_container(directory: &str) {
    tulle_control::memory_limit::start();
    let servers = start().await;
    let file = std::path::Path::new(directory).join("roots");
    std::fs::write(&file, &servers.pem).unwrap();
    group::say(
        directory,
        &format!("{} {}", servers.webhook, servers.health),
    );
    std::future::pending::<()>().await;
}

/// The flood of [`large_reviews_take_bounded_memory_and_delay_nobody`] from several sources, in a container of the
/// chart's limit and in a small one: the kernel ends nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_reviews_stay_within_the_limit_of_memory() {
    const NAME: &str = "large_reviews_stay_within_the_limit_of_memory";
    if let Some(directory) = group::directory() {
        return in_a_container(&directory).await;
    }
    let _alone = ALONE.lock().await;
    let controller = tulle_kube::install::values::Values::default().controller;
    let usual = controller.resources["limits"]["memory"].as_str().unwrap();
    let usual = tulle_model::manifest::parse_memory(usual).unwrap();
    let bodies = [LONGEST, LONGEST_READ].map(|bytes| Arc::new(large(bytes)));
    for limit in [usual, 48 << 20] {
        let directory = tempfile::tempdir().unwrap();
        let Some(mut limited) = group::again(NAME, limit, directory.path()) else {
            return;
        };
        let said = limited.said(directory.path()).await;
        let (webhook, health) = said.split_once(' ').unwrap();
        let pem = std::fs::read(directory.path().join("roots")).unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&pem).unwrap())
            .unwrap();
        let servers = Arc::new(Servers {
            webhook: webhook.parse().unwrap(),
            health: health.parse().unwrap(),
            tls: connector(&roots, None),
            roots,
            pem: String::new(),
            _running: None,
        });
        servers.answer_the_node().await;
        let idle = limited.memory();
        let mut most = idle;
        let posts = (0..POSTS).map(|number| {
            let (servers, body) = (servers.clone(), bodies[number % 2].clone());
            let host = OTHER + u8::try_from(number % 8).unwrap();
            tokio::spawn(async move {
                let tls = servers.shake(host).await.ok()?;
                ask(tls, "POST /validate", &body).await
            })
        });
        let posts: Vec<_> = posts.collect();
        while posts.iter().any(|p| !p.is_finished()) {
            servers.answer_the_node().await;
            most = most.max(limited.memory());
            limited.runs();
        }
        for post in posts {
            let answer = post.await.unwrap();
            if let Some((status, why)) = answer.filter(|(status, _)| *status != 200) {
                assert_eq!(status, 503, "{why}");
                assert!(why.starts_with("overload: "), "{why}");
            }
        }
        limited.runs();
        println!(
            "limit {} KiB: idle {} KiB, at most {} KiB",
            limit >> 10,
            idle >> 10,
            most >> 10
        );
    }
}

fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(field)).unwrap();
    let kilobytes = line.split_ascii_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

/// A review of so many bytes whose object is a tree many times as large.
fn large(bytes: usize) -> Vec<u8> {
    let (begin, end) = (
        br#"{"request":{"uid":"7","kind":{"group":"tulle.dev"},"object":{"spec":["#,
        b"0]}}}",
    );
    let room = bytes - begin.len() - end.len();
    [begin.as_slice(), &b"0,".repeat(room / 2), end].concat()
}

#[tokio::test]
async fn large_reviews_take_bounded_memory_and_delay_nobody() {
    let _alone = ALONE.lock().await;
    let servers = Arc::new(start().await);
    servers.answer_the_node().await;
    // One body is as large as reviews may be, the other as large as one that is read may be.
    let bodies = [LONGEST, LONGEST_READ].map(|bytes| Arc::new(large(bytes)));
    // This resets the peak, so that it is the peak from here on.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmHWM:");
    let posts = (0..POSTS).map(|number| {
        let (servers, body) = (servers.clone(), bodies[number % 2].clone());
        tokio::spawn(async move {
            let tls = servers.shake(OTHER).await.ok()?;
            ask(tls, "POST /validate", &body).await
        })
    });
    let posts: Vec<_> = posts.collect();
    while posts.iter().any(|p| !p.is_finished()) {
        servers.answer_the_node().await;
    }
    for post in posts {
        // The body is too large for anybody, or was cut because so many came at a time.
        let answer = post.await.unwrap();
        if let Some((status, why)) = answer.filter(|(status, _)| *status != 200) {
            assert_eq!(status, 503, "{why}");
            assert!(why.starts_with("overload: "), "{why}");
        }
    }
    let growth = memory("VmHWM:") - before;
    println!("{POSTS} posts of {LONGEST} bytes: {} KiB", growth / 1024);
    assert!(growth <= GROWTH, "{growth} bytes");
}
