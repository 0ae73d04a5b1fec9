use super::super::peer::{Known, Member};
use super::*;
use crate::ca::{Authority, VerifiedCsr};
use crate::store::{Memory, Space, Store};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use std::net::Ipv4Addr;
use std::task::{Context, Waker};
use tonic::Code;
use tulle_api::v1::objects_server::Objects as _;
use tulle_model::manifest::NODE_LABEL;
use tulle_model::resource::{Revoked, Serial};

fn asked(identity: &str) -> v1::JoinTokenRequest {
    v1::JoinTokenRequest {
        identity: identity.into(),
        ..Default::default()
    }
}

/// The host's own Workload `b`.
fn apply_workload(state: &MeshState, host: &str) {
    let workload = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "Workload",
        "metadata": { "name": "b", "labels": { NODE_LABEL: host } },
        "spec": { "command": ["/bin/true"], "ports": [{ "port": 80 }] },
    });
    let workload = v1::Object {
        kind: "Workload".into(),
        name: "b".into(),
        json: workload.to_string(),
    };
    let asked = v1::ApplyRequest {
        objects: vec![workload],
        ..Default::default()
    };
    let host = Actor::Node(host.to_owned());
    state.apply(&host, &asked).unwrap();
}

#[tokio::test]
async fn a_host_whose_certificate_is_revoked_while_it_waits_for_a_join_token_gets_none() {
    let store = Arc::new(Memory::new());
    let authority = Authority::open(&*store).unwrap();
    let state = Arc::new(MeshState::load(store.clone(), authority).unwrap());
    let now = SystemTime::now();
    let token = state.join_token(&Actor::Operator, &asked("node/n"), now, || Ok(()));
    let (id, membership) = state.spend(&token.unwrap().token, now).unwrap();
    apply_workload(&state, "n");

    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::default().serialize_request(&key);
    let csr = VerifiedCsr::parse(csr.unwrap().der()).unwrap();
    let authority = state.authority();
    let issued = state.issue(&authority, &csr, &id, membership, now);
    let certificate = issued.unwrap().certificate;
    let serial = {
        let (_, read) = x509_parser::parse_x509_certificate(&certificate).unwrap();
        Serial::from_bytes(read.raw_serial())
    };
    let (_running, shutdown) = watch::channel(false);
    let service = ObjectsService::new(state.clone(), shutdown);
    for (is_revoked, expected) in [(false, Ok(())), (true, Err(Code::PermissionDenied))] {
        let revoked = watch::Sender::new(Arc::new(Revoked::default()));
        let known = Known {
            authorities: state.authorities(),
            revoked: revoked.subscribe(),
            nodes: state.watch_nodes(),
        };
        let member = Member::from_certificate(
            std::slice::from_ref(&certificate),
            Ipv4Addr::LOCALHOST.into(),
            authority.trusted()[0].fingerprint.clone(),
            "tulle.local",
            known,
        );
        let mut request = Request::new(asked("svc/b"));
        let peer = Arc::new(Peer::Mesh(member.unwrap()));
        request.extensions_mut().insert(peer);
        let mut asking = service.create_join_token(request);
        // It has begun, and waits for whoever changes the mesh.
        state.with_index(|_| {
            let mut context = Context::from_waker(Waker::noop());
            assert!(asking.as_mut().poll(&mut context).is_pending());
            if is_revoked {
                let mut now = Revoked::default();
                now.serials.insert(serial.clone());
                revoked.send_replace(Arc::new(now));
            }
        });
        let given = asking.await.map(drop).map_err(|status| status.code());
        assert_eq!(given, expected, "revoked: {is_revoked}");
        let kept = store.values(Space::Tokens).unwrap();
        assert_eq!(kept.len(), 1, "revoked: {is_revoked}");
    }
}
