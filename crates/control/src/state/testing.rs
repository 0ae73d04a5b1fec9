//! Meshes, hosts and tokens of these modules' tests.

use super::{Actor, MeshState};
use crate::ca::membership::Membership;
use crate::ca::{Authority, VerifiedCsr};
use crate::store::Store;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::SystemTime;
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::NODE_LABEL;

const TULLE: &str = "tulle.dev/v1alpha1";

/// The state as the next start of a controller reads it.
pub(super) fn load<S: Store + 'static>(store: &Arc<S>) -> MeshState {
    let authority = Authority::open(&**store).unwrap();
    MeshState::load(store.clone(), authority).unwrap()
}

pub(super) fn id(path: &str) -> SpiffeId {
    SpiffeId::parse(&format!("spiffe://tulle.local/{path}")).unwrap()
}

/// A Mesh that says this of certificates.
pub(super) fn mesh(certificates: &Value) -> Value {
    json!({
        "apiVersion": TULLE, "kind": "Mesh", "metadata": { "name": "mesh" },
        "spec": { "trustDomain": "tulle.local", "certificates": certificates },
    })
}

/// A host's own Workload.
pub(super) fn workload(host: &str, name: &str) -> Value {
    json!({
        "apiVersion": TULLE, "kind": "Workload",
        "metadata": { "name": name, "labels": { NODE_LABEL: host } },
        "spec": { "command": ["/bin/true"], "ports": [{ "port": 80 }] },
    })
}

pub(super) fn apply(state: &MeshState, actor: &Actor, object: &Value) {
    let text = |place: &str| object.pointer(place).and_then(Value::as_str).unwrap();
    let object = v1::Object {
        kind: text("/kind").to_owned(),
        name: text("/metadata/name").to_owned(),
        json: object.to_string(),
    };
    let asked = v1::ApplyRequest {
        objects: vec![object],
        ..Default::default()
    };
    state.apply(actor, &asked).unwrap();
}

pub(super) fn token(state: &MeshState, actor: &Actor, identity: &str) -> String {
    let asked = v1::JoinTokenRequest {
        identity: identity.to_owned(),
        ..Default::default()
    };
    let made = state.join_token(actor, &asked, SystemTime::now(), || Ok(()));
    made.unwrap().token
}

/// A host joins.
pub(super) fn join(state: &MeshState, host: &str) -> Membership {
    let token = token(state, &Actor::Operator, &format!("node/{host}"));
    let (_, membership) = state.spend(&token, SystemTime::now()).unwrap();
    membership.unwrap()
}

pub(super) fn csr() -> VerifiedCsr {
    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::default().serialize_request(&key);
    VerifiedCsr::parse(csr.unwrap().der()).unwrap()
}
