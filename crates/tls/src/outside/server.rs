//! The server's end: a gateway's listener.

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
    WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error as TlsError, ServerConfig, ServerConnection,
    SignatureScheme,
};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;
use tulle_model::resource::{Certificate, ListenerTls};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::OutsideError;
use super::roots::Roots;
use crate::bundle::fingerprint;
use crate::error::HandshakeError;
use crate::validity::system_time;

/// Server set-up for clients outside the mesh.
pub struct OutsideServer {
    config: Arc<ServerConfig>,
    clients: Option<Clients>,
    not_after: SystemTime,
}

/// Demands on clients' certificates.
struct Clients {
    verifier: Arc<dyn ClientCertVerifier>,
    optional: bool,
}

/// A client's certificate that leads to one of the roots.
pub struct ClientCertificate {
    /// Value of `x-forwarded-client-cert`: hash, subject and names.
    pub forwarded: String,
}

impl OutsideServer {
    /// Prepares a listener's certificates and demands. `alpn` are its protocols, best first; empty:
    /// any, and none is agreed.
    ///
    /// # Errors
    /// A certificate, key or root cannot be used.
    pub fn new(tls: &ListenerTls, alpn: &[&str]) -> Result<Self, OutsideError> {
        let provider = Arc::new(default_provider());
        let mut presented = Vec::new();
        let mut not_after = None;
        for (place, certificate) in (1..).zip(&tls.certificates) {
            let (key, until) = read(certificate, place, &provider)?;
            not_after = Some(not_after.map_or(until, |first: SystemTime| first.min(until)));
            presented.push(Arc::new(key));
        }
        let not_after = not_after.ok_or(OutsideError::NoCertificate)?;
        let clients = match tls.client_roots.as_str() {
            "" => None,
            roots => Some(Clients::new(roots, tls.client_optional, &provider)?),
        };
        let builder =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(Clients {
                verifier,
                optional: true,
            }) => builder.with_client_cert_verifier(Arc::new(Lenient(verifier.clone()))),
            Some(Clients { verifier, .. }) => {
                builder.with_client_cert_verifier(Arc::clone(verifier))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(Presented(presented)));
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        // Tickets are this listener's own: a session must not resume at a listener that demands
        // more.
        config.ticketer = Ticketer::new()?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self {
            config: Arc::new(config),
            clients,
            not_after,
        })
    }

    /// Returns the configuration for a handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Returns when the first of its certificates expires.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Returns the client's certificate after a handshake; `None`: it has no valid one. It is
    /// checked again here. A resumed session brings the certificate of the first handshake, which
    /// may have expired, and an optional certificate was accepted unverified.
    ///
    /// # Errors
    /// A valid certificate is required.
    pub fn client(
        &self,
        connection: &ServerConnection,
    ) -> Result<Option<ClientCertificate>, HandshakeError> {
        let Some(clients) = &self.clients else {
            return Ok(None);
        };
        let checked = match connection.peer_certificates() {
            None | Some([]) => Err(HandshakeError::NoCertificate),
            Some([leaf, rest @ ..]) => clients
                .verifier
                .verify_client_cert(leaf, rest, UnixTime::now())
                .map_err(HandshakeError::from_tls)
                .and_then(|_| ClientCertificate::read(leaf)),
        };
        match checked {
            Ok(certificate) => Ok(Some(certificate)),
            Err(_) if clients.optional => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Checks that a chain and its key, both PEM, can be presented; returns when the server's own
/// certificate expires.
///
/// # Errors
/// They cannot; the text shows nothing of the key.
pub fn check(chain: &str, key: &str) -> Result<SystemTime, OutsideError> {
    let certificate = Certificate {
        chain: chain.to_owned(),
        key: key.to_owned(),
    };
    Ok(read(&certificate, 1, &default_provider())?.1)
}

/// Checks that clients' certificates can be verified with these roots.
///
/// # Errors
/// They cannot.
pub fn check_roots(pem: &str) -> Result<(), OutsideError> {
    Clients::new(pem, false, &Arc::new(default_provider())).map(drop)
}

/// Reads a chain with its key, and when it expires.
fn read(
    certificate: &Certificate,
    place: usize,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, SystemTime), OutsideError> {
    let bad_chain = |why: String| OutsideError::Chain(place, why);
    let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| bad_chain(e.to_string()))?;
    let leaf = chain
        .first()
        .ok_or_else(|| bad_chain("there is no certificate in it".into()))?;
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|e| bad_chain(e.to_string()))?;
    let not_after = system_time(parsed.validity().not_after);
    // A certificate that cannot be matched with a name would silently never be chosen.
    ParsedCertificate::try_from(leaf).map_err(|e| bad_chain(e.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes())
        // The reader's error could quote the key.
        .map_err(|_| OutsideError::Key(place, "it is not PEM of a private key".into()))?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|e| OutsideError::Key(place, e.to_string()))?;
    let certified = CertifiedKey::new(chain, key);
    certified
        .keys_match()
        .map_err(|_| OutsideError::KeyMismatch(place))?;
    Ok((certified, not_after))
}

/// The certificates of a listener, in the order given.
#[derive(Debug)]
struct Presented(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for Presented {
    /// Returns the first certificate that is valid for the name and can sign; otherwise the first.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let signs = |c: &CertifiedKey| c.key.choose_scheme(hello.signature_schemes()).is_some();
        let name = hello
            .server_name()
            .and_then(|n| ServerName::try_from(n).ok());
        let names = |c: &CertifiedKey| {
            let parsed = c.cert.first().map(ParsedCertificate::try_from);
            match (&name, parsed) {
                (Some(name), Some(Ok(parsed))) => verify_server_name(&parsed, name).is_ok(),
                _ => false,
            }
        };
        let best = self.0.iter().find(|c| names(c) && signs(c));
        let best = best.or_else(|| self.0.iter().find(|c| signs(c)));
        best.or(self.0.first()).cloned()
    }
}

impl Clients {
    fn new(
        roots: &str,
        optional: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, OutsideError> {
        let Roots { store, lists } = Roots::from_pem(roots)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(store, Arc::clone(provider))
            .with_crls(lists)
            .allow_unknown_revocation_status()
            .enforce_revocation_expiration()
            .build()
            .map_err(|e| OutsideError::Tls(e.to_string()))?;
        Ok(Self { verifier, optional })
    }
}

/// Accepts clients that the verifier would refuse; `OutsideServer::client` then returns no
/// certificate.
#[derive(Debug)]
struct Lenient(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Lenient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, TlsError> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, TlsError> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

impl ClientCertificate {
    fn read(leaf: &CertificateDer<'_>) -> Result<Self, HandshakeError> {
        let (_, parsed) = X509Certificate::from_der(leaf)
            .map_err(|e| HandshakeError::BadCertificate { why: e.to_string() })?;
        let mut forwarded = format!(
            "Hash={};Subject={}",
            fingerprint(leaf),
            quoted(&parsed.subject().to_string())
        );
        let names = parsed.subject_alternative_name().ok().flatten();
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            // Writing to a String cannot fail.
            let _ = match name {
                GeneralName::URI(uri) => write!(forwarded, ";URI={}", plain_or_quoted(uri)),
                GeneralName::DNSName(name) => write!(forwarded, ";DNS={}", plain_or_quoted(name)),
                _ => Ok(()),
            };
        }
        Ok(Self { forwarded })
    }
}

/// Quotes a value, so that it can neither end early nor look like another element.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push('?'),
        }
    }
    out.push('"');
    out
}

fn plain_or_quoted(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b',' | b';' | b'=' | b'"' | b'\\');
    if text.bytes().all(plain) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Leaf, TestCa};
    use std::time::Duration;

    fn issued(ca: &TestCa, names: &[&str]) -> Certificate {
        let leaf = Leaf {
            uris: vec![],
            dns: names.iter().map(|n| (*n).to_owned()).collect(),
            ..Leaf::new("spiffe://x/y")
        };
        let issued = ca.issue_leaf(&leaf);
        Certificate {
            chain: issued.chain_pem,
            key: issued.key_pem,
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_place() {
        let ca = TestCa::new("web");
        let (good, other) = (issued(&ca, &["a.example"]), issued(&ca, &["b.example"]));
        let new = |certificates: Vec<Certificate>| {
            let tls = ListenerTls {
                certificates,
                ..Default::default()
            };
            OutsideServer::new(&tls, &["http/1.1"]).map(|_| ())
        };
        assert_eq!(new(vec![]), Err(OutsideError::NoCertificate));
        assert_eq!(new(vec![good.clone()]), Ok(()));
        let mixed = Certificate {
            chain: good.chain.clone(),
            key: other.key.clone(),
        };
        let refused = new(vec![good.clone(), mixed]);
        assert_eq!(refused, Err(OutsideError::KeyMismatch(2)));
        let secret = "very-secret-bytes";
        let bad_key = Certificate {
            chain: good.chain.clone(),
            key: secret.into(),
        };
        let refused = new(vec![bad_key]).unwrap_err();
        assert!(matches!(refused, OutsideError::Key(1, _)), "{refused}");
        assert!(!refused.to_string().contains(secret));
        let no_chain = Certificate {
            chain: "nothing".into(),
            key: good.key.clone(),
        };
        assert!(matches!(
            new(vec![no_chain]),
            Err(OutsideError::Chain(1, _))
        ));
    }

    #[test]
    fn the_first_certificate_that_runs_out_counts() {
        let ca = TestCa::new("web");
        let soon = SystemTime::now() + Duration::from_secs(60);
        let leaf = Leaf {
            not_after: soon,
            ..Leaf::new("spiffe://x/y")
        };
        let issued_soon = ca.issue_leaf(&leaf);
        let soon_certificate = Certificate {
            chain: issued_soon.chain_pem,
            key: issued_soon.key_pem,
        };
        let tls = ListenerTls {
            certificates: vec![issued(&ca, &["a.example"]), soon_certificate],
            ..Default::default()
        };
        let server = OutsideServer::new(&tls, &[]).unwrap();
        let apart = |a: SystemTime, b: SystemTime| {
            a.duration_since(b)
                .or(b.duration_since(a))
                .unwrap_or_default()
        };
        assert!(apart(server.not_after(), soon) < Duration::from_secs(2));
    }

    #[test]
    fn forwarded_values_cannot_forge_elements() {
        assert_eq!(quoted("CN=a\"\\\r\nx"), "\"CN=a\\\"\\\\??x\"");
        assert_eq!(plain_or_quoted("spiffe://a/b"), "spiffe://a/b");
        assert_eq!(plain_or_quoted("a;By=b"), "\"a;By=b\"");
    }
}
