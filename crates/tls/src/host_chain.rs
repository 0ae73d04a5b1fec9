//! Checks a chain of a workload, the authority of its host and a root.
//!
//! [`crate::host_authority`] verifies the authority; here the workload's certificate is verified with that
//! authority as its only root. Revocations are asked for elsewhere, because they change.

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{Error as TlsError, RootCertStore};

use crate::error::HandshakeError;
use crate::host_authority::{HostIssuer, refuse, verify};
use crate::leaf::{Leaf, Usage};

/// Checks the chain, in either role: a host certifies workloads for both ends of a connection.
///
/// # Errors
/// The workload's certificate is refused, or its authority.
pub fn check(
    leaf: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
    roots: &RootCertStore,
    algorithms: &WebPkiSupportedAlgorithms,
    now: UnixTime,
) -> Result<(), TlsError> {
    let issuer = verify(others, roots, now).map_err(HandshakeError::into_tls)?;
    let certificate = ParsedCertificate::try_from(leaf)?;
    let own = issuer.as_root();
    verify_server_cert_signed_by_trust_anchor(&certificate, &own, &[], now, algorithms.all)?;
    check_leaf(&issuer, leaf).map_err(HandshakeError::into_tls)
}

/// Checks that the authority may have certified this: exactly an id of its list, and not for longer than
/// itself.
fn check_leaf(issuer: &HostIssuer, leaf: &CertificateDer<'_>) -> Result<(), HandshakeError> {
    let leaf = Leaf::parse(leaf, &[Usage::Client, Usage::Server])?;
    let host = &issuer.constraint.host;
    if !issuer.constraint.identities.contains(&leaf.id) {
        let id = &leaf.id;
        return Err(refuse(format!(
            "the authority of {host} may not certify {id}"
        )));
    }
    if leaf.not_before < issuer.not_before || leaf.not_after > issuer.not_after {
        return Err(refuse(format!(
            "it is valid outside the validity of the authority of {host}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
