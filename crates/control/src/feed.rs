//! The way by which a cluster's state reaches a running controller, and its roots come back.

use crate::ca::Authority;
use crate::ca::roots::Roots;
use crate::index::Edit;
use crate::state::MeshState;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// How often is looked whether keys of tokens were asked for.
const KEYS_LOOK: Duration = Duration::from_millis(50);

/// Feeds the state of the cluster to a running controller.
#[derive(Clone)]
pub struct Feed(pub(crate) Arc<MeshState>);

impl Feed {
    /// Makes the edits. When this returns, they are on their way to the proxies that they concern.
    pub fn edit(&self, edits: Vec<Edit>) {
        self.0.feed(edits);
    }

    /// Keeps resources that need keys of tokens from proxies until the keys were asked for, until
    /// [`Feed::await_keys`] ends.
    pub fn hold_for_keys(&self) {
        self.0.feed(vec![Edit::WaitForKeys(true)]);
    }

    /// Waits until each set of keys that objects name by address was fetched or could not be, at most so
    /// long. Nothing is held any more then.
    pub async fn await_keys(&self, longest: Duration) {
        let asked = async {
            while !self.0.keys_were_asked() {
                tokio::time::sleep(KEYS_LOOK).await;
            }
        };
        if tokio::time::timeout(longest, asked).await.is_err() {
            tracing::warn!(
                "keys of tokens were not fetched in time; requests that need them are refused"
            );
        }
        self.0.feed(vec![Edit::WaitForKeys(false)]);
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
