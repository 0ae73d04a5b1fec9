//! Why a message is refused. Every refusal is one variant with a text for the operator and a
//! short code for logs and metrics.

use std::fmt;

/// Faults of the header section or framing of a request or a response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the texts below say what each variant means
pub enum BadHead {
    TooLarge,
    TooManyHeaders,
    LineEnding,
    ObsFold,
    SpaceBeforeColon,
    HeaderName,
    HeaderValue,
    ContentLength,
    ContentLengthRepeated,
    LengthAndChunked,
    TransferEncoding,
    TransferEncodingRepeated,
    TransferEncodingUnknown,
    TransferEncodingInHttp10,
    ConnectionOption,
}

impl BadHead {
    /// Short stable code.
    pub fn reason(self) -> &'static str {
        match self {
            Self::TooLarge => "head-too-large",
            Self::TooManyHeaders => "too-many-headers",
            Self::LineEnding => "bare-cr-or-lf",
            Self::ObsFold => "folded-header",
            Self::SpaceBeforeColon => "space-before-colon",
            Self::HeaderName => "header-name",
            Self::HeaderValue => "header-value",
            Self::ContentLength => "content-length",
            Self::ContentLengthRepeated => "content-length-repeated",
            Self::LengthAndChunked => "length-and-chunked",
            Self::TransferEncoding => "transfer-encoding",
            Self::TransferEncodingRepeated => "transfer-encoding-repeated",
            Self::TransferEncodingUnknown => "transfer-encoding-unknown",
            Self::TransferEncodingInHttp10 => "transfer-encoding-http10",
            Self::ConnectionOption => "connection-option",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::TooLarge => "the head is larger than the configured limit",
            Self::TooManyHeaders => "the head has more header lines than the configured limit",
            Self::LineEnding => {
                "a line of the head ends in a bare CR or LF; lines must end in CRLF"
            }
            Self::ObsFold => "a header line begins with white space (obsolete line folding)",
            Self::SpaceBeforeColon => "white space stands between a header name and its colon",
            Self::HeaderName => "a header line has no colon, or its name is empty or not a token",
            Self::HeaderValue => "a header value contains a control byte",
            Self::ContentLength => "content-length is not one plain decimal number below 2^63",
            Self::ContentLengthRepeated => "content-length is given more than once",
            Self::LengthAndChunked => {
                "both content-length and transfer-encoding are given, so the end of the body is ambiguous"
            }
            Self::TransferEncoding => "transfer-encoding is something other than `chunked`",
            Self::TransferEncodingRepeated => "transfer-encoding is given more than once",
            Self::TransferEncodingUnknown => {
                "transfer-encoding names a coding besides `chunked`; only `chunked` is supported"
            }
            Self::TransferEncodingInHttp10 => "transfer-encoding is given in an HTTP/1.0 message",
            Self::ConnectionOption => {
                "connection names a field that must not be removed (host, content-length, \
                 transfer-encoding), or more than 32 fields"
            }
        }
    }
}

/// Why a request is refused. The proxy answers [`BadRequest::status`] and closes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BadRequest {
    Head(BadHead),
    EmptyLines,
    RequestLine,
    Method,
    Target,
    TargetForm,
    TargetTooLong,
    Version,
    HostMissing,
    HostRepeated,
    HostInvalid,
    FramingLookalike,
    ConnectBody,
}

impl BadRequest {
    /// Status code of the answer.
    pub fn status(self) -> u16 {
        match self {
            Self::Head(BadHead::TooLarge | BadHead::TooManyHeaders) => 431,
            Self::Head(BadHead::TransferEncodingUnknown) => 501,
            Self::TargetTooLong => 414,
            Self::Version => 505,
            _ => 400,
        }
    }

    /// Short stable code.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Head(head) => head.reason(),
            Self::EmptyLines => "empty-lines",
            Self::RequestLine => "request-line",
            Self::Method => "method",
            Self::Target => "target",
            Self::TargetForm => "target-form",
            Self::TargetTooLong => "target-too-long",
            Self::Version => "version",
            Self::HostMissing => "host-missing",
            Self::HostRepeated => "host-repeated",
            Self::HostInvalid => "host-invalid",
            Self::FramingLookalike => "framing-lookalike",
            Self::ConnectBody => "connect-body",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Head(head) => head.text(),
            Self::EmptyLines => "more than one empty line stands before the request line",
            Self::RequestLine => {
                "the request line is not `method target version` with single spaces; \
                 the client may speak another protocol"
            }
            Self::Method => {
                "the method is not a token; the client may speak TLS or another protocol"
            }
            Self::Target => {
                "the request target contains a control byte, a fragment or a non-ASCII byte"
            }
            Self::TargetForm => {
                "the form of the request target does not fit the method, or its scheme is not \
                 http or https, or its authority is invalid"
            }
            Self::TargetTooLong => "the request target is larger than the limit for a whole head",
            Self::Version => "the version is neither HTTP/1.0 nor HTTP/1.1",
            Self::HostMissing => "an HTTP/1.1 request has no host header",
            Self::HostRepeated => "host is given more than once",
            Self::HostInvalid => "host is not `name`, `name:port` or empty",
            Self::FramingLookalike => {
                "a header name reads as content-length or transfer-encoding once `_` is taken for `-`"
            }
            Self::ConnectBody => "a CONNECT request announces a body",
        }
    }
}

/// Why a response is refused. The proxy answers 502 and drops the upstream connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BadResponse {
    Head(BadHead),
    StatusLine,
    Status,
    Version,
}

impl BadResponse {
    /// Short stable code.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Head(head) => head.reason(),
            Self::StatusLine => "status-line",
            Self::Status => "status",
            Self::Version => "version",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Head(head) => head.text(),
            Self::StatusLine => {
                "the answer does not begin with an HTTP/1.x status line; \
                 the upstream may speak another protocol on this port"
            }
            Self::Status => {
                "the status code is not a number from 100 to 999, or the reason has control bytes"
            }
            Self::Version => "the version of the answer is neither HTTP/1.0 nor HTTP/1.1",
        }
    }
}

impl From<BadHead> for BadRequest {
    fn from(bad: BadHead) -> Self {
        Self::Head(bad)
    }
}

impl From<BadHead> for BadResponse {
    fn from(bad: BadHead) -> Self {
        Self::Head(bad)
    }
}

macro_rules! error {
    ($type:ty) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text())
            }
        }
        impl std::error::Error for $type {}
    };
}

error!(BadHead);
error!(BadRequest);
error!(BadResponse);
