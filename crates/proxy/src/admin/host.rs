//! Whether a request names the proxy by an address. A web page asks for what its own name leads to, and whoever owns
//! the name may have it lead to 127.0.0.1 (DNS rebinding); an address leads nowhere else.

use hyper::header::{HOST, HeaderMap};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether the one `Host` is an address or `localhost`, with a port or without.
pub(super) fn is_address(headers: &HeaderMap) -> bool {
    let mut all = headers.get_all(HOST).iter();
    let (Some(host), None) = (all.next(), all.next()) else {
        return false;
    };
    let Ok(host) = host.to_str() else {
        return false;
    };
    let (name, port) = match host.rsplit_once(':') {
        // The colons within brackets are an address's.
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, "80"),
    };
    let within_brackets = || name.strip_prefix('[')?.strip_suffix(']');
    let known = name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok()
        || within_brackets().is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
    known && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn answered(hosts: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        is_address(&headers)
    }

    #[test]
    fn addresses_and_localhost_are_answered_and_no_other_name() {
        for good in [
            "127.0.0.1",
            "127.0.0.1:15100",
            "127.1.2.3:1",
            "192.0.2.1:15000",
            "[::1]",
            "[::1]:15100",
            "localhost",
            "LocalHost:40000",
        ] {
            assert!(answered(&[good]), "{good}");
        }
        for bad in [
            "",
            ":15100",
            "evil.example",
            "evil.example:15100",
            "127.0.0.1.evil.example:15100",
            "localhost.evil.example",
            "127.0.0.1:15100.evil.example",
            "127.0.0.1:",
            "evil.example:80]",
            "[::1].evil.example",
            "[evil.example]:15100",
            "::1",
            "a@127.0.0.1",
        ] {
            assert!(!answered(&[bad]), "{bad}");
        }
        assert!(!answered(&[]));
        assert!(!answered(&["127.0.0.1", "evil.example"]));
    }
}
