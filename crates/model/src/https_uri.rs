//! The address of something that the controller fetches over HTTPS (RFC 9110, section 4.2.2). It is
//! read strictly: the host that is allowed by name must be the host that is connected to.

use crate::manifest::names;
use std::net::IpAddr;

/// Longest address.
const MAX_BYTES: usize = 1024;

/// An `https` URI without user information and fragment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HttpsUri {
    /// Host name in lower case, or an IP address without brackets.
    pub host: String,
    /// Port; 443 where the URI names none.
    pub port: u16,
    /// Path and query, as a request names them; begins with `/`.
    pub target: String,
}

impl HttpsUri {
    /// Reads an address such as `https://login.example.com/keys`.
    ///
    /// # Errors
    /// Says what it is instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = "write it as https://HOST[:PORT]/PATH";
        if text.len() > MAX_BYTES {
            return Err(format!("it is longer than {MAX_BYTES} bytes"));
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~:/?[]@!$&'()*+,;=%".contains(&b);
        if !text.bytes().all(allowed) {
            return Err(format!(
                "it has a character that no URI has, or a fragment; {form}"
            ));
        }
        let rest = text
            .strip_prefix("https://")
            .ok_or_else(|| format!("it does not begin with https://; {form}"))?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at_checked(end).unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(format!("it names a user; {form}"));
        }
        let (host, port) = Self::authority(authority).ok_or_else(|| {
            format!("its host is neither a name in lower case nor an address; {form}")
        })?;
        let target = match target {
            query if !query.starts_with('/') => format!("/{query}"),
            path => path.to_owned(),
        };
        Ok(Self { host, port, target })
    }

    fn authority(text: &str) -> Option<(String, u16)> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, _)) => (host, text.get(host.len()..)?),
                None => (text, ""),
            },
        };
        let port = match port {
            "" => 443,
            port => Self::port(port.strip_prefix(':')?)?,
        };
        is_host(host).then(|| (host.to_owned(), port))
    }

    fn port(text: &str) -> Option<u16> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let port = text.parse().ok().filter(|_| digits)?;
        (port > 0).then_some(port)
    }
}

/// Whether this is a host name in lower case without a dot at its end, or an IP address.
pub fn is_host(text: &str) -> bool {
    // Some resolvers read `127.1` and `0x7f.1` as IPv4 addresses: a name's last label is no number.
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_number = last.starts_with(|c: char| c.is_ascii_digit());
    text.parse::<IpAddr>().is_ok() || (!is_number && names::is_hostname(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, host, port, target) in [
            ("https://a.example/keys", "a.example", 443, "/keys"),
            ("https://a.example", "a.example", 443, "/"),
            ("https://a.example:8443?x=1", "a.example", 8443, "/?x=1"),
            ("https://127.0.0.1:1/a/b?c=d", "127.0.0.1", 1, "/a/b?c=d"),
            ("https://[::1]:9/k", "::1", 9, "/k"),
            ("https://[2001:db8::1]/k", "2001:db8::1", 443, "/k"),
        ] {
            let expected = HttpsUri {
                host: host.into(),
                port,
                target: target.into(),
            };
            assert_eq!(HttpsUri::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_refused() {
        let long = format!("https://a.example/{}", "a".repeat(MAX_BYTES));
        for text in [
            "",
            "http://a.example/keys",
            "HTTPS://a.example/",
            "a.example/keys",
            "https://",
            "https:///keys",
            "https://user@a.example/",
            "https://good.example@127.0.0.1/",
            "https://a.example#f",
            "https://a.example/\r\nx: y",
            "https://a.example/a b",
            "https://a.example\\@b.example/",
            "https://A.example/",
            "https://a.example./",
            "https://a..example/",
            "https://%61.example/",
            "https://127.1/",
            "https://0x7f000001/",
            "https://2130706433/",
            "https://a.0x7f/",
            "https://a.example:0/",
            "https://a.example:+1/",
            "https://a.example:65536/",
            "https://a.example:/",
            "https://::1/",
            "https://[::1/",
            "https://[127.0.0.1]/",
            "https://[::1]x/",
            "https://[fe80::1%25eth0]/",
            &long,
        ] {
            assert!(HttpsUri::parse(text).is_err(), "{text}");
        }
    }
}
