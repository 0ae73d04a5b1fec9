//! The name of a host, as listeners, routes, policies, egress rules and DNS compare it.

use std::borrow::Cow;
use tulle_http1::split_authority;

/// A host's name: `Admin.example.com.` is `admin.example.com` (RFC 3986, section 3.2.2; RFC 9110,
/// section 4.2.3). The readers of heads, TLS hellos and DNS questions pass only ASCII that is not
/// percent-encoded.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a>(&'a [u8]);

impl<'a> Host<'a> {
    /// Reads a name that a client has sent, with or without port.
    pub fn from_authority(authority: &'a [u8]) -> Self {
        Self::named(split_authority(authority).0)
    }

    /// Reads a name that has no port.
    pub fn named(mut name: &'a [u8]) -> Self {
        while let Some(shorter) = name.strip_suffix(b".") {
            name = shorter;
        }
        Self(name)
    }

    /// Returns the name in the letter case it came in.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the name in lower case, to be looked up.
    pub fn to_lower(self) -> Cow<'a, [u8]> {
        match self.0.iter().any(u8::is_ascii_uppercase) {
            true => Cow::Owned(self.0.to_ascii_lowercase()),
            false => Cow::Borrowed(self.0),
        }
    }

    /// Returns the name in lower case, as text.
    pub fn to_text(self) -> String {
        String::from_utf8_lossy(self.0).to_ascii_lowercase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_name() {
        for sent in [
            "admin.example.com",
            "Admin.EXAMPLE.com.",
            "ADMIN.example.com..:443",
        ] {
            let host = Host::from_authority(sent.as_bytes());
            assert_eq!(host.to_text(), "admin.example.com");
            assert_eq!(&*host.to_lower(), b"admin.example.com");
        }
        assert_eq!(Host::from_authority(b"[::1]:80").to_text(), "[::1]");
        assert_eq!(Host::named(b"::1").to_text(), "::1");
        assert_eq!(Host::named(b".").to_text(), "");
    }
}
