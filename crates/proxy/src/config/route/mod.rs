//! Routes: the backend of a request by host, path, method, headers and query (Gateway API
//! HTTPRoute).

mod index;
pub(crate) mod matching;
#[cfg(test)]
mod properties;

pub use matching::{HostMatch, PathPattern, Request, ValuePattern};

use crate::codec::plain_path;
use crate::config::authz;
use crate::config::path_readings;
use crate::config::traffic::retry;
use crate::filter::Filters;
use index::Index;
use std::sync::Arc;
use tulle_expression::{Expression, request};
use tulle_model::condition;
use tulle_model::resource::{self, PathMatch, RouteMatch, RouteRule};

/// Compiled routes.
pub struct RouteTable {
    index: Index,
    rules: Vec<Arc<Rule>>,
    /// Whether some entry looks at the path.
    by_path: bool,
    /// Ports that routes are attached to; 0: all.
    ports: Vec<u16>,
}

/// One match of a rule for one host, without the host and path by which it is found.
struct Entry {
    port: u16,
    listener: Arc<str>,
    method: String,
    headers: Vec<(String, ValuePattern)>,
    query: Vec<(String, ValuePattern)>,
    when: Vec<Expression>,
    rule: usize,
    /// Length of the prefix it is found by.
    matched: usize,
}

/// How early an entry is tried: host, path, method, headers, query, conditions in CEL; greater is earlier.
type Rank = ((u8, usize), (u8, usize), bool, usize, usize, usize);

/// Decides the backend of requests that match.
pub struct Rule {
    /// The object it comes from, as an operator finds it: `HTTPRoute/name`.
    pub route: String,
    /// Its backends, chosen by weight.
    pub backends: Vec<Backend>,
    /// Sum of the weights.
    pub total_weight: u32,
    /// 0: not set, `u32::MAX`: none.
    pub request_timeout_ms: u32,
    /// Filters of requests without a backend: a filter may answer.
    pub filters: Option<Arc<Filters>>,
    /// Retry policy.
    pub retry: Option<Arc<retry::Policy>>,
    /// Timeout of each try in milliseconds; 0: none.
    pub try_timeout_ms: u32,
    /// Session affinity; overrides that of the backend's port.
    pub affinity: Option<Arc<resource::Affinity>>,
    /// At a gateway: the policy about clients; `None`: it takes requests of everybody.
    pub policy: Option<Box<authz::Policy>>,
}

/// A service and port.
pub struct Backend {
    /// Service name.
    pub service: String,
    /// Service port.
    pub port: u16,
    /// Share.
    pub weight: u32,
    /// Filters of the rule, then its own.
    pub filters: Option<Arc<Filters>>,
}

/// The rule for a request.
pub struct Found<'a> {
    /// The rule.
    pub rule: &'a Arc<Rule>,
    /// Length of the path's prefix that has matched.
    pub matched: usize,
}

/// The port and listener a request came in by.
#[derive(Clone, Copy)]
pub struct Entrance<'a> {
    /// Port that the client asked for.
    pub port: u16,
    /// Listener of a gateway; empty: not at a gateway.
    pub listener: &'a str,
}

impl RouteTable {
    /// Compiles routes and orders their matches as Gateway API says: most specific host, exact
    /// path, longest prefix (before them regular expressions), method, most headers, most query
    /// parameters, then those with conditions in CEL, then as written.
    ///
    /// # Errors
    /// Something in a route makes no sense, such as a regular expression that is not valid.
    pub fn compile(routes: &[resource::Route]) -> Result<Self, String> {
        let mut rules = Vec::new();
        let mut entries = Vec::new();
        for route in routes {
            let name = if route.name.contains('/') {
                route.name.clone()
            } else {
                format!("HTTPRoute/{}", route.name)
            };
            for rule in &route.rules {
                let index = rules.len();
                let mut compiled = || {
                    entries.extend(Entry::from_rule(route, rule, index)?);
                    Rule::compile(&name, &format!("{name} {index}"), rule)
                };
                let rule = compiled().map_err(|e: String| format!("{name}: {e}"))?;
                rules.push(Arc::new(rule));
            }
        }
        // A stable sort keeps the written order among equals.
        entries.sort_by_key(|(host, path, e)| std::cmp::Reverse(e.rank(host, path)));
        let by_path = entries.iter().any(|(_, path, entry)| {
            !path.is_any() || entry.when.iter().any(|w| w.reads(request::PATH))
        });
        let mut index = Index::default();
        for (host, path, entry) in entries {
            index.insert(host, path, entry);
        }
        Ok(Self {
            index,
            rules,
            by_path,
            ports: routes.iter().map(|route| route.port).collect(),
        })
    }

    /// Whether a route is attached to this port, so that unmatched requests are refused.
    pub fn has_port(&self, port: u16) -> bool {
        self.ports.iter().any(|p| [0, port].contains(p))
    }

    /// The rule for a request.
    ///
    /// # Errors
    /// Servers may read the path in ways that belong to different rules; describes how.
    pub fn find(
        &self,
        entrance: Entrance<'_>,
        request: &Request<'_>,
    ) -> Result<Option<Found<'_>>, &'static str> {
        let find = |path: &[u8]| {
            let request = Request { path, ..*request };
            let fits = |e: &Entry| e.fits(entrance, &request);
            self.index.find(request.authority, path, fits)
        };
        let entry = if self.by_path && !plain_path::is_plain(request.path) {
            let place = |entry: Option<&Entry>| entry.map(|e| e.rule);
            path_readings::agreed(request.path, |path| place(find(path)))?;
            find(request.path)
        } else {
            find(request.path)
        };
        let found = entry.and_then(|entry| {
            Some(Found {
                rule: self.rules.get(entry.rule)?,
                matched: entry.matched,
            })
        });
        Ok(found)
    }

    /// All filters of rules.
    pub fn filters(&self) -> impl Iterator<Item = &Arc<Filters>> {
        self.rules.iter().flat_map(|rule| {
            let of_backends = rule.backends.iter().filter_map(|b| b.filters.as_ref());
            of_backends.chain(&rule.filters)
        })
    }

    /// Names of the services that get requests or copies of them.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.rules
            .iter()
            .flat_map(|rule| rule.backends.iter().map(|b| b.service.as_str()))
            .chain(self.filters().flat_map(|f| f.services()))
    }
}

impl Rule {
    fn compile(route: &str, place: &str, rule: &RouteRule) -> Result<Self, String> {
        let is_prefix = |m: &RouteMatch| matches!(m.path, PathMatch::Prefix(_));
        let by_prefix = rule.matches.iter().all(is_prefix);
        let backends = rule.backends.iter().enumerate().map(|(index, b)| {
            let own_place = format!("{place} backend {index}");
            let own = b.filters.iter().map(|f| (f, own_place.as_str()));
            let filters = rule.filters.iter().map(|f| (f, place));
            Ok(Backend {
                service: b.service.clone(),
                port: b.port,
                weight: b.weight,
                filters: Filters::compile(filters.chain(own), by_prefix)?,
            })
        });
        let backends = backends.collect::<Result<Vec<_>, String>>()?;
        let total_weight = backends
            .iter()
            .fold(0u32, |sum, b| sum.saturating_add(b.weight));
        Ok(Self {
            route: route.to_owned(),
            backends,
            total_weight,
            request_timeout_ms: rule.request_timeout_ms,
            affinity: rule.affinity.as_deref().cloned().map(Arc::new),
            filters: Filters::compile(rule.filters.iter().map(|f| (f, place)), by_prefix)?,
            retry: rule
                .retry
                .as_deref()
                .map(retry::Policy::compile)
                .transpose()?,
            policy: match rule.policy.as_deref() {
                Some(policy) => Some(Box::new(authz::Policy::compile(policy)?)),
                None => None,
            },
            try_timeout_ms: match (rule.try_timeout_ms, rule.retry.as_deref()) {
                (0, Some(retry)) => retry.try_timeout_ms,
                (own, _) => own,
            },
        })
    }

    /// Whether a plugin may choose among its backends.
    pub fn may_be_chosen(&self) -> bool {
        self.filters.as_ref().is_some_and(|f| f.run_plugins())
    }

    /// Returns a backend by weight; `random` is any number.
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
    /// Returns the entries of a rule, one for each host and match.
    fn from_rule(
        route: &resource::Route,
        rule: &RouteRule,
        index: usize,
    ) -> Result<Vec<(HostMatch, PathPattern, Self)>, String> {
        let listener: Arc<str> = route.listener.as_str().into();
        let any_match = [RouteMatch::default()];
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
        let mut entries = Vec::with_capacity(hosts.len() * matches.len());
        for host in hosts {
            for m in matches {
                let path = PathPattern::compile(&m.path)?;
                let entry = Self::compile(m, &path, route.port, listener.clone(), index)?;
                entries.push((HostMatch::new(host), path, entry));
            }
        }
        Ok(entries)
    }

    fn compile(
        m: &RouteMatch,
        path: &PathPattern,
        port: u16,
        listener: Arc<str>,
        rule: usize,
    ) -> Result<Self, String> {
        let value = |h: &resource::HeaderMatch| ValuePattern::compile(h);
        let headers = m
            .headers
            .iter()
            .map(|h| Ok((h.name.to_ascii_lowercase(), value(h)?)));
        let query = m.query.iter().map(|q| Ok((q.name.clone(), value(q)?)));
        let when = m.when.iter().map(|source| {
            condition::condition(source).map_err(|e| format!("the condition of a match: {e}"))
        });
        Ok(Self {
            port,
            listener,
            method: m.method.clone(),
            headers: headers.collect::<Result<_, String>>()?,
            query: query.collect::<Result<_, String>>()?,
            when: when.collect::<Result<_, String>>()?,
            rule,
            matched: path.prefix_len(),
        })
    }

    fn rank(&self, host: &HostMatch, path: &PathPattern) -> Rank {
        (
            host.rank(),
            path.rank(),
            !self.method.is_empty(),
            self.headers.len(),
            self.query.len(),
            self.when.len(),
        )
    }

    /// Whether the entry matches a request for its host and path.
    fn fits(&self, at: Entrance<'_>, request: &Request<'_>) -> bool {
        (self.port == 0 || self.port == at.port)
            && (self.listener.is_empty() || *self.listener == *at.listener)
            && (self.method.is_empty() || self.method.as_bytes() == request.method)
            && self
                .headers
                .iter()
                .all(|(name, pattern)| pattern.matches_header(request.head, name))
            && self
                .query
                .iter()
                .all(|(name, pattern)| pattern.matches_query(request.query(), name))
            && self.when.iter().all(|condition| request.meets(condition))
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
            target: path.as_bytes(),
            method: b"GET",
            head: b"GET / HTTP/1.1\r\n\r\n",
            parties: None,
        };
        let entrance = Entrance {
            port: 8080,
            listener: "",
        };
        let found = table.find(entrance, &request).unwrap()?;
        found.rule.backend(0).map(|b| b.service.as_str())
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
        assert_eq!(
            find(&table, "x", "*"),
            None,
            "what is no path is below none"
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
        assert_eq!(find(&table, "www.example.com.", "/"), Some("www"));
        assert_eq!(find(&table, "A.example.com.:80", "/"), Some("wild"));
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
