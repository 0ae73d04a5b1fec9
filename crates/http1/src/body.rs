//! Finds the end of a message body in a stream of bytes that are forwarded unchanged.
//!
//! Chunked bodies pass as they are, so the checks here make every recipient find the same end.
//! Sizes are hexadecimal digits and nothing else, lines end in CRLF, and trailers cannot be taken
//! for framing, routing or identity. Only a few bytes of state are kept.

use std::fmt;

use crate::BodyLength;
use crate::field::{MESH, is_token_byte, is_value_byte};

/// Bytes of extensions after one chunk size.
const MAX_EXTENSION: u16 = 256;
/// Bytes of extensions in one body; else one-byte chunks make a body cost 256 times its data.
const MAX_EXTENSIONS: u16 = 16 * 1024;
/// Bytes of all trailer lines.
const MAX_TRAILERS: u16 = 8 * 1024;
/// Hexadecimal digits of a chunk size.
const MAX_DIGITS: u16 = 16;
/// The trailer with the status of a gRPC call.
const GRPC_STATUS: &[u8] = b"grpc-status";
/// No status came. An invalid status, or one above 253, counts as 254.
const NONE: u8 = u8::MAX;
/// Longest name in [`FORBIDDEN`].
const NAME_BYTES: usize = 23;

/// Fields that change framing, routing, authentication or the reading of the content must not come
/// as trailers (RFC 9110, section 6.5.1): servers that merge trailers into headers would obey them.
const FORBIDDEN: [&[u8]; 20] = [
    b"authorization",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"expect",
    b"host",
    b"keep-alive",
    b"proxy-authorization",
    b"proxy-connection",
    b"set-cookie",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"x-forwarded-client-cert",
    b"x-forwarded-for",
    b"x-request-id",
];

/// Whether this field, in lower case, may appear as a trailer. A forbidden trailer makes a chunked
/// body invalid; a gateway from another version of HTTP leaves it out instead.
pub fn trailer_allowed(name: &[u8]) -> bool {
    // `content_length` is read as `content-length` by some servers.
    let mut plain = [0; NAME_BYTES];
    for (place, byte) in plain.iter_mut().zip(name) {
        *place = if *byte == b'_' { b'-' } else { *byte };
    }
    !is_forbidden(&plain, name.len())
}

/// Whether a trailer has a forbidden name; `start` has as much of it as fits, in lower case.
fn is_forbidden(start: &[u8; NAME_BYTES], length: usize) -> bool {
    let whole = start.get(..length);
    whole.is_some_and(|name| FORBIDDEN.contains(&name))
        || (length > MESH.len() && start.starts_with(MESH))
}

/// Why a body is refused. Its end is unknown, so its connection must be closed, and so must the one
/// it was forwarded to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the texts below say what each variant means
pub enum BadBody {
    ChunkSize,
    ChunkSizeTooLarge,
    ChunkExtension,
    ChunkExtensionTooLong,
    ChunkEnd,
    LineEnding,
    TrailerName,
    TrailerValue,
    TrailerForbidden,
    TrailersTooLarge,
    Truncated,
}

impl BadBody {
    /// Short stable code.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ChunkSize => "chunk-size",
            Self::ChunkSizeTooLarge => "chunk-size-too-large",
            Self::ChunkExtension => "chunk-extension",
            Self::ChunkExtensionTooLong => "chunk-extension-too-long",
            Self::ChunkEnd => "chunk-end",
            Self::LineEnding => "body-bare-cr-or-lf",
            Self::TrailerName => "trailer-name",
            Self::TrailerValue => "trailer-value",
            Self::TrailerForbidden => "trailer-forbidden",
            Self::TrailersTooLarge => "trailers-too-large",
            Self::Truncated => "body-truncated",
        }
    }
}

impl fmt::Display for BadBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChunkSize => "a chunk size is not hexadecimal digits followed by CRLF or `;`",
            Self::ChunkSizeTooLarge => "a chunk size has more than 16 digits or is 2^63 or more",
            Self::ChunkExtension => "a chunk extension is empty or contains a control byte",
            Self::ChunkExtensionTooLong => {
                "chunk extensions are longer than 256 bytes in a chunk or 16 KiB in a body"
            }
            Self::ChunkEnd => "a chunk is not followed by CRLF, so its size is wrong",
            Self::LineEnding => "a line of a chunked body ends in a bare CR or LF",
            Self::TrailerName => "a trailer line is folded, has no colon, or its name is no token",
            Self::TrailerValue => "a trailer value contains a control byte",
            Self::TrailerForbidden => {
                "a trailer names a field for framing, routing or identity, which must be a header"
            }
            Self::TrailersTooLarge => "the trailers are larger than 8 KiB",
            Self::Truncated => "the connection ended before the body did",
        })
    }
}

impl std::error::Error for BadBody {}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    /// `left` more bytes, then the end.
    Length,
    UntilClose,
    /// In the digits of a chunk size; `count` were read.
    Size,
    /// Right after the `;`.
    ExtensionStart,
    Extension,
    /// After the CR of the line with the size.
    SizeLf,
    /// `left` more bytes of this chunk.
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer line or of the empty line that ends the body.
    Trailer,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
    Failed(BadBody),
}

/// Follows one message body. Give it the bytes after the head, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Body {
    state: State,
    left: u64,
    /// Bytes of chunks and of bodies with a length that have passed.
    content: u64,
    /// Digits of a size, bytes of an extension, or bytes of a trailer name.
    count: u16,
    extensions: u16,
    trailers: u16,
    no_trailers: bool,
    name: [u8; NAME_BYTES],
    /// Value of the trailer `grpc-status`; [`NONE`]: it did not come.
    grpc_status: u8,
}

impl Body {
    /// Begins a body with the framing of its head.
    pub fn new(length: BodyLength) -> Self {
        let (state, left) = match length {
            BodyLength::None | BodyLength::Length(0) => (State::Done, 0),
            BodyLength::Length(left) => (State::Length, left),
            BodyLength::Chunked => (State::Size, 0),
            BodyLength::UntilClose => (State::UntilClose, 0),
        };
        Self {
            state,
            left,
            content: 0,
            count: 0,
            extensions: 0,
            trailers: 0,
            no_trailers: false,
            name: [0; NAME_BYTES],
            grpc_status: NONE,
        }
    }

    /// Refuses all trailers: only the proxy may set some of their names.
    #[must_use]
    pub fn without_trailers(mut self) -> Self {
        self.no_trailers = true;
        self
    }

    /// Returns how many bytes at the start of `data` belong to the body: all, unless it ends among
    /// them. After an error no byte of `data` may be forwarded, and the error stays.
    pub fn advance(&mut self, data: &[u8]) -> Result<usize, BadBody> {
        let mut at = 0;
        while let Some(&byte) = data.get(at) {
            match self.state {
                State::Done => break,
                State::UntilClose => return Ok(data.len()),
                State::Length | State::Data => at += self.skip(data.len() - at),
                _ => {
                    if let Err(bad) = self.step(byte) {
                        self.state = State::Failed(bad);
                        return Err(bad);
                    }
                    at += 1;
                }
            }
        }
        match self.state {
            State::Failed(bad) => Err(bad),
            _ => Ok(at),
        }
    }

    /// Whether the body has ended; what follows on the connection is the next message.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Returns the trailer `grpc-status`, if it came; anything but a number up to 253 counts as
    /// 254.
    pub fn grpc_status(&self) -> Option<u8> {
        (self.grpc_status != NONE).then_some(self.grpc_status)
    }

    /// Returns how many bytes have passed without those that frame them. A body without a length or chunks is not counted.
    pub fn content(&self) -> u64 {
        self.content
    }

    /// Whether the next byte is certainly content, and neither framing nor the end.
    pub fn expects_content(&self) -> bool {
        matches!(self.state, State::Length | State::Data)
    }

    /// Notes that the sender has closed the connection.
    pub fn end_of_stream(&mut self) -> Result<(), BadBody> {
        match self.state {
            State::Done => Ok(()),
            State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            State::Failed(bad) => Err(bad),
            _ => {
                self.state = State::Failed(BadBody::Truncated);
                Err(BadBody::Truncated)
            }
        }
    }

    /// Skips data, of which `available` bytes are at hand.
    fn skip(&mut self, available: usize) -> usize {
        let skipped = self.left.min(available as u64);
        self.left -= skipped;
        self.content += skipped;
        if self.left == 0 {
            self.state = match self.state {
                State::Length => State::Done,
                _ => State::DataCr,
            };
        }
        skipped as usize
    }

    fn step(&mut self, byte: u8) -> Result<(), BadBody> {
        self.state = match self.state {
            State::Size => self.size(byte)?,
            State::ExtensionStart => {
                if byte == b'\r' {
                    return Err(BadBody::ChunkExtension);
                }
                self.extension(byte)?
            }
            State::Extension => self.extension(byte)?,
            State::SizeLf => {
                expect(byte, b'\n', BadBody::LineEnding)?;
                self.count = 0;
                if self.left == 0 {
                    State::Trailer
                } else {
                    State::Data
                }
            }
            State::DataCr => {
                expect(byte, b'\r', BadBody::ChunkEnd)?;
                State::DataLf
            }
            State::DataLf => {
                expect(byte, b'\n', BadBody::ChunkEnd)?;
                State::Size
            }
            State::Trailer if byte == b'\r' => State::EndLf,
            State::Trailer => {
                self.count = 0;
                self.trailer_name(byte)?
            }
            State::TrailerName => self.trailer_name(byte)?,
            State::TrailerValue => self.trailer_value(byte)?,
            State::TrailerLf => {
                expect(byte, b'\n', BadBody::LineEnding)?;
                State::Trailer
            }
            State::EndLf => {
                expect(byte, b'\n', BadBody::LineEnding)?;
                State::Done
            }
            State::Failed(bad) => return Err(bad),
            // `advance` takes these in bulk.
            state @ (State::Length | State::Data | State::UntilClose | State::Done) => state,
        };
        Ok(())
    }

    fn size(&mut self, byte: u8) -> Result<State, BadBody> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\n' => return Err(BadBody::LineEnding),
            b'\r' if self.count > 0 => return Ok(State::SizeLf),
            b';' if self.count > 0 => {
                self.count = 0;
                return Ok(State::ExtensionStart);
            }
            _ => return Err(BadBody::ChunkSize),
        };
        if self.count == MAX_DIGITS || self.left >= 1 << 59 {
            return Err(BadBody::ChunkSizeTooLarge);
        }
        self.left = self.left << 4 | u64::from(digit);
        self.count += 1;
        Ok(State::Size)
    }

    fn extension(&mut self, byte: u8) -> Result<State, BadBody> {
        match byte {
            b'\r' => return Ok(State::SizeLf),
            b'\n' => return Err(BadBody::LineEnding),
            _ if !is_value_byte(byte) => return Err(BadBody::ChunkExtension),
            _ => {}
        }
        self.count += 1;
        self.extensions += 1;
        if self.count > MAX_EXTENSION || self.extensions > MAX_EXTENSIONS {
            return Err(BadBody::ChunkExtensionTooLong);
        }
        Ok(State::Extension)
    }

    fn trailer_name(&mut self, byte: u8) -> Result<State, BadBody> {
        self.count_trailer()?;
        let length = usize::from(self.count);
        match byte {
            b':' if length > 0 => {
                if self.no_trailers || is_forbidden(&self.name, length) {
                    return Err(BadBody::TrailerForbidden);
                }
                if self.is_grpc_status() {
                    self.grpc_status = 0;
                }
                Ok(State::TrailerValue)
            }
            b'\r' | b'\n' => Err(match length {
                0 => BadBody::LineEnding,
                _ => BadBody::TrailerName,
            }),
            _ if is_token_byte(byte) => {
                // `content_length` is read as `content-length` by some servers.
                if let Some(place) = self.name.get_mut(length) {
                    *place = match byte {
                        b'_' => b'-',
                        _ => byte.to_ascii_lowercase(),
                    };
                }
                self.count += 1;
                Ok(State::TrailerName)
            }
            _ => Err(BadBody::TrailerName),
        }
    }

    fn trailer_value(&mut self, byte: u8) -> Result<State, BadBody> {
        self.count_trailer()?;
        match byte {
            b'\r' => Ok(State::TrailerLf),
            b'\n' => Err(BadBody::LineEnding),
            _ if is_value_byte(byte) => {
                if self.is_grpc_status() {
                    self.grpc_status_digit(byte);
                }
                Ok(State::TrailerValue)
            }
            _ => Err(BadBody::TrailerValue),
        }
    }

    /// Whether the current trailer is `grpc-status`.
    fn is_grpc_status(&self) -> bool {
        usize::from(self.count) == GRPC_STATUS.len() && self.name.starts_with(GRPC_STATUS)
    }

    fn grpc_status_digit(&mut self, byte: u8) {
        self.grpc_status = match byte {
            b' ' | b'\t' => return,
            b'0'..=b'9' => {
                let longer = self.grpc_status.saturating_mul(10);
                longer.saturating_add(byte - b'0').min(NONE - 1)
            }
            _ => NONE - 1,
        };
    }

    fn count_trailer(&mut self) -> Result<(), BadBody> {
        if self.trailers == MAX_TRAILERS {
            return Err(BadBody::TrailersTooLarge);
        }
        self.trailers += 1;
        Ok(())
    }
}

fn expect(byte: u8, wanted: u8, otherwise: BadBody) -> Result<(), BadBody> {
    if byte == wanted {
        Ok(())
    } else {
        Err(otherwise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many bytes of `data` belong to a chunked body, and whether it has ended.
    fn chunked(data: &[u8]) -> Result<(usize, bool), BadBody> {
        let mut body = Body::new(BodyLength::Chunked);
        let taken = body.advance(data)?;
        Ok((taken, body.is_done()))
    }

    #[test]
    fn length_ends_where_it_says() {
        let mut body = Body::new(BodyLength::Length(5));
        assert_eq!(body.advance(b"abc"), Ok(3));
        assert!(!body.is_done());
        assert_eq!(body.advance(b"deGET"), Ok(2));
        assert!(body.is_done());
        assert_eq!(body.advance(b"GET"), Ok(0));
        assert_eq!(body.end_of_stream(), Ok(()));
    }

    /// 32 bits would take these for bodies of two bytes, also where a `usize` has no more.
    #[test]
    fn bodies_may_be_longer_than_32_bits_say() {
        let long = (1 << 32) + 2;
        let mut body = Body::new(BodyLength::Length(long));
        assert_eq!(body.advance(b"abcd"), Ok(4));
        assert_eq!((body.left, body.is_done()), (long - 4, false));
        let mut body = Body::new(BodyLength::Chunked);
        assert_eq!(body.advance(b"100000002\r\nabcd"), Ok(15));
        assert_eq!((body.left, body.is_done()), (long - 4, false));
    }

    #[test]
    fn no_body_is_done_at_once() {
        assert!(Body::new(BodyLength::None).is_done());
        assert!(Body::new(BodyLength::Length(0)).is_done());
    }

    #[test]
    fn until_close_needs_the_close() {
        let mut body = Body::new(BodyLength::UntilClose);
        assert_eq!(body.advance(b"abc"), Ok(3));
        assert!(!body.is_done());
        assert_eq!(body.end_of_stream(), Ok(()));
        assert!(body.is_done());
    }

    #[test]
    fn early_end_is_an_error() {
        for (length, data) in [
            (BodyLength::Length(2), &b"a"[..]),
            (BodyLength::Chunked, b""),
            (BodyLength::Chunked, b"0\r\n\r"),
        ] {
            let mut body = Body::new(length);
            assert_eq!(body.advance(data), Ok(data.len()));
            assert_eq!(body.end_of_stream(), Err(BadBody::Truncated));
        }
    }

    #[test]
    fn error_stays() {
        let mut body = Body::new(BodyLength::Chunked);
        assert_eq!(body.advance(b"x"), Err(BadBody::ChunkSize));
        assert_eq!(body.advance(b"0\r\n\r\n"), Err(BadBody::ChunkSize));
        assert_eq!(body.advance(b""), Err(BadBody::ChunkSize));
        assert!(!body.is_done());
    }

    #[test]
    fn size_limits() {
        let largest = b"7fffffffffffffff\r\n";
        assert_eq!(chunked(largest), Ok((largest.len(), false)));
        assert_eq!(
            chunked(b"8000000000000000\r\n"),
            Err(BadBody::ChunkSizeTooLarge)
        );
        assert_eq!(
            chunked(b"00000000000000000\r\n"),
            Err(BadBody::ChunkSizeTooLarge)
        );
    }

    #[test]
    fn extensions_are_bounded_in_a_body() {
        let chunk = format!("1;{}\r\nx\r\n", "a".repeat(256));
        let mut body = Body::new(BodyLength::Chunked);
        let passed = (0..100)
            .take_while(|_| body.advance(chunk.as_bytes()).is_ok())
            .count();
        assert_eq!(passed, 64);
    }

    #[test]
    fn trailers_are_bounded() {
        let mut body = Body::new(BodyLength::Chunked);
        assert_eq!(body.advance(b"0\r\n"), Ok(3));
        let passed = (0..5000).take_while(|_| body.advance(b"a: b\r\n").is_ok());
        assert_eq!(passed.count(), 8 * 1024 / 5); // line feeds are not counted
        assert_eq!(body.advance(b""), Err(BadBody::TrailersTooLarge));
    }
}
