//! Decides whether a peer's certificate is a workload of our trust domain.
//!
//! webpki checks the chain: signatures, validity and that every issuer is an authority. This module
//! adds the SPIFFE rules that webpki does not know, and is stricter where webpki is lenient.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Revoked;

use crate::chains::Chains;
use crate::error::{HandshakeError, MAX_CHAIN, MAX_CHAIN_BYTES};
use crate::leaf::{Leaf, Usage};
use crate::{host_authority, host_chain};

/// Checks common to both sides.
#[derive(Debug)]
struct Rules {
    trust_domain: String,
    algorithms: WebPkiSupportedAlgorithms,
    usage: Usage,
    chains: Arc<Chains>,
}

impl Rules {
    fn new(
        trust_domain: &str,
        provider: &CryptoProvider,
        usage: Usage,
        chains: Arc<Chains>,
    ) -> Self {
        Self {
            trust_domain: trust_domain.to_owned(),
            algorithms: provider.signature_verification_algorithms,
            usage,
            chains,
        }
    }

    /// Returns the peer's certificate if it and its chain are valid: by `check_chain`, or because
    /// this very chain was verified under this context before and is valid now.
    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
        roots: &RootCertStore,
        check_chain: impl FnOnce() -> Result<(), TlsError>,
    ) -> Result<Arc<Leaf>, TlsError> {
        Self::check_size(leaf, others).map_err(HandshakeError::into_tls)?;
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(now.as_secs()));
        if let Some(found) = time.and_then(|now| self.chains.find(leaf, others, now)) {
            return Ok(found);
        }
        let signed_by_host = host_authority::is_in(others);
        if signed_by_host {
            let checked = host_chain::check(leaf, others, roots, &self.algorithms, now);
            checked.map_err(chain_error)?;
        } else {
            check_chain().map_err(chain_error)?;
        }
        let read = self.check_leaf(leaf, others);
        let read = Arc::new(read.map_err(HandshakeError::into_tls)?);
        self.chains.keep(leaf, others, Arc::clone(&read));
        Ok(read)
    }

    fn check_size(
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
    ) -> Result<(), HandshakeError> {
        let certificates = others.len().saturating_add(1);
        let bytes = others
            .iter()
            .fold(leaf.len(), |sum, c| sum.saturating_add(c.len()));
        if certificates > MAX_CHAIN || bytes > MAX_CHAIN_BYTES {
            return Err(HandshakeError::ChainTooLarge {
                certificates,
                bytes,
            });
        }
        Ok(())
    }

    /// Checks the SPIFFE rules, once the chain is verified.
    fn check_leaf(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
    ) -> Result<Leaf, HandshakeError> {
        let leaf = Leaf::parse_chain(leaf, others, &[self.usage])?;
        check_trust_domain(&self.trust_domain, &leaf.id)?;
        Ok(leaf)
    }
}

fn check_trust_domain(ours: &str, presented: &SpiffeId) -> Result<(), HandshakeError> {
    if presented.trust_domain() == ours {
        return Ok(());
    }
    Err(HandshakeError::WrongTrustDomain {
        ours: ours.to_owned(),
        presented: presented.clone(),
    })
}

/// Checks that the server is an expected one, byte for byte.
pub(crate) fn check_expected(
    expected: &Arc<[SpiffeId]>,
    presented: &SpiffeId,
) -> Result<(), HandshakeError> {
    if expected.contains(presented) {
        return Ok(());
    }
    Err(HandshakeError::WrongIdentity {
        expected: Arc::clone(expected),
        presented: presented.clone(),
    })
}

/// Demands of a client on a server: our trust domain, and one of the expected ids.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    rules: Rules,
    roots: Arc<RootCertStore>,
    expected: Arc<[SpiffeId]>,
}

impl ServerVerifier {
    pub(crate) fn new(
        trust_domain: &str,
        provider: &CryptoProvider,
        roots: Arc<RootCertStore>,
        chains: Arc<Chains>,
        expected: Arc<[SpiffeId]>,
    ) -> Self {
        Self {
            rules: Rules::new(trust_domain, provider, Usage::Server, chains),
            roots,
            expected,
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    // The server name is a constant of ours: only the SPIFFE id counts.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let roots = &self.roots;
        let leaf = self
            .rules
            .check(end_entity, intermediates, now, roots, || {
                let certificate = ParsedCertificate::try_from(end_entity)?;
                verify_server_cert_signed_by_trust_anchor(
                    &certificate,
                    &self.roots,
                    intermediates,
                    now,
                    self.rules.algorithms.all,
                )
            })?;
        check_expected(&self.expected, &leaf.id).map_err(HandshakeError::into_tls)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, cert, dss, &self.rules.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.rules.algorithms.supported_schemes()
    }
}

/// Demands of a server on a client: a workload of our trust domain. Authorization is decided
/// elsewhere.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    rules: Rules,
    roots: Arc<RootCertStore>,
    chain: Arc<dyn ClientCertVerifier>,
}

impl ClientVerifier {
    pub(crate) fn new(
        trust_domain: &str,
        provider: &Arc<CryptoProvider>,
        roots: Arc<RootCertStore>,
        chains: Arc<Chains>,
    ) -> Result<Self, VerifierBuilderError> {
        let chain =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider));
        let chain = chain.build()?;
        Ok(Self {
            roots,
            rules: Rules::new(trust_domain, provider, Usage::Client, chains),
            chain,
        })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        true
    }

    // A workload has only one certificate to offer, so hints would only add bytes.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        let roots = &self.roots;
        self.rules
            .check(end_entity, intermediates, now, roots, || {
                self.chain
                    .verify_client_cert(end_entity, intermediates, now)
                    .map(drop)
            })?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, cert, dss, &self.rules.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.rules.algorithms.supported_schemes()
    }
}

/// Checks a resumed session again: its certificate was verified when its ticket was issued, and may
/// have expired since. Checks for all sessions that the certificate is not revoked.
pub(crate) fn check_again(
    certificates: Option<&[CertificateDer<'_>]>,
    usage: Usage,
    chains: &Chains,
    trust_domain: &str,
    expected: Option<&Arc<[SpiffeId]>>,
    revoked: &Revoked,
    now: SystemTime,
) -> Result<Arc<Leaf>, HandshakeError> {
    let (first, others) = certificates
        .and_then(<[_]>::split_first)
        .ok_or(HandshakeError::NoCertificate)?;
    // The certificate need not be read again: the chains are those of this usage.
    let leaf = match chains.leaf(first, others) {
        Some(leaf) => leaf,
        None => Arc::new(Leaf::parse_chain(first, others, &[usage])?),
    };
    check_trust_domain(trust_domain, &leaf.id)?;
    if let Some(expected) = expected {
        check_expected(expected, &leaf.id)?;
    }
    leaf.check_validity(now)?;
    if leaf.is_revoked(revoked) {
        return Err(HandshakeError::Revoked {
            presented: leaf.id.clone(),
            serial: leaf.serial.clone(),
        });
    }
    Ok(leaf)
}

/// Explains a wrong signature in a chain: almost always another authority has the same name, a root
/// that was created anew. The operator then looks for an unknown issuer.
fn chain_error(error: TlsError) -> TlsError {
    match error {
        TlsError::InvalidCertificate(CertificateError::BadSignature) => {
            CertificateError::UnknownIssuer.into()
        }
        other => other,
    }
}

fn only_tls13() -> TlsError {
    TlsError::General("TLS 1.2 is never offered, so never verified".into())
}
