//! The authority of a joined host: who gets one, over which identities, and how it ends. The host here is
//! a bad one: it signs with its authority's key whatever it likes.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mesh, Stream, apply, body, mesh, start, workload, workload_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};
use tonic::{Code, Status};
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_control::ca::host::HostKey;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Resource;
use tulle_tls::Identity;
use tulle_tls::enrol::SigningRequest;
use tulle_tls::host_authority::signer_of;
use tulle_tls::testing::HostCa;

fn id(path: &str) -> SpiffeId {
    SpiffeId::parse(&format!("spiffe://tulle.local/{path}")).unwrap()
}

/// A Mesh whose hosts get an authority.
fn with_authority(authority: Value) -> Value {
    let mut mesh = mesh("tulle.local", true);
    mesh["spec"]["certificates"] = json!({ "hostAuthority": authority });
    mesh
}

/// A host of its own mind.
struct Host {
    identity: Identity,
    ca: Option<HostCa>,
    /// The list of its authority, and the number.
    list: BTreeSet<SpiffeId>,
    generation: u64,
}

impl Host {
    /// Renews the host's certificate, and asks for an authority.
    async fn renew(&mut self, mesh: &Mesh) -> Result<v1::SignResponse, Status> {
        let key = HostKey::generate().unwrap();
        let request = SigningRequest::new(self.identity.spiffe_id()).unwrap();
        let asked = v1::SignRequest {
            csr_der: request.csr_der.clone(),
            host_authority_csr_der: key.csr_der.clone(),
            ..Default::default()
        };
        let channel = mesh.dial(Some(&self.identity)).await;
        let answer = CertificatesClient::new(channel)
            .sign(asked)
            .await?
            .into_inner();
        let roots = answer.trust_bundle_der.iter().map(|r| r.clone().into());
        let roots: Vec<_> = roots.collect();
        let given = answer.host_authority.clone();
        let held = given.map(|given| key.complete(given.certificate_der, &roots).unwrap());
        let list = held.as_ref().map(|h| h.constraint().clone());
        self.generation = list.as_ref().map_or(0, |l| l.generation);
        self.list = list
            .map(|l| l.identities.into_iter().collect())
            .unwrap_or_default();
        self.ca = held.map(|held| HostCa::from_pem(&held.to_pem()));
        let chain = answer.chain_der.clone();
        let enrolled = request.complete(chain, answer.trust_bundle_der.clone());
        self.identity = enrolled.unwrap().identity;
        Ok(answer)
    }

    async fn join(mesh: &mut Mesh, name: &str) -> Self {
        Self {
            identity: mesh.join(&format!("node/{name}")).await,
            ca: None,
            list: BTreeSet::new(),
            generation: 0,
        }
    }

    /// An identity that it has signed by itself.
    fn forge(&self, path: &str) -> Identity {
        let ca = self.ca.as_ref().unwrap();
        ca.issue_leaf(&ca.leaf(id(path).as_str())).identity()
    }

    async fn bring(&self, mesh: &Mesh, workloads: &[Value]) {
        let mut objects = ObjectsClient::new(mesh.dial(Some(&self.identity)).await);
        apply(&mut objects, workloads).await.unwrap();
    }

    async fn is_due(&self, mesh: &Mesh) -> bool {
        let mut objects = ObjectsClient::new(mesh.dial(Some(&self.identity)).await);
        let asked = v1::StatusRequest {
            host_authority: self.generation,
            ..Default::default()
        };
        objects
            .status(asked)
            .await
            .unwrap()
            .into_inner()
            .host_authority_due
    }
}

/// Opens a stream as a sidecar does; why it is refused.
async fn stream(mesh: &Mesh, identity: &Identity) -> Result<Stream, String> {
    let address = mesh.running.local_addr();
    let channel = common::dial(address, mesh.running.ca_fingerprint(), Some(identity)).await;
    let channel = channel.map_err(|e| format!("{e:?}"))?;
    Stream::open(channel).await.map_err(|e| format!("{e:?}"))
}

async fn delete(mesh: &mut Mesh, kind: &str, name: &str) {
    let (kind, name) = (kind.into(), name.into());
    let deleted = mesh.objects.delete(v1::DeleteRequest { kind, name }).await;
    assert!(deleted.unwrap().into_inner().existed);
}

/// Returns the generations that all sidecars are told.
async fn told(mesh: &mut Mesh) -> Vec<(String, u64)> {
    let observer = mesh.join("svc/elsewhere").await;
    let mut stream = mesh.stream(&observer).await;
    stream.subscribe(&["mesh"]).await;
    let update = stream.accept().await;
    let Resource::Mesh(settings) = body(&update, "mesh") else {
        panic!("{update:?}");
    };
    let hosts = settings.revoked.hosts.iter();
    hosts
        .map(|(host, least)| (host.name().to_owned(), *least))
        .collect()
}

#[tokio::test]
async fn nobody_has_an_authority_until_the_operator_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[common::mesh("tulle.local", true)]).await;
    let mut edge = Host::join(&mut mesh, "edge").await;
    edge.bring(&mesh, &[workload_of("edge", "a", 80)]).await;
    assert!(!edge.is_due(&mesh).await);
    let answer = edge.renew(&mesh).await.unwrap();
    assert!(answer.host_authority.is_none());
    let day = edge.identity.not_after();

    // For other hosts it means nothing; for this one the certificate that it comes back with lasts as long.
    mesh.apply(&[with_authority(json!({ "hosts": ["other"] }))])
        .await;
    assert!(!edge.is_due(&mesh).await);
    mesh.apply(&[with_authority(json!({ "hosts": ["edge"] }))])
        .await;
    assert!(edge.is_due(&mesh).await);
    let asked = SystemTime::now();
    let answer = edge.renew(&mesh).await.unwrap();
    assert_eq!(edge.list, [id("svc/a")].into());
    assert!(!edge.is_due(&mesh).await);
    // Its own certificate is of 720 hours, where nobody says how long. Certificates tell time in whole seconds.
    let end = edge.ca.as_ref().unwrap().leaf(id("svc/a").as_str());
    let end = end.not_after - Duration::from_hours(720);
    assert!(end + Duration::from_secs(1) > asked, "{end:?} {asked:?}");
    assert!(end <= SystemTime::now(), "{end:?}");
    let month = edge.identity.not_after().duration_since(day).unwrap();
    assert!(month.as_secs() > 28 * 24 * 3600, "{month:?}");
    assert_eq!(
        answer.renew_after_seconds,
        16 * 3600,
        "and is renewed as often as before"
    );

    // A workload's request for one is passed over.
    let token = mesh.token("svc/a").await;
    let key = HostKey::generate().unwrap();
    let request = SigningRequest::new(&id("svc/a")).unwrap();
    let asked = v1::SignRequest {
        csr_der: request.csr_der.clone(),
        host_authority_csr_der: key.csr_der.clone(),
        join_token: token,
        ..Default::default()
    };
    let mut client = CertificatesClient::new(mesh.dial(None).await);
    let answer = client.sign(asked).await.unwrap().into_inner();
    assert!(answer.host_authority.is_none());

    // Switched off, what it has signed counts no longer.
    assert!(stream(&mesh, &edge.forge("svc/a")).await.is_ok());
    mesh.apply(&[common::mesh("tulle.local", true)]).await;
    assert!(edge.is_due(&mesh).await, "it is to be given up");
    let refused = stream(&mesh, &edge.forge("svc/a")).await.err().unwrap();
    assert!(refused.contains("no longer counts"), "{refused}");
    assert!(edge.renew(&mesh).await.unwrap().host_authority.is_none());
}

#[tokio::test]
async fn a_bad_host_speaks_for_its_own_workloads_and_for_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    let everybody = with_authority(json!({}));
    mesh.apply(&[everybody, workload("elsewhere", 82)]).await;
    let mut edge = Host::join(&mut mesh, "edge").await;
    let other = Host::join(&mut mesh, "other").await;
    edge.bring(&mesh, &[workload_of("edge", "a", 80)]).await;
    other.bring(&mesh, &[workload_of("other", "b", 81)]).await;
    edge.renew(&mesh).await.unwrap();
    assert_eq!(edge.list, [id("svc/a")].into());

    for path in [
        "svc/b",
        "svc/elsewhere",
        "svc/unheard-of",
        "node/edge",
        "node/other",
        "controller",
    ] {
        let refused = stream(&mesh, &edge.forge(path)).await.err();
        assert!(refused.is_some(), "{path}");
        let mut objects = ObjectsClient::new(
            match common::dial(
                mesh.running.local_addr(),
                mesh.running.ca_fingerprint(),
                Some(&edge.forge(path)),
            )
            .await
            {
                Ok(channel) => channel,
                Err(_) => continue,
            },
        );
        let listed = objects.list(v1::ListRequest::default()).await;
        assert!(listed.is_err(), "{path}: {listed:?}");
        let renewed = mesh.sign(path, "", Some(&edge.forge(path))).await;
        assert!(renewed.is_err(), "{path}");
    }

    // As its own workload it is a workload: no host, no operator, and renewed as nobody else.
    let own = edge.forge("svc/a");
    let mut objects = ObjectsClient::new(mesh.dial(Some(&own)).await);
    let denied = objects.list(v1::ListRequest::default()).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied, "{denied:?}");
    let renewed = mesh.sign("svc/b", "", Some(&own)).await.unwrap();
    assert_eq!(
        renewed.spiffe_id(),
        &id("svc/a"),
        "the request decides nothing"
    );
    assert!(!renewed.is_signed_by_host());
}

#[tokio::test]
async fn an_authority_ends_with_what_it_was_given_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    let everybody = with_authority(json!({}));
    mesh.apply(&[everybody, workload("elsewhere", 82)]).await;
    let mut edge = Host::join(&mut mesh, "edge").await;
    let both = [workload_of("edge", "a", 80), workload_of("edge", "b", 81)];
    edge.bring(&mesh, &both[..1]).await;
    edge.renew(&mesh).await.unwrap();
    let first = edge.forge("svc/a");

    // With one more workload it needs another; the first one still counts.
    edge.bring(&mesh, &both[1..]).await;
    assert!(edge.is_due(&mesh).await);
    edge.renew(&mesh).await.unwrap();
    assert_eq!(edge.list, [id("svc/a"), id("svc/b")].into());
    let second = edge.forge("svc/a");
    let signer = |identity: &Identity| {
        let chain = identity.public().chain_pem;
        let certificates: Vec<_> = pem::parse_many(chain).unwrap();
        let issuer = certificates[1].contents().to_vec().into();
        signer_of(&[issuer]).unwrap().unwrap().generation
    };
    assert_eq!((signer(&first), signer(&second)), (1, 2));
    assert!(stream(&mesh, &first).await.is_ok());
    let mut open = stream(&mesh, &second).await.unwrap();
    assert_eq!(told(&mut mesh).await, []);

    // Without one of its workloads neither counts, and streams end.
    delete(&mut mesh, "Workload", "b").await;
    let ended = open.next().await.unwrap_err();
    assert!(ended.message().contains("no longer counts"), "{ended:?}");
    for old in [&first, &second] {
        assert!(stream(&mesh, old).await.is_err());
    }
    assert_eq!(told(&mut mesh).await, [("edge".to_owned(), 3)]);
    assert!(edge.is_due(&mesh).await);
    edge.renew(&mesh).await.unwrap();
    assert_eq!((edge.list.len(), edge.generation), (1, 3));
    assert!(stream(&mesh, &edge.forge("svc/a")).await.is_ok());

    // It is shown, with what the host has told.
    let issued = v1::IssuedByHost {
        serial: "3f9a".into(),
        spiffe_id: id("svc/a").to_string(),
        not_after_unix_seconds: 1,
    };
    let asked = v1::StatusRequest {
        host_authority: 3,
        issued: vec![issued],
        ..Default::default()
    };
    let mut objects = ObjectsClient::new(mesh.dial(Some(&edge.identity)).await);
    objects.status(asked).await.unwrap();
    let asked = v1::ListRequest {
        kind: "Node".into(),
        name: String::new(),
    };
    let nodes = mesh.objects.list(asked).await.unwrap().into_inner().objects;
    let shown: Value = serde_json::from_str(&nodes[0].json).unwrap();
    let shown = &shown["status"]["hostAuthority"];
    assert_eq!(shown["generation"], 3, "{shown}");
    assert_eq!(shown["counts"], true, "{shown}");
    assert_eq!(shown["issued"][0]["serial"], "3f9a", "{shown}");

    // The host's identity is revoked, and allowed again.
    let revocation = || v1::Revocation {
        identity: id("node/edge").to_string(),
        ..Default::default()
    };
    mesh.objects.revoke(revocation()).await.unwrap();
    assert!(stream(&mesh, &edge.forge("svc/a")).await.is_err());
    mesh.objects.allow(revocation()).await.unwrap();
    assert!(stream(&mesh, &edge.forge("svc/a")).await.is_ok());

    // The host is removed. Even after a restart of the controller nothing of it counts, also when a host of
    // that name joins again.
    delete(&mut mesh, "Node", "edge").await;
    assert!(stream(&mesh, &edge.forge("svc/a")).await.is_err());
    mesh.running.shutdown().await;
    let mut mesh = start(directory.path()).await;
    assert_eq!(told(&mut mesh).await, [("edge".to_owned(), 4)]);
    let mut again = Host::join(&mut mesh, "edge").await;
    again.bring(&mesh, &both[..1]).await;
    again.renew(&mesh).await.unwrap();
    assert_eq!(again.generation, 4);
    assert!(stream(&mesh, &again.forge("svc/a")).await.is_ok());
    assert!(stream(&mesh, &edge.forge("svc/a")).await.is_err());
}
