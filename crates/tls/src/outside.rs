//! TLS with peers outside the mesh: clients of a gateway, and servers that an egress rule names.
//!
//! There is no SPIFFE here: certificates carry host names, the operator gives keys and roots, and
//! TLS 1.2 is supported, too. This module prepares the set-up. The owner of a socket runs it with
//! rustls's own streams, since these connections are not the mesh's inner path.

mod client;
mod roots;
mod server;

pub use client::{Inside, OutsideClient};
pub use server::{ClientCertificate, OutsideServer, check, check_roots};

use rustls::Error as TlsError;
use std::fmt;
use std::io;

use crate::bundle::BundleError;
use crate::error::HandshakeError;

/// Why a certificate, a key or roots for outsiders cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub enum OutsideError {
    /// No certificate is given.
    NoCertificate,
    /// A chain cannot be read; with its place, from 1.
    Chain(usize, String),
    /// A key cannot be used.
    Key(usize, String),
    /// A key does not belong to its certificate.
    KeyMismatch(usize),
    /// The roots cannot be used.
    Roots(BundleError),
    /// A revocation list cannot be used; with its place, from 1.
    RevocationList(usize, String),
    /// The server's name is not valid.
    ServerName(String),
    /// TLS refuses the set-up.
    Tls(String),
}

impl fmt::Display for OutsideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCertificate => {
                f.write_str("there is no certificate to present; give one with its key")
            }
            Self::Chain(place, why) => write!(
                f,
                "certificate {place} cannot be read: {why}; it must be PEM, the server's own first"
            ),
            Self::Key(place, why) => write!(
                f,
                "the key of certificate {place} cannot be used: {why}; \
                 it must be an unencrypted PEM key"
            ),
            Self::KeyMismatch(place) => write!(
                f,
                "the key of certificate {place} does not belong to it; replace both together"
            ),
            Self::Roots(why) => write!(f, "the roots cannot be used: {why}"),
            Self::RevocationList(place, why) => write!(
                f,
                "revocation list {place} cannot be used: {why}; it must be a complete list in PEM"
            ),
            Self::ServerName(name) => write!(
                f,
                "{name:?} is no server name; give a host name or an IP address"
            ),
            Self::Tls(why) => write!(f, "TLS cannot be set up: {why}"),
        }
    }
}

impl std::error::Error for OutsideError {}

impl From<TlsError> for OutsideError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error.to_string())
    }
}

/// Returns a handshake's failure as rustls's streams report it: its code, and a text for the
/// operator.
pub fn failure(error: &io::Error) -> (&'static str, String) {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<TlsError>());
    match inner {
        Some(TlsError::AlertReceived(alert)) => {
            ("peer_alert", format!("the peer sent the alert {alert:?}"))
        }
        Some(inner) => {
            let code = HandshakeError::from_tls(inner.clone()).code();
            (code, inner.to_string())
        }
        None => ("cut", format!("the peer ended the handshake: {error}")),
    }
}
