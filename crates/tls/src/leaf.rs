//! Reads a workload's certificate: its one SPIFFE id, its validity and its usages.
//!
//! The rules are those of the X.509-SVID standard (sections 2, 4 and 5). `verify` checks signatures
//! and chains.

use rustls::pki_types::CertificateDer;
use std::time::SystemTime;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Revoked, Serial};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::error::HandshakeError;
use crate::host_authority::{HostSigner, signer_of};
use crate::validity::system_time;

/// The end of a connection that a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Client,
    Server,
}

/// The facts we keep of a workload's certificate.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) id: SpiffeId,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    pub(crate) serial: String,
    number: Serial,
    /// The issuer's name (DER).
    issuer: Box<[u8]>,
    /// The host's authority that signed it; none: a root did.
    pub(crate) host: Option<HostSigner>,
}

impl Leaf {
    /// Reads a certificate and refuses one that is not a workload's, or not for these usages.
    pub(crate) fn parse(der: &[u8], usages: &[Usage]) -> Result<Self, HandshakeError> {
        let (rest, certificate) = X509Certificate::from_der(der)
            .map_err(|e| HandshakeError::BadCertificate { why: e.to_string() })?;
        if !rest.is_empty() {
            return Err(HandshakeError::BadCertificate {
                why: "bytes follow the certificate".into(),
            });
        }
        check_usage(&certificate, usages)?;
        Ok(Self {
            id: spiffe_id(&certificate)?,
            not_before: system_time(certificate.validity().not_before),
            not_after: system_time(certificate.validity().not_after),
            serial: certificate.raw_serial_as_string(),
            number: Serial::from_bytes(certificate.raw_serial()),
            issuer: certificate.issuer().as_raw().into(),
            host: None,
        })
    }

    /// Reads a certificate and notes the host's authority beside it, if one signed it.
    pub(crate) fn parse_chain(
        first: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        usages: &[Usage],
    ) -> Result<Self, HandshakeError> {
        let leaf = Self::parse(first, usages)?;
        let host = signer_of(others)?;
        Ok(Self { host, ..leaf })
    }

    /// Whether it is refused although it is valid: it is revoked, or the host's authority that signed it.
    pub(crate) fn is_revoked(&self, revoked: &Revoked) -> bool {
        revoked.has(&self.id, &self.number, &self.issuer)
            || self.host.as_ref().is_some_and(|h| h.is_revoked(revoked))
    }

    /// Checks that `now` is within the validity.
    pub(crate) fn check_validity(&self, now: SystemTime) -> Result<(), HandshakeError> {
        if now < self.not_before {
            return Err(HandshakeError::NotYetValid {
                not_before: Some(self.not_before),
                now,
            });
        }
        if now > self.not_after {
            return Err(HandshakeError::Expired {
                not_after: Some(self.not_after),
                now,
            });
        }
        Ok(())
    }
}

fn spiffe_id(certificate: &X509Certificate<'_>) -> Result<SpiffeId, HandshakeError> {
    let refuse = |why: String| HandshakeError::NotSpiffe { why };
    let names = certificate
        .subject_alternative_name()
        .map_err(|e| HandshakeError::BadCertificate {
            why: format!("its subject alternative names cannot be read: {e}"),
        })?
        .ok_or_else(|| refuse("it has no subject alternative name".into()))?;
    let mut uris = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
    let uri = uris
        .next()
        .ok_or_else(|| refuse("it has no URI name".into()))?;
    if uris.next().is_some() {
        return Err(refuse("it has more than one URI name".into()));
    }
    // A name the parser gave up on could be a second URI in disguise.
    if names
        .value
        .general_names
        .iter()
        .any(|name| matches!(name, GeneralName::Invalid(..)))
    {
        return Err(refuse("one of its names cannot be read".into()));
    }
    SpiffeId::parse(uri).map_err(|e| refuse(e.to_string()))
}

fn check_usage(certificate: &X509Certificate<'_>, usages: &[Usage]) -> Result<(), HandshakeError> {
    let refuse = |why: &str| HandshakeError::BadUsage { why: why.into() };
    let unreadable = |e: x509_parser::error::X509Error| HandshakeError::BadCertificate {
        why: format!("its extensions cannot be read: {e}"),
    };
    if certificate
        .basic_constraints()
        .map_err(unreadable)?
        .is_some_and(|c| c.value.ca)
    {
        return Err(refuse("it is an authority's certificate"));
    }
    if let Some(usage) = certificate.key_usage().map_err(unreadable)? {
        if usage.value.key_cert_sign() || usage.value.crl_sign() {
            return Err(refuse("its key may sign certificates"));
        }
        if !usage.value.digital_signature() {
            return Err(refuse("its key may not sign handshakes"));
        }
    }
    let extended = certificate
        .extended_key_usage()
        .map_err(unreadable)?
        .ok_or_else(|| refuse("it has no extended key usage"))?;
    for usage in usages {
        let (allowed, name) = match usage {
            Usage::Client => (extended.value.client_auth, "clientAuth"),
            Usage::Server => (extended.value.server_auth, "serverAuth"),
        };
        if !allowed {
            return Err(refuse(&format!("its extended key usage lacks {name}")));
        }
    }
    Ok(())
}
