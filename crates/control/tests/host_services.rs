//! A joined host's subscription to services, for its proxies: through a real controller.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/host_proxy.rs"]
mod host_proxy;

use common::{Mesh, Stream, names, start, workload};
use host_proxy::Proxy;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tonic::Code;
use tulle_api::v1;
use tulle_api::v1::host_services::Say;
use tulle_control::host_services::HostServices;
use tulle_tls::Identity;

impl Proxy {
    async fn until_connected(&mut self, is: bool) {
        while self.next().await.expect("the host goes on") != Say::Connected(is) {}
    }
}

async fn follow(mesh: &Mesh, host: &Identity, services: &Arc<HostServices>) -> JoinHandle<()> {
    let (services, channel) = (services.clone(), mesh.dial(Some(host)).await);
    tokio::spawn(async move {
        services.follow(channel, async || {}).await;
    })
}

async fn proxies(mesh: &mut Mesh) -> Vec<String> {
    let status = mesh.objects.status(v1::StatusRequest::default()).await;
    let proxies = status.unwrap().into_inner().proxies.into_iter();
    proxies.map(|p| p.spiffe_id).collect()
}

#[tokio::test]
async fn a_change_is_sent_to_a_host_once_and_told_to_its_proxies() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 80), workload("b", 80)]).await;
    let host = mesh.join("node/edge").await;
    let services = Arc::new(HostServices::default());
    let (mut one, mut two) = (Proxy::attach(&services, "a"), Proxy::attach(&services, "b"));
    let following = follow(&mesh, &host, &services).await;
    for proxy in [&mut one, &mut two] {
        proxy.until_connected(true).await;
        proxy.subscribe(&["service/b", "service/none"], &[]).await;
        let update = proxy.update().await;
        let (mut told, mut gone) = (names(&update).join(" "), update.removed.clone());
        // They may come in two.
        if told.is_empty() || gone.is_empty() {
            let update = proxy.update().await;
            told += &names(&update).join(" ");
            gone.extend(update.removed);
        }
        assert_eq!(
            (told.as_str(), &gone[..]),
            ("service/b", &["service/none".to_owned()][..])
        );
    }
    mesh.place("b", 80, 40001).await;
    for proxy in [&mut one, &mut two] {
        let update = proxy.update().await;
        assert_eq!(names(&update), ["service/b"]);
        let body = String::from_utf8_lossy(&update.resources[0].body);
        assert!(body.contains("40001"), "{body}");
    }
    // The host is no proxy.
    assert!(proxies(&mut mesh).await.is_empty());

    // Removed from the mesh it is told of nothing any more.
    let remove = v1::DeleteRequest {
        kind: "Node".into(),
        name: "edge".into(),
    };
    mesh.objects.delete(remove).await.unwrap();
    one.until_connected(false).await;
    two.until_connected(false).await;
    following.abort();
    mesh.running.shutdown().await;
}

#[tokio::test]
async fn a_sidecar_is_told_of_its_services_by_the_controller_or_by_its_host() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 80), workload("b", 80)]).await;
    let a = mesh.join("svc/a").await;
    let mut stream = mesh.stream(&a).await;
    let from = |from: v1::ServicesFrom| v1::SubscribeRequest {
        services_from: from.into(),
        ..Default::default()
    };
    let first = v1::SubscribeRequest {
        subscribe: vec!["mesh".into(), "service/b".into()],
        ..from(v1::ServicesFrom::Host)
    };
    stream.requests.send(first).await.unwrap();
    assert_eq!(names(&stream.accept().await), ["mesh"]);
    mesh.place("b", 80, 40001).await;
    // Only now.
    let again = from(v1::ServicesFrom::Controller);
    stream.requests.send(again).await.unwrap();
    let update = stream.accept().await;
    assert_eq!(names(&update), ["service/b"]);
    let body = String::from_utf8_lossy(&update.resources[0].body);
    assert!(body.contains("40001"), "{body}");
    assert_eq!(proxies(&mut mesh).await.len(), 1);
    mesh.running.shutdown().await;
}

#[tokio::test]
async fn a_host_reads_services_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 80)]).await;
    let host = mesh.join("node/edge").await;
    for name in ["inbound/a", "mesh", "egress", "catalog", "gateway/g"] {
        let mut stream = mesh.stream(&host).await;
        stream.subscribe(&["service/a", name]).await;
        let refused = loop {
            match stream.next().await {
                Ok(update) => assert!(update.resources.iter().all(|r| r.name == "service/a")),
                Err(status) => break status,
            }
        };
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}: {refused}");
    }
    // Nor is it told of anything unasked.
    let mut stream: Stream = mesh.stream(&host).await;
    let first = v1::SubscribeRequest {
        anticipation: Some(v1::Anticipation {
            addresses: true,
            hosts: true,
            unused: Vec::new(),
        }),
        ..Default::default()
    };
    stream.requests.send(first).await.unwrap();
    assert!(stream.accept().await.resources.is_empty());
    stream.subscribe(&["service/a"]).await;
    assert_eq!(names(&stream.accept().await), ["service/a"]);
    mesh.running.shutdown().await;
}
