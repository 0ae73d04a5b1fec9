//! Whether a path can be read in only one way.
//!
//! A path is forwarded as it came, so a rule about paths is only as good as its agreement with the
//! application about what a path means. `/a/../admin`, `//admin`, `/%61dmin`, `/admin;x` and
//! `/a%2fadmin` are read differently by different servers. Where rules look at paths, these are
//! refused; elsewhere they pass.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::borrow::Cow;

/// How servers read a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// All servers read it alike, and it has no percent-encoding.
    Plain,
    /// All servers read it alike, once it is decoded.
    Encoded,
    /// Servers read it differently.
    Ambiguous,
}

/// Whether servers agree on the meaning of a path (without its query). It must have no empty or dot
/// segments, no backslash, no parameters (`;`), and no encoded blank around a segment. Nor may it
/// have an encoding that is, or is read as, one of these, a letter or digit, a control byte, or
/// another encoding.
pub fn is_plain(path: &[u8]) -> bool {
    reading(path) != Reading::Ambiguous
}

/// As [`is_plain`], and whether the path must be decoded to be read.
pub fn reading(path: &[u8]) -> Reading {
    let segments = match path {
        // The target of `OPTIONS *`, and of CONNECT, which has no path.
        b"*" | b"" => return Reading::Plain,
        [b'/', segments @ ..] => segments,
        _ => return Reading::Ambiguous,
    };
    if is_ordinary(segments) {
        Reading::Plain
    } else if !are_plain(segments) {
        Reading::Ambiguous
    } else if segments.contains(&b'%') {
        Reading::Encoded
    } else {
        Reading::Plain
    }
}

/// Bytes without a special meaning anywhere in a path.
const ORDINARY: [bool; 256] = ordinary();

#[expect(clippy::indexing_slicing, reason = "the compiler runs this")]
const fn ordinary() -> [bool; 256] {
    let mut ordinary = [true; 256];
    let mut byte = 0;
    while byte <= b' ' {
        ordinary[byte as usize] = false;
        byte += 1;
    }
    // Some characters beyond ASCII are blanks.
    let mut byte = 0x80;
    while byte < ordinary.len() {
        ordinary[byte] = false;
        byte += 1;
    }
    let special = *b"%/.;\\\x7f";
    let mut at = 0;
    while at < special.len() {
        ordinary[special[at] as usize] = false;
        at += 1;
    }
    ordinary
}

/// Whether segments need no closer look, as in nearly all paths; it takes few instructions.
fn is_ordinary(segments: &[u8]) -> bool {
    let mut before = b'/';
    for &byte in segments {
        let special = ORDINARY.get(usize::from(byte)) != Some(&true);
        if special && (!matches!(byte, b'/' | b'.') || before == b'/') {
            return false;
        }
        before = byte;
    }
    true
}

fn are_plain(segments: &[u8]) -> bool {
    let mut rest = segments;
    loop {
        let end = rest.iter().position(|&b| b == b'/');
        let segment = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        // Only the last segment may be empty: the slash at the end of a path.
        if matches!(segment, b"." | b"..") || (segment.is_empty() && end.is_some()) {
            return false;
        }
        if !is_plain_segment(segment) {
            return false;
        }
        match end {
            Some(end) => rest = rest.get(end + 1..).unwrap_or_default(),
            None => return true,
        }
    }
}

/// Removes from a decoded segment's ends the characters that servers may trim: blanks of Unicode,
/// in UTF-8 or in ISO 8859-1, and characters that have no width.
pub fn trimmed(segment: &[u8]) -> &[u8] {
    let blank = |c: char| {
        c.is_whitespace()
            || matches!(
                c,
                '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}'
            )
    };
    if let Ok(text) = std::str::from_utf8(segment) {
        return text.trim_matches(blank).as_bytes();
    }
    let mut rest = segment;
    while let [first, after @ ..] = rest
        && blank(char::from(*first))
    {
        rest = after;
    }
    while let [before @ .., last] = rest
        && blank(char::from(*last))
    {
        rest = before;
    }
    rest
}

/// Whether servers that decode a segment may trim it.
fn has_blank_edge(segment: &[u8]) -> bool {
    if segment.iter().all(|b| b.is_ascii() && *b != b'%') {
        return false;
    }
    let decoded = decoded(segment);
    trimmed(&decoded).len() != decoded.len()
}

fn is_plain_segment(segment: &[u8]) -> bool {
    if has_blank_edge(segment) {
        return false;
    }
    let mut rest = segment;
    while let [byte, after @ ..] = rest {
        match byte {
            b';' | b'\\' | 0..=b' ' | 0x7f => return false,
            b'%' => match octet(after) {
                Some((byte, after)) if !is_misleading(byte, after) => rest = after,
                _ => return false,
            },
            _ => rest = after,
        }
    }
    true
}

/// Whether an encoded byte makes a path ambiguous. `after` follows it.
fn is_misleading(byte: u8, after: &[u8]) -> bool {
    match byte {
        b'-' | b'.' | b'_' | b'~' | b'/' | b'\\' | b';' => true,
        // `%252e` becomes `%2e` when decoded once and `.` when decoded twice.
        b'%' => hex(after.first()).is_some(),
        _ => byte.is_ascii_alphanumeric() || byte.is_ascii_control(),
    }
}

/// Returns the byte that two hexadecimal digits stand for, and the rest.
fn octet(digits: &[u8]) -> Option<(u8, &[u8])> {
    let high = hex(digits.first())?;
    let low = hex(digits.get(1))?;
    Some((high << 4 | low, digits.get(2..)?))
}

fn hex(digit: Option<&u8>) -> Option<u8> {
    let value = char::from(*digit?).to_digit(16)?;
    u8::try_from(value).ok()
}

/// Decodes the percent-encodings of a path, as an application does.
pub fn decoded(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [byte, after @ ..] = rest {
        match (byte, octet(after)) {
            (b'%', Some((decoded, after))) => {
                out.push(decoded);
                rest = after;
            }
            _ => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_everybody_reads_alike() {
        // Both ways to compute the answer agree.
        let closely = |path: &str| {
            path.strip_prefix('/')
                .is_none_or(|s| are_plain(s.as_bytes()))
        };
        for path in [
            "/",
            "*",
            "",
            "/a",
            "/a/",
            "/a/b.c/...",
            "/.well-known/x",
            "/a%20b",
            "/users/a%40b.example",
            "/%C3%A9",
            "/%C3%A0",
            "/caf\u{e9}/\u{e0}",
            "/a\u{a0}b",
            "/a%C2%A0b",
            "/a%3Fb",
            "/v1/x:delete",
            "/100%25",
            "/100%25/x",
            "/package.Service/Method",
        ] {
            assert!(is_plain(path.as_bytes()) && closely(path), "{path}");
        }
    }

    #[test]
    fn paths_that_hide_another() {
        for path in [
            "/a/../admin",
            "/..",
            "/a/.",
            "/./admin",
            "//admin",
            "/a//b",
            "/a//",
            "/admin;x",
            "/a/..;/admin",
            "/a\\admin",
            "/%2e%2e/admin",
            "/%2E/admin",
            "/a%2fadmin",
            "/a%2Fadmin",
            "/a%5cadmin",
            "/%61dmin",
            "/admin%3bx",
            "/admin%00",
            "/admin%0a",
            "/admin%20",
            "/%20admin",
            "/admin%20/x",
            "/admin%C2%A0",
            "/%C2%A0admin/x",
            "/admin%C2%85",
            "/admin\u{a0}",
            "/admin%E2%80%83/x",
            "/admin%E3%80%80",
            "/%EF%BB%BFadmin",
            "/admin%E2%80%8B",
            "/admin%A0",
            "/%85admin",
            "/%252e%252e/admin",
            "/admin%2",
            "/admin%",
            "/%u0061dmin",
            "/%zz",
            "admin",
            "http://x/admin",
        ] {
            assert!(!is_plain(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn decoding_is_done_once() {
        assert_eq!(&*decoded(b"/x%3Adelete"), b"/x:delete");
        assert_eq!(&*decoded(b"/100%2525%"), b"/100%25%");
        assert!(matches!(decoded(b"/plain"), Cow::Borrowed(_)));
    }
}
