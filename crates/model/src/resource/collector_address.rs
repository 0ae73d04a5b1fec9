//! Where a collector is.

use std::net::IpAddr;

/// The parts of a collector's endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorAddress<'a> {
    /// TLS is spoken.
    pub tls: bool,
    /// A host name or an address, the latter without brackets.
    pub host: &'a str,
    /// `host:port`
    pub authority: &'a str,
}

impl<'a> CollectorAddress<'a> {
    /// Reads an endpoint.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(endpoint: &'a str) -> Result<Self, &'static str> {
        const EXPECTED: &str =
            "expected `host:port` of a collector of OTLP, with `https://` before it for TLS";
        let (tls, authority) = match endpoint.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(EXPECTED),
            None => (false, endpoint),
        };
        let (host, port) = authority.rsplit_once(':').ok_or(EXPECTED)?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let is_host = match bare {
            Some(address) => matches!(address.parse(), Ok(IpAddr::V6(_))),
            None => is_host_name(host),
        };
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        if !is_host || !digits || !matches!(port.parse(), Ok(1..=u16::MAX)) {
            return Err(EXPECTED);
        }
        Ok(Self {
            tls,
            host: bare.unwrap_or(host),
            authority,
        })
    }
}

fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        let known = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        (1..=63).contains(&label.len()) && label.bytes().all(known)
    };
    host.len() <= 253 && host.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (endpoint, tls, host, authority) in [
            ("otel.obs:4317", false, "otel.obs", "otel.obs:4317"),
            (
                "http://127.0.0.1:4317",
                false,
                "127.0.0.1",
                "127.0.0.1:4317",
            ),
            ("https://[::1]:443", true, "::1", "[::1]:443"),
        ] {
            let wanted = CollectorAddress {
                tls,
                host,
                authority,
            };
            assert_eq!(CollectorAddress::parse(endpoint), Ok(wanted), "{endpoint}");
        }
        for endpoint in [
            "",
            "otel",
            "otel:",
            ":4317",
            "otel:0",
            "otel:65536",
            "otel:+1",
            "::1:4317",
            "[otel]:4317",
            "grpc://otel:4317",
            "http://otel:4317/v1/traces",
            "user@otel:4317",
            "a..b:1",
        ] {
            assert!(CollectorAddress::parse(endpoint).is_err(), "{endpoint}");
        }
    }
}
