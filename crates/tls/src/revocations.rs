//! Certificates that are refused although they are valid.
//!
//! Unlike the rest of a context this changes at any time, so that a certificate is refused the moment
//! it is known to be revoked, without new certificates or sessions for everybody else.

use std::sync::{Arc, PoisonError, RwLock};
use tulle_model::resource::Revoked;

use crate::leaf::Leaf;

/// What is revoked now, for all contexts that were made with it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Revocations(Arc<RwLock<Arc<Revoked>>>);

impl Revocations {
    /// From now on this is refused.
    pub fn set(&self, revoked: Arc<Revoked>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = revoked;
    }

    /// What is refused now.
    #[must_use]
    pub fn get(&self) -> Arc<Revoked> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A peer's certificate, as far as revocations are about it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PeerCertificate(Arc<Leaf>);

impl PeerCertificate {
    pub(crate) fn new(leaf: &Arc<Leaf>) -> Self {
        Self(Arc::clone(leaf))
    }

    /// Whether it is refused.
    #[must_use]
    pub fn is_revoked(&self, revoked: &Revoked) -> bool {
        self.0.is_revoked(revoked)
    }
}
