//! Roots for certificates of outsiders, and the revocation lists of their authorities.

use rustls::RootCertStore;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use std::sync::Arc;
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
            CertificateRevocationList::from_der(&list).map_err(|e| bad(e.to_string()))?;
            lists.push(list);
        }
        Ok(Self {
            store: bundle.store(),
            lists,
        })
    }
}
