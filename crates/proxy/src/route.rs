//! Which backend a request goes to, by host, path, method and headers (Gateway API HTTPRoute).

use crate::authz::has_header;
use regex::bytes::Regex;
use tulle_model::pattern;
use tulle_model::resource::{self, PathMatch};

/// Compiled routes, in the order in which they are tried.
pub struct RouteTable {
    entries: Vec<Entry>,
    rules: Vec<Rule>,
}

struct Entry {
    port: u16,
    host: HostMatch,
    path: PathPattern,
    method: String,
    headers: Vec<(String, HeaderPattern)>,
    rule: usize,
}

/// Which hosts are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostMatch {
    /// All.
    Any,
    /// One, lower case.
    Exact(String),
    /// `.example.com` for `*.example.com`
    Suffix(String),
}

enum PathPattern {
    Exact(String),
    Prefix(String),
    Regex(Regex),
}

enum HeaderPattern {
    Exact(String),
    Regex(Regex),
}

/// Where matching requests go.
pub struct Rule {
    /// The HTTPRoute it comes from.
    pub route: String,
    /// By weight.
    pub backends: Vec<Backend>,
    /// Sum of the weights.
    pub total_weight: u32,
    /// 0: the mesh's.
    pub request_timeout_ms: u32,
}

/// A service and port.
pub struct Backend {
    /// Service name.
    pub service: String,
    /// Service port.
    pub port: u16,
    /// Share.
    pub weight: u32,
}

/// The parts of a request that routes look at.
pub struct Request<'a> {
    /// Host as sent; a port is ignored.
    pub authority: &'a [u8],
    /// Path without query.
    pub path: &'a [u8],
    /// Method.
    pub method: &'a [u8],
    /// The whole head.
    pub head: &'a [u8],
}

impl RouteTable {
    /// Compiles routes and orders their matches as Gateway API says: most specific host, exact
    /// path, longest prefix, regular expression, method, most headers, then as written.
    ///
    /// # Errors
    /// A regular expression is not valid.
    pub fn compile(routes: &[resource::Route]) -> Result<Self, String> {
        let mut entries = Vec::new();
        let mut rules = Vec::new();
        for route in routes {
            for rule in &route.rules {
                let index = rules.len();
                let known = resource::RouteRule {
                    name: rule.name.clone(),
                    matches: rule.matches.clone(),
                    backends: rule.backends.clone(),
                    request_timeout_ms: rule.request_timeout_ms,
                    ..Default::default()
                };
                let plain = *rule == known
                    && route.listener.is_empty()
                    && rule.backends.iter().all(|b| b.filters.is_empty())
                    && rule.matches.iter().all(|m| m.query.is_empty());
                if !plain {
                    return Err(format!(
                        "HTTPRoute/{}: this proxy does not carry out: filters and retries",
                        route.name
                    ));
                }
                rules.push(Rule::compile(&route.name, rule));
                let any_match = [resource::RouteMatch::default()];
                let matches = if rule.matches.is_empty() {
                    &any_match[..]
                } else {
                    &rule.matches
                };
                let any_host = [String::new()];
                let hosts = if route.hostnames.is_empty() {
                    &any_host
                } else {
                    &route.hostnames[..]
                };
                for host in hosts {
                    for m in matches {
                        let entry = Entry::compile(host, m, route.port, index)
                            .map_err(|e| format!("HTTPRoute/{}: {e}", route.name))?;
                        entries.push(entry);
                    }
                }
            }
        }
        // A stable sort keeps the written order among equals.
        entries.sort_by_key(|e| std::cmp::Reverse(e.rank()));
        Ok(Self { entries, rules })
    }

    /// The rule for a request that came in on `port`.
    pub fn find(&self, port: u16, request: &Request<'_>) -> Option<&Rule> {
        let host = host_only(request.authority);
        let entry = self
            .entries
            .iter()
            .find(|e| e.matches(port, host, request))?;
        self.rules.get(entry.rule)
    }

    /// Names of the services requests may go to.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.rules
            .iter()
            .flat_map(|r| r.backends.iter().map(|b| b.service.as_str()))
    }
}

/// Host without port and brackets' port, for matching only.
fn host_only(authority: &[u8]) -> &[u8] {
    if authority.first() == Some(&b'[') {
        let end = authority
            .iter()
            .position(|&b| b == b']')
            .map_or(authority.len(), |i| i + 1);
        return authority.get(..end).unwrap_or(authority);
    }
    let end = authority
        .iter()
        .position(|&b| b == b':')
        .unwrap_or(authority.len());
    authority.get(..end).unwrap_or(authority)
}

impl Rule {
    fn compile(route: &str, rule: &resource::RouteRule) -> Self {
        let backends: Vec<_> = rule
            .backends
            .iter()
            .map(|b| Backend {
                service: b.service.clone(),
                port: b.port,
                weight: b.weight,
            })
            .collect();
        let total_weight = backends
            .iter()
            .fold(0u32, |sum, b| sum.saturating_add(b.weight));
        Self {
            route: route.to_owned(),
            backends,
            total_weight,
            request_timeout_ms: rule.request_timeout_ms,
        }
    }

    /// A backend by weight; `random` is any number.
    pub fn backend(&self, random: u64) -> Option<&Backend> {
        if self.total_weight == 0 {
            return None;
        }
        let mut left = random % u64::from(self.total_weight);
        self.backends.iter().find(|b| {
            let here = left < u64::from(b.weight);
            left = left.saturating_sub(u64::from(b.weight));
            here
        })
    }
}

impl Entry {
    fn compile(
        host: &str,
        m: &resource::RouteMatch,
        port: u16,
        rule: usize,
    ) -> Result<Self, String> {
        let host = HostMatch::new(host);
        let path = match &m.path {
            PathMatch::Exact(path) => PathPattern::Exact(path.clone()),
            PathMatch::Prefix(path) => PathPattern::Prefix(path.trim_end_matches('/').to_owned()),
            PathMatch::Regex(pattern) => PathPattern::Regex(pattern::compile(pattern)?),
        };
        let headers = m.headers.iter().map(|h| {
            let pattern = if h.regex {
                HeaderPattern::Regex(pattern::compile(&h.value)?)
            } else {
                HeaderPattern::Exact(h.value.clone())
            };
            Ok((h.name.to_ascii_lowercase(), pattern))
        });
        let headers = headers.collect::<Result<_, String>>()?;
        Ok(Self {
            port,
            host,
            path,
            method: m.method.clone(),
            headers,
            rule,
        })
    }

    /// Greater is tried first.
    fn rank(&self) -> (u8, usize, u8, usize, bool, usize) {
        let (host_kind, host_len) = self.host.rank();
        let (path_kind, path_len) = match &self.path {
            PathPattern::Exact(path) => (2, path.len()),
            PathPattern::Prefix(path) => (1, path.len()),
            PathPattern::Regex(_) => (1, usize::MAX),
        };
        (
            host_kind,
            host_len,
            path_kind,
            path_len,
            !self.method.is_empty(),
            self.headers.len(),
        )
    }

    fn matches(&self, port: u16, host: &[u8], request: &Request<'_>) -> bool {
        (self.port == 0 || self.port == port)
            && self.host.matches(host)
            && self.path.matches(request.path)
            && (self.method.is_empty() || self.method.as_bytes() == request.method)
            && self
                .headers
                .iter()
                .all(|(name, pattern)| pattern.matches(request.head, name))
    }
}

impl HostMatch {
    /// A pattern: empty for any, an exact host, or `*.suffix`.
    pub fn new(pattern: &str) -> Self {
        match pattern.strip_prefix("*.") {
            _ if pattern.is_empty() => Self::Any,
            Some(suffix) => Self::Suffix(format!(".{}", suffix.to_ascii_lowercase())),
            None => Self::Exact(pattern.to_ascii_lowercase()),
        }
    }

    /// Greater is closer.
    pub fn rank(&self) -> (u8, usize) {
        match self {
            Self::Exact(host) => (2, host.len()),
            Self::Suffix(suffix) => (1, suffix.len()),
            Self::Any => (0, 0),
        }
    }

    /// Whether a host as sent, with or without port, is meant.
    pub fn covers(&self, authority: &[u8]) -> bool {
        self.matches(host_only(authority))
    }

    fn matches(&self, host: &[u8]) -> bool {
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
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => path == wanted.as_bytes(),
            Self::Prefix(prefix) => match path.strip_prefix(prefix.as_bytes()) {
                Some(rest) => rest.is_empty() || rest.first() == Some(&b'/'),
                None => false,
            },
            Self::Regex(pattern) => pattern.is_match(path),
        }
    }
}

impl HeaderPattern {
    fn matches(&self, head: &[u8], name: &str) -> bool {
        match self {
            Self::Regex(pattern) => has_header(head, name, pattern),
            Self::Exact(value) => {
                let mut fields = tulle_http1::headers(head)
                    .filter(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()))
                    .peekable();
                fields.peek().is_some() && fields.all(|(_, text)| text == value.as_bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::resource::{Route, RouteMatch, RouteRule};

    fn rule(path: PathMatch, service: &str) -> RouteRule {
        RouteRule {
            matches: vec![RouteMatch {
                path,
                ..Default::default()
            }],
            backends: vec![resource::Backend {
                service: service.into(),
                port: 80,
                weight: 1,
                filters: vec![],
            }],
            ..Default::default()
        }
    }

    fn find<'a>(table: &'a RouteTable, host: &str, path: &str) -> Option<&'a str> {
        let request = Request {
            authority: host.as_bytes(),
            path: path.as_bytes(),
            method: b"GET",
            head: b"GET / HTTP/1.1\r\n\r\n",
        };
        let rule = table.find(8080, &request)?;
        rule.backend(0).map(|b| b.service.as_str())
    }

    #[test]
    fn the_most_specific_match_wins() {
        let table = RouteTable::compile(&[Route {
            name: "r".into(),
            hostnames: vec![],
            rules: vec![
                rule(PathMatch::Prefix("/".into()), "all"),
                rule(PathMatch::Prefix("/ratings".into()), "ratings"),
                rule(PathMatch::Exact("/ratings/1".into()), "one"),
            ],
            ..Default::default()
        }])
        .unwrap();
        assert_eq!(find(&table, "x", "/ratings/1"), Some("one"));
        assert_eq!(find(&table, "x", "/ratings/12"), Some("ratings"));
        assert_eq!(
            find(&table, "x", "/ratingsx"),
            Some("all"),
            "prefixes end at a slash"
        );
        assert_eq!(find(&table, "x", "/ratings"), Some("ratings"));
    }

    #[test]
    fn hosts() {
        let route = |hosts: &[&str], service: &str| Route {
            name: service.into(),
            hostnames: hosts.iter().map(|h| (*h).to_owned()).collect(),
            rules: vec![rule(PathMatch::default(), service)],
            ..Default::default()
        };
        let table = RouteTable::compile(&[
            route(&["*.example.com"], "wild"),
            route(&["www.example.com"], "www"),
        ])
        .unwrap();
        assert_eq!(find(&table, "WWW.example.com:8080", "/"), Some("www"));
        assert_eq!(find(&table, "a.example.com", "/"), Some("wild"));
        assert_eq!(find(&table, "example.com", "/"), None);
        assert_eq!(find(&table, "badexample.com", "/"), None);
    }

    #[test]
    fn weights() {
        let table = RouteTable::compile(&[Route {
            name: "r".into(),
            hostnames: vec![],
            rules: vec![RouteRule {
                matches: vec![],
                backends: vec![
                    resource::Backend {
                        service: "a".into(),
                        port: 80,
                        weight: 3,
                        filters: vec![],
                    },
                    resource::Backend {
                        service: "off".into(),
                        port: 80,
                        weight: 0,
                        filters: vec![],
                    },
                    resource::Backend {
                        service: "b".into(),
                        port: 80,
                        weight: 1,
                        filters: vec![],
                    },
                ],
                ..Default::default()
            }],
            ..Default::default()
        }])
        .unwrap();
        let rule = &table.rules[0];
        let count = |name| {
            (0..100)
                .filter(|&r| rule.backend(r).unwrap().service == name)
                .count()
        };
        assert_eq!((count("a"), count("off"), count("b")), (75, 0, 25));
    }
}
