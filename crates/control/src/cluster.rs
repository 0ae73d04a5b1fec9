//! A controller in a cluster: objects come from its API server instead of from a store, identities
//! are service accounts, and the root is kept where all replicas find it.
//!
//! Talking to the API server is the caller's part: it feeds what it sees (`feed`).

use crate::ca::issuer::Issuer;
use crate::ca::roots::Roots;
pub use crate::ca::roots::{Keeper, ResponseFuture};
use crate::metrics::More;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use tulle_model::identity::TrustDomain;

/// Everything a controller is given by the cluster it runs in.
#[derive(Clone)]
pub struct Cluster {
    /// The trust domain of all identities.
    pub trust_domain: TrustDomain,
    /// Where the mesh itself runs.
    pub namespace: String,
    /// The certificate authority, the same for all replicas.
    pub roots: Roots,
    /// Where they are kept.
    pub keeper: Arc<dyn Keeper>,
    /// Signs workloads' certificates, if the mesh's own root does not.
    pub issuer: Option<Arc<dyn Issuer>>,
    /// The issuer's roots (DER) as they were last stored. They count until the issuer returns its
    /// roots.
    pub issuer_roots: Vec<Vec<u8>>,
    /// Tells which service account a token belongs to.
    pub accounts: Arc<dyn Accounts>,
    /// Writes further metrics of the process into each scrape.
    pub more_metrics: More,
}

/// Says whose a token is.
pub trait Accounts: Send + Sync {
    /// The service account that a token was made for, if it was made for this mesh.
    fn review(&self, token: String) -> ReviewFuture;
}

/// An answer that takes a while.
pub type ReviewFuture = Pin<Box<dyn Future<Output = Result<Account, ReviewError>> + Send>>;

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Why nothing is known of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReviewError {
    /// The token proves nothing.
    Refused(String),
    /// The API server cannot be asked now.
    Unavailable(String),
}

impl fmt::Display for ReviewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "the token is refused: {why}"),
            Self::Unavailable(why) => write!(f, "the API server cannot be asked: {why}"),
        }
    }
}

impl std::error::Error for ReviewError {}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("trust_domain", &self.trust_domain)
            .finish_non_exhaustive()
    }
}
