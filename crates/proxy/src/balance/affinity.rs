//! Session affinity: a cookie or header names the endpoint that has served a client before.
//!
//! The name is a keyed hash of the endpoint's address. The key comes from the roots of the mesh:
//! every proxy gives the same name, also after a restart, and outsiders cannot find the address by
//! trying. When the roots change, clients are given new names.

use crate::context::WorkerContext;
use aws_lc_rs::{digest, hmac};
use std::net::SocketAddr;
use tulle_model::resource::Affinity;

/// Makes the names of endpoints.
pub struct Namer(hmac::Key);

impl Namer {
    /// Derives the key from the certificates in force.
    pub fn new(context: &WorkerContext, service: &str) -> Self {
        let mut secret = digest::Context::new(&digest::SHA256);
        secret.update(b"tulle affinity\0");
        let snapshot = context.snapshot();
        secret.update(snapshot.mesh.trust_domain.as_str().as_bytes());
        for root in snapshot.tls.iter().flat_map(|t| t.bundle().roots()) {
            secret.update(b"\0");
            secret.update(root.fingerprint.as_bytes());
        }
        secret.update(b"\0");
        secret.update(service.as_bytes());
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.finish().as_ref()))
    }

    /// The name of an endpoint; never 0.
    pub fn name(&self, endpoint: SocketAddr) -> u64 {
        let tag = hmac::sign(&self.0, endpoint.to_string().as_bytes());
        let bytes = tag.as_ref().first_chunk().copied().unwrap_or([1; 8]);
        u64::from_be_bytes(bytes).max(1)
    }
}

/// Reads the name in a request; 0: no valid name.
pub fn of_request(affinity: &Affinity, head: &[u8]) -> u64 {
    let value = if affinity.header {
        header(head, affinity.name.as_bytes())
    } else {
        cookie(head, affinity.name.as_bytes())
    };
    value.map_or(0, parse)
}

fn parse(value: &[u8]) -> u64 {
    let digits = |v: &[u8]| v.len() == 16 && v.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits(value));
    text.and_then(|t| u64::from_str_radix(t, 16).ok())
        .unwrap_or_default()
}

/// The first value of a header.
pub fn header<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut all = tulle_http1::headers(head);
    let found = all.find(|(n, _)| n.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}

/// The first value of a cookie.
pub fn cookie<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let lines = tulle_http1::headers(head).filter(|(n, _)| n.eq_ignore_ascii_case(b"cookie"));
    let mut pairs = lines.flat_map(|(_, line)| line.split(|b| *b == b';'));
    pairs.find_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"=")?;
        Some(
            value
                .strip_prefix(b"\"")
                .and_then(|v| v.strip_suffix(b"\""))
                .unwrap_or(value),
        )
    })
}

/// Returns the response field that tells the client its endpoint's name. `secure`: the client uses
/// TLS, and must not send the cookie without it.
pub fn field(affinity: &Affinity, name: u64, secure: bool) -> (String, String) {
    if affinity.header {
        return (affinity.name.clone(), format!("{name:016x}"));
    }
    let cookie = &affinity.name;
    let mut value = format!("{cookie}={name:016x}; Path=/; HttpOnly; SameSite=Lax");
    if secure {
        value.push_str("; Secure");
    }
    if affinity.max_age_s > 0 {
        value.push_str(&format!("; Max-Age={}", affinity.max_age_s));
    }
    ("set-cookie".to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nX-Key:  v \r\nCookie: xa=1; a=2;b=\"3\"\r\n\
                          cookie: tulle=00000000000000ff\r\n\r\n";

    #[test]
    fn cookies_and_headers_are_found_by_their_whole_name() {
        assert_eq!(cookie(HEAD, b"a"), Some(&b"2"[..]));
        assert_eq!(cookie(HEAD, b"b"), Some(&b"3"[..]));
        assert_eq!(cookie(HEAD, b"c"), None);
        assert_eq!(header(HEAD, b"x-key"), Some(&b"v"[..]));
        let affinity = |name: &str, header| Affinity {
            name: name.into(),
            header,
            max_age_s: 60,
        };
        assert_eq!(of_request(&affinity("tulle", false), HEAD), 255);
        assert_eq!(of_request(&affinity("a", false), HEAD), 0);
        assert_eq!(of_request(&affinity("x-key", true), HEAD), 0);
        assert_eq!(
            field(&affinity("tulle", false), 255, false).1,
            "tulle=00000000000000ff; Path=/; HttpOnly; SameSite=Lax; Max-Age=60"
        );
        let secure = field(&affinity("tulle", false), 255, true).1;
        assert!(secure.contains("; Secure;"), "{secure}");
    }
}
