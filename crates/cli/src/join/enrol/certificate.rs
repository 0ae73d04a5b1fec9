//! The certificate that a joined host has at the moment: when it is due, how long it is valid, and whether its roots are
//! still those of the mesh.

use super::refusal::new_token;
use crate::failure::{Failure, Result};
use crate::join::kept::Kept;
use crate::output::coarse;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tulle_api::v1::{CertificateTerms, Trust, TrustReport, trust};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_tls::enrol::Enrolled;

/// The certificate of the moment.
pub(super) struct Present {
    pub(super) enrolled: Enrolled,
    /// When it came. Certificates are backdated, so their age counts from here.
    came: SystemTime,
    /// The age at which it is renewed, if the Mesh names one that is earlier than two thirds of its life.
    renew_after: Option<Duration>,
}

impl Present {
    /// Takes a certificate, with the age in seconds at which the controller wants it renewed. 0 is none.
    pub(super) fn new(enrolled: Enrolled, renew_after: i64) -> Self {
        Self {
            enrolled,
            came: SystemTime::now(),
            renew_after: seconds(renew_after),
        }
    }

    /// Takes the certificate that was kept, as long as it is valid.
    pub(super) fn kept(trust_domain: &TrustDomain, found: Enrolled, kept: &Kept) -> Result<Self> {
        let identity = found.identity.spiffe_id().clone();
        if identity.trust_domain() != trust_domain.as_str() {
            return Err(Failure::input(format!(
                "this host's identity {identity} is not of the trust domain {trust_domain}"
            ))
            .because(format!("it is kept in {}", kept.file().display()))
            .fix("give --trust-domain, or a token of the other mesh"));
        }
        let present = Self::new(found, 0);
        match present.left().is_zero() {
            true => Err(expired(&identity, &present, kept)),
            false => Ok(present),
        }
    }

    /// Takes other terms. Returns whether the certificate is valid for longer than a new one would be: whoever
    /// shortens the lifetime wants it replaced at once.
    pub(super) fn adopt(&mut self, terms: CertificateTerms) -> bool {
        self.renew_after = seconds(terms.renew_after_seconds);
        // A tenth is for clocks that differ, as for sidecars.
        seconds(terms.lifetime_seconds).is_some_and(|l| self.left() > l + l / 10)
    }

    /// Builds the report to the controller about the certificates on this host.
    pub(super) fn report(&self) -> TrustReport {
        let bundle = &self.enrolled.bundle;
        TrustReport {
            root_sha256: bundle.fingerprints().map(str::to_owned).collect(),
            own_root_sha256: self.enrolled.own_root().unwrap_or_default().to_owned(),
        }
    }

    /// Whether other roots are to be believed, or the certificate comes from one that goes. Renewing
    /// cures both.
    pub(super) fn is_outdated(&self, trust: Trust) -> bool {
        let report = self.report();
        let stays = trust.roots.iter().filter(|r| !r.retiring);
        let print = |r: &trust::Root| tulle_tls::fingerprint(&r.certificate_der);
        let known = |r: &trust::Root| report.root_sha256.contains(&print(r));
        let same = trust.roots.iter().all(known) && trust.roots.len() == report.root_sha256.len();
        let stays = stays.map(print).any(|p| p == report.own_root_sha256);
        // A controller of an earlier version says nothing.
        !(trust.roots.is_empty() || (same && stays))
    }

    /// How long it serves until it is renewed.
    pub(super) fn due(&self) -> Duration {
        let life = self.enrolled.identity.not_after().duration_since(self.came);
        let latest = life.unwrap_or_default() * 2 / 3;
        let age = self.renew_after.map_or(latest, |named| named.min(latest));
        let due = (self.came + age).duration_since(SystemTime::now());
        due.unwrap_or_default()
    }

    /// How long it is valid.
    pub(super) fn left(&self) -> Duration {
        let not_after = self.enrolled.identity.not_after();
        not_after
            .duration_since(SystemTime::now())
            .unwrap_or_default()
    }
}

/// Reads a number of seconds of the controller, where 0 is none.
fn seconds(number: i64) -> Option<Duration> {
    let number = u64::try_from(number).ok().filter(|n| *n > 0);
    number.map(Duration::from_secs)
}

pub(super) fn lock(present: &Mutex<Present>) -> MutexGuard<'_, Present> {
    present.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a host that was away too long cannot come back by itself.
fn expired(identity: &SpiffeId, present: &Present, kept: &Kept) -> Failure {
    let not_after = present.enrolled.identity.not_after();
    let since = SystemTime::now().duration_since(not_after);
    let seconds = since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    });
    Failure::new(format!(
        "the identity that this host kept, {identity}, has expired"
    ))
    .because(format!(
        "the certificate in {} was valid until {} ago",
        kept.file().display(),
        coarse(seconds)
    ))
    .fix(new_token(identity))
}
