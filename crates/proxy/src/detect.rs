//! What a connection speaks, from its first bytes, when `appProtocol` does not say.
//!
//! Pure: the caller reads, waits and counts. The answer never needs more than `LIMIT` bytes.

/// Bytes that always suffice for an answer.
pub const LIMIT: usize = 64;

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detected {
    /// An HTTP/1.x request line or the preface of HTTP/2 has begun.
    Http,
    /// Something else: forwarded without looking.
    Opaque,
    /// Not enough bytes.
    NeedsMore,
}

/// Longest method looked for; IANA's longest registered one has 17 characters.
const METHOD_LIMIT: usize = 20;

/// Looks at the first bytes of a connection. A request line begins with a method of upper-case
/// letters, a space, and a target that starts with `/`, `*` or a scheme or host character
/// (RFC 9112 3). The preface of HTTP/2 (RFC 9113 3.4) was made to look like one. Which of the two it
/// is shows when it is read as a head.
pub fn detect(bytes: &[u8]) -> Detected {
    let method = bytes
        .iter()
        .take(METHOD_LIMIT + 1)
        .take_while(|b| b.is_ascii_uppercase() || matches!(b, b'-' | b'_'))
        .count();
    if method > METHOD_LIMIT {
        return Detected::Opaque;
    }
    match (method, bytes.get(method), bytes.get(method + 1)) {
        (_, None, _) => Detected::NeedsMore,
        (0, Some(_), _) => Detected::Opaque,
        (_, Some(b' '), None) => Detected::NeedsMore,
        (_, Some(b' '), Some(b))
            if b.is_ascii_alphanumeric() || matches!(b, b'/' | b'*' | b'[') =>
        {
            Detected::Http
        }
        _ => Detected::Opaque,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http() {
        for text in [
            "GET / HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "POST http://a/",
            "M-SEARCH * HTTP/1.1",
            "PRI * HTTP/2.0",
        ] {
            assert_eq!(detect(text.as_bytes()), Detected::Http, "{text}");
        }
    }

    #[test]
    fn opaque() {
        for bytes in [
            &b"\x16\x03\x01"[..],
            b"get / HTTP/1.1",
            b"*1\r\n$4\r\nPING",
            b" GET /",
            b"GET\t/",
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
            b"\0",
            b"GET  /",
        ] {
            assert_eq!(detect(bytes), Detected::Opaque, "{bytes:?}");
        }
    }

    #[test]
    fn needs_more_only_while_undecided() {
        for text in ["", "G", "GET", "GET ", "PRI"] {
            assert_eq!(detect(text.as_bytes()), Detected::NeedsMore, "{text}");
        }
    }
}
