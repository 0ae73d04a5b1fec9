//! A controller in a cluster: objects come from its API server instead of from a store, identities
//! are service accounts, and the root is kept where all replicas find it.
//!
//! Talking to the API server is the caller's part: it [`Feed`]s what it sees.

use crate::ca::Authority;
use crate::ca::issuer::Issuer;
use crate::ca::roots::Roots;
use crate::index::Edit;
use crate::metrics::More;
use crate::state::MeshState;
pub use crate::state::rotation::{Keeper, ResponseFuture};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
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

/// Feeds the state of the cluster to a running controller.
#[derive(Clone)]
pub struct Feed(pub(crate) Arc<MeshState>);

impl Feed {
    /// Makes the edits. When this returns, they are on their way to the proxies that they concern.
    pub fn edit(&self, edits: Vec<Edit>) {
        self.0.feed(edits);
    }

    /// Whether each set of keys that objects name by address was fetched or could not be.
    pub fn keys_were_asked(&self) -> bool {
        self.0.keys_were_asked()
    }

    /// The root certificates as PEM: what pods and the API server trust. A new text whenever it
    /// changes.
    pub fn bundles(&self) -> Bundles {
        Bundles(self.0.authorities())
    }

    /// SHA-256 of the root that signs, in lower-case hex.
    pub fn root_fingerprint(&self) -> String {
        self.0.authority().fingerprint().to_owned()
    }

    /// Replaces the roots by these, which another replica has written.
    ///
    /// # Errors
    /// The roots are damaged. Nothing has changed then.
    pub fn adopt(&self, roots: Roots) -> Result<(), String> {
        self.0.adopt(roots)
    }

    /// Begins to replace the root; each step lasts at least that long.
    ///
    /// # Errors
    /// It is being replaced already, or cannot be kept.
    pub async fn rotate(&self, hold: Duration) -> Result<(), String> {
        let begun = self.0.rotate(hold).await;
        begun.map_err(|e| e.to_string())
    }

    /// Makes a certificate for a server of the controller that is not the mesh's, such as a webhook:
    /// chain and PKCS#8 key in DER.
    ///
    /// # Errors
    /// The certificate cannot be made.
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

/// The root certificates, now and later.
#[derive(Debug, Clone)]
pub struct Bundles(watch::Receiver<Arc<Authority>>);

impl Bundles {
    /// The roots of this moment, as PEM.
    pub fn pem(&mut self) -> String {
        self.0.borrow_and_update().bundle_pem()
    }

    /// Waits until they may have changed since they were looked at.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
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
