//! TLS to the controller.
//!
//! Its root certificate may be known by fingerprint, so that a new proxy or host needs only a join
//! token and the fingerprint. The controller then presents its root together with its own
//! certificate, and only a chain that ends in that root is accepted. In a cluster the roots are
//! known beforehand. Either way only the controller's id is accepted.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;
use tulle_model::identity::{SpiffeId, TrustDomain};

use crate::bundle::{BundleError, TrustBundle, fingerprint};
use crate::context::provider;
use crate::identity::Identity;
use crate::verify::ServerVerifier;

/// The controller's identity in a trust domain.
#[must_use]
pub fn controller_id(trust_domain: &TrustDomain) -> SpiffeId {
    // A trust domain that was parsed and a fixed path always make a valid id.
    SpiffeId::parse(&format!("spiffe://{trust_domain}/controller"))
        .unwrap_or_else(|_| unreachable!("the path is valid"))
}

/// Trust in the controller's root.
#[derive(Debug, Clone)]
pub enum Anchor {
    /// SHA-256 of its DER, lower-case hex.
    Fingerprint(String),
    /// Its root is one of these.
    Bundle(TrustBundle),
    /// Its root is one of those that were told, or has this fingerprint and is younger than all of them: a root that was
    /// replaced is older than its successor, and is still named by the fingerprint that came first.
    Successor {
        /// The roots that were told last.
        told: TrustBundle,
        /// SHA-256 of a root's DER, lower-case hex.
        fingerprint: String,
    },
    /// One of these anchors matches.
    Any(Vec<Anchor>),
}

impl Anchor {
    /// Returns sets of roots, of which one has to match the chain.
    fn roots(&self, chain: &[CertificateDer<'_>]) -> Result<Vec<Arc<RootCertStore>>, TlsError> {
        Ok(match self {
            Self::Bundle(bundle) => vec![bundle.store()],
            Self::Fingerprint(wanted) => {
                let named = named(chain, wanted)?;
                named.iter().map(TrustBundle::store).collect()
            }
            Self::Successor { told, fingerprint } => {
                let newest = told.roots().iter().map(|root| root.not_before).max();
                let is_newer = |named: &TrustBundle| {
                    let mut roots = named.roots().iter();
                    roots.all(|root| Some(root.not_before) > newest)
                };
                let named = named(chain, fingerprint)?.filter(is_newer);
                [Some(told.store()), named.map(|named| named.store())]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Self::Any(anchors) => {
                let found = anchors.iter().map(|anchor| anchor.roots(chain));
                found.collect::<Result<Vec<_>, _>>()?.concat()
            }
        })
    }
}

/// The root with this fingerprint, if it is in a chain.
fn named(chain: &[CertificateDer<'_>], wanted: &str) -> Result<Option<TrustBundle>, TlsError> {
    let Some(root) = chain.iter().find(|c| fingerprint(c) == wanted) else {
        return Ok(None);
    };
    let bundle = TrustBundle::from_der(vec![root.clone().into_owned()]);
    let refused = |e: BundleError| TlsError::General(e.to_string());
    bundle.map(Some).map_err(refused)
}

/// Returns a client configuration for gRPC (`h2`) to the controller, with or without a certificate
/// of our own.
///
/// # Errors
/// rustls refuses the versions or the certificate.
pub fn client_config(
    anchor: Anchor,
    trust_domain: &TrustDomain,
    identity: Option<&Identity>,
) -> Result<ClientConfig, TlsError> {
    let verifier = Pinned {
        anchor,
        trust_domain: trust_domain.clone(),
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(
            rustls::sign::SingleCertAndKey::from(identity.certified()),
        )),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

#[derive(Debug)]
struct Pinned {
    anchor: Anchor,
    trust_domain: TrustDomain,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let mut verified = Err(TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer,
        ));
        let expected: Arc<[SpiffeId]> = [controller_id(&self.trust_domain)].into();
        let domain = self.trust_domain.as_str();
        for roots in self.anchor.roots(intermediates)? {
            // Connections to the controller are few: its chain is checked for each.
            let chains = Arc::default();
            let verifier =
                ServerVerifier::new(domain, &provider(), roots, chains, Arc::clone(&expected));
            verified = verifier.verify_server_cert(end_entity, intermediates, name, ocsp, now);
            if verified.is_ok() {
                break;
            }
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::General("only TLS 1.3 is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCa;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_root_that_is_named_counts_beside_others_if_it_is_their_successor() {
        let age = |days: u64| SystemTime::now() - Duration::from_secs(days * 24 * 3600);
        let [first, second, third] = [("first", 3), ("second", 2), ("third", 1)]
            .map(|(name, days)| TestCa::since(name, age(days)));
        let told = TrustBundle::from_der(vec![first.der().clone(), second.der().clone()]).unwrap();
        for (root, is_admitted) in [(&first, false), (&second, false), (&third, true)] {
            let fingerprint = fingerprint(root.der());
            let alone = Anchor::Fingerprint(fingerprint.clone());
            let anchor = Anchor::Successor {
                told: told.clone(),
                fingerprint,
            };
            let chain = [root.der().clone()];
            // Beside the store of those that were told.
            assert_eq!(
                anchor.roots(&chain).unwrap().len(),
                1 + usize::from(is_admitted)
            );
            assert_eq!(anchor.roots(&[]).unwrap().len(), 1);
            assert_eq!(alone.roots(&chain).unwrap().len(), 1);
            assert!(alone.roots(&[]).unwrap().is_empty());
        }
    }
}
