//! The workload's own certificate chain and private key.

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;
use tulle_model::identity::SpiffeId;

use crate::error::{HandshakeError, MAX_CHAIN, MAX_CHAIN_BYTES};
use crate::leaf::{Leaf, Usage};

/// Why a chain and key are not a usable identity.
#[derive(Debug, Clone)]
pub enum IdentityError {
    /// The certificate chain is not PEM, or holds no certificate.
    Chain(String),
    /// The private key is not PEM, or of a kind we cannot sign with.
    Key(String),
    /// The key does not belong to the certificate.
    KeyMismatch,
    /// Peers would refuse this certificate.
    Refused(HandshakeError),
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(why) => write!(
                f,
                "the certificate chain cannot be read: {why}; it must be PEM, the workload's certificate first"
            ),
            Self::Key(why) => write!(
                f,
                "the private key cannot be used: {why}; it must be an unencrypted PEM key, best ECDSA P-256"
            ),
            Self::KeyMismatch => f.write_str(
                "the private key does not belong to the certificate; replace both files together",
            ),
            Self::Refused(why) => write!(
                f,
                "peers would refuse this identity ({}); issue it again through the mesh's authority: {why}",
                why.code()
            ),
        }
    }
}

impl std::error::Error for IdentityError {}

/// A workload's identity: certificate chain and key; cheap to clone. It never prints its key.
#[derive(Clone)]
pub struct Identity {
    inner: Arc<Inner>,
}

struct Inner {
    leaf: Leaf,
    certified: Arc<CertifiedKey>,
}

/// The part of an identity that may be shown: everything but the key.
#[derive(Debug, Clone)]
pub struct PublicIdentity {
    /// The SPIFFE id.
    pub spiffe_id: SpiffeId,
    /// Serial number, hexadecimal.
    pub serial: String,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// The chain as PEM, the workload's certificate first.
    pub chain_pem: String,
}

impl Identity {
    /// Reads a PEM chain (the workload's certificate first) and its PEM key.
    ///
    /// # Errors
    /// A part is unreadable, does not fit the others, or would be refused by peers.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| IdentityError::Chain(e.to_string()))?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|e| IdentityError::Key(e.to_string()))?;
        Self::from_der(chain, key)
    }

    /// Takes a chain (the workload's certificate first) and its key.
    ///
    /// Validity is not checked: an expired identity must still be shown to operators.
    ///
    /// # Errors
    /// A part is unreadable, does not fit the others, or would be refused by peers.
    pub fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let first = chain
            .first()
            .ok_or_else(|| IdentityError::Chain("it holds no certificate".into()))?;
        let leaf =
            Leaf::parse(first, &[Usage::Client, Usage::Server]).map_err(IdentityError::Refused)?;
        let bytes = chain.iter().map(|c| c.len()).sum();
        if chain.len() > MAX_CHAIN || bytes > MAX_CHAIN_BYTES {
            return Err(IdentityError::Refused(HandshakeError::ChainTooLarge {
                certificates: chain.len(),
                bytes,
            }));
        }
        let key = any_supported_type(&key).map_err(|e| IdentityError::Key(e.to_string()))?;
        let certified = CertifiedKey::new(chain, key);
        certified
            .keys_match()
            .map_err(|_| IdentityError::KeyMismatch)?;
        Ok(Self {
            inner: Arc::new(Inner {
                leaf,
                certified: Arc::new(certified),
            }),
        })
    }

    /// The workload's SPIFFE id.
    pub fn spiffe_id(&self) -> &SpiffeId {
        &self.inner.leaf.id
    }

    /// Start of validity.
    pub fn not_before(&self) -> SystemTime {
        self.inner.leaf.not_before
    }

    /// End of validity.
    pub fn not_after(&self) -> SystemTime {
        self.inner.leaf.not_after
    }

    /// Whether the authority of a joined host has signed it, and not the mesh's own.
    pub fn is_signed_by_host(&self) -> bool {
        let others = self.inner.certified.cert.get(1..).unwrap_or_default();
        crate::host_authority::is_in(others)
    }

    /// Everything but the key.
    pub fn public(&self) -> PublicIdentity {
        let leaf = &self.inner.leaf;
        PublicIdentity {
            spiffe_id: leaf.id.clone(),
            serial: leaf.serial.clone(),
            not_before: leaf.not_before,
            not_after: leaf.not_after,
            chain_pem: self.inner.certified.cert.iter().map(|c| pem(c)).collect(),
        }
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.inner.certified)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("spiffe_id", self.spiffe_id())
            .field("serial", &self.inner.leaf.serial)
            .field("not_after", &self.not_after())
            .finish_non_exhaustive()
    }
}

/// One certificate as PEM (RFC 7468).
pub(crate) fn pem(der: &[u8]) -> String {
    const LINE: usize = 64;
    let base64 = base64(der);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for (n, c) in base64.chars().enumerate() {
        if n > 0 && n % LINE == 0 {
            text.push('\n');
        }
        text.push(c);
    }
    text.push_str("\n-----END CERTIFICATE-----\n");
    text
}

/// Encodes as RFC 4648 base64. It is written out because this is its only use here.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            if n > chunk.len() {
                text.push('=');
            } else {
                let six = (group >> (18 - 6 * n)) as usize & 63;
                text.push(ALPHABET.get(six).map_or('=', |b| char::from(*b)));
            }
        }
    }
    text
}
