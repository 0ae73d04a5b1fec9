//! The request target (RFC 9112, section 3.2) and the authority in it or in `Host`.

use crate::error::BadRequest;
use crate::field::{ByteSet, split_once};
use crate::{ByteSpan, Method};

/// A valid request target, as spans of the parsed buffer.
pub(crate) struct Target {
    /// Path without query.
    pub(crate) path: ByteSpan,
    /// Path and query of an absolute-form target. May lack the leading `/`.
    pub(crate) rewrite: Option<ByteSpan>,
    /// Authority of an absolute-form or authority-form target; it replaces `Host`.
    pub(crate) authority: Option<ByteSpan>,
}

impl Target {
    /// Parses `text`, which lies at `start` of the buffer. `httparse` has rejected control bytes
    /// and spaces.
    pub(crate) fn parse(method: Method, text: &[u8], start: usize) -> Result<Self, BadRequest> {
        if text.iter().any(|&byte| byte == b'#' || byte >= 0x7f) {
            return Err(BadRequest::Target);
        }
        let end = start + text.len();
        if method == Method::Connect {
            // Authority-form, and only here; the port must be given (RFC 9110, section 9.3.6).
            return match Authority::parse(text) {
                Some(Authority::HostPort) => Ok(Self {
                    path: ByteSpan::default(),
                    rewrite: None,
                    authority: Some(ByteSpan::new(start, end)),
                }),
                _ => Err(BadRequest::TargetForm),
            };
        }
        if text.first() == Some(&b'/') {
            return Ok(Self {
                path: ByteSpan::new(start, start + path_len(text)),
                rewrite: None,
                authority: None,
            });
        }
        if text == b"*" && method == Method::Options {
            return Ok(Self {
                path: ByteSpan::new(start, end),
                rewrite: None,
                authority: None,
            });
        }
        let after = without_scheme(text).ok_or(BadRequest::TargetForm)?;
        let authority_len = after
            .iter()
            .position(|byte| matches!(byte, b'/' | b'?'))
            .unwrap_or(after.len());
        let (authority, rest) = after.split_at(authority_len);
        match Authority::parse(authority) {
            Some(Authority::Host | Authority::HostPort) => {}
            _ => return Err(BadRequest::TargetForm),
        }
        let rest_start = end - rest.len();
        let path = match rest.first() {
            Some(b'/') => ByteSpan::new(rest_start, rest_start + path_len(rest)),
            None if method == Method::Options => ByteSpan::STAR,
            _ => ByteSpan::SLASH,
        };
        Ok(Self {
            path,
            rewrite: Some(if rest.is_empty() {
                path
            } else {
                ByteSpan::new(rest_start, end)
            }),
            authority: Some(ByteSpan::new(end - after.len(), rest_start)),
        })
    }
}

fn path_len(text: &[u8]) -> usize {
    memchr::memchr(b'?', text).unwrap_or(text.len())
}

/// Returns the text after the scheme.
fn without_scheme(text: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"].iter().find_map(|scheme| {
        let (start, rest) = text.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

/// Form of a valid `uri-host [ ":" port ]`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// Nothing: allowed in `Host` when the target has no authority (RFC 9110, section 7.2).
    Empty,
    /// A host, perhaps with a colon but no digits after it (RFC 3986 allows that).
    Host,
    /// A host and a port.
    HostPort,
}

impl Authority {
    /// Returns the form; `None` if `text` is not valid. User information is refused (RFC 9110,
    /// section 4.2.4), and so is a comma in a name: it lets one `Host` line read as two.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let rest = match text {
            [] => return Some(Self::Empty),
            [b'[', address @ ..] => {
                let (address, rest) = split_once(address, b']')?;
                let address = std::str::from_utf8(address).ok()?;
                address.parse::<std::net::Ipv6Addr>().ok()?;
                rest
            }
            _ => {
                let end = memchr::memchr(b':', text).unwrap_or(text.len());
                let (name, rest) = text.split_at(end);
                if name.is_empty() || !is_name(name) {
                    return None;
                }
                rest
            }
        };
        match rest {
            [] | [b':'] => Some(Self::Host),
            [b':', port @ ..] => is_port(port).then_some(Self::HostPort),
            _ => None,
        }
    }
}

/// Splits an authority that a head carries into host, as sent, and port. An IPv6 address keeps its
/// brackets; the port is `None` if absent or empty. Hosts compare without regard to case.
pub fn split_authority(authority: &[u8]) -> (&[u8], Option<u16>) {
    let after_address = memchr::memrchr(b']', authority).map_or(0, |end| end + 1);
    let port = authority.get(after_address..).unwrap_or_default();
    let Some(colon) = memchr::memrchr(b':', port) else {
        return (authority, None);
    };
    let (host, port) = authority.split_at(after_address + colon);
    let port = port.strip_prefix(b":").unwrap_or_default();
    let port = std::str::from_utf8(port).unwrap_or_default();
    (host, port.parse().ok())
}

/// Whether this is a registered name or IPv4 address: unreserved and sub-delims but the comma.
/// Percent signs are refused: some servers decode them, and see another host than the policy. Names
/// in other scripts come as `xn--…` (RFC 5890).
fn is_name(name: &[u8]) -> bool {
    static NAME: ByteSet = ByteSet::alphanumeric_and(b"-._~!$&'()*+;=");
    name.iter().all(|byte| NAME.has(*byte))
}

fn is_port(digits: &[u8]) -> bool {
    let mut port = 0u32;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return false;
        }
        port = port * 10 + u32::from(byte - b'0');
        if port > 65535 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port() {
        let cases: [(&str, &str, Option<u16>); 7] = [
            ("", "", None),
            ("a", "a", None),
            ("a:", "a", None),
            ("a:80", "a", Some(80)),
            ("a:08080", "a", Some(8080)),
            ("[::1]", "[::1]", None),
            ("[::1]:80", "[::1]", Some(80)),
        ];
        for (authority, host, port) in cases {
            let expected = (host.as_bytes(), port);
            assert_eq!(
                split_authority(authority.as_bytes()),
                expected,
                "{authority}"
            );
        }
    }

    #[test]
    fn authorities() {
        use Authority::{Empty, Host, HostPort};
        let cases: [(&str, Option<Authority>); 24] = [
            ("", Some(Empty)),
            ("a", Some(Host)),
            ("a.b-c.example", Some(Host)),
            ("a:", Some(Host)),
            ("a:0", Some(HostPort)),
            ("a:80", Some(HostPort)),
            ("127.0.0.1:65535", Some(HostPort)),
            ("[::1]", Some(Host)),
            ("[::1]:80", Some(HostPort)),
            ("a_b.default", Some(Host)),
            ("a%41", None),
            ("a%4", None),
            ("a:65536", None),
            ("a:8a", None),
            ("a:80:80", None),
            (":80", None),
            ("u@a", None),
            ("a b", None),
            ("a,b", None),
            ("a/b", None),
            ("a\\b", None),
            ("[::1", None),
            ("[::1]a", None),
            ("[a]", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Authority::parse(text.as_bytes()), expected, "{text}");
        }
    }
}
