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

use crate::bundle::{TrustBundle, fingerprint};
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
    /// One of these anchors matches.
    Any(Vec<Anchor>),
}

impl Anchor {
    /// Returns sets of roots, of which one has to match the chain.
    fn roots(&self, chain: &[CertificateDer<'_>]) -> Result<Vec<Arc<RootCertStore>>, TlsError> {
        Ok(match self {
            Self::Bundle(bundle) => vec![bundle.store()],
            Self::Fingerprint(wanted) => {
                let Some(root) = chain.iter().find(|c| fingerprint(c) == *wanted) else {
                    return Ok(Vec::new());
                };
                let mut roots = RootCertStore::empty();
                roots.add(root.clone().into_owned())?;
                vec![Arc::new(roots)]
            }
            Self::Any(anchors) => {
                let found = anchors.iter().map(|anchor| anchor.roots(chain));
                found.collect::<Result<Vec<_>, _>>()?.concat()
            }
        })
    }
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
