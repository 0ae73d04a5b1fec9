//! Certificates that are refused although they are valid.
//!
//! Unlike the rest of a context, revocations change at any time. A certificate is refused at once
//! when it is revoked, without new certificates or sessions for everybody else.

use std::sync::{Arc, PoisonError, RwLock};
use tulle_model::resource::Revoked;

use crate::leaf::Leaf;

/// The certificates revoked now, for all contexts made with it; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Revocations(Arc<RwLock<Arc<Revoked>>>);

impl Revocations {
    /// Refuses these from now on.
    pub fn set(&self, revoked: Arc<Revoked>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = revoked;
    }

    /// Returns the certificates refused now.
    #[must_use]
    pub fn get(&self) -> Arc<Revoked> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A peer's certificate, for comparison with revocations; cheap to clone.
#[derive(Debug, Clone)]
pub struct PeerCertificate(Arc<Leaf>);

impl PeerCertificate {
    pub(crate) fn new(leaf: &Arc<Leaf>) -> Self {
        Self(Arc::clone(leaf))
    }

    /// Whether it is revoked.
    #[must_use]
    pub fn is_revoked(&self, revoked: &Revoked) -> bool {
        self.0.is_revoked(revoked)
    }
}
