//! One identity and one trust bundle, prepared for handshakes.
//!
//! A context never changes, except for revocations. When the identity is renewed or the trust
//! bundle changes, a new context replaces it. Connections keep the context they began with, and new
//! handshakes use the new one. Tickets and stored sessions belong to a context, so nothing resumes
//! across the change.

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, cipher_suite, default_provider, kx_group};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError};
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error as TlsError, ServerConfig};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Revoked;

use crate::bundle::TrustBundle;
use crate::chains::Chains;
use crate::identity::Identity;
use crate::leaf::Usage;
use crate::revocations::Revocations;
use crate::verify::{ClientVerifier, ServerVerifier};

/// Most client configurations kept; past it all are forgotten, which costs only resumption.
const MAX_CLIENT_CONFIGS: usize = 1024;
/// Sessions kept per expected peer.
const SESSIONS_PER_PEER: usize = 8;
/// Tickets a server sends per handshake. Each returns the one it used, so a client keeps as many as
/// it has connections. A second would double the cost for nothing.
const TICKETS: usize = 1;

/// The protocol inside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// Between sidecars: many streams in one connection.
    Tulle1,
    /// HTTP/2, with peers that do not know `tulle/1`.
    Http2,
    /// Plain HTTP/1.1.
    Http11,
    /// No protocol was agreed: bytes of any protocol.
    None,
}

impl Alpn {
    /// Returns the name on the wire; empty for none.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Tulle1 => b"tulle/1",
            Self::Http2 => b"h2",
            Self::Http11 => b"http/1.1",
            Self::None => b"",
        }
    }

    pub(crate) fn from_name(name: Option<&[u8]>) -> Self {
        match name {
            Some(b"tulle/1") => Self::Tulle1,
            Some(b"h2") => Self::Http2,
            Some(b"http/1.1") => Self::Http11,
            _ => Self::None,
        }
    }
}

fn names(offer: &[Alpn]) -> Vec<Vec<u8>> {
    offer
        .iter()
        .filter(|a| **a != Alpn::None)
        .map(|a| a.name().to_vec())
        .collect()
}

/// Why an identity and a bundle make no context.
#[derive(Debug)]
pub enum ContextError {
    /// The trust bundle is refused by the chain check.
    Bundle(VerifierBuilderError),
    /// TLS refuses the set-up.
    Tls(TlsError),
}

impl fmt::Display for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bundle(why) => write!(
                f,
                "the trust bundle cannot be used to verify peers: {why}; check its certificates"
            ),
            Self::Tls(why) => write!(
                f,
                "TLS cannot be set up: {why}; this is a fault of the build or of the random source"
            ),
        }
    }
}

impl std::error::Error for ContextError {}

/// Client and server set-up for one identity and one trust bundle. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    epoch: u64,
    identity: Identity,
    bundle: TrustBundle,
    revocations: Revocations,
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn TimeProvider>,
    server: Arc<ServerConfig>,
    credentials: Arc<SingleCertAndKey>,
    /// Chains of clients, and of servers: a certificate may be valid for one end only.
    client_chains: Arc<Chains>,
    server_chains: Arc<Chains>,
    clients: Mutex<HashMap<ClientKey, Arc<ClientConfig>>>,
}

/// Key of stored sessions: a session with one set of ids is never offered to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey {
    pub(crate) expected: Arc<[SpiffeId]>,
    pub(crate) offer: Box<[Alpn]>,
}

impl Context {
    /// Prepares an identity and a bundle. Takes well under a millisecond.
    ///
    /// # Errors
    /// The bundle or the key cannot be used.
    pub fn new(identity: &Identity, bundle: &TrustBundle) -> Result<Self, ContextError> {
        Self::with_revocations(identity, bundle, &Revocations::default())
    }

    /// Prepares as [`Self::new`], and refuses certificates that are revoked at the time of a
    /// handshake.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_revocations(
        identity: &Identity,
        bundle: &TrustBundle,
        revocations: &Revocations,
    ) -> Result<Self, ContextError> {
        let clock = Arc::new(DefaultTimeProvider);
        Self::with_clock(identity, bundle, revocations, clock)
    }

    /// Prepares as [`Self::new`], with a test's clock.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(any(test, feature = "testing"))]
    pub fn with_test_clock(
        identity: &Identity,
        bundle: &TrustBundle,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, ContextError> {
        Self::with_clock(identity, bundle, &Revocations::default(), clock)
    }

    fn with_clock(
        identity: &Identity,
        bundle: &TrustBundle,
        revocations: &Revocations,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, ContextError> {
        static EPOCHS: AtomicU64 = AtomicU64::new(1);
        let provider = Arc::new(provider());
        let credentials = Arc::new(SingleCertAndKey::from(identity.certified()));
        let client_chains = Arc::<Chains>::default();
        let verifier = ClientVerifier::new(
            identity.spiffe_id().trust_domain(),
            &provider,
            bundle.store(),
            Arc::clone(&client_chains),
        )
        .map_err(ContextError::Bundle)?;
        let server = server_config(verifier, &provider, &clock, Arc::clone(&credentials))
            .map_err(ContextError::Tls)?;
        Ok(Self {
            inner: Arc::new(Inner {
                epoch: EPOCHS.fetch_add(1, Ordering::Relaxed),
                identity: identity.clone(),
                bundle: bundle.clone(),
                revocations: revocations.clone(),
                provider,
                clock,
                server: Arc::new(server),
                credentials,
                client_chains,
                server_chains: Arc::default(),
                clients: Mutex::default(),
            }),
        })
    }

    /// A number that no other context of this process has, larger than all earlier ones.
    pub fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    /// The identity it was made of.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// The trust bundle it was made of.
    pub fn bundle(&self) -> &TrustBundle {
        &self.inner.bundle
    }

    /// Returns the certificates that are refused now although they are valid.
    pub(crate) fn revoked(&self) -> Arc<Revoked> {
        self.inner.revocations.get()
    }

    pub(crate) fn trust_domain(&self) -> &str {
        self.inner.identity.spiffe_id().trust_domain()
    }

    /// Returns the peers' chains verified for this usage.
    pub(crate) fn chains(&self, usage: Usage) -> &Chains {
        match usage {
            Usage::Client => &self.inner.client_chains,
            Usage::Server => &self.inner.server_chains,
        }
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.inner
            .clock
            .current_time()
            .and_then(|t| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(t.as_secs())))
            .unwrap_or_else(SystemTime::now)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.inner.server)
    }

    /// Returns the configuration for these peers; always the same one, since rustls resumes only
    /// then.
    pub(crate) fn client(&self, key: &ClientKey) -> Result<Arc<ClientConfig>, TlsError> {
        let mut clients = self.clients();
        if let Some(config) = clients.get(key) {
            return Ok(Arc::clone(config));
        }
        if clients.len() >= MAX_CLIENT_CONFIGS {
            clients.clear();
        }
        let config = Arc::new(self.inner.client_config(key)?);
        clients.insert(key.clone(), Arc::clone(&config));
        Ok(config)
    }

    /// Forgets the sessions with these peers, so that the next handshake is a full one.
    pub(crate) fn forget(&self, key: &ClientKey) {
        self.clients().remove(key);
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, HashMap<ClientKey, Arc<ClientConfig>>> {
        // The map is whole even if a holder panicked: entries are only added or removed.
        self.inner
            .clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("epoch", &self.inner.epoch)
            .field("identity", &self.inner.identity)
            .field("bundle", &self.inner.bundle)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn client_config(&self, key: &ClientKey) -> Result<ClientConfig, TlsError> {
        let verifier = ServerVerifier::new(
            self.identity.spiffe_id().trust_domain(),
            &self.provider,
            self.bundle.store(),
            Arc::clone(&self.server_chains),
            Arc::clone(&key.expected),
        );
        let mut config =
            ClientConfig::builder_with_details(Arc::clone(&self.provider), Arc::clone(&self.clock))
                .with_protocol_versions(&[&TLS13])?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
                .with_client_cert_resolver(Arc::clone(&self.credentials) as _);
        config.alpn_protocols = names(&key.offer);
        config.enable_sni = false;
        config.enable_secret_extraction = true;
        config.resumption = Resumption::in_memory_sessions(SESSIONS_PER_PEER);
        Ok(config)
    }
}

fn server_config(
    verifier: ClientVerifier,
    provider: &Arc<CryptoProvider>,
    clock: &Arc<dyn TimeProvider>,
    credentials: Arc<SingleCertAndKey>,
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_details(Arc::clone(provider), Arc::clone(clock))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(credentials);
    config.alpn_protocols = names(&[Alpn::Tulle1, Alpn::Http2, Alpn::Http11]);
    config.enable_secret_extraction = true;
    // Many clients name AES-256 with SHA-384 first. Processors have instructions for SHA-256, but
    // not for SHA-384, which took a sixth of a handshake; AES-128 is as strong as P-256 and X25519.
    // Without instructions for AES the client's order is best.
    config.ignore_client_order = has_aes_instructions();
    config.ticketer = Ticketer::new()?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = TICKETS;
    Ok(config)
}

/// TLS 1.3 only: AES first where the processor has instructions for it.
///
/// The hybrid with ML-KEM comes first: it keeps recorded traffic secret from a later quantum
/// computer, and costs little beside the signatures of the handshake.
pub(crate) fn provider() -> CryptoProvider {
    let aes = [
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    let chacha = cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
    let cipher_suites = if has_aes_instructions() {
        vec![aes[0], aes[1], chacha]
    } else {
        vec![chacha, aes[0], aes[1]]
    };
    CryptoProvider {
        cipher_suites,
        kx_groups: vec![
            kx_group::X25519MLKEM768,
            kx_group::X25519,
            kx_group::SECP256R1,
        ],
        ..default_provider()
    }
}

fn has_aes_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("aes")
    }
    #[cfg(target_arch = "aarch64")]
    {
        std::arch::is_aarch64_feature_detected!("aes")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        false
    }
}
