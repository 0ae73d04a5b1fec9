//! Requests a certificate: the key is created here and leaves only for the identity cache.

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;
use tulle_model::identity::SpiffeId;

use crate::bundle::{BundleError, TrustBundle};
use crate::identity::{Identity, IdentityError};

/// A new key and the request to certify it.
pub struct SigningRequest {
    /// PKCS#10, DER.
    pub csr_der: Vec<u8>,
    key: KeyPair,
}

/// A certified identity, its trust bundle, and the text that lets both survive a restart.
pub struct Enrolled {
    /// The identity.
    pub identity: Identity,
    /// Roots that peers are verified against.
    pub bundle: TrustBundle,
    cache: String,
}

impl fmt::Debug for Enrolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enrolled")
            .field("id", self.identity.spiffe_id())
            .finish_non_exhaustive()
    }
}

/// Why no key or request could be made.
#[derive(Debug)]
pub struct KeyError(rcgen::Error);

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot make a key and signing request: {}", self.0)
    }
}

impl std::error::Error for KeyError {}

impl SigningRequest {
    /// Creates an ECDSA P-256 key and a request for `id`. The controller decides the id by the
    /// caller, not by the request.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn new(id: &SpiffeId) -> Result<Self, KeyError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(KeyError)?;
        let mut params = CertificateParams::default();
        let uri = id.as_str().to_owned().try_into().map_err(KeyError)?;
        params.subject_alt_names.push(SanType::URI(uri));
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(KeyError)?;
        Ok(Self {
            csr_der: request.der().to_vec(),
            key,
        })
    }

    /// Joins the answer to the key.
    ///
    /// # Errors
    /// The answer does not fit the key, or is not a workload's certificate.
    pub fn complete(
        self,
        chain_der: Vec<Vec<u8>>,
        bundle_der: Vec<Vec<u8>>,
    ) -> Result<Enrolled, IdentityError> {
        let mut cache = self.key.serialize_pem();
        cache.push_str(CHAIN);
        for der in &chain_der {
            cache.push_str(&crate::identity::pem(der));
        }
        cache.push_str(BUNDLE);
        for der in &bundle_der {
            cache.push_str(&crate::identity::pem(der));
        }
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let chain = chain_der.into_iter().map(CertificateDer::from).collect();
        let identity = Identity::from_der(chain, key)?;
        let roots = bundle_der.into_iter().map(CertificateDer::from).collect();
        let bundle =
            TrustBundle::from_der(roots).map_err(|e| IdentityError::Chain(e.to_string()))?;
        Ok(Enrolled {
            identity,
            bundle,
            cache,
        })
    }
}

const CHAIN: &str = "\n# chain\n";
const BUNDLE: &str = "\n# trust bundle\n";

impl Enrolled {
    /// Returns the same identity with other roots.
    ///
    /// # Errors
    /// One of them cannot be a root.
    pub fn with_bundle(&self, bundle_der: Vec<Vec<u8>>) -> Result<Self, BundleError> {
        let [key, chain, _] = self.to_pem();
        let mut cache = [key, CHAIN, chain, BUNDLE].concat();
        for der in &bundle_der {
            cache.push_str(&crate::identity::pem(der));
        }
        let roots = bundle_der.into_iter().map(CertificateDer::from).collect();
        Ok(Self {
            identity: self.identity.clone(),
            bundle: TrustBundle::from_der(roots)?,
            cache,
        })
    }

    /// Returns the SHA-256, hexadecimal, of the bundle's root that issued the certificate; `None`
    /// if none of them did.
    #[must_use]
    pub fn own_root(&self) -> Option<&str> {
        self.bundle.root_of(&self.identity)
    }

    /// Key, chain and trust bundle as PEM: for the identity cache and nothing else.
    #[must_use]
    pub fn to_cache(&self) -> &str {
        &self.cache
    }

    /// Key, chain and trust bundle as PEM, for a program that makes its own handshakes.
    #[must_use]
    pub fn to_pem(&self) -> [&str; 3] {
        // The text is from `to_cache`, or was checked by `from_cache`.
        let (key, rest) = self.cache.split_once(CHAIN).unwrap_or_default();
        let (chain, bundle) = rest.split_once(BUNDLE).unwrap_or_default();
        [key, chain, bundle]
    }

    /// Reads the text of `to_cache`.
    ///
    /// # Errors
    /// The text was not written by `to_cache`, or was cut.
    pub fn from_cache(text: &str) -> Result<Self, IdentityError> {
        let cut = || IdentityError::Chain("the identity cache is cut short".into());
        let (key, rest) = text.split_once(CHAIN).ok_or_else(cut)?;
        let (chain, bundle) = rest.split_once(BUNDLE).ok_or_else(cut)?;
        PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|e| IdentityError::Key(e.to_string()))?;
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes())?;
        let bundle = TrustBundle::from_pem(bundle.as_bytes())
            .map_err(|e| IdentityError::Chain(e.to_string()))?;
        Ok(Self {
            identity,
            bundle,
            cache: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCa;

    #[test]
    fn the_cache_brings_the_identity_back() {
        let ca = TestCa::new("test");
        let id = SpiffeId::parse("spiffe://tulle.local/svc/a").unwrap();
        let request = SigningRequest::new(&id).unwrap();
        let leaf = ca.sign(&request.csr_der, &id);
        let enrolled = request
            .complete(vec![leaf], vec![ca.der().to_vec()])
            .unwrap();
        let again = Enrolled::from_cache(enrolled.to_cache()).unwrap();
        assert_eq!(again.identity.spiffe_id(), &id);
        assert!(!format!("{enrolled:?}").contains("KEY"));
        let cut = enrolled.to_cache().len() / 2;
        assert!(Enrolled::from_cache(&enrolled.to_cache()[..cut]).is_err());
    }
}
