//! Roots for certificates of outsiders, and the revocation lists of their authorities.

use rustls::RootCertStore;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use std::sync::Arc;
use x509_parser::oid_registry::OID_X509_EXT_ISSUER_DISTRIBUTION_POINT;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use super::OutsideError;
use crate::bundle::TrustBundle;

/// Most revocation lists accepted beside roots.
const MAX_LISTS: usize = 64;

/// Roots, and optional revocation lists.
pub(super) struct Roots {
    pub(super) store: Arc<RootCertStore>,
    /// Lists of any authority in a chain. A certificate whose authority has no list here is
    /// accepted.
    pub(super) lists: Vec<CertificateRevocationListDer<'static>>,
}

impl Roots {
    /// Reads certificates and revocation lists from one PEM text.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(super) fn from_pem(pem: &str) -> Result<Self, OutsideError> {
        let bundle = TrustBundle::from_pem(pem.as_bytes()).map_err(OutsideError::Roots)?;
        let given = CertificateRevocationListDer::pem_slice_iter(pem.as_bytes());
        let mut lists = Vec::new();
        for (place, list) in (1..).zip(given) {
            let bad = |why: String| OutsideError::RevocationList(place, why);
            if place > MAX_LISTS {
                return Err(bad(format!("there are more than {MAX_LISTS}")));
            }
            let list = list.map_err(|e| bad(e.to_string()))?;
            let (_, parsed) =
                CertificateRevocationList::from_der(&list).map_err(|e| bad(e.to_string()))?;
            if is_partial(&parsed) {
                let why = "it has an issuing distribution point (RFC 5280 5.2.5), so certificates of another part would pass";
                return Err(bad(why.into()));
            }
            lists.push(list);
        }
        Ok(Self {
            store: bundle.store(),
            lists,
        })
    }
}

/// Whether a list says that it has only some of its authority's certificates (RFC 5280 5.2.5). One of a certificate that belongs
/// to another part has no status then, as one of an authority without a list.
fn is_partial(list: &CertificateRevocationList<'_>) -> bool {
    let mut extensions = list.extensions().iter();
    extensions.any(|extension| extension.oid == OID_X509_EXT_ISSUER_DISTRIBUTION_POINT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCa;
    use rcgen::{CrlDistributionPoint, CrlIssuingDistributionPoint, CrlScope};
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_list_of_a_part_is_refused() {
        let ca = TestCa::new("outside");
        let client = ca.issue("spiffe://outside/svc/a");
        let later = SystemTime::now() + Duration::from_secs(3600);
        let roots = |list: &str| Roots::from_pem(&format!("{}{list}", ca.pem()));
        let whole = ca.revocation_list_until(&[&client.chain[0]], later);
        assert_eq!(roots(&whole).unwrap().lists.len(), 1);
        for scope in [
            None,
            Some(CrlScope::UserCertsOnly),
            Some(CrlScope::CaCertsOnly),
        ] {
            let part = CrlIssuingDistributionPoint {
                distribution_point: CrlDistributionPoint {
                    uris: vec!["http://outside.test/a.crl".into()],
                },
                scope,
            };
            let part = ca.part_of_a_revocation_list(part, later);
            let refused = roots(&(whole.clone() + &part)).err().unwrap().to_string();
            assert!(refused.contains("issuing distribution point"), "{refused}");
        }
    }
}
