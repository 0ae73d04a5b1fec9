//! Those who reach the port and have no certificate: they keep nobody out and take little.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{start, workload};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tulle_model::identity::TrustDomain;
use tulle_tls::Identity;
use tulle_tls::controller::{Anchor, client_config};

/// As in `admission`.
const OF_SOURCE: usize = 32;
const PRESENT: usize = 256;
const STRANGERS: usize = 256;

/// An unfinished handshake is ended after this; what is said of them holds only before.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Who has no certificate may stay so long; that all are there holds only before.
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
async fn silent_connections_of_one_address_keep_no_other_out() {
    let directory = tempfile::tempdir().unwrap();
    let mesh = start(directory.path()).await;
    let to = mesh.running.local_addr();
    let began = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..OF_SOURCE {
        silent.push(connect(2, to).await);
    }
    // The same address waits; others come in as if nothing were.
    let mut same = Box::pin(shake(&mesh, 2, None));
    for _ in 0..8 {
        let other = shake(&mesh, 3, None);
        tokio::select! {
            biased;
            _ = &mut same => {
                assert!(began.elapsed() >= HANDSHAKE, "a 33rd handshake of one address");
                break;
            }
            shaken = other => drop(shaken.unwrap()),
        }
    }
    // What would wait too long is closed at once, before the first ones time out.
    for _ in 0..PRESENT {
        silent.push(connect(2, to).await);
    }
    let closed = timeout(LONG, silent.last_mut().unwrap().read(&mut [0])).await;
    assert!(matches!(closed.unwrap(), Ok(0) | Err(_)));
    let first = silent[0].try_read(&mut [0]);
    if began.elapsed() < HANDSHAKE {
        assert_eq!(first.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
    drop((silent, same));
    // In time they are all forgotten.
    timeout(LONG, async {
        while shake(&mesh, 2, None).await.is_err() {}
    })
    .await
    .unwrap();
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
        let host = u8::try_from(10 + i / OF_SOURCE).unwrap();
        let mut stranger = shake(&mesh, host, None).await.unwrap();
        let settings = settings(&mut stranger).await;
        // MAX_CONCURRENT_STREAMS and INITIAL_WINDOW_SIZE.
        assert!(settings.contains(&(3, 4)), "{settings:?}");
        assert!(settings.contains(&(4, 64 * 1024)), "{settings:?}");
        strangers.push(stranger);
    }
    // One more is turned away; who has a certificate is not concerned.
    let mut one_more = shake(&mesh, 9, None).await.unwrap();
    let turned_away = settings(&mut one_more).await.is_empty();
    assert!(turned_away || began.elapsed() >= STAY);
    let mut member = shake(&mesh, 9, Some(&identity)).await.unwrap();
    assert!(settings(&mut member).await.contains(&(3, 32)));
    mesh.stream(&identity).await;

    // They go by themselves; others find room then. Far less than the minute of a request.
    let ended = async {
        let mut rest = Vec::new();
        // However it ends.
        let _ = strangers[0].read_to_end(&mut rest).await;
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
