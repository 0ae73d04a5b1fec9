//! The trust bundle: the roots that may sign the identities of our trust domain.

use aws_lc_rs::digest;
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;
use tulle_model::hex;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::context::provider;
use crate::host_authority;
use crate::identity::Identity;
use crate::validity::system_time;

/// Most roots of one bundle; a rotation needs two or three.
const MAX_ROOTS: usize = 64;

/// Why a trust bundle is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BundleError {
    /// The text is not PEM.
    Pem(String),
    /// It contains no certificate, so nobody could be trusted.
    Empty,
    /// It contains more roots than we accept.
    TooMany(usize),
    /// One of the certificates cannot be a root.
    NotARoot {
        /// Its place in the bundle, from 1.
        place: usize,
        /// Why it cannot be one.
        why: String,
    },
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(why) => write!(
                f,
                "the trust bundle cannot be read: {why}; it must be PEM certificates"
            ),
            Self::Empty => f.write_str(
                "the trust bundle holds no certificate, so no peer could be trusted; add the mesh's root",
            ),
            Self::TooMany(count) => write!(
                f,
                "the trust bundle holds {count} certificates, more than {MAX_ROOTS}; remove old roots"
            ),
            Self::NotARoot { place, why } => write!(
                f,
                "certificate {place} of the trust bundle cannot be a root: {why}; \
                 the bundle holds authorities only, never a workload's certificate"
            ),
        }
    }
}

impl std::error::Error for BundleError {}

/// One root of a bundle, as shown to operators.
#[derive(Debug, Clone)]
pub struct RootDetails {
    /// SHA-256 of the certificate, hexadecimal.
    pub fingerprint: String,
    /// Its subject.
    pub subject: String,
    /// Start of its validity.
    pub not_before: SystemTime,
    /// End of its validity.
    pub not_after: SystemTime,
}

/// The roots we trust; cheap to clone.
#[derive(Clone)]
pub struct TrustBundle {
    store: Arc<RootCertStore>,
    roots: Arc<[RootDetails]>,
}

impl TrustBundle {
    /// Reads PEM certificates.
    ///
    /// # Errors
    /// Unreadable, empty, too many, or a certificate that is not an authority's.
    pub fn from_pem(pem: &[u8]) -> Result<Self, BundleError> {
        let roots = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| BundleError::Pem(e.to_string()))?;
        Self::from_der(roots)
    }

    /// Takes certificates.
    ///
    /// # Errors
    /// Empty, too many, or a certificate that is not an authority's.
    pub fn from_der(certificates: Vec<CertificateDer<'static>>) -> Result<Self, BundleError> {
        if certificates.is_empty() {
            return Err(BundleError::Empty);
        }
        if certificates.len() > MAX_ROOTS {
            return Err(BundleError::TooMany(certificates.len()));
        }
        let mut store = RootCertStore::empty();
        let mut roots = Vec::with_capacity(certificates.len());
        for (n, certificate) in certificates.into_iter().enumerate() {
            let refuse = |why: String| BundleError::NotARoot { place: n + 1, why };
            roots.push(read_root(&certificate).map_err(refuse)?);
            store.add(certificate).map_err(|e| refuse(e.to_string()))?;
        }
        Ok(Self {
            store: Arc::new(store),
            roots: roots.into(),
        })
    }

    /// The roots, in the order given.
    pub fn roots(&self) -> &[RootDetails] {
        &self.roots
    }

    /// SHA-256 of each root, hexadecimal, in the order given.
    pub fn fingerprints(&self) -> impl Iterator<Item = &str> {
        self.roots.iter().map(|r| r.fingerprint.as_str())
    }

    /// Returns the SHA-256, hexadecimal, of the root that an identity's chain ends in.
    #[cfg_attr(
        not(feature = "enrol"),
        expect(dead_code, reason = "used by enrol only")
    )]
    pub(crate) fn root_of(&self, identity: &Identity) -> Option<&str> {
        let certified = identity.certified();
        let (leaf, intermediates) = certified.cert.split_first()?;
        let leaf = ParsedCertificate::try_from(leaf).ok()?;
        let algorithms = provider().signature_verification_algorithms.all;
        // The root does not depend on the time, and an expired certificate is renewed anyway.
        let validity = identity.not_after().duration_since(identity.not_before());
        let within = identity.not_before() + validity.unwrap_or_default() / 2;
        let now = within.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let now = UnixTime::since_unix_epoch(now);
        let anchors = self.store.roots.iter().zip(self.roots.iter());
        let mut fitting = anchors.filter(|(anchor, _)| {
            let mut one = RootCertStore::empty();
            one.roots.push((*anchor).clone());
            if host_authority::is_in(intermediates) {
                return host_authority::verify(intermediates, &one, now).is_ok();
            }
            verify_server_cert_signed_by_trust_anchor(&leaf, &one, intermediates, now, algorithms)
                .is_ok()
        });
        fitting.next().map(|(_, root)| root.fingerprint.as_str())
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.store)
    }
}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.fingerprints()).finish()
    }
}

/// Reads a root. The chain check accepts any certificate as a root, so a workload's is refused
/// here.
fn read_root(der: &[u8]) -> Result<RootDetails, String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|e| e.to_string())?;
    if !certificate.is_ca() {
        return Err("it is not an authority's certificate (basicConstraints CA is not set)".into());
    }
    Ok(RootDetails {
        fingerprint: fingerprint(der),
        subject: certificate.subject().to_string(),
        not_before: system_time(certificate.validity().not_before),
        not_after: system_time(certificate.validity().not_after),
    })
}

/// SHA-256 of a certificate, hexadecimal.
#[must_use]
pub fn fingerprint(der: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, der).as_ref())
}
