//! The client's end: a server outside the mesh.

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};

use super::OutsideError;
use super::roots::Roots;

/// Files where systems keep the roots that all programs trust, in the order tried.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Servers whose sessions are kept.
const SESSIONS: usize = 64;

/// Client set-up for servers outside the mesh.
pub struct OutsideClient {
    /// `None`: the system's roots, read when first needed.
    roots: Option<Roots>,
    /// Configurations by [`Inside`].
    configs: [OnceLock<Arc<ClientConfig>>; 3],
}

/// The protocol inside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// Bytes of any protocol.
    Opaque,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, or HTTP/1.1 if the server does not speak it.
    Http2,
}

impl OutsideClient {
    /// Prepares for servers whose certificates lead to one of these roots (PEM); empty: to one of
    /// the system's.
    ///
    /// # Errors
    /// The roots cannot be used.
    pub fn new(roots: &str) -> Result<Self, OutsideError> {
        let roots = match roots {
            "" => None,
            pem => Some(Roots::from_pem(pem)?),
        };
        let client = Self {
            roots,
            configs: Default::default(),
        };
        if client.roots.is_some() {
            // This refuses unusable lists before they are needed.
            client.verifier(&Arc::new(default_provider()))?;
        }
        Ok(client)
    }

    /// Returns the configuration for a handshake.
    ///
    /// # Errors
    /// The system's roots cannot be read.
    pub fn config(&self, inside: Inside) -> Result<Arc<ClientConfig>, OutsideError> {
        let [opaque, http1, http2] = &self.configs;
        let (known, alpn): (_, &[&[u8]]) = match inside {
            Inside::Opaque => (opaque, &[]),
            Inside::Http1 => (http1, &[b"http/1.1"]),
            Inside::Http2 => (http2, &[b"h2", b"http/1.1"]),
        };
        if let Some(config) = known.get() {
            return Ok(Arc::clone(config));
        }
        let provider = Arc::new(default_provider());
        let verifier = self.verifier(&provider)?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_webpki_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        Ok(Arc::clone(known.get_or_init(|| Arc::new(config))))
    }

    fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<WebPkiServerVerifier>, OutsideError> {
        let (store, lists) = match &self.roots {
            Some(roots) => (Arc::clone(&roots.store), roots.lists.clone()),
            None => (system_roots()?, Vec::new()),
        };
        WebPkiServerVerifier::builder_with_provider(store, Arc::clone(provider))
            .with_crls(lists)
            .allow_unknown_revocation_status()
            .enforce_revocation_expiration()
            .build()
            .map_err(|e| OutsideError::Tls(e.to_string()))
    }

    /// Parses a host name or IP address for TLS.
    ///
    /// # Errors
    /// It is neither.
    pub fn server_name(host: &str) -> Result<ServerName<'static>, OutsideError> {
        let bare = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        ServerName::try_from(bare.to_owned()).map_err(|_| OutsideError::ServerName(host.to_owned()))
    }
}

/// Reads the system's roots once: programs that use them are restarted after a change.
fn system_roots() -> Result<Arc<RootCertStore>, OutsideError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(Arc::clone(roots));
    }
    let Some(pem) = SYSTEM_ROOTS.iter().find_map(|p| std::fs::read(p).ok()) else {
        return Err(OutsideError::Tls(format!(
            "the system's roots are not at {}; install ca-certificates, or give the rule's roots",
            SYSTEM_ROOTS.join(" or ")
        )));
    };
    let mut roots = RootCertStore::empty();
    // Systems have a few irregular certificates; the others are used.
    let (added, _) =
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
    if added == 0 {
        return Err(OutsideError::Tls(
            "the system's file of roots holds none; install ca-certificates".into(),
        ));
    }
    Ok(Arc::clone(ROOTS.get_or_init(|| Arc::new(roots))))
}
