//! Why bytes of an established session cannot be opened or sealed.

use rustls::{AlertDescription, Error as TlsError};
use std::fmt;

use crate::error::alert_hint;
use crate::record::Fault;

/// Why a received record is refused. The session is over then.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenError {
    /// A record of a type that is not allowed here.
    UnexpectedRecord(u8),
    /// A record over the size limit.
    RecordTooLarge(usize),
    /// A record without room for content.
    RecordTooShort(usize),
    /// A record that the peer did not seal, or that changed on the way.
    NotAuthentic,
    /// A handshake message that is not allowed here.
    UnexpectedMessage(u8),
    /// A handshake message or alert that breaks its format.
    Malformed(&'static str),
    /// A handshake message larger than the limit.
    MessageTooLarge(usize),
    /// Too many records in a row that carry no data.
    TooManyWithoutData,
    /// The peer ended the session with this alert.
    PeerAlert(AlertDescription),
    /// The peer's ticket was refused.
    Ticket(TlsError),
    /// New keys could not be made.
    Keys(TlsError),
    /// All record numbers are used.
    Exhausted,
    /// An earlier record was refused already.
    AlreadyFailed,
}

impl OpenError {
    /// A short stable name, for metrics and logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnexpectedRecord(_) => "unexpected_record",
            Self::RecordTooLarge(_) => "record_too_large",
            Self::RecordTooShort(_) => "record_too_short",
            Self::NotAuthentic => "not_authentic",
            Self::UnexpectedMessage(_) => "unexpected_message",
            Self::Malformed(_) => "malformed",
            Self::MessageTooLarge(_) => "message_too_large",
            Self::TooManyWithoutData => "too_many_without_data",
            Self::PeerAlert(_) => "peer_alert",
            Self::Ticket(_) => "ticket",
            Self::Keys(_) => "keys",
            Self::Exhausted => "exhausted",
            Self::AlreadyFailed => "already_failed",
        }
    }

    /// Returns the alert for the peer; alerts are not answered.
    pub(crate) fn alert(&self) -> Option<AlertDescription> {
        match self {
            Self::UnexpectedRecord(_) | Self::UnexpectedMessage(_) | Self::TooManyWithoutData => {
                Some(AlertDescription::UnexpectedMessage)
            }
            Self::RecordTooLarge(_) => Some(AlertDescription::RecordOverflow),
            Self::RecordTooShort(_) | Self::Malformed(_) | Self::MessageTooLarge(_) => {
                Some(AlertDescription::DecodeError)
            }
            Self::NotAuthentic => Some(AlertDescription::BadRecordMac),
            Self::Ticket(_) => Some(AlertDescription::IllegalParameter),
            Self::Keys(_) | Self::Exhausted => Some(AlertDescription::InternalError),
            Self::PeerAlert(_) | Self::AlreadyFailed => None,
        }
    }
}

impl From<Fault> for OpenError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unexpected(kind) => Self::UnexpectedRecord(kind),
            Fault::TooLarge(length) => Self::RecordTooLarge(length),
            Fault::TooShort(length) => Self::RecordTooShort(length),
            Fault::Authentication | Fault::Crypto => Self::NotAuthentic,
            Fault::NoType => Self::Malformed("a record of nothing but padding"),
            Fault::Exhausted => Self::Exhausted,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedRecord(kind) => {
                write!(f, "a record of type {kind} came inside a session")?;
            }
            Self::RecordTooLarge(length) => {
                write!(f, "a record of {length} bytes is over the limit of TLS")?;
            }
            Self::RecordTooShort(length) => {
                write!(f, "a record of {length} bytes has no room for content")?;
            }
            Self::NotAuthentic => {
                f.write_str("a record is not authentic: bytes were changed, lost or added")?;
            }
            Self::UnexpectedMessage(kind) => {
                write!(f, "a handshake message of type {kind} came out of place")?;
            }
            Self::Malformed(what) => write!(f, "the peer sent {what}")?,
            Self::MessageTooLarge(length) => {
                write!(f, "a handshake message of {length} bytes is over the limit")?;
            }
            Self::TooManyWithoutData => {
                f.write_str("the peer sends record after record without data")?;
            }
            Self::PeerAlert(alert) => {
                return write!(
                    f,
                    "the peer ended the session with the alert {alert:?}: {}",
                    alert_hint(*alert)
                );
            }
            Self::Ticket(why) => write!(f, "the peer's session ticket is refused: {why}")?,
            Self::Keys(why) => write!(f, "new session keys cannot be made: {why}")?,
            Self::Exhausted => f.write_str("the peer never renewed its keys")?,
            Self::AlreadyFailed => {
                return f.write_str("the session failed before; its connection must be closed");
            }
        }
        f.write_str("; the session ends: the peer or something on the path breaks TLS")
    }
}

impl std::error::Error for OpenError {}

/// Why data cannot be sealed.
#[derive(Debug, Clone, PartialEq)]
pub enum SealError {
    /// We have closed our side, or it failed.
    Closed,
    /// All record numbers are used.
    Exhausted,
    /// New keys could not be made.
    Keys(TlsError),
    /// The cryptographic library refuses.
    Crypto,
}

impl SealError {
    /// A short stable name, for metrics and logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Exhausted => "exhausted",
            Self::Keys(_) => "keys",
            Self::Crypto => "crypto",
        }
    }
}

impl From<Fault> for SealError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Exhausted => Self::Exhausted,
            _ => Self::Crypto,
        }
    }
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("data after the session was closed; open a new connection"),
            Self::Exhausted => {
                f.write_str("all record numbers of the session are used; open a new connection")
            }
            Self::Keys(why) => write!(
                f,
                "new session keys cannot be made: {why}; open a new connection"
            ),
            Self::Crypto => {
                f.write_str("the cryptographic library refuses to seal; open a new connection")
            }
        }
    }
}

impl std::error::Error for SealError {}
