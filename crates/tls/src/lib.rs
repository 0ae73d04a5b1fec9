//! Mutual TLS 1.3 with SPIFFE identities, without any input or output of its own.
//!
//! `rustls` does the handshake; afterwards [`Session`] seals and opens records in place, because
//! rustls's own data path copies every byte and allocates for every record. The caller moves the
//! bytes: this crate has no sockets, buffers, timeouts or authorization. It says who the peer is,
//! not what the peer may do.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))] // nothing from the network may panic

mod bundle;
mod chains;
mod context;
pub mod controller;
#[cfg(feature = "enrol")]
pub mod enrol;
mod error;
mod handshake;
mod hello;
pub mod host_authority;
pub mod host_chain;
mod identity;
mod leaf;
pub mod outside;
mod record;
mod revocations;
mod session;
mod session_error;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod validity;
mod verify;

pub use bundle::{BundleError, RootDetails, TrustBundle, fingerprint};
pub use context::{Alpn, Context, ContextError};
pub use error::{HandshakeError, time_text};
pub use handshake::{Handshake, Progress};
pub use hello::is_client_hello;
pub use identity::{Identity, IdentityError, PublicIdentity};
pub use record::{MAX_RECORD_BYTES, sealed_bytes};
pub use revocations::{PeerCertificate, Revocations};
pub use session::{Opened, Session};
pub use session_error::{OpenError, SealError};

/// Largest plaintext of one record (RFC 8446, 5.1).
pub const MAX_PLAINTEXT_BYTES: usize = record::MAX_PLAINTEXT_BYTES;
