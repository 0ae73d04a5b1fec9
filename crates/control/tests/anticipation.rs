//! Services that sidecars receive from the controller before they ask.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mesh, Stream, names, start, workload};
use std::collections::BTreeSet;
use tulle_api::v1;
use tulle_tls::Identity;

/// The most bytes of names and bodies that a sidecar receives unasked.
const BOUND: usize = 256 * 1024;
const SERVICES: usize = 1000;

fn name(i: usize) -> String {
    format!("s{i:03}")
}

/// A workload with so many ports that a thousand of them are no small mesh.
fn wide(name: &str) -> serde_json::Value {
    let mut workload = workload(name, 80);
    let ports = (8000..8012).map(|port| serde_json::json!({"port": port, "appProtocol": "http"}));
    workload["spec"]["ports"] = ports.collect();
    workload
}

/// A mesh of many services and two callers.
async fn large(directory: &std::path::Path) -> Mesh {
    let mut mesh = start(directory).await;
    let services: Vec<_> = (0..SERVICES).map(|i| wide(&name(i))).collect();
    for some in services.chunks(250) {
        mesh.apply(some).await;
    }
    mesh.apply(&[workload("a", 80), workload("b", 80)]).await;
    mesh
}

fn request(names: &[&str], unused: &[String]) -> v1::SubscribeRequest {
    let subscribe = names.iter().map(|n| (*n).to_owned());
    v1::SubscribeRequest {
        subscribe: subscribe.chain(unused.iter().cloned()).collect(),
        anticipation: Some(v1::Anticipation {
            addresses: true,
            hosts: false,
            unused: unused.to_vec(),
        }),
        ..Default::default()
    }
}

/// Opens the stream of a sidecar that anticipates; returns the names it receives at first, and their
/// bytes.
async fn sidecar(
    mesh: &Mesh,
    identity: &Identity,
    unused: &[String],
) -> (Stream, BTreeSet<String>, usize) {
    let mut stream = mesh.stream(identity).await;
    let first = request(&["mesh"], unused);
    stream.requests.send(first).await.unwrap();
    let (mut told, mut bytes) = (BTreeSet::new(), 0);
    loop {
        let update = stream.accept().await;
        for resource in update.resources {
            bytes += resource.name.len() + resource.body.len();
            told.insert(resource.name);
        }
        assert!(update.removed.is_empty());
        if !update.more {
            return (stream, told, bytes);
        }
    }
}

#[tokio::test]
async fn all_of_a_small_mesh_is_told_before_the_sidecar_is_ready_and_followed() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 80), workload("b", 80)]).await;
    let a = mesh.join("svc/a").await;
    let (mut stream, told, _) = sidecar(&mesh, &a, &[]).await;
    let told: Vec<&str> = told.iter().map(String::as_str).collect();
    // Resources of others (inbound/b) are absent, and so are host names: this sidecar's DNS is another's.
    assert_eq!(told, ["mesh", "service/a", "service/b"]);

    mesh.place("b", 80, 40001).await;
    assert_eq!(names(&stream.accept().await), ["service/b"]);
    mesh.apply(&[workload("c", 80)]).await;
    assert_eq!(names(&stream.accept().await), ["service/c"]);
    for gone in ["c", "b"] {
        // When a service is deleted, the sidecar hears of it if it has subscribed to it, and forgets it
        // otherwise.
        if gone == "b" {
            stream.subscribe(&["service/b", "service/none"]).await;
            assert_eq!(stream.accept().await.removed, ["service/none"]);
        }
        let delete = v1::DeleteRequest {
            kind: "Workload".into(),
            name: gone.into(),
        };
        mesh.objects.delete(delete).await.unwrap();
        let update = stream.accept().await;
        let expected = match gone {
            "b" => (vec![], vec!["service/b".to_owned()]),
            _ => (vec!["service/c".to_owned()], vec![]),
        };
        assert_eq!((update.forgotten, update.removed), expected);
    }

    // A sidecar of an earlier version receives only what it asks for.
    let mut old = mesh.stream(&a).await;
    old.subscribe(&["mesh"]).await;
    assert_eq!(names(&old.accept().await), ["mesh"]);
    mesh.apply(&[workload("d", 80)]).await;
    old.subscribe(&["service/d"]).await;
    assert_eq!(names(&old.accept().await), ["service/d"]);
    mesh.running.shutdown().await;
}

#[tokio::test]
async fn of_a_thousand_services_a_sidecar_is_told_what_fits_and_what_its_siblings_used() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = large(directory.path()).await;
    let (a, b) = (mesh.join("svc/a").await, mesh.join("svc/b").await);
    let (mut first, told, bytes) = sidecar(&mesh, &a, &[]).await;
    eprintln!("{} of {} services, {bytes} bytes", told.len(), SERVICES + 2);
    assert!(
        (400..SERVICES * 3 / 4).contains(&told.len()),
        "{}",
        told.len()
    );
    assert!(bytes < BOUND + 4096, "{bytes}");
    let last = format!("service/{}", name(SERVICES - 1));
    assert!(!told.contains(&last));

    // A sibling uses a service that was not among them. Sidecars that are connected receive it, and so do
    // later ones.
    let (sibling, ..) = sidecar(&mesh, &a, &[]).await;
    sibling.subscribe(&[&last]).await;
    let update = first.accept().await;
    assert_eq!(names(&update), [&last]);
    let room = update.forgotten;
    assert!((1..=2).contains(&room.len()), "{room:?}");
    let (third, told, bytes) = sidecar(&mesh, &a, &[]).await;
    assert!(told.contains(&last) && bytes < BOUND + 4096, "{bytes}");
    // Others have nothing to do with it.
    let (_, others, _) = sidecar(&mesh, &b, &[]).await;
    assert!(!others.contains(&last));

    // It is remembered when all of them are gone.
    drop((first, sibling, third));
    let (returned, told, _) = sidecar(&mesh, &a, &[]).await;
    assert!(told.contains(&last));
    // A sidecar that comes back still holds what it received unasked, and receives no more than before.
    drop(returned);
    let held: Vec<String> = told.into_iter().filter(|n| n != "mesh").collect();
    let (_, again, _) = sidecar(&mesh, &a, &held).await;
    assert_eq!(again.len(), held.len() + 1);
    mesh.running.shutdown().await;
}
