//! Why a handshake failed, with a text that tells an operator what to do next.

use rustls::{AlertDescription, CertificateError, Error as TlsError, OtherError};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tulle_model::identity::SpiffeId;

/// Most certificates of a chain, the workload's included.
pub(crate) const MAX_CHAIN: usize = 4;
/// Most bytes of a chain.
pub(crate) const MAX_CHAIN_BYTES: usize = 16 * 1024;

/// Why a handshake failed.
#[derive(Debug, Clone, PartialEq)]
pub enum HandshakeError {
    /// The peer sent no certificate.
    NoCertificate,
    /// The peer's chain does not lead to a root of our trust bundle.
    UnknownIssuer,
    /// The peer's certificate, or one of its chain, is no longer valid.
    Expired {
        /// End of validity, where known.
        not_after: Option<SystemTime>,
        /// Our clock.
        now: SystemTime,
    },
    /// The peer's certificate, or one of its chain, is not valid yet.
    NotYetValid {
        /// Start of validity, where known.
        not_before: Option<SystemTime>,
        /// Our clock.
        now: SystemTime,
    },
    /// The server is a genuine workload, but not one we may talk to here.
    WrongIdentity {
        /// The ids that would have been accepted.
        expected: Arc<[SpiffeId]>,
        /// The id in the server's certificate.
        presented: SpiffeId,
    },
    /// A client handshake was started without an expected id, so no server could be accepted.
    NothingExpected,
    /// The peer's certificate does not carry exactly one valid SPIFFE id.
    NotSpiffe {
        /// Fault of its names.
        why: String,
    },
    /// The peer belongs to another trust domain.
    WrongTrustDomain {
        /// Our trust domain.
        ours: String,
        /// The peer's id.
        presented: SpiffeId,
    },
    /// The peer's certificate, or its identity, was revoked.
    Revoked {
        /// The id in the certificate.
        presented: SpiffeId,
        /// Its serial number.
        serial: String,
    },
    /// A revocation list of its authority names the peer's certificate, or another one of its chain.
    OnRevocationList,
    /// A host's authority signed the peer's certificate, and may not have.
    HostAuthority {
        /// The rule that is broken.
        why: String,
    },
    /// The peer's certificate may not be used for this, by its own or an authority's usage
    /// extensions.
    BadUsage {
        /// The rule it breaks.
        why: String,
    },
    /// The peer's chain is longer or larger than we verify.
    ChainTooLarge {
        /// Certificates in the chain.
        certificates: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// The peer's certificate cannot be read, or a signature of the chain is wrong.
    BadCertificate {
        /// The fault.
        why: String,
    },
    /// The peer ended the handshake with this alert.
    Alert(AlertDescription),
    /// The handshake took more bytes than any honest one.
    TooManyBytes,
    /// The peer closed or broke the TLS 1.3 protocol.
    Protocol(TlsError),
}

impl HandshakeError {
    /// A short stable name, for metrics and logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::UnknownIssuer => "unknown_issuer",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::WrongIdentity { .. } => "wrong_identity",
            Self::NothingExpected => "nothing_expected",
            Self::NotSpiffe { .. } => "not_spiffe",
            Self::WrongTrustDomain { .. } => "wrong_trust_domain",
            Self::Revoked { .. } | Self::OnRevocationList => "revoked",
            Self::HostAuthority { .. } => "host_authority",
            Self::BadUsage { .. } => "bad_usage",
            Self::ChainTooLarge { .. } => "chain_too_large",
            Self::BadCertificate { .. } => "bad_certificate",
            Self::Alert(_) => "peer_alert",
            Self::TooManyBytes => "too_many_bytes",
            Self::Protocol(_) => "protocol",
        }
    }

    /// Returns the alert for the peer.
    pub(crate) fn alert(&self) -> AlertDescription {
        match self {
            Self::NoCertificate => AlertDescription::CertificateRequired,
            Self::UnknownIssuer => AlertDescription::UnknownCA,
            Self::Expired { .. } | Self::NotYetValid { .. } => AlertDescription::CertificateExpired,
            Self::Revoked { .. } | Self::OnRevocationList => AlertDescription::CertificateRevoked,
            Self::BadUsage { .. } => AlertDescription::UnsupportedCertificate,
            Self::WrongIdentity { .. }
            | Self::NotSpiffe { .. }
            | Self::WrongTrustDomain { .. }
            | Self::HostAuthority { .. } => AlertDescription::CertificateUnknown,
            Self::ChainTooLarge { .. } | Self::BadCertificate { .. } => {
                AlertDescription::BadCertificate
            }
            Self::NothingExpected | Self::Alert(_) | Self::TooManyBytes | Self::Protocol(_) => {
                AlertDescription::InternalError
            }
        }
    }

    /// Wraps this error in one of rustls, which has no room for it otherwise.
    pub(crate) fn into_tls(self) -> TlsError {
        TlsError::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }

    /// Reads an error of rustls, including one from [`Self::into_tls`].
    pub(crate) fn from_tls(error: TlsError) -> Self {
        match error {
            TlsError::NoCertificatesPresented => Self::NoCertificate,
            TlsError::AlertReceived(alert) => Self::Alert(alert),
            TlsError::InvalidCertificate(error) => Self::from_certificate(error),
            other => Self::Protocol(other),
        }
    }

    fn from_certificate(error: CertificateError) -> Self {
        let at = |t: rustls::pki_types::UnixTime| {
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(t.as_secs()))
        };
        let now = SystemTime::now();
        match error {
            CertificateError::Expired => Self::Expired {
                not_after: None,
                now,
            },
            CertificateError::ExpiredContext { time, not_after } => Self::Expired {
                not_after: at(not_after),
                now: at(time).unwrap_or(now),
            },
            CertificateError::NotValidYet => Self::NotYetValid {
                not_before: None,
                now,
            },
            CertificateError::NotValidYetContext { time, not_before } => Self::NotYetValid {
                not_before: at(not_before),
                now: at(time).unwrap_or(now),
            },
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::Revoked => Self::OnRevocationList,
            CertificateError::ExpiredRevocationList
            | CertificateError::ExpiredRevocationListContext { .. } => Self::BadCertificate {
                why: format!("{error}: give the list that its authority has published since"),
            },
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::BadUsage {
                    why: error.to_string(),
                }
            }
            CertificateError::Other(OtherError(inner)) => match inner.downcast_ref::<Self>() {
                Some(own) => own.clone(),
                None => Self::from_webpki(&inner.to_string()),
            },
            other => Self::BadCertificate {
                why: other.to_string(),
            },
        }
    }

    /// The chain check reports a few refusals only as text that rustls passes on.
    fn from_webpki(text: &str) -> Self {
        let why = text.to_owned();
        match text {
            "CaUsedAsEndEntity" | "EndEntityUsedAsCa" => Self::BadUsage { why },
            _ => Self::BadCertificate { why },
        }
    }
}

/// A time as RFC 3339, for people.
pub fn time_text(time: SystemTime) -> String {
    time::OffsetDateTime::from(time)
        .replace_nanosecond(0)
        .ok()
        .and_then(|t| {
            t.format(&time::format_description::well_known::Rfc3339)
                .ok()
        })
        .unwrap_or_else(|| "an unprintable time".into())
}

fn validity_text(limit: Option<SystemTime>, now: SystemTime) -> String {
    match limit {
        Some(limit) => format!("at {} (it is {} here)", time_text(limit), time_text(now)),
        None => format!("before {} by our clock", time_text(now)),
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCertificate => f.write_str(
                "the peer sent no certificate: it is outside the mesh, or its sidecar has no identity yet; \
                 send its traffic through a sidecar, or check that sidecar's identity",
            ),
            Self::UnknownIssuer => f.write_str(
                "the peer's certificate is not signed by our trust bundle: another mesh, or a root changed \
                 and one side lacks it; compare the bundle fingerprints of both sides",
            ),
            Self::Expired { not_after, now } => write!(
                f,
                "the peer's certificate expired {}: its renewal fails, or a clock is wrong; \
                 look at the peer's last renewal and at both clocks",
                validity_text(*not_after, *now)
            ),
            Self::NotYetValid { not_before, now } => match not_before {
                Some(limit) => write!(
                    f,
                    "the peer's certificate becomes valid only at {} (it is {} here): a clock is wrong; \
                     compare the clocks of this host and of the one that signs certificates",
                    time_text(*limit),
                    time_text(*now)
                ),
                None => f.write_str(
                    "the peer's certificate is not valid yet: a clock is wrong; \
                     compare the clocks of this host and of the one that signs certificates",
                ),
            },
            Self::WrongIdentity {
                expected,
                presented,
            } => {
                write!(f, "the server is {presented}, but expected was ")?;
                for (n, id) in expected.iter().take(4).enumerate() {
                    write!(f, "{}{id}", if n == 0 { "" } else { " or " })?;
                }
                if expected.len() > 4 {
                    write!(f, " or one of {} more", expected.len().saturating_sub(4))?;
                }
                f.write_str(
                    ": the endpoint's address now belongs to another workload, or the service names the \
                     wrong identity; check the service's endpoints and identities",
                )
            }
            Self::NothingExpected => f.write_str(
                "no identity is expected of the server, so none can be accepted: \
                 the service has no identity; give it one",
            ),
            Self::NotSpiffe { why } => write!(
                f,
                "the peer's certificate is no SPIFFE identity: {why}; issue it through the mesh's authority"
            ),
            Self::WrongTrustDomain { ours, presented } => write!(
                f,
                "the peer is {presented}, outside our trust domain {ours}: \
                 it belongs to another mesh; check which controller it enrolled with"
            ),
            Self::Revoked { presented, serial } => write!(
                f,
                "the peer is {presented} with the certificate {serial}, and one of the two was revoked; \
                 `tulle identity list` says why"
            ),
            Self::OnRevocationList => f.write_str(
                "a revocation list of its authority names the peer's certificate: it needs another one",
            ),
            Self::HostAuthority { why } => write!(
                f,
                "the peer's certificate comes from the authority of a joined host, and is refused: {why}; \
                 unless the host's workloads have just changed, somebody may have its key: \
                 `tulle identity revoke node/NAME` ends all that it signed"
            ),
            Self::BadUsage { why } => write!(
                f,
                "the peer's certificate may not be used for this: {why}; \
                 a workload's certificate needs clientAuth and serverAuth and is no authority's"
            ),
            Self::ChainTooLarge {
                certificates,
                bytes,
            } => write!(
                f,
                "the peer's chain has {certificates} certificates in {bytes} bytes, more than the {} in {} \
                 that are verified; issue it from a shorter chain",
                MAX_CHAIN,
                MAX_CHAIN_BYTES
            ),
            Self::BadCertificate { why } => write!(
                f,
                "the peer's certificate cannot be verified: {why}; issue a new one to the peer"
            ),
            Self::Alert(alert) => write!(
                f,
                "the peer ended the handshake with the alert {alert:?}: {}",
                alert_hint(*alert)
            ),
            Self::TooManyBytes => f.write_str(
                "the peer's handshake is larger than any honest one; the peer is not a sidecar of this mesh",
            ),
            Self::Protocol(error) => write!(
                f,
                "TLS failed: {error}; the peer must speak TLS 1.3, or something on the path changes bytes"
            ),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// Returns the most likely meaning of an alert in this mesh.
pub(crate) fn alert_hint(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateRequired => "it wants a certificate and we sent none",
        AlertDescription::UnknownCA => {
            "our certificate is not signed by its trust bundle; compare the bundle fingerprints of both sides"
        }
        AlertDescription::CertificateExpired => {
            "our certificate is outside its validity by the peer's clock; check our renewal and both clocks"
        }
        AlertDescription::CertificateRevoked => {
            "our identity or certificate was revoked; `tulle identity list` says why"
        }
        AlertDescription::CertificateUnknown
        | AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => "it refuses our identity; its log names the reason",
        AlertDescription::NoApplicationProtocol => "it speaks none of the protocols we offered",
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.3",
        AlertDescription::HandshakeFailure => "no cipher or key exchange in common",
        _ => "its log names the reason",
    }
}
