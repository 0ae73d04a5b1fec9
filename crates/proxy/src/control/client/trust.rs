//! Roots that are trusted: those that the controller tells take effect, and it hears which are in force.

use super::{ControlClient, Sink};
use std::collections::BTreeSet;
use tulle_api::v1;
use tulle_tls::enrol::Enrolled;

impl<S: Sink> ControlClient<S> {
    /// Trusts these roots from now on. Returns whether the certificate is to be renewed at once.
    pub(super) fn believe(&mut self, trust: v1::Trust) -> Result<bool, String> {
        let Some(enrolled) = &self.enrolled else {
            return Ok(false);
        };
        let retiring = |r: &&v1::trust::Root| r.retiring;
        let retiring: Vec<_> = trust.roots.iter().filter(retiring).cloned().collect();
        let roots = trust.roots.into_iter().map(|r| r.certificate_der);
        let enrolled = enrolled
            .with_bundle(roots.collect())
            .map_err(|e| e.to_string())?;
        let renew = match enrolled.own_root() {
            Some(own) => retiring
                .iter()
                .any(|r| tulle_tls::fingerprint(&r.certificate_der) == own),
            None => true,
        };
        let roots = |of: &Enrolled| -> BTreeSet<String> {
            of.bundle.fingerprints().map(str::to_owned).collect()
        };
        if self.enrolled.as_ref().map(roots) != Some(roots(&enrolled)) {
            self.keep_identity(&enrolled);
            self.publisher.set_identity(&enrolled);
            tracing::info!(roots = ?enrolled.bundle, renew, "new roots are trusted");
            self.enrolled = Some(enrolled);
        }
        Ok(renew)
    }

    /// Reports the roots in force here.
    pub(super) fn trust_report(&self) -> Option<v1::TrustReport> {
        let enrolled = self.enrolled.as_ref()?;
        Some(v1::TrustReport {
            root_sha256: enrolled.bundle.fingerprints().map(str::to_owned).collect(),
            own_root_sha256: enrolled.own_root().unwrap_or_default().to_owned(),
        })
    }
}
