//! Other issuers of workload certificates, in place of the mesh's own root.
//!
//! An [`Issuer`] is not trusted blindly: its certificates are checked before a workload gets them. So a role
//! that is set up wrongly is found here, with a reason, and not by every peer.
//!
//! In the order of a certificate: `request` (does it ask for more than its sender may have), the issuer in use, here,
//! and `chain` (is its answer what was asked for). `roots` are those that such a chain leads to.

mod chain;
mod request;
mod roots;

use super::roots::ResponseFuture;
use super::{Trusted, VerifiedCsr};
use chain::check;
use request::asks_for_no_more;
use roots::{merged, read};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tulle_model::identity::SpiffeId;

pub use chain::parted;
pub use request::throwaway_request;

/// How long an issuer may take for one certificate: the client waits for ten seconds.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// Time between looks at an issuer's roots.
const LOOK: Duration = Duration::from_secs(30);
/// First and longest time between looks while the roots are not known: without them nobody is let in.
const LOOK_EARLY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How a trouble with an issuer's roots begins.
const OF_ROOTS: &str = "its roots: ";
/// Certificates in a chain, and roots.
const MAX_CERTIFICATES: usize = 8;

/// Signs certificates of workloads.
pub trait Issuer: Send + Sync {
    /// The issuer's name, as operators read it.
    fn name(&self) -> String;
    /// Signs a request for an identity that was proved.
    fn sign(
        &self,
        asked: CertificateRequest,
    ) -> Pin<Box<dyn Future<Output = Result<Signed, IssueError>> + Send>>;
    /// The roots of its certificates, DER, as they are now.
    fn roots(&self) -> ResponseFuture<Vec<Vec<u8>>>;
}

/// A request to an issuer.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    /// PKCS#10, DER. It names the identity.
    pub csr_der: Vec<u8>,
    /// The identity that the certificate is for.
    pub identity: SpiffeId,
    /// How long the certificate is to be valid.
    pub lifetime: Duration,
}

/// An issuer's answer: certificates in DER, leaf first, without the root.
#[derive(Debug, Clone)]
pub struct Signed {
    /// The chain.
    pub chain_der: Vec<Vec<u8>>,
}

/// Why an issuer gives no certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IssueError {
    /// The issuer does not answer now; asking again helps.
    Unavailable(String),
    /// The issuer refuses, or its answer cannot be used. Somebody has to change something.
    Refused(String),
    /// The issuer was not asked: the request wants more than the identity that its sender has proved.
    NotAsked(String),
}

impl fmt::Display for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "it cannot be asked: {why}"),
            Self::Refused(why) => write!(f, "it refuses: {why}"),
            Self::NotAsked(why) => write!(f, "it is not asked: {why}"),
        }
    }
}

impl std::error::Error for IssueError {}

/// A certificate that was checked.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) chain_der: Vec<Vec<u8>>,
    /// Unix seconds.
    pub(crate) not_after: i64,
}

/// An issuer in use.
pub(crate) struct External {
    issuer: Arc<dyn Issuer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Trusted roots, each with the time at which the issuer ceased to name it.
    roots: Vec<(Trusted, Option<Instant>)>,
    trouble: String,
    failures: u64,
}

impl External {
    /// Starts with the roots that the issuer had when it was last asked. The issuer may not answer for a while;
    /// until then these roots let sidecars with its certificates in.
    pub(crate) fn new(issuer: Arc<dyn Issuer>, known: Vec<Vec<u8>>) -> Self {
        let mut state = State::default();
        if !known.is_empty() {
            match read(known) {
                Ok(roots) => state.roots = roots.into_iter().map(|root| (root, None)).collect(),
                Err(why) => tracing::warn!(
                    issuer = issuer.name(),
                    "the stored roots of this issuer are ignored: {why}"
                ),
            }
        }
        Self {
            issuer,
            state: Mutex::new(state),
        }
    }

    /// The trusted roots.
    pub(crate) fn roots(&self) -> Vec<Trusted> {
        self.state().roots.iter().map(|(r, _)| r.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> String {
        self.issuer.name()
    }

    /// Why the issuer refused its last request; empty if it did not.
    pub(crate) fn trouble(&self) -> String {
        self.state().trouble.clone()
    }

    /// How often it gave nothing.
    pub(crate) fn failures(&self) -> u64 {
        self.state().failures
    }

    fn note<T, E: fmt::Display>(&self, result: &Result<T, E>) {
        let trouble = result.as_ref().err().map(ToString::to_string);
        let mut state = self.state();
        state.failures += u64::from(trouble.is_some());
        let trouble = trouble.unwrap_or_default();
        if trouble == state.trouble {
            return;
        }
        let issuer = self.issuer.name();
        match trouble.is_empty() {
            true => tracing::info!(issuer, "the issuer signs certificates again"),
            false => tracing::warn!(
                issuer,
                "no certificate: {trouble}. Sidecars ask again; their present certificates are valid until they expire"
            ),
        }
        state.trouble = trouble;
    }

    /// Checks the request, has the issuer sign it, and checks the certificate.
    pub(crate) async fn issue(
        &self,
        request: &VerifiedCsr,
        asked: CertificateRequest,
        trusted: &[Trusted],
    ) -> Result<Checked, IssueError> {
        // The sender is at fault here, not the issuer: this is not counted as its failure.
        asks_for_no_more(&asked).map_err(IssueError::NotAsked)?;
        let signed = tokio::time::timeout(PATIENCE, self.issuer.sign(asked.clone())).await;
        let signed = signed.unwrap_or_else(|_| {
            Err(IssueError::Unavailable(format!(
                "no answer within {} s",
                PATIENCE.as_secs()
            )))
        });
        let checked = signed.and_then(|signed| {
            check(&signed, request, &asked, trusted, SystemTime::now())
                .map_err(|why| IssueError::Refused(format!("its certificate is not usable: {why}")))
                .map(|not_after| Checked {
                    chain_der: signed.chain_der,
                    not_after,
                })
        });
        self.note(&checked);
        checked
    }

    /// Learns its roots, and tells of each change, for as long as the controller runs.
    pub(crate) async fn follow(&self, mut changed: impl FnMut(Vec<Trusted>)) {
        let mut early = LOOK_EARLY.0;
        loop {
            let roots = tokio::time::timeout(PATIENCE, self.issuer.roots()).await;
            let roots = roots.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            let roots = roots.and_then(read);
            // A certificate that was given says more than that the roots could be read.
            let unknown = {
                let state = self.state();
                state.roots.is_empty() || state.trouble.starts_with(OF_ROOTS)
            };
            if roots.is_err() || unknown {
                let told = roots.as_ref().map_err(|why| format!("{OF_ROOTS}{why}"));
                self.note(&told);
            }
            let next = roots.ok().and_then(|roots| {
                let mut state = self.state();
                let next = merged(&state.roots, roots, Instant::now());
                let before: Vec<Trusted> = state.roots.iter().map(|(r, _)| r.clone()).collect();
                let now: Vec<Trusted> = next.iter().map(|(r, _)| r.clone()).collect();
                state.roots = next;
                (before != now).then_some(now)
            });
            if let Some(roots) = next {
                changed(roots);
            }
            let wait = match self.state().roots.is_empty() {
                true => early,
                false => LOOK,
            };
            early = (early * 2).min(LOOK_EARLY.1);
            tokio::time::sleep(wait).await;
        }
    }
}
