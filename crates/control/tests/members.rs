//! Members that open as many connections as they can: they keep no other member out.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{names, start, workload};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tulle_model::identity::TrustDomain;
use tulle_tls::Identity;
use tulle_tls::controller::{Anchor, client_config};

/// The same limit as in `serve/accept.rs`.
const MEMBERS_OF_IDENTITY: usize = 1_200;
/// Handshakes that the controller may finish in another order than they were begun.
const MORE: usize = 50;

const LONG: Duration = Duration::from_secs(60);

async fn shake(mesh: &common::Mesh, identity: &Identity) -> TlsStream<TcpStream> {
    let trust_domain = TrustDomain::parse("tulle.local").unwrap();
    let anchor = Anchor::Fingerprint(mesh.running.ca_fingerprint().into());
    let tls = client_config(anchor, &trust_domain, Some(identity)).unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(tls));
    let tcp = TcpStream::connect(mesh.running.local_addr()).await.unwrap();
    tls.connect("controller".try_into().unwrap(), tcp)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_identity_has_its_share_of_connections() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 80), workload("b", 81)]).await;
    let greedy = mesh.join("svc/a").await;
    let other = mesh.join("svc/b").await;
    let mut stream = mesh.stream(&other).await;
    let mut held = Vec::new();
    for _ in 0..MEMBERS_OF_IDENTITY + MORE {
        held.push(shake(&mesh, &greedy).await);
    }
    // The oldest made room for the latest, however it ends.
    let ended = async {
        let _ = held[0].read_to_end(&mut Vec::new()).await;
    };
    timeout(LONG, ended).await.unwrap();
    // Another identity keeps what it has, and may come anew.
    stream.subscribe(&["mesh"]).await;
    assert_eq!(names(&stream.accept().await), ["mesh"]);
    mesh.stream(&other).await;
}

#[tokio::test]
async fn the_controller_may_have_as_many_descriptors_as_the_system_allows() {
    let most = getrlimit(Resource::Nofile).maximum;
    let few = Rlimit {
        current: most.map(|most| most / 2),
        maximum: most,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let _mesh = start(directory.path()).await;
    assert_eq!(getrlimit(Resource::Nofile).current, most);
}
