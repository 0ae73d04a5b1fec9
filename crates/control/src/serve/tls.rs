//! TLS 1.3 for the controller's port: its own certificate, and optional ones of its clients.
//!
//! A client without a certificate may come in, because it has to get one; what it may do is decided
//! by request. A certificate that is given must be right, or the handshake fails.

use crate::ca::{Authority, Trusted};
use crate::state::MeshState;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore, ServerConfig,
    SignatureScheme, version,
};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio_rustls::TlsAcceptor;
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_tls::{host_authority, host_chain};

/// The controller's own certificate. It renews itself, so the Mesh's lifetime does not matter here.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Accepts TLS connections. It stays in use as long as the roots are the same.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) tls: TlsAcceptor,
    authority: Arc<Authority>,
}

impl Acceptor {
    pub(crate) fn new(state: &Arc<MeshState>) -> Result<Self, String> {
        let authority = state.authority();
        let config = server_config(state, &authority)?;
        Ok(Self {
            tls: TlsAcceptor::from(Arc::new(config)),
            authority,
        })
    }

    /// Replaces the acceptor when the roots have changed.
    pub(crate) fn renew(&mut self, state: &Arc<MeshState>) {
        if Arc::ptr_eq(&self.authority, &state.authority()) {
            return;
        }
        match Self::new(state) {
            Ok(new) => *self = new,
            Err(error) => tracing::error!(error, "the new roots are not usable for connections"),
        }
    }

    /// SHA-256 of the root that a chain comes from, which was verified before.
    pub(crate) fn root_of(&self, chain: &[CertificateDer<'_>]) -> Option<Arc<str>> {
        let (leaf, intermediates) = chain.split_first()?;
        let verified = |trusted: &&Trusted| {
            // With one root, that root has verified it.
            self.authority.peers().len() == 1
                || verifier([&trusted.certificate]).is_ok_and(|v| {
                    let now = UnixTime::now();
                    v.verify_client_cert(leaf, intermediates, now).is_ok()
                })
        };
        let root = self.authority.peers().iter().find(verified);
        root.map(|t| t.fingerprint.clone())
    }
}

fn verifier<'a>(
    roots: impl IntoIterator<Item = &'a CertificateDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone()).map_err(|e| e.to_string())?;
    }
    let roots = Arc::new(store);
    let algorithms = provider.signature_verification_algorithms;
    let chain = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider)
        .allow_unauthenticated()
        .build()
        .map_err(|e| e.to_string())?;
    Ok(Arc::new(MemberVerifier {
        chain,
        roots,
        algorithms,
    }))
}

/// The check of clients' chains: by webpki, or, where a host's authority has signed, by its own rules.
/// Then the client can only be one of that host's workloads.
#[derive(Debug)]
struct MemberVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for MemberVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        if host_authority::is_in(others) {
            host_chain::check(leaf, others, &self.roots, &self.algorithms, now)?;
            return Ok(ClientCertVerified::assertion());
        }
        self.chain.verify_client_cert(leaf, others, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.chain
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.chain
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

fn server_config(
    state: &Arc<MeshState>,
    authority: &Arc<Authority>,
) -> Result<ServerConfig, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let peers = authority.peers();
    let verifier = match peers.is_empty() {
        // The handshake tells a client with a certificate that it is not asked for one; the client
        // comes again.
        true => WebPkiClientVerifier::no_client_auth(),
        false => verifier(peers.iter().map(|t| &t.certificate))?,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|e| e.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(OwnCertificate {
            state: state.clone(),
            authority: authority.clone(),
            present: Mutex::new(None),
        }));
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A resumed session would keep the client's identity past its certificate; connections here
    // are few and long.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Makes the controller's certificate when it is first needed, again after two thirds of its life, and when the
/// clock has been set back, so nothing has to run in between.
struct OwnCertificate {
    state: Arc<MeshState>,
    authority: Arc<Authority>,
    present: Mutex<Option<Present>>,
}

struct Present {
    key: Arc<CertifiedKey>,
    /// From when it was made until it is renewed. A clock that shows less was set back: the certificate may not be
    /// valid yet.
    in_use: Range<SystemTime>,
    trust_domain: TrustDomain,
}

impl Present {
    fn is_good(&self, trust_domain: &TrustDomain, now: SystemTime) -> bool {
        self.in_use.contains(&now) && self.trust_domain == *trust_domain
    }
}

impl OwnCertificate {
    fn make(&self, trust_domain: TrustDomain, now: SystemTime) -> Result<Present, String> {
        let id = SpiffeId::parse(&format!("spiffe://{trust_domain}/controller"));
        let id = id.map_err(|e| e.to_string())?;
        let authority = &self.authority;
        let issued = authority.issue_with_key(&id, LIFETIME, now);
        let (issued, key) = issued.map_err(|e| e.to_string())?;
        let key = aws_lc_rs::sign::any_ecdsa_type(&PrivateKeyDer::from(key));
        // The root is part of the chain: a joining host knows only its fingerprint.
        let chain = vec![issued.certificate, authority.root().clone()];
        Ok(Present {
            key: Arc::new(CertifiedKey::new(chain, key.map_err(|e| e.to_string())?)),
            in_use: now..now + LIFETIME * 2 / 3,
            trust_domain,
        })
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let trust_domain = self.state.trust_domain();
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        // The time is read under the lock: no other thread has made a certificate since.
        let now = SystemTime::now();
        let good = |p: &&Present| p.is_good(&trust_domain, now);
        if let Some(present) = present.as_ref().filter(good) {
            return Some(present.key.clone());
        }
        match self.make(trust_domain, now) {
            Ok(made) => {
                let key = made.key.clone();
                *present = Some(made);
                Some(key)
            }
            Err(error) => {
                tracing::error!(error, "the controller has no certificate of its own");
                None
            }
        }
    }
}

impl std::fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnCertificate").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    #[test]
    fn a_certificate_of_a_clock_that_was_ahead_is_made_anew() {
        let store = Arc::new(Memory::new());
        let authority = Authority::open(&*store).unwrap();
        let state = Arc::new(MeshState::load(store, authority).unwrap());
        let own = OwnCertificate {
            authority: state.authority(),
            state: state.clone(),
            present: Mutex::default(),
        };
        let (now, trust_domain) = (SystemTime::now(), state.trust_domain());
        let ahead = now + Duration::from_secs(3600);
        let made = own.make(trust_domain.clone(), ahead).unwrap();
        assert!(made.is_good(&trust_domain, ahead));
        assert!(!made.is_good(&trust_domain, now), "it is not valid yet");
        assert!(!made.is_good(&trust_domain, ahead + LIFETIME * 2 / 3));
    }
}
