//! A controller in a cluster: objects come from its API server instead of from a store, identities
//! are service accounts, and the root is kept where all replicas find it.
//!
//! Talking to the API server is the caller's part: it [`Feed`]s what it sees.

use crate::ca::Root;
use crate::index::Edit;
use crate::world::World;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tulle_model::identity::TrustDomain;

/// What a controller of a cluster is given.
#[derive(Clone)]
pub struct Cluster {
    /// Of all identities.
    pub trust_domain: TrustDomain,
    /// The certificate authority, the same for all replicas.
    pub root: Root,
    /// Who says whose a token is.
    pub accounts: Arc<dyn Accounts>,
}

/// Says whose a token is.
pub trait Accounts: Send + Sync {
    /// The service account that a token was made for, if it was made for this mesh.
    fn review(&self, token: String) -> Review;
}

/// An answer that takes a while.
pub type Review = Pin<Box<dyn Future<Output = Result<Account, ReviewError>> + Send>>;

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
    /// It proves nothing.
    Refused(String),
    /// Nobody can be asked now.
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

/// Where a running controller is told what the cluster has.
#[derive(Clone)]
pub struct Feed(pub(crate) Arc<World>);

impl Feed {
    /// Makes the edits; when this returns, they are on their way to whom they concern.
    pub fn edit(&self, edits: Vec<Edit>) {
        self.0.feed(edits);
    }

    /// The root certificate as PEM: what pods and the API server trust.
    pub fn root_pem(&self) -> String {
        self.0.authority().root_pem()
    }

    /// A certificate for a server of the controller that is not the mesh's, such as a webhook: chain
    /// and PKCS#8 key in DER.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn server_certificate(
        &self,
        names: &[String],
        lifetime: Duration,
    ) -> Result<(Vec<Vec<u8>>, Vec<u8>), String> {
        let authority = self.0.authority();
        let made = authority.issue_server(names, lifetime, SystemTime::now());
        let (issued, key) = made.map_err(|e| e.to_string())?;
        let key = key.secret_pkcs8_der().to_vec();
        Ok((vec![issued.certificate.to_vec()], key))
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("trust_domain", &self.trust_domain)
            .finish_non_exhaustive()
    }
}
