//! Peers that reach the port and have no certificate: they keep nobody out and take little memory.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/alone.rs"]
mod alone;
mod common;

use alone::Alone;
use common::{start, workload};
use hyper_util::rt::TokioIo;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_control::ca::issuer::{CertificateRequest, IssueError, Issuer, Signed};
use tulle_control::ca::roots::Roots;
use tulle_control::ca::{Authority, VerifiedCsr};
use tulle_control::cluster::{
    Account, Accounts, Cluster, ResponseFuture, ReviewError, ReviewFuture,
};
use tulle_control::{Controller, RunningController, StoreKind};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_tls::Identity;
use tulle_tls::controller::{Anchor, client_config};
use tulle_tls::enrol::SigningRequest;

/// The same limits as in `serve/accept.rs`.
const ARRIVALS_OF_SOURCE: usize = 256;
const STRANGERS: usize = 512;
const STRANGERS_OF_SOURCE: usize = 128;
/// The same limit as in `serve/certificates.rs`.
const SIGNED_AT_ONCE: usize = 64;

/// Longest stay of a peer without a certificate; all strangers are present together only within
/// this time.
const STAY: Duration = Duration::from_secs(10);

const LONG: Duration = Duration::from_secs(60);

/// Connects from 127.0.0.`host`.
async fn connect(host: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from = Ipv4Addr::new(127, 0, 0, host);
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

async fn shake(
    mesh: &common::Mesh,
    host: u8,
    identity: Option<&Identity>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let trust_domain = TrustDomain::parse("tulle.local").unwrap();
    let tls = client_config(
        Anchor::Fingerprint(mesh.running.ca_fingerprint().into()),
        &trust_domain,
        identity,
    )
    .unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(tls));
    let tcp = connect(host, mesh.running.local_addr()).await;
    tls.connect("controller".try_into().unwrap(), tcp).await
}

/// Begins HTTP/2 and answers with the server's settings; empty when it closes instead.
async fn settings(tls: &mut TlsStream<TcpStream>) -> Vec<(u16, u32)> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut head = [0; 9];
    if tls.write_all(preface).await.is_err() || tls.read_exact(&mut head).await.is_err() {
        return Vec::new();
    }
    assert_eq!(head[3], 4, "a SETTINGS frame comes first");
    let mut payload = vec![0; usize::from(head[2])];
    tls.read_exact(&mut payload).await.unwrap();
    let one = |b: &[u8]| {
        let value = u32::from_be_bytes([b[2], b[3], b[4], b[5]]);
        (u16::from_be_bytes([b[0], b[1]]), value)
    };
    payload.chunks(6).map(one).collect()
}

#[tokio::test]
async fn silent_and_slow_connections_keep_nobody_out() {
    let directory = tempfile::tempdir().unwrap();
    let mesh = start(directory.path()).await;
    let to = mesh.running.local_addr();
    let mut held = Vec::new();
    for number in 0..8 * ARRIVALS_OF_SOURCE {
        let mut stream = connect(2, to).await;
        if number % 2 == 0 {
            // It may have had to go already.
            let _ = stream.write_all(b"\x16\x03\x01").await;
        }
        held.push(stream);
    }
    // Neither another address, nor the same one.
    for host in [3, 2] {
        for _ in 0..10 {
            let shaken = timeout(LONG, shake(&mesh, host, None)).await;
            settings(&mut shaken.unwrap().unwrap()).await;
        }
    }
    // The oldest made room for the latest.
    let closed = timeout(LONG, held[0].read(&mut [0])).await;
    assert!(matches!(closed.unwrap(), Ok(0) | Err(_)));
}

#[tokio::test]
async fn without_a_certificate_there_is_room_and_time_for_one_request() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 80)]).await;
    let identity = mesh.join("svc/a").await;

    let mut strangers = Vec::new();
    let began = Instant::now();
    for i in 0..STRANGERS {
        let host = u8::try_from(10 + i / STRANGERS_OF_SOURCE).unwrap();
        let mut stranger = shake(&mesh, host, None).await.unwrap();
        let settings = settings(&mut stranger).await;
        // MAX_CONCURRENT_STREAMS and INITIAL_WINDOW_SIZE.
        assert!(settings.contains(&(3, 4)), "{settings:?}");
        assert!(settings.contains(&(4, 64 * 1024)), "{settings:?}");
        strangers.push(stranger);
    }
    // One more connection, from another address, takes the place of the oldest. Peers with a
    // certificate are not concerned.
    let mut one_more = shake(&mesh, 9, None).await.unwrap();
    assert!(settings(&mut one_more).await.contains(&(3, 4)));
    let first = timeout(STAY / 2, strangers[0].read(&mut [0; 64])).await;
    assert!(first.is_ok() || began.elapsed() >= STAY / 2);
    let mut member = shake(&mesh, 9, Some(&identity)).await.unwrap();
    assert!(settings(&mut member).await.contains(&(3, 32)));
    mesh.stream(&identity).await;

    // They go by themselves; others find room then. Far less than the minute of a request.
    let ended = async {
        let mut rest = Vec::new();
        // However it ends.
        let _ = strangers[STRANGERS - 1].read_to_end(&mut rest).await;
    };
    timeout(Duration::from_secs(30), ended).await.unwrap();
    timeout(LONG, async {
        while settings(&mut shake(&mesh, 10, None).await.unwrap())
            .await
            .is_empty()
        {}
    })
    .await
    .unwrap();
}

/// A cluster whose API server accepts good tokens, refuses bad ones, and never answers about tokens
/// that hang.
#[derive(Default)]
struct ApiServer {
    reviews: AtomicUsize,
}

impl Accounts for ApiServer {
    fn review(&self, token: String) -> ReviewFuture {
        self.reviews.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match token.split('-').next() {
                Some("good") => Ok(Account {
                    namespace: "shop".into(),
                    name: "web".into(),
                }),
                Some("hangs") => std::future::pending().await,
                _ => Err(ReviewError::Refused("it is not valid".into())),
            }
        })
    }
}

async fn cluster(directory: &std::path::Path) -> (RunningController, Arc<ApiServer>) {
    let accounts = Arc::<ApiServer>::default();
    (
        cluster_of(directory, accounts.clone(), None).await,
        accounts,
    )
}

async fn cluster_of(
    directory: &std::path::Path,
    accounts: Arc<dyn Accounts>,
    issuer: Option<Arc<Slow>>,
) -> RunningController {
    let roots = issuer.iter().map(|i| i.authority.root().to_vec());
    let cluster = Cluster {
        trust_domain: TrustDomain::parse("tulle.local").unwrap(),
        namespace: "tulle-system".to_owned(),
        roots: Roots::generate().unwrap(),
        keeper: Arc::<Alone>::default(),
        issuer_roots: roots.collect(),
        issuer: issuer.map(|issuer| Arc::new(Shared(issuer)) as _),
        accounts,
        more_metrics: Arc::new(|_| {}),
    };
    let mut config = common::config(directory);
    config.store = StoreKind::Memory;
    Controller::start_in_cluster(config, cluster).await.unwrap()
}

/// A client at 127.0.0.`host`.
async fn client(
    running: &RunningController,
    host: u8,
    identity: Option<&Identity>,
) -> CertificatesClient<Channel> {
    let trust_domain = TrustDomain::parse("tulle.local").unwrap();
    let anchor = Anchor::Fingerprint(running.ca_fingerprint().into());
    let tls = client_config(anchor, &trust_domain, identity).unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(tls));
    let to = running.local_addr();
    let dial = tower::service_fn(move |_| {
        let tls = tls.clone();
        async move {
            let tcp = connect(host, to).await;
            let name = "controller".try_into().unwrap();
            tls.connect(name, tcp).await.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_static("http://controller");
    CertificatesClient::new(endpoint.connect_with_connector(dial).await.unwrap())
}

async fn sign(client: CertificatesClient<Channel>, token: &str) -> Result<Identity, Status> {
    let proof = v1::SignRequest {
        service_account_token: token.into(),
        ..Default::default()
    };
    common::sign(client, "ns/shop/sa/web", proof).await
}

#[tokio::test]
async fn tokens_that_are_reviewed_for_long_keep_no_member_and_no_newcomer_out() {
    let directory = tempfile::tempdir().unwrap();
    let (running, api_server) = cluster(directory.path()).await;
    let newcomer = client(&running, 3, None).await;
    let identity = sign(newcomer, "good").await.unwrap();
    // More than there are places, of one address and of several.
    let mut hanging = tokio::task::JoinSet::new();
    for host in 10..15 {
        for _ in 0..8 {
            let client = client(&running, host, None).await;
            for number in 0..4 {
                let client = client.clone();
                let token = format!("hangs-{host}-{number}");
                hanging.spawn(async move { drop(sign(client, &token).await) });
            }
        }
    }
    timeout(LONG, async {
        while api_server.reviews.load(Ordering::SeqCst) < 64 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    for _ in 0..20 {
        let newcomer = client(&running, 3, None).await;
        sign(newcomer, "good").await.unwrap();
        let member = client(&running, 4, Some(&identity)).await;
        sign(member, "good").await.unwrap();
    }
}

/// An API server to which each token is the name of an account.
struct ByName;

impl Accounts for ByName {
    fn review(&self, token: String) -> ReviewFuture {
        Box::pin(async {
            Ok(Account {
                namespace: "shop".into(),
                name: token,
            })
        })
    }
}

/// An issuer that never answers, and whom it was asked for.
struct Slow {
    authority: Authority,
    asked: watch::Sender<Vec<String>>,
}

/// A type of this test that can implement the controller's trait.
struct Shared(Arc<Slow>);

impl Issuer for Shared {
    fn name(&self) -> String {
        "slow".into()
    }

    fn sign(
        &self,
        asked: CertificateRequest,
    ) -> Pin<Box<dyn Future<Output = Result<Signed, IssueError>> + Send>> {
        let name = asked.identity.name().to_owned();
        self.0.asked.send_modify(|all| all.push(name));
        Box::pin(std::future::pending())
    }

    fn roots(&self) -> ResponseFuture<Vec<Vec<u8>>> {
        let root = self.0.authority.root().to_vec();
        Box::pin(async { Ok(vec![root]) })
    }
}

impl Slow {
    /// An identity that it gave somebody before.
    fn identity(&self, name: &str) -> Identity {
        let id = SpiffeId::parse(&format!("spiffe://tulle.local/ns/shop/sa/{name}")).unwrap();
        let request = SigningRequest::new(&id).unwrap();
        let csr = VerifiedCsr::parse(&request.csr_der).unwrap();
        let (hour, now) = (Duration::from_secs(3600), SystemTime::now());
        let issued = self.authority.issue(&csr, &id, None, hour, now).unwrap();
        let chain = vec![issued.certificate.to_vec()];
        let roots = vec![self.authority.root().to_vec()];
        request.complete(chain, roots).unwrap().identity
    }
}

/// Whoever waits for a signature is not interrupted, and so gives no place up.
#[tokio::test]
async fn strangers_for_whom_an_issuer_takes_long_keep_no_member_out() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Arc::new(Slow {
        authority: Authority::from_roots(Roots::generate().unwrap()).unwrap(),
        asked: watch::Sender::default(),
    });
    let accounts = Arc::new(ByName);
    let running = cluster_of(directory.path(), accounts, Some(issuer.clone())).await;
    let mut asked = issuer.asked.subscribe();
    let running = Arc::new(running);
    let mut strangers = tokio::task::JoinSet::new();
    for number in 0..2 * SIGNED_AT_ONCE {
        let running = running.clone();
        let host = u8::try_from(10 + number / 16).unwrap();
        strangers.spawn(async move {
            let mut stranger = client(&running, host, None).await;
            let mut times = 0;
            // As often as it is refused.
            loop {
                let signed = ask(stranger.clone(), &format!("s{number}-{times}")).await;
                if signed.is_err_and(|e| e.code() != tonic::Code::ResourceExhausted) {
                    stranger = client(&running, host, None).await;
                }
                times += 1;
                tokio::task::yield_now().await;
            }
        });
    }
    let all = asked.wait_for(|all| all.len() >= SIGNED_AT_ONCE);
    timeout(LONG, all).await.unwrap().unwrap();
    let member = client(&running, 4, Some(&issuer.identity("member"))).await;
    tokio::select! {
        refused = ask(member, "member") => panic!("{refused:?}"),
        heard = timeout(LONG, asked.wait_for(|all| all.iter().any(|a| a == "member"))) => {
            heard.unwrap().unwrap();
        }
    }
}

/// Asks for a certificate of the account that has this name.
async fn ask(client: CertificatesClient<Channel>, name: &str) -> Result<Identity, Status> {
    let proof = v1::SignRequest {
        service_account_token: name.into(),
        ..Default::default()
    };
    common::sign(client, &format!("ns/shop/sa/{name}"), proof).await
}

#[tokio::test]
async fn bad_tokens_are_not_reviewed_without_end() {
    let directory = tempfile::tempdir().unwrap();
    let (running, api_server) = cluster(directory.path()).await;
    let reviews = || api_server.reviews.load(Ordering::SeqCst);
    let began = Instant::now();
    for _ in 0..20 {
        let bad = client(&running, 2, None).await;
        for _ in 0..10 {
            let refused = sign(bad.clone(), "bad").await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unauthenticated);
        }
    }
    // One, and one more each time that it has been forgotten.
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(reviews() <= 1 + seconds / 10, "{}", reviews());
    let before = reviews();
    for number in 0..300 {
        let bad = client(&running, 2, None).await;
        sign(bad, &format!("bad-{number}")).await.unwrap_err();
    }
    // So many at once, and one for each second.
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(
        reviews() - before <= 64 + seconds + 1,
        "{}",
        reviews() - before
    );
    // Others are not concerned.
    let newcomer = client(&running, 3, None).await;
    sign(newcomer, "good").await.unwrap();
}

/// The port of metrics, which is 15014 in a cluster.
#[tokio::test]
async fn silent_and_slow_connections_keep_no_scraper_out() {
    let directory = tempfile::tempdir().unwrap();
    let mesh = start(directory.path()).await;
    let to = mesh.running.metrics_addr().unwrap();
    let mut held = Vec::new();
    // Most are of one address, and there are more other addresses than places.
    for number in 0..2_000_u32 {
        let host = if number % 20 == 0 {
            10 + number / 20
        } else {
            2
        };
        let mut stream = connect(u8::try_from(host).unwrap(), to).await;
        if number % 2 == 0 {
            // It may have had to go already.
            let _ = stream.write_all(b"GET /met").await;
        }
        held.push(stream);
    }
    for host in [3, 2] {
        for _ in 0..10 {
            let scrape = async {
                let mut stream = connect(host, to).await;
                let head = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
                stream.write_all(head).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                answer
            };
            let answer = timeout(LONG, scrape).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }
}
