//! The root is replaced step by step; each step waits for everybody who is connected, survives a
//! restart, and a root that is removed counts for nothing, not even on connections that are open.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "../../../tests/local/src/waits.rs"]
#[allow(dead_code, unreachable_pub)]
mod waits;

use common::{Mesh, Stream, mesh, start, workload};
use std::time::{Duration, Instant};
use tonic::Code;
use tulle_api::v1;
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_model::identity::SpiffeId;
use tulle_tls::Identity;
use tulle_tls::enrol::{Enrolled, SigningRequest};
use waits::note_wait;

const LONG: Duration = Duration::from_secs(60);

async fn show(mesh: &mut Mesh) -> v1::AuthorityStatus {
    let shown = mesh.objects.show_authority(v1::ShowAuthorityRequest {});
    shown.await.unwrap().into_inner()
}

async fn await_shown(
    mesh: &mut Mesh,
    what: &str,
    holds: impl Fn(&v1::AuthorityStatus) -> bool,
) -> v1::AuthorityStatus {
    let begun = Instant::now();
    loop {
        let shown = show(mesh).await;
        if holds(&shown) {
            note_wait(what, begun.elapsed());
            return shown;
        }
        assert!(begun.elapsed() < LONG, "never {what}: {shown:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn await_step(mesh: &mut Mesh, step: &str) -> v1::AuthorityStatus {
    await_shown(mesh, step, |shown| shown.step == step).await
}

/// Enrols as a proxy does that has received the roots.
async fn enrol(mesh: &mut Mesh, name: &str, token: &str, with: Option<&Identity>) -> Enrolled {
    let id = SpiffeId::parse(&format!("spiffe://tulle.local/{name}")).unwrap();
    let request = SigningRequest::new(&id).unwrap();
    let shown = show(mesh).await;
    let channel = dial(mesh, &shown.roots, with).await;
    let mut client = v1::certificates_client::CertificatesClient::new(channel);
    let asked = v1::SignRequest {
        csr_der: request.csr_der.clone(),
        join_token: token.into(),
        ..Default::default()
    };
    let answer = client.sign(asked).await.unwrap().into_inner();
    let made = request.complete(answer.chain_der, answer.trust_bundle_der);
    made.unwrap()
}

async fn dial(
    mesh: &Mesh,
    roots: &[v1::RootStatus],
    with: Option<&Identity>,
) -> tonic::transport::Channel {
    let address = mesh.running.local_addr();
    for root in roots {
        if let Ok(channel) = common::dial(address, &root.sha256, with).await {
            return channel;
        }
    }
    panic!("none of {roots:?} is the controller's")
}

fn report(of: &Enrolled) -> v1::TrustReport {
    v1::TrustReport {
        root_sha256: of.bundle.fingerprints().map(str::to_owned).collect(),
        own_root_sha256: of.own_root().unwrap_or_default().to_owned(),
    }
}

async fn tell(stream: &Stream, of: &Enrolled, nonce: u64) {
    let request = v1::SubscribeRequest {
        trusts: Some(report(of)),
        ack: (nonce > 0).then(|| v1::Ack {
            nonce,
            ..v1::Ack::default()
        }),
        ..Default::default()
    };
    stream.requests.send(request).await.unwrap();
}

/// Waits for the next update that is about roots, and trusts them.
async fn believe(stream: &mut Stream, enrolled: &mut Enrolled) -> v1::Trust {
    loop {
        let update = stream.next().await.unwrap();
        let Some(trust) = update.trust else {
            stream.ack(update.nonce, "").await;
            continue;
        };
        let roots = trust.roots.iter().map(|r| r.certificate_der.clone());
        *enrolled = enrolled.with_bundle(roots.collect()).unwrap();
        tell(stream, enrolled, update.nonce).await;
        return trust;
    }
}

#[tokio::test]
async fn each_step_waits_for_all_and_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = start(directory.path()).await;
    first
        .apply(&[mesh("tulle.local", false), workload("a", 80)])
        .await;
    let token = first.token("svc/a").await;
    let mut a = enrol(&mut first, "svc/a", &token, None).await;
    let old = a.identity.clone();
    let token = first.token("node/n1").await;
    let mut host = enrol(&mut first, "node/n1", &token, None).await;
    let mut stream = first.stream(&a.identity).await;
    tell(&stream, &a, 0).await;

    let begun = first
        .objects
        .rotate_root(v1::RotateRootRequest { hold_seconds: 1 })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(begun.step, "spreading");
    let again = first.objects.rotate_root(v1::RotateRootRequest::default());
    assert_eq!(again.await.unwrap_err().code(), Code::FailedPrecondition);
    let new_root = begun.roots[1].sha256.clone();
    let trust = believe(&mut stream, &mut a).await;
    assert_eq!(trust.roots.len(), 2);
    assert!(trust.roots.iter().all(|r| !r.retiring));

    // A host may not rotate. It receives both roots, and the step waits for it.
    let mut of_host = ObjectsClient::new(dial(&first, &begun.roots, Some(&host.identity)).await);
    let refused = of_host.rotate_root(v1::RotateRootRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    // Longer than the hold and the controller's next look: without the host it would go on.
    let held = Duration::from_secs(2);
    tokio::time::sleep(held).await;
    note_wait("the step waits for the host", held);
    // The controller may hear the proxy's report later.
    let what = "the proxy is waited for no longer";
    let shown = await_shown(&mut first, what, |shown| shown.waiting_for.len() <= 1).await;
    assert_eq!(
        (shown.step.as_str(), shown.waiting_for.as_slice()),
        (
            "spreading",
            ["spiffe://tulle.local/node/n1".to_owned()].as_slice()
        )
    );

    // The step outlives the controller.
    first.running.shutdown().await;
    drop((first.objects, stream, of_host));
    let mut second = start(directory.path()).await;
    assert_eq!(show(&mut second).await.step, "spreading");
    let mut stream = Stream::open(dial(&second, &begun.roots, Some(&a.identity)).await)
        .await
        .unwrap();
    tell(&stream, &a, 0).await;
    host = enrol(&mut second, "node/n1", "", Some(&host.identity)).await;
    let mut of_host = ObjectsClient::new(dial(&second, &begun.roots, Some(&host.identity)).await);
    let asked = v1::StatusRequest {
        trusts: Some(report(&host)),
        ..Default::default()
    };
    let told = of_host.status(asked).await.unwrap().into_inner();
    assert_eq!(told.trust.unwrap().roots.len(), 2);

    let shown = await_step(&mut second, "renewing").await;
    assert_eq!(shown.roots[0].sha256, new_root);
    let trust = believe(&mut stream, &mut a).await;
    let retiring: Vec<bool> = trust.roots.iter().map(|r| r.retiring).collect();
    assert_eq!(retiring, [false, true]);
    // The old certificate is still good for renewing.
    a = enrol(&mut second, "svc/a", "", Some(&old)).await;
    assert_eq!(a.own_root(), Some(new_root.as_str()));
    tell(&stream, &a, 0).await;
    host = enrol(&mut second, "node/n1", "", Some(&host.identity)).await;
    let asked = v1::StatusRequest {
        trusts: Some(report(&host)),
        ..Default::default()
    };
    of_host.status(asked).await.unwrap();

    let shown = await_step(&mut second, "steady").await;
    assert_eq!(shown.roots.len(), 1);
    assert_eq!(shown.roots[0].sha256, new_root);
    // The stream was opened with the old root's certificate, as the host's connection was.
    let ended = loop {
        match stream.updates.message().await {
            Ok(update) => assert!(update.is_some(), "ended without a reason"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
    assert!(ended.message().contains("replaced"), "{ended}");
    let refused = common::dial(second.running.local_addr(), &new_root, Some(&old)).await;
    let refused = match refused {
        Ok(channel) => Stream::open(channel).await.is_err(),
        Err(_) => true,
    };
    assert!(refused, "the old root's certificate still counts");
    let again = Stream::open(dial(&second, &shown.roots, Some(&a.identity)).await).await;
    assert!(again.is_ok());
}
