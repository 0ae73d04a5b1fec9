//! Joined hosts: what they may do, what they may not, and how they leave.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{
    apply, body, config, mesh, placement, start, start_as, target, workload, workload_of,
};
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;
use tulle_api::v1;
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_control::ControllerConfig;
use tulle_control::store::{Embedded, Space, Store, Write};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Resource, Serial};
use tulle_tls::Identity;

#[tokio::test]
async fn a_host_runs_its_own_workloads_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh_ = start(directory.path()).await;
    mesh_.apply(&[workload("a", 80)]).await;
    let node = mesh_.join("node/n1").await;
    let other = mesh_.join("node/n2").await;
    let mut n1 = ObjectsClient::new(mesh_.dial(Some(&node)).await);
    let mut n2 = ObjectsClient::new(mesh_.dial(Some(&other)).await);

    apply(&mut n1, &[workload_of("n1", "w", 80)]).await.unwrap();
    for refused in [
        // These would run on the controller's host or on another one.
        apply(&mut n1, &[workload("v", 80)]).await,
        apply(&mut n1, &[workload_of("", "v", 80)]).await,
        apply(&mut n1, &[workload_of("n2", "v", 80)]).await,
        apply(&mut n1, &[workload("w", 81)]).await,
        apply(&mut n1, &[workload_of("n2", "w", 81)]).await,
        apply(&mut n1, &[mesh("tulle.local", true)]).await,
        apply(&mut n1, &[target("t", "w", "a")]).await,
        apply(&mut n1, &[workload_of("n1", "a", 81)]).await,
        apply(&mut n2, &[workload_of("n2", "w", 81)]).await,
    ] {
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    }
    let delete = |name: &str| v1::DeleteRequest {
        kind: "Workload".into(),
        name: name.into(),
    };
    assert!(n1.delete(delete("a")).await.is_err());
    assert!(n2.delete(delete("w")).await.is_err());

    let at = |workload: &str, node: &str| v1::Placement {
        node: node.into(),
        ..placement(workload, 80, 40001)
    };
    n1.report_placement(at("w", "n1")).await.unwrap();
    assert!(n1.report_placement(at("w", "n2")).await.is_err());
    assert!(n1.report_placement(at("a", "n1")).await.is_err());
    assert!(n2.report_placement(at("w", "n2")).await.is_err());

    let token = |identity: &str| v1::JoinTokenRequest {
        identity: identity.into(),
        ttl_seconds: 60,
    };
    n1.create_join_token(token("svc/w")).await.unwrap();
    for identity in ["svc/a", "node/n3", "svc/w/x", "controller", "svc/"] {
        assert!(
            n1.create_join_token(token(identity)).await.is_err(),
            "{identity}"
        );
    }

    // Others' environment stays hidden.
    let list = async |client: &mut ObjectsClient<_>| {
        let list = client.list(v1::ListRequest::default()).await.unwrap();
        let objects = list.into_inner().objects;
        let w = objects.into_iter().find(|o| o.name == "w").unwrap();
        w.json.contains("hunter2")
    };
    assert!(list(&mut n1).await);
    assert!(!list(&mut n2).await);

    // A workload that the operator takes over, or gives to another host, no longer belongs to this
    // host.
    let a = mesh_.join("svc/a").await;
    let mut stream = mesh_.stream(&a).await;
    stream.subscribe(&["service/w"]).await;
    let endpoints = |update: &v1::ConfigUpdate| match body(update, "service/w") {
        Resource::Service(service) => service.ports[0].endpoints.len(),
        _ => panic!("not a service"),
    };
    assert_eq!(endpoints(&stream.accept().await), 1);
    mesh_.apply(&[workload("w", 80)]).await;
    assert_eq!(endpoints(&stream.accept().await), 0);
    let back = apply(&mut n1, &[workload_of("n1", "w", 83)]).await;
    assert_eq!(back.unwrap_err().code(), Code::PermissionDenied);
    assert!(n1.report_placement(at("w", "n1")).await.is_err());
    assert!(n1.create_join_token(token("svc/w")).await.is_err());
    assert!(n1.delete(delete("w")).await.is_err());
    assert!(!list(&mut n1).await);
    mesh_.apply(&[workload_of("n2", "w", 80)]).await;
    assert!(n1.report_placement(at("w", "n1")).await.is_err());
    n2.report_placement(at("w", "n2")).await.unwrap();
    n2.create_join_token(token("svc/w")).await.unwrap();
}

#[tokio::test]
async fn a_workload_that_cannot_be_read_keeps_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(directory.path()).await;
    first.running.shutdown().await;
    drop(first.objects);
    let newer = |name: &str| Write::Put {
        kind: "Workload".into(),
        name: name.into(),
        json: r#"{"apiVersion":"tulle.dev/v9"}"#.into(),
    };
    let of_n1 = |name: &str| Write::PutValue {
        space: Space::Owners,
        key: name.into(),
        value: b"n1".to_vec(),
    };
    let store = Embedded::open(&directory.path().join("state/store.redb")).unwrap();
    // The last one is the controller's own.
    let all = [newer("a"), of_n1("a"), newer("b"), of_n1("b"), newer("c")];
    store.commit(&all).unwrap();
    drop(store);

    let mut mesh = start(directory.path()).await;
    let (n1, n2) = (mesh.join("node/n1").await, mesh.join("node/n2").await);
    let mut n1 = ObjectsClient::new(mesh.dial(Some(&n1)).await);
    let mut n2 = ObjectsClient::new(mesh.dial(Some(&n2)).await);
    let delete = |name: &str| v1::DeleteRequest {
        kind: "Workload".into(),
        name: name.into(),
    };
    for name in ["a", "b", "c"] {
        let replaced = apply(&mut n2, &[workload_of("n2", name, 80)]).await;
        assert_eq!(replaced.unwrap_err().code(), Code::PermissionDenied);
        let deleted = n2.delete(delete(name)).await;
        assert_eq!(deleted.unwrap_err().code(), Code::PermissionDenied);
    }
    assert!(apply(&mut n1, &[workload_of("n1", "c", 80)]).await.is_err());
    let replaced = apply(&mut n1, &[workload_of("n1", "a", 80)]).await;
    assert_eq!(replaced.unwrap(), ["configured"]);
    let deleted = n1.delete(delete("b")).await.unwrap();
    assert!(deleted.into_inner().existed);
    // A Workload that is gone has no owner.
    apply(&mut n2, &[workload_of("n2", "b", 80)]).await.unwrap();
}

#[tokio::test]
async fn a_host_fills_the_room_of_one_host() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    let (n1, n2) = (mesh.join("node/n1").await, mesh.join("node/n2").await);
    let mut n1 = ObjectsClient::new(mesh.dial(Some(&n1)).await);
    let mut n2 = ObjectsClient::new(mesh.dial(Some(&n2)).await);
    let long = |node: &str, number: usize| {
        let mut workload = workload_of(node, &format!("{node}-{number}"), 80);
        workload["spec"]["env"][0]["value"] = "x".repeat(250 * 1024).into();
        workload
    };
    // 8 MiB have room for so many.
    for number in 0..32 {
        apply(&mut n1, &[long("n1", number)]).await.unwrap();
    }
    let refused = apply(&mut n1, &[long("n1", 32)]).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let why = refused.message();
    assert!(why.contains("node n1") && why.contains("8388608"), "{why}");
    // It may repeat what it has, and others have room.
    let again = apply(&mut n1, &[long("n1", 0)]).await;
    assert_eq!(again.unwrap(), ["unchanged"]);
    apply(&mut n2, &[long("n2", 0)]).await.unwrap();

    // The operator may give it more. Then it may change that, and not add to it.
    mesh.apply(&[long("n1", 32)]).await;
    let mut other = long("n1", 32);
    other["spec"]["ports"][0]["port"] = 81.into();
    let changed = apply(&mut n1, &[other]).await;
    assert_eq!(changed.unwrap(), ["configured"]);
    assert!(apply(&mut n1, &[workload_of("n1", "w", 80)]).await.is_err());
    for name in ["n1-31", "n1-32"] {
        let delete = v1::DeleteRequest {
            kind: "Workload".into(),
            name: name.into(),
        };
        n1.delete(delete).await.unwrap();
    }
    apply(&mut n1, &[workload_of("n1", "w", 80)]).await.unwrap();
}

#[tokio::test]
async fn a_removed_host_is_out_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 80)]).await;
    let node = mesh.join("node/n1").await;
    let mut n1 = ObjectsClient::new(mesh.dial(Some(&node)).await);
    apply(&mut n1, &[workload_of("n1", "w", 80)]).await.unwrap();
    let watch = n1.watch(v1::WatchRequest {}).await.unwrap();
    let mut watch = watch.into_inner();
    let w = mesh.join("svc/w").await;
    let asked = v1::JoinTokenRequest {
        identity: "svc/w".into(),
        ttl_seconds: 60,
    };
    let made_by_it = n1.create_join_token(asked.clone()).await.unwrap();
    let made_for_it = mesh.token("node/n1").await;

    // The controller still knows after a restart which hosts have joined.
    mesh.running.shutdown().await;
    drop((mesh.objects, n1));
    while let Ok(Some(_)) = watch.message().await {}
    let mut mesh = start(directory.path()).await;
    let list = async |mesh: &mut common::Mesh, kind: &str| {
        let asked = v1::ListRequest {
            kind: kind.into(),
            name: String::new(),
        };
        let list = mesh.objects.list(asked).await.unwrap().into_inner();
        let names = list.objects.into_iter().map(|o| o.name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(list(&mut mesh, "Node").await, ["n1"]);
    let mut n1 = ObjectsClient::new(mesh.dial(Some(&node)).await);
    let watch = n1.watch(v1::WatchRequest {}).await.unwrap();
    let mut watch = watch.into_inner();
    mesh.sign("node/n1", "", Some(&node)).await.unwrap();

    let remove = v1::DeleteRequest {
        kind: "Node".into(),
        name: "n1".into(),
    };
    let own = n1.delete(remove.clone()).await.unwrap_err();
    assert_eq!(own.code(), Code::PermissionDenied, "not even itself");
    let removed = mesh.objects.delete(remove.clone()).await.unwrap();
    assert!(removed.into_inner().existed);
    let again = mesh.objects.delete(remove).await.unwrap();
    assert!(!again.into_inner().existed);

    assert!(list(&mut mesh, "Node").await.is_empty());
    assert_eq!(list(&mut mesh, "").await, ["a"], "its workloads are gone");
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            if let Err(status) = watch.message().await {
                break status;
            }
        }
    });
    for refused in [
        ended.await.unwrap(),
        n1.list(v1::ListRequest::default()).await.unwrap_err(),
        n1.create_join_token(asked).await.unwrap_err(),
        apply(&mut n1, &[workload_of("n1", "w", 80)])
            .await
            .unwrap_err(),
        mesh.sign("node/n1", "", Some(&node)).await.unwrap_err(),
        mesh.sign("svc/w", "", Some(&w)).await.unwrap_err(),
        mesh.sign("node/n1", &made_for_it, None).await.unwrap_err(),
        mesh.sign("svc/w", &made_by_it.into_inner().token, None)
            .await
            .unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }

    // A new token lets it in again, or another machine of that name. The old certificate does not come back.
    let new = mesh.join("node/n1").await;
    let old = apply(&mut n1, &[workload_of("n1", "w", 80)]).await;
    assert_eq!(old.unwrap_err().code(), Code::PermissionDenied);
    let old = mesh.sign("node/n1", "", Some(&node)).await.unwrap_err();
    assert_eq!(old.code(), Code::PermissionDenied);
    let mut n1 = ObjectsClient::new(mesh.dial(Some(&new)).await);
    apply(&mut n1, &[workload_of("n1", "w", 80)]).await.unwrap();
}

/// Its sidecars have certificates of identities that are not its own: other hosts run them, too.
#[tokio::test]
async fn a_sidecar_of_a_removed_host_is_out_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    let mut of_hosts = Vec::new();
    for node in ["n1", "n2"] {
        let host = mesh.join(&format!("node/{node}")).await;
        let mut objects = ObjectsClient::new(mesh.dial(Some(&host)).await);
        let mut replica = workload_of(node, &format!("w-{node}"), 80);
        replica["spec"]["identity"] = "w".into();
        apply(&mut objects, &[replica]).await.unwrap();
        let asked = v1::JoinTokenRequest {
            identity: "svc/w".into(),
            ttl_seconds: 60,
        };
        let token = objects.create_join_token(asked).await.unwrap();
        let token = token.into_inner().token;
        of_hosts.push(mesh.sign("svc/w", &token, None).await.unwrap());
    }
    let of_operator = mesh.join("svc/w").await;
    // Where it came from is kept when it is renewed, and when the controller starts again.
    let mut renewed = mesh.sign("svc/w", "", Some(&of_hosts[0])).await.unwrap();
    mesh.running.shutdown().await;
    drop(mesh.objects);
    let mut mesh = start(directory.path()).await;
    renewed = mesh.sign("svc/w", "", Some(&renewed)).await.unwrap();
    let mut stream = mesh.stream(&renewed).await;
    stream.subscribe(&["service/w"]).await;
    stream.accept().await;

    let remove = v1::DeleteRequest {
        kind: "Node".into(),
        name: "n1".into(),
    };
    mesh.objects.delete(remove).await.unwrap();
    // Other sidecars are told to refuse what came by it, also by a controller that starts after that.
    let refuses = async |mesh: &common::Mesh| {
        let mut other = mesh.stream(&of_hosts[1]).await;
        other.subscribe(&["mesh"]).await;
        let Resource::Mesh(settings) = body(&other.accept().await, "mesh") else {
            panic!("not the mesh's settings")
        };
        let refuses = |identity: &Identity| {
            let serial = Serial::parse(&identity.public().serial).unwrap();
            let id = SpiffeId::parse("spiffe://tulle.local/svc/w").unwrap();
            settings.revoked.has(&id, &serial, b"")
        };
        [&of_hosts[0], &renewed, &of_hosts[1], &of_operator].map(refuses)
    };
    assert_eq!(refuses(&mesh).await, [true, true, false, false]);
    let ended = loop {
        if let Err(status) = stream.next().await {
            break status;
        }
    };
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended}");
    // Another machine of that name does not bring them back.
    mesh.join("node/n1").await;
    mesh.running.shutdown().await;
    drop(mesh.objects);
    let mesh = start(directory.path()).await;
    assert_eq!(refuses(&mesh).await, [true, true, false, false]);
    for gone in [&of_hosts[0], &renewed] {
        let refused = mesh.sign("svc/w", "", Some(gone)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert!(refused.message().contains("removed"), "{refused}");
    }
    for stays in [&of_hosts[1], &of_operator] {
        mesh.sign("svc/w", "", Some(stays)).await.unwrap();
    }
}

#[tokio::test]
async fn nobody_is_sent_to_a_host_that_is_away() {
    let directory = tempfile::tempdir().unwrap();
    // The controller's clock is not the test's: a minute would be one.
    let mut mesh = start_as(ControllerConfig {
        host_away: Duration::from_secs(3),
        ..config(directory.path())
    })
    .await;
    mesh.apply(&[workload("a", 80)]).await;
    let node = mesh.join("node/n1").await;
    let mut n1 = ObjectsClient::new(mesh.dial(Some(&node)).await);
    apply(&mut n1, &[workload_of("n1", "w", 80)]).await.unwrap();
    let session = n1.watch(v1::WatchRequest {}).await.unwrap();
    let at = v1::Placement {
        node: "n1".into(),
        ..placement("w", 80, 40001)
    };
    n1.report_placement(at.clone()).await.unwrap();
    let a = mesh.join("svc/a").await;
    let mut stream = mesh.stream(&a).await;
    stream.subscribe(&["service/w"]).await;
    let endpoints = |update: v1::ConfigUpdate| match body(&update, "service/w") {
        Resource::Service(service) => service.ports[0].endpoints.len(),
        _ => panic!("not a service"),
    };
    assert_eq!(endpoints(stream.accept().await), 1);

    drop(session);
    let gone = stream.updates.message();
    let gone = tokio::time::timeout(Duration::from_secs(180), gone).await;
    let gone = gone.unwrap().unwrap().unwrap();
    stream.ack(gone.nonce, "").await;
    assert_eq!(endpoints(gone), 0);
    // A placement that the host reports without a session is kept, and takes effect with its next
    // session.
    n1.report_placement(at).await.unwrap();
    let _session = n1.watch(v1::WatchRequest {}).await.unwrap();
    assert_eq!(endpoints(stream.accept().await), 1);
}

#[tokio::test]
async fn hosts_leave_the_operator_and_each_other_room_to_watch() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    let mut watches = Vec::new();
    let watch = async |client: &mut ObjectsClient<_>| client.watch(v1::WatchRequest {}).await;
    for host in 0..32 {
        let node = mesh.join(&format!("node/n{host}")).await;
        let mut node = ObjectsClient::new(mesh.dial(Some(&node)).await);
        for _ in 0..8 {
            watches.push((host, watch(&mut node).await.unwrap()));
        }
        let one_more = watch(&mut node).await.unwrap_err();
        assert_eq!(one_more.code(), Code::ResourceExhausted);
    }
    // All that hosts may have are taken: the operator's are not.
    let node = mesh.join("node/late").await;
    let mut node = ObjectsClient::new(mesh.dial(Some(&node)).await);
    let late = watch(&mut node).await.unwrap_err();
    assert_eq!(late.code(), Code::ResourceExhausted);
    watch(&mut mesh.objects).await.unwrap();
    watches.retain(|(host, _)| *host != 0);
    let room = async { while watch(&mut node).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(60), room)
        .await
        .unwrap();
}

#[tokio::test]
async fn only_the_operator_opens_the_console() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    let asked = || v1::CreateConsoleSessionRequest { user: "me".into() };
    let none = mesh.objects.create_console_session(asked()).await;
    assert_eq!(none.unwrap_err().code(), Code::FailedPrecondition);
    mesh.running.offer_console(Arc::new(|user| {
        Ok(v1::ConsoleSession {
            url: format!("http://127.0.0.1:1/#code={user}"),
            ttl_seconds: 60,
        })
    }));
    let opened = mesh.objects.create_console_session(asked()).await.unwrap();
    assert_eq!(opened.into_inner().url, "http://127.0.0.1:1/#code=me");
    let node = mesh.join("node/n1").await;
    let mut node = ObjectsClient::new(mesh.dial(Some(&node)).await);
    let refused = node.create_console_session(asked()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}
