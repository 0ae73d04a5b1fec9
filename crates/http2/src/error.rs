//! The codes of RFC 9113, section 7, and the errors that end a connection.

use std::fmt;

/// Why a stream or a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // RFC 9113, section 7
pub enum ErrorCode {
    NoError,
    Protocol,
    Internal,
    FlowControl,
    SettingsTimeout,
    StreamClosed,
    FrameSize,
    RefusedStream,
    Cancel,
    Compression,
    Connect,
    EnhanceYourCalm,
    InadequateSecurity,
    Http11Required,
}

const CODES: [ErrorCode; 14] = [
    ErrorCode::NoError,
    ErrorCode::Protocol,
    ErrorCode::Internal,
    ErrorCode::FlowControl,
    ErrorCode::SettingsTimeout,
    ErrorCode::StreamClosed,
    ErrorCode::FrameSize,
    ErrorCode::RefusedStream,
    ErrorCode::Cancel,
    ErrorCode::Compression,
    ErrorCode::Connect,
    ErrorCode::EnhanceYourCalm,
    ErrorCode::InadequateSecurity,
    ErrorCode::Http11Required,
];

impl ErrorCode {
    pub(crate) fn to_wire(self) -> u32 {
        self as u32
    }

    /// An unknown code is read as `Internal` (section 7).
    pub(crate) fn from_wire(code: u32) -> Self {
        let known = CODES.get(usize::try_from(code).unwrap_or(usize::MAX));
        known.copied().unwrap_or(Self::Internal)
    }
}

/// The peer broke a rule of HTTP/2; the connection cannot be used any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionError {
    /// The code for the peer in GOAWAY.
    pub code: ErrorCode,
    /// The broken rule.
    pub text: &'static str,
}

impl ConnectionError {
    pub(crate) fn new(code: ErrorCode, text: &'static str) -> Self {
        Self { code, text }
    }

    pub(crate) fn protocol(text: &'static str) -> Self {
        Self::new(ErrorCode::Protocol, text)
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HTTP/2: {} ({:?})", self.text, self.code)
    }
}

impl std::error::Error for ConnectionError {}

/// Why bytes could not be written to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteError {
    /// The stream, its sending side or its connection has ended.
    Gone,
    /// The written bytes are not an HTTP/1.1 message: a fault of the caller.
    NotAMessage,
    /// The peer supports no tunnels such as WebSocket (RFC 8441).
    NoTunnels,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the HTTP/2 stream is over",
            Self::NotAMessage => "the bytes for HTTP/2 are not an HTTP message",
            Self::NoTunnels => {
                "the HTTP/2 server takes no WebSocket (it does not send \
                 SETTINGS_ENABLE_CONNECT_PROTOCOL); serve WebSocket on a port with appProtocol http"
            }
        })
    }
}

impl std::error::Error for WriteError {}
