//! Parts common to requests and responses: line ends, framing fields, and the lines to leave out.

use std::mem::MaybeUninit;

use crate::error::BadHead;
use crate::field::{Lines, is_token_byte, is_value_byte};
use crate::{BodyLength, ByteSpan, Limits};

/// Header lines that the array on the stack can hold (4 KiB).
pub(crate) const MAX_HEADERS: usize = 144;

/// The array `httparse` fills. Uninitialised, as zeroing it costs more than a small head.
pub(crate) type Slots<'b> = [MaybeUninit<httparse::Header<'b>>; MAX_HEADERS];

/// Returns only as many slots as header lines are allowed.
pub(crate) fn usable<'s, 'b>(
    slots: &'s mut Slots<'b>,
    limits: &Limits,
) -> &'s mut [MaybeUninit<httparse::Header<'b>>] {
    let most = limits.headers.min(MAX_HEADERS);
    slots.get_mut(..most).unwrap_or_default()
}

/// The byte limit of a head: as configured, but small enough that offsets fit a [`ByteSpan`].
pub(crate) fn max_bytes(limits: &Limits) -> usize {
    limits.head_bytes.min(u32::MAX as usize - 1)
}

/// Calls `each` with the parsed header and the span of its line. Checks that this line and the
/// request or status line end in CRLF, because `httparse` accepts a bare LF, too. Returns the
/// offset of the first header line.
///
/// The lines lie end to end, so each ends where the next name begins, the last one at the empty
/// line; looking at two bytes per line is enough.
pub(crate) fn each_line<E: From<BadHead>>(
    buf: &[u8],
    len: usize,
    headers: &[httparse::Header<'_>],
    mut each: impl FnMut(&httparse::Header<'_>, ByteSpan) -> Result<(), E>,
) -> Result<usize, E> {
    let offset = |name: &str| ByteSpan::locate(buf, name.as_bytes()).start as usize;
    let fields_end = len.saturating_sub(2);
    let first = headers
        .first()
        .map_or(fields_end, |header| offset(header.name));
    if !ends_in_crlf(buf, len) || !ends_in_crlf(buf, first) {
        return Err(BadHead::LineEnding.into());
    }
    let mut start = first;
    for (at, header) in headers.iter().enumerate() {
        let end = headers
            .get(at + 1)
            .map_or(fields_end, |next| offset(next.name));
        if !ends_in_crlf(buf, end) {
            return Err(BadHead::LineEnding.into());
        }
        each(header, ByteSpan::new(start, end))?;
        start = end;
    }
    Ok(first)
}

fn ends_in_crlf(buf: &[u8], end: usize) -> bool {
    end >= 2 && buf.get(end - 2..end) == Some(b"\r\n")
}

/// The framing fields seen so far.
#[derive(Default)]
pub(crate) struct Framing {
    length: Option<u64>,
    chunked: bool,
}

impl Framing {
    pub(crate) fn content_length(&mut self, value: &[u8]) -> Result<(), BadHead> {
        if self.length.is_some() {
            return Err(BadHead::ContentLengthRepeated);
        }
        self.length = Some(decimal(value).ok_or(BadHead::ContentLength)?);
        Ok(())
    }

    pub(crate) fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), BadHead> {
        if self.chunked {
            return Err(BadHead::TransferEncodingRepeated);
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(refuse_coding(value));
        }
        self.chunked = true;
        Ok(())
    }

    /// Returns the framing; `None` without framing fields.
    pub(crate) fn finish(&self, minor: u8) -> Result<Option<BodyLength>, BadHead> {
        match (self.length, self.chunked) {
            (Some(_), true) => Err(BadHead::LengthAndChunked),
            (None, true) if minor == 0 => Err(BadHead::TransferEncodingInHttp10),
            (None, true) => Ok(Some(BodyLength::Chunked)),
            (Some(length), false) => Ok(Some(BodyLength::Length(length))),
            (None, false) => Ok(None),
        }
    }
}

/// RFC 9112, section 6.1: an unknown coding before a final `chunked` leaves the length of the body
/// known, so 501 is right for it; anything else leaves it unknown.
#[cold]
fn refuse_coding(value: &[u8]) -> BadHead {
    let mut codings = value.rsplit(|&byte| byte == b',').map(crate::field::trim);
    let last_is_chunked = codings
        .next()
        .is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
    let others_are_tokens = codings.all(|coding| {
        !coding.is_empty()
            && coding.iter().copied().all(is_token_byte)
            && !coding.eq_ignore_ascii_case(b"chunked")
    });
    if last_is_chunked && others_are_tokens {
        BadHead::TransferEncodingUnknown
    } else {
        BadHead::TransferEncoding
    }
}

/// A plain decimal number below 2^63, the largest that servers with signed lengths agree on.
fn decimal(text: &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for &byte in text {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number
            .checked_mul(10)?
            .checked_add(u64::from(byte - b'0'))?;
    }
    (!text.is_empty() && number <= i64::MAX as u64).then_some(number)
}

/// Ranges of lines to leave out, as many as usual heads need; adjacent lines count as one.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Cuts {
    ranges: [ByteSpan; 6],
    used: u8,
    overflow: bool,
}

impl Cuts {
    /// Adds a line after those added before.
    pub(crate) fn push(&mut self, line: ByteSpan) {
        let used = self.used as usize;
        if let Some(before) = used.checked_sub(1)
            && let Some(last) = self.ranges.get_mut(before)
            && last.end == line.start
        {
            last.end = line.end;
        } else if let Some(free) = self.ranges.get_mut(used) {
            *free = line;
            self.used += 1;
        } else {
            self.overflow = true;
        }
    }

    /// Whether more were added than fit, so that the head must be scanned again.
    pub(crate) fn overflow(&self) -> bool {
        self.overflow
    }

    /// Copies `head[from..to]` without the cut lines.
    pub(crate) fn copy(&self, head: &[u8], from: usize, to: usize, out: &mut Vec<u8>) {
        let mut at = from;
        for cut in self.ranges.iter().take(self.used as usize) {
            out.extend_from_slice(slice(head, at, cut.start as usize));
            at = cut.end as usize;
        }
        out.extend_from_slice(slice(head, at, to));
    }
}

/// Returns `head[from..to]`. It is empty when `head` is not the buffer that was parsed: a mistake
/// of the caller must not take the proxy down.
pub(crate) fn slice(head: &[u8], from: usize, to: usize) -> &[u8] {
    let bytes = head.get(from..to);
    debug_assert!(bytes.is_some(), "head written with another buffer");
    bytes.unwrap_or_default()
}

/// Appends header lines. CR, LF and NUL in a value become spaces (RFC 9110, section 5.5), so that
/// no value, wherever it came from, can start a line of its own.
pub(crate) fn add_lines(lines: &[(&str, &[u8])], out: &mut Vec<u8>) {
    for (name, value) in lines {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        let start = out.len();
        out.extend_from_slice(value);
        let value = out.get_mut(start..).unwrap_or_default();
        if memchr::memchr3(b'\r', b'\n', 0, value).is_some() {
            for byte in value {
                if matches!(*byte, b'\r' | b'\n' | 0) {
                    *byte = b' ';
                }
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Names the fault of the header lines after the first line of `buf`, once `httparse` has refused
/// them: it does not tell folding from a bad name, and operators want to know.
#[cold]
pub(crate) fn diagnose(buf: &[u8], error: httparse::Error) -> BadHead {
    if error == httparse::Error::TooManyHeaders {
        return BadHead::TooManyHeaders;
    }
    let lines = buf.split_inclusive(|&byte| byte == b'\n').skip(1);
    for line in lines {
        let complete = line.ends_with(b"\n");
        let text = line.strip_suffix(b"\r\n").unwrap_or(line);
        if text.is_empty() {
            break;
        }
        if complete && text.len() == line.len() {
            return BadHead::LineEnding;
        }
        if text.starts_with(b" ") || text.starts_with(b"\t") {
            return BadHead::ObsFold;
        }
        let (name, value) = match text.iter().position(|&byte| byte == b':') {
            Some(colon) => text.split_at(colon),
            None => (text, &b""[..]),
        };
        if name.is_empty() {
            return BadHead::HeaderName;
        }
        if let Some(bad) = name.iter().position(|&byte| !is_token_byte(byte)) {
            let rest = name.get(bad..).unwrap_or_default();
            return match rest {
                [b'\r', ..] => BadHead::LineEnding,
                [b' ' | b'\t', ..] if crate::field::trim(rest).is_empty() => {
                    BadHead::SpaceBeforeColon
                }
                _ => BadHead::HeaderName,
            };
        }
        if complete && value.is_empty() {
            return BadHead::HeaderName; // a line without a colon
        }
        let bad = value.iter().skip(1).find(|byte| !is_value_byte(**byte));
        match bad {
            Some(b'\r') if complete || !text.ends_with(b"\r") => return BadHead::LineEnding,
            Some(b'\r') | None => {}
            Some(_) => return BadHead::HeaderValue,
        }
    }
    match error {
        httparse::Error::HeaderValue => BadHead::HeaderValue,
        httparse::Error::NewLine => BadHead::LineEnding,
        _ => BadHead::HeaderName,
    }
}

/// Copies the header lines of a validated head for which `keep` holds.
pub(crate) fn copy_lines(fields: &[u8], mut keep: impl FnMut(&[u8]) -> bool, out: &mut Vec<u8>) {
    for line in Lines::new(fields) {
        if keep(line.name) {
            out.extend_from_slice(line.bytes);
        }
    }
}
