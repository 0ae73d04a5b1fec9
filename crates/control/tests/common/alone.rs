//! The surroundings of a controller in a cluster that is its only replica.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use tulle_control::ca::roots::Roots;
use tulle_control::cluster::{
    Accounts, Cluster, Keeper, ResponseFuture, ReviewError, ReviewFuture,
};
use tulle_model::identity::TrustDomain;

/// Roots of another issuer, with its name.
pub type Kept = Arc<Mutex<(String, Vec<Vec<u8>>)>>;

/// Keeps in memory what outlives a controller.
#[derive(Default)]
pub struct Alone(pub Kept);

impl Keeper for Alone {
    fn replace(&self, _: Roots, new: Roots) -> ResponseFuture<Roots> {
        Box::pin(async { Ok(new) })
    }

    fn name(&self) -> String {
        "one".into()
    }

    fn replicas(&self) -> ResponseFuture<Vec<String>> {
        Box::pin(async { Ok(vec!["one".into()]) })
    }

    fn keep_issuer_roots(&self, issuer: String, roots: Vec<Vec<u8>>) -> ResponseFuture<()> {
        *self.0.lock().unwrap() = (issuer, roots);
        Box::pin(async { Ok(()) })
    }
}

/// Knows nobody's token.
pub struct Nobody;

impl Accounts for Nobody {
    fn review(&self, _: String) -> ReviewFuture {
        Box::pin(async { Err(ReviewError::Refused("nobody is known".into())) })
    }
}

/// A cluster with roots of its own, for a mesh of this trust domain.
pub fn cluster(trust_domain: &str) -> Cluster {
    Cluster {
        trust_domain: TrustDomain::parse(trust_domain).unwrap(),
        namespace: "tulle-system".to_owned(),
        roots: Roots::generate().unwrap(),
        keeper: Arc::<Alone>::default(),
        issuer: None,
        issuer_roots: Vec::new(),
        accounts: Arc::new(Nobody),
        more_metrics: Arc::new(|_| {}),
    }
}
