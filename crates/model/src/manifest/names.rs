//! The forms of names in manifests.

/// Lower-case letters, digits and `-`, starting and ending with a letter or digit, at most 63
/// (RFC 1123 label).
pub(super) fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The name of an object: parts separated by dots, at most 253 bytes (what Kubernetes calls a DNS
/// subdomain). A part may be longer than a label.
pub fn is_object_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_part = |part: &str| {
        let ends = part.bytes().next().zip(part.bytes().last());
        part.bytes().all(known) && ends.is_some_and(|(first, last)| first != b'-' && last != b'-')
    };
    name.len() <= 253 && name.split('.').all(is_part)
}

/// Labels separated by dots, at most 253 bytes.
pub(crate) fn is_hostname(name: &str) -> bool {
    // An address is no host name: `Host: 10.0.0.1` would never be looked up as one.
    name.len() <= 253
        && name.split('.').all(is_dns_label)
        && name.parse::<std::net::IpAddr>().is_err()
}

/// A host name or `*.` and a host name.
pub(super) fn is_host_pattern(name: &str) -> bool {
    is_hostname(name.strip_prefix("*.").unwrap_or(name))
}

/// RFC 9110, 5.6.2.
pub(super) fn is_token(name: &str) -> bool {
    let tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(tchar)
}

/// A name a shell can refer to.
pub(super) fn is_env_name(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    name.bytes().all(inner) && !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_hosts() {
        for good in ["a", "ratings-v1", "9a"] {
            assert!(is_dns_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad}");
        }
        for good in ["a", "web.example", "10.0.0.1", &"a".repeat(253)] {
            assert!(is_object_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "a.",
            "a..b",
            "a.-b",
            "a-.b",
            "A.b",
            "a/b",
            &"a".repeat(254),
        ] {
            assert!(!is_object_name(bad), "{bad}");
        }
        for good in ["ratings", "ratings.tulle.local", "*.example.com"] {
            assert!(is_host_pattern(good), "{good}");
        }
        for bad in [
            "",
            "*",
            "*.",
            "*.*.a",
            "a.*.b",
            "a:80",
            "Upper.example",
            "10.0.0.1",
            "a..b",
        ] {
            assert!(!is_host_pattern(bad), "{bad}");
        }
        assert!(is_token("x-Request-ID") && !is_token("a b") && !is_token("") && !is_token("a:"));
        assert!(is_env_name("RATINGS_URL") && !is_env_name("1A") && !is_env_name("A=B"));
    }
}
