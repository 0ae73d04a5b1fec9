//! A controller that ends sends its proxies away in such a way that they come back soon, and not all at once.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mesh, start, workload};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;
use tulle_model::identity::TrustDomain;
use tulle_tls::Identity;
use tulle_tls::controller::{Anchor, client_config};

/// Types of frames (RFC 9113).
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// A request for a certificate whose body does not come: the controller waits for it before it ends.
async fn request_under_way(mesh: &Mesh, identity: &Identity) -> TlsStream<TcpStream> {
    let domain = TrustDomain::parse("tulle.local").unwrap();
    let anchor = Anchor::Fingerprint(mesh.running.ca_fingerprint().into());
    let tls = client_config(anchor, &domain, Some(identity)).unwrap();
    let tcp = TcpStream::connect(mesh.running.local_addr()).await.unwrap();
    let name = "controller".try_into().unwrap();
    let tls = TlsConnector::from(Arc::new(tls)).connect(name, tcp).await;
    let mut tls = tls.unwrap();
    // POST and http by their numbers, then literals.
    let mut head = vec![0x83, 0x86];
    let mut literal = |start: &[u8], value: &str| {
        head.extend_from_slice(start);
        head.push(u8::try_from(value.len()).unwrap());
        head.extend_from_slice(value.as_bytes());
    };
    literal(&[0x04], "/tulle.mesh.v1.Certificates/Sign");
    literal(&[0x01], "controller");
    literal(&[0x0f, 0x10], "application/grpc");
    literal(&[0x00, 2, b't', b'e'], "trailers");
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &head),
        frame(PING, 0, 0, &[0; 8]),
    ];
    tls.write_all(&sent.concat()).await.unwrap();
    // The controller answers frames in order, so it has the request when it answers the last one.
    loop {
        let mut head = [0; 9];
        tls.read_exact(&mut head).await.unwrap();
        let [_, high, low, kind, flags, ..] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        tls.read_exact(&mut payload).await.unwrap();
        if (kind, flags) == (PING, ACK) {
            return tls;
        }
    }
}

#[tokio::test]
async fn nobody_is_taken_who_would_not_be_served_and_all_hear_when_to_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 8101)]).await;
    let identity = mesh.join("svc/a").await;
    let address = mesh.running.local_addr();
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(mesh.stream(&identity).await);
    }
    let under_way = request_under_way(&mesh, &identity).await;

    let ends = tokio::spawn(mesh.running.shutdown());
    for stream in &mut streams {
        let end = loop {
            match stream.next().await {
                Ok(_) => {}
                Err(end) => break end,
            }
        };
        assert_eq!(end.code(), Code::Unavailable);
        let within = end.metadata().get(tulle_api::RECONNECT_WITHIN);
        assert_eq!(within.unwrap(), "3", "a millisecond for each");
    }
    // A proxy that comes back at once learns that this controller is not for it.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!ends.is_finished(), "it still waits for the request");
    drop(under_way);
    ends.await.unwrap();
}
