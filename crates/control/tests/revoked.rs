//! An operator revokes an identity: its proxies lose the controller at once, and get no
//! certificate.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{body, mesh, start, workload};
use tonic::Code;
use tulle_api::v1;
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_model::resource::{Resource, Revoked};

fn identity(name: &str) -> v1::Revocation {
    v1::Revocation {
        identity: name.into(),
        ..Default::default()
    }
}

/// Returns the revoked identities and certificates in an update.
fn told(update: &v1::ConfigUpdate) -> Revoked {
    match body(update, "mesh") {
        Resource::Mesh(mesh) => mesh.revoked,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn who_is_revoked_has_no_configuration_and_no_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(directory.path()).await;
    running.apply(&[workload("a", 80), workload("b", 80)]).await;
    let (a, b) = (running.join("svc/a").await, running.join("svc/b").await);
    let token = running.token("svc/a").await;
    let mut of_a = running.stream(&a).await;
    let mut of_b = running.stream(&b).await;
    for stream in [&mut of_a, &mut of_b] {
        stream.subscribe(&["mesh"]).await;
        assert!(told(&stream.accept().await).is_empty());
    }
    let done = running.objects.revoke(identity("svc/a")).await.unwrap();
    assert_eq!(done.get_ref().identity, a.spiffe_id().as_str());
    assert!(!done.get_ref().unknown);
    assert_eq!(
        told(&of_b.accept().await).identities,
        [a.spiffe_id().clone()].into()
    );
    // It may have been told of it before its stream ended.
    let ended = loop {
        match of_a.next().await {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended}");
    assert!(ended.message().contains("is revoked"), "{ended}");
    // Neither by its certificate nor by a token that was made before.
    for (token, with) in [("", Some(&a)), (token.as_str(), None)] {
        let refused = running.sign("svc/a", token, with).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert!(refused.message().contains("is revoked"), "{refused}");
    }
    running.sign("svc/b", "", Some(&b)).await.unwrap();

    // It outlives the controller.
    drop(of_b);
    running.running.shutdown().await;
    let mut running = start(directory.path()).await;
    let kept = v1::ListRevokedRequest {};
    let kept = running.objects.list_revoked(kept).await.unwrap();
    assert_eq!(kept.get_ref().revoked.len(), 1);
    assert!(running.sign("svc/a", "", Some(&a)).await.is_err());
    running.objects.allow(identity("svc/a")).await.unwrap();
    running.sign("svc/a", "", Some(&a)).await.unwrap();
    let again = running.objects.allow(identity("svc/a")).await.unwrap_err();
    assert_eq!(again.code(), Code::NotFound, "{again}");
}

#[tokio::test]
async fn one_certificate_is_refused_and_its_successor_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(directory.path()).await;
    running.apply(&[workload("a", 80)]).await;
    let old = running.join("svc/a").await;
    let new = running.sign("svc/a", "", Some(&old)).await.unwrap();
    let serial = v1::Revocation {
        serial: old.public().serial,
        ..Default::default()
    };
    running.objects.revoke(serial).await.unwrap();
    let refused = running.sign("svc/a", "", Some(&old)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    running.sign("svc/a", "", Some(&new)).await.unwrap();
}

#[tokio::test]
async fn the_mesh_object_revokes_too_and_only_the_operator_revokes_by_command() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(directory.path()).await;
    running.apply(&[workload("a", 80)]).await;
    let a = running.join("svc/a").await;
    let node = running.join("node/n").await;
    let mut of_node = ObjectsClient::new(running.dial(Some(&node)).await);
    let refused = of_node.revoke(identity("svc/a")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let refused = of_node.allow(identity("svc/a")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");

    let mut settings = mesh("tulle.local", false);
    settings["spec"]["revoked"] = serde_json::json!([{ "identity": a.spiffe_id() }]);
    running.apply(&[settings.clone()]).await;
    assert!(running.sign("svc/a", "", Some(&a)).await.is_err());
    let refused = running.objects.allow(identity("svc/a")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("spec.revoked"), "{refused}");

    settings["spec"]["revoked"] = serde_json::json!([{ "crl": "none" }]);
    let refused = running.try_apply(&[settings.clone()]).await.unwrap_err();
    assert!(
        refused.message().contains("spec.revoked[0].crl"),
        "{refused}"
    );
    assert!(running.sign("svc/a", "", Some(&a)).await.is_err());
    settings["spec"]["revoked"] = serde_json::json!([]);
    running.apply(&[settings]).await;
    running.sign("svc/a", "", Some(&a)).await.unwrap();
}
