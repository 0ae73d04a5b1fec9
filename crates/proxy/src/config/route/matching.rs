//! Conditions of a route: host, path, method, headers, query.

use crate::codec::host::Host;
use crate::codec::request_values::{Parties, RequestValues};
use regex::bytes::Regex;
use tulle_expression::Expression;
use tulle_model::pattern;
use tulle_model::resource::{self, PathMatch};

/// The parts of a request that routes look at.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Host as sent; a port is ignored.
    pub authority: &'a [u8],
    /// Path without query.
    pub path: &'a [u8],
    /// Request target, with the query.
    pub target: &'a [u8],
    /// Method.
    pub method: &'a [u8],
    /// The whole head.
    pub head: &'a [u8],
    /// Caller and destination; `None`: they are not known here.
    pub parties: Option<&'a dyn Parties>,
}

impl<'a> Request<'a> {
    /// Whether a condition in CEL holds; one without a value does not.
    pub(super) fn meets(&self, condition: &Expression) -> bool {
        let values = RequestValues {
            method: self.method,
            path: self.path,
            authority: self.authority,
            head: self.head,
            parties: self.parties,
            claims: None,
        };
        condition.condition(&values) == Ok(true)
    }

    /// The query without its question mark.
    pub(super) fn query(&self) -> &'a [u8] {
        let mark = memchr::memchr(b'?', self.target);
        let query = mark.and_then(|at| self.target.get(at + 1..));
        query.unwrap_or_default()
    }
}

/// Hosts that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostMatch {
    /// All hosts.
    Any,
    /// One host, in lower case.
    Exact(String),
    /// `.example.com` for `*.example.com`
    Suffix(String),
}

/// Paths that match.
pub enum PathPattern {
    /// One path.
    Exact(String),
    /// Paths that begin with it, by elements; it has no slash at its end.
    Prefix(String),
    /// Paths that match as a whole.
    Regex(Regex),
}

/// Values of a header or query parameter that match.
pub enum ValuePattern {
    /// One value.
    Exact(String),
    /// Values that match as a whole.
    Regex(Regex),
}

impl HostMatch {
    /// Parses a pattern: empty for any, an exact host, or `*.suffix`.
    pub fn new(pattern: &str) -> Self {
        if pattern.is_empty() {
            return Self::Any;
        }
        let pattern = Host::named(pattern.as_bytes()).to_text();
        match pattern.strip_prefix('*') {
            Some(suffix) if suffix.starts_with('.') => Self::Suffix(suffix.to_owned()),
            _ => Self::Exact(pattern),
        }
    }

    /// Whether a host as sent, with or without port, matches.
    pub fn covers(&self, authority: &[u8]) -> bool {
        self.matches(Host::from_authority(authority))
    }

    /// Greater is more specific.
    pub fn rank(&self) -> (u8, usize) {
        match self {
            Self::Exact(host) => (2, host.len()),
            Self::Suffix(suffix) => (1, suffix.len()),
            Self::Any => (0, 0),
        }
    }

    /// Whether a host matches.
    pub fn matches(&self, host: Host<'_>) -> bool {
        let host = host.as_bytes();
        match self {
            Self::Any => true,
            Self::Exact(wanted) => host.eq_ignore_ascii_case(wanted.as_bytes()),
            Self::Suffix(suffix) => {
                host.len() > suffix.len()
                    && host
                        .get(host.len() - suffix.len()..)
                        .is_some_and(|end| end.eq_ignore_ascii_case(suffix.as_bytes()))
            }
        }
    }
}

impl PathPattern {
    /// Compiles a condition.
    ///
    /// # Errors
    /// A regular expression is not valid.
    pub fn compile(path: &PathMatch) -> Result<Self, String> {
        Ok(match path {
            PathMatch::Exact(path) => Self::Exact(path.clone()),
            PathMatch::Prefix(path) => Self::Prefix(path.trim_end_matches('/').to_owned()),
            PathMatch::Regex(pattern) => Self::Regex(pattern::compile(pattern)?),
        })
    }

    /// Greater is more specific.
    pub fn rank(&self) -> (u8, usize) {
        match self {
            Self::Exact(path) => (2, path.len()),
            Self::Prefix(path) => (1, path.len()),
            Self::Regex(_) => (1, usize::MAX),
        }
    }

    /// Whether all paths match.
    pub fn is_any(&self) -> bool {
        matches!(self, Self::Prefix(prefix) if prefix.is_empty())
    }

    /// Length of the prefix, if it is one.
    pub fn prefix_len(&self) -> usize {
        match self {
            Self::Prefix(prefix) => prefix.len(),
            Self::Exact(_) | Self::Regex(_) => 0,
        }
    }
}

impl ValuePattern {
    /// Compiles a condition.
    ///
    /// # Errors
    /// A regular expression is not valid.
    pub fn compile(condition: &resource::HeaderMatch) -> Result<Self, String> {
        Ok(if condition.regex {
            Self::Regex(pattern::compile(&condition.value)?)
        } else {
            Self::Exact(condition.value.clone())
        })
    }

    /// Whether there are fields of that name and all match. A second, different field must not let
    /// a request through that the application reads otherwise.
    pub fn matches_header(&self, head: &[u8], name: &str) -> bool {
        let mut found = false;
        for (field, text) in tulle_http1::headers(head) {
            if !field.eq_ignore_ascii_case(name.as_bytes()) {
                continue;
            }
            let fits = match self {
                Self::Exact(wanted) => text == wanted.as_bytes(),
                Self::Regex(pattern) => pattern.is_match(text),
            };
            if !fits {
                return false;
            }
            found = true;
        }
        found
    }

    /// Whether the first parameter of that name in a query matches. Names and values are decoded as
    /// forms are: percent-escapes, and `+` for a space.
    pub fn matches_query(&self, query: &[u8], name: &str) -> bool {
        for pair in query.split(|&b| b == b'&') {
            let mut parts = pair.splitn(2, |&b| b == b'=');
            let own = parts.next().unwrap_or_default();
            if !form(own).eq(name.bytes()) {
                continue;
            }
            let value = parts.next().unwrap_or_default();
            return match self {
                Self::Exact(wanted) => form(value).eq(wanted.bytes()),
                Self::Regex(pattern) if value.iter().any(|b| matches!(b, b'%' | b'+')) => {
                    pattern.is_match(&form(value).collect::<Vec<_>>())
                }
                Self::Regex(pattern) => pattern.is_match(value),
            };
        }
        false
    }
}

/// Decodes a part of a query. An invalid escape stands for itself.
fn form(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let byte = *text.get(at)?;
        if byte == b'%'
            && let Some(decoded) = escape(text.get(at + 1..).unwrap_or_default())
        {
            at += 3;
            return Some(decoded);
        }
        at += 1;
        Some(if byte == b'+' { b' ' } else { byte })
    })
}

/// Returns the byte that two hexadecimal digits at the start of `text` stand for.
pub fn escape(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| {
        let digit = char::from(*text.get(at)?).to_digit(16)?;
        u8::try_from(digit).ok()
    };
    Some(digit(0)? << 4 | digit(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_compared_in_one_way() {
        for pattern in [
            "admin.example.com",
            "Admin.Example.com.",
            "*.example.com",
            "*.EXAMPLE.com.",
        ] {
            for host in [
                "admin.example.com",
                "admin.example.com.",
                "ADMIN.example.com.:8080",
                "admin.example.com..",
                "admin.example.com:",
            ] {
                assert!(
                    HostMatch::new(pattern).covers(host.as_bytes()),
                    "{pattern} {host}"
                );
            }
            for other in [
                "example.com.",
                "admin.example.com.x",
                "xadmin.example.comx",
                "",
            ] {
                assert!(
                    !HostMatch::new(pattern).covers(other.as_bytes()),
                    "{pattern} {other}"
                );
            }
        }
        assert!(HostMatch::new("[::1]").covers(b"[::1]:80"));
        assert!(HostMatch::new("").covers(b"any."));
    }

    #[test]
    fn the_first_parameter_of_a_name_counts() {
        let exact = |value: &str| ValuePattern::Exact(value.into());
        assert!(exact("1").matches_query(b"b=2&a=1&a=2", "a"));
        assert!(!exact("2").matches_query(b"b=2&a=1&a=2", "a"));
        assert!(!exact("1").matches_query(b"A=1", "a"), "names are exact");
        assert!(exact("").matches_query(b"a", "a"));
        assert!(exact("").matches_query(b"a=&b", "a"));
        assert!(!exact("").matches_query(b"", "a"), "not there");
        assert!(exact("x y/z").matches_query(b"%61=x+y%2Fz", "a"));
        assert!(exact("%zz%").matches_query(b"a=%zz%", "a"));
        assert!(exact("b=c").matches_query(b"a=b=c", "a"));
        let regex = ValuePattern::Regex(pattern::compile("[0-9]+").unwrap());
        assert!(regex.matches_query(b"a=12", "a"));
        assert!(regex.matches_query(b"a=1%32", "a"));
        assert!(!regex.matches_query(b"a=12x", "a"), "the whole value");
    }
}
