//! HTTP/1.1 message heads and body framing, without I/O.
//!
//! The proxy forwards most bytes of a message unchanged. So this crate does not build a header
//! map: it parses a head into offsets of the bytes the proxy must know (method, path, authority,
//! framing), remembers the few lines that must not be forwarded, and writes the head by copying
//! the ranges between them. Neither parsing nor writing allocates.
//!
//! It is strict where leniency lets two parsers disagree about where a message ends (RFC 9112,
//! section 11.2: request smuggling). Whatever is refused here is never forwarded.
//!
//! What it does not do: sockets, timeouts, buffering, decoding of bodies (chunked bodies pass as
//! they are), normalisation of paths, HTTP/2.
//!
//! ```
//! use tulle_http1::{Body, Limits, Parsed, RequestEdit, parse_request};
//!
//! let data = b"POST /a?b HTTP/1.1\r\nHost: c\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
//! let Parsed::Complete(head) = parse_request(data, &Limits::default())? else {
//!     panic!("the head is complete");
//! };
//! assert_eq!(head.path.slice(data), b"/a");
//! assert!(!head.keep_alive);
//!
//! let mut out = Vec::new();
//! let edit = RequestEdit { add: &[("x-request-id", b"7")], ..Default::default() };
//! head.write(data, &edit, &mut out);
//! assert_eq!(
//!     out,
//!     b"POST /a?b HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\nx-request-id: 7\r\n\r\n"
//! );
//!
//! let mut body = Body::new(head.body);
//! assert_eq!(body.advance(&data[head.len..])?, 2);
//! assert!(body.is_done());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), deny(clippy::indexing_slicing))] // nothing from the network may panic

mod body;
mod connection;
mod edit;
mod error;
mod field;
mod head;
mod request;
mod response;
mod target;

pub use body::{BadBody, Body, trailer_allowed};
pub use edit::{edit_head, head_len, is_field_name, is_field_value, request_line, write_line};
pub use error::{BadHead, BadRequest, BadResponse};
pub use field::{Headers, headers, is_same_name};
pub use request::{RequestEdit, RequestHead, parse_request};
pub use response::{ResponseEdit, ResponseHead, parse_response};
pub use target::split_authority;

/// Largest head that is accepted.
#[derive(Copy, Clone, Debug)]
pub struct Limits {
    /// Longest accepted head in bytes, from the request or status line to the empty line.
    pub head_bytes: usize,
    /// Most header lines accepted; values above 144 count as 144.
    pub headers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 64 * 1024,
            headers: 100,
        }
    }
}

/// Result of looking for a head at the start of a buffer.
#[derive(Debug)]
pub enum Parsed<T> {
    /// The bytes so far are valid, but the head is not complete: read more and parse again.
    Partial,
    /// The head is complete.
    Complete(T),
}

/// A range of the buffer that was parsed; meaningless for any other buffer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteSpan {
    start: u32,
    end: u32,
}

/// `ByteSpan::start` of the two values that a request may mean without containing them.
const LITERAL: u32 = u32::MAX;

impl ByteSpan {
    /// `/`: the path of `GET http://host HTTP/1.1`.
    const SLASH: Self = Self {
        start: LITERAL,
        end: 0,
    };
    /// `*`: the path of `OPTIONS http://host HTTP/1.1` (RFC 9112, section 3.2.4).
    const STAR: Self = Self {
        start: LITERAL,
        end: 1,
    };

    /// Heads are shorter than 4 GiB ([`head::max_bytes`]), so offsets fit.
    fn new(start: usize, end: usize) -> Self {
        Self {
            start: start as u32,
            end: end as u32,
        }
    }

    /// The place of `part`, which must be a slice of `buf`.
    fn locate(buf: &[u8], part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(buf.as_ptr() as usize);
        Self::new(start, start + part.len())
    }

    /// The bytes this span names in `buf`, the buffer that was parsed.
    #[inline]
    pub fn slice<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        if self.start == LITERAL {
            return if self.end == 0 { b"/" } else { b"*" };
        }
        let bytes = buf.get(self.start as usize..self.end as usize);
        debug_assert!(bytes.is_some(), "span used with another buffer");
        bytes.unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        if self.start == LITERAL {
            return 1;
        }
        (self.end - self.start) as usize
    }

    /// Whether the value is absent or empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Request method. `Other` is any other token; its text is in [`RequestHead::method_text`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    Other,
}

impl Method {
    /// Reads a method. Methods are case-sensitive (RFC 9110, section 9.1): `get` is `Other`.
    pub fn from_bytes(text: &[u8]) -> Self {
        match text {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            _ => Self::Other,
        }
    }

    /// The method as it is written; empty: any other.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Patch => "PATCH",
            Self::Other => "",
        }
    }

    /// Whether the method is idempotent (RFC 9110, section 9.2.2), so that a request may be sent
    /// again after a lost connection.
    pub fn is_idempotent(self) -> bool {
        !matches!(self, Self::Post | Self::Patch | Self::Connect | Self::Other)
    }
}

/// How the end of a message body is found (RFC 9112, section 6.3).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No body, and no framing field that announces one.
    None,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Until the connection ends (responses only).
    UntilClose,
}
