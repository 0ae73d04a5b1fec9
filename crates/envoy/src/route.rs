//! Routes of requests to backends: HTTPRoutes as Envoy's virtual hosts.
//!
//! Tulle tries the matches of all routes whose host fits, the most specific first. Envoy chooses
//! one virtual host and no other. So each virtual host here has all matches that fit its hosts, in
//! Tulle's order; the first that matches wins in both.

use crate::cluster::{self, Speech, millis};
use crate::whole::Translator;
use crate::{Untranslatable, pattern};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use tulle_model::resource::{PathMatch, Route, RouteMatch, RouteRule, Service};

/// A match of a rule for one host, to be put in order.
struct Entry<'a> {
    host: Host<'a>,
    m: &'a RouteMatch,
    rule: &'a RouteRule,
    object: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host<'a> {
    Any,
    Exact(String),
    /// A suffix with its dot.
    Suffix(String, &'a str),
}

impl<'a> Host<'a> {
    fn from_pattern(pattern: &'a str) -> Self {
        match pattern.strip_prefix('*') {
            _ if pattern.is_empty() => Self::Any,
            Some(suffix) if suffix.starts_with('.') => {
                Self::Suffix(suffix.to_ascii_lowercase(), pattern)
            }
            _ => Self::Exact(pattern.to_ascii_lowercase()),
        }
    }

    /// Whether it matches every host of another pattern.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Exact(own), Self::Exact(host)) => own == host,
            (Self::Suffix(own, _), Self::Exact(host)) => {
                host.len() > own.len() && host.ends_with(own.as_str())
            }
            (Self::Suffix(own, _), Self::Suffix(suffix, _)) => suffix.ends_with(own.as_str()),
            _ => false,
        }
    }

    fn rank(&self) -> (u8, usize) {
        match self {
            Self::Exact(host) => (2, host.len()),
            Self::Suffix(suffix, _) => (1, suffix.len()),
            Self::Any => (0, 0),
        }
    }

    fn domain(&self) -> String {
        match self {
            Self::Any => "*".into(),
            Self::Exact(host) => host.clone(),
            Self::Suffix(suffix, _) => format!("*{suffix}"),
        }
    }
}

impl Entry<'_> {
    /// Returns the rank; a greater one is tried first.
    fn rank(&self) -> impl Ord + use<> {
        let path = match &self.m.path {
            PathMatch::Exact(path) => (2, path.len()),
            PathMatch::Prefix(path) => (1, path.trim_end_matches('/').len()),
            PathMatch::Regex(_) => (1, usize::MAX),
        };
        let method = !self.m.method.is_empty();
        (self.host.rank(), path, method, self.m.headers.len())
    }
}

impl Translator<'_> {
    /// Returns the route configuration of a service port.
    pub(crate) fn service_routes(
        &self,
        service: &Service,
        port: u16,
    ) -> Result<Value, Untranslatable> {
        let routes = service.routes_for(None);
        let hosts = if !routes.iter().any(|r| r.port == 0 || r.port == port) {
            let name = cluster::outbound(&service.name, port, Speech::Http);
            let mut action = self.action(0);
            action["cluster"] = name.into();
            vec![json!({
                "name": "all",
                "domains": ["*"],
                "routes": [{ "match": { "prefix": "/" }, "route": action }],
            })]
        } else {
            self.virtual_hosts(&routes, port)?
        };
        Ok(json!({
            "virtual_hosts": hosts,
            // A backend may not exist, or not yet: its requests fail and not the configuration.
            "validate_clusters": false,
            "ignore_port_in_host_matching": true,
        }))
    }

    fn virtual_hosts(&self, routes: &[Route], port: u16) -> Result<Vec<Value>, Untranslatable> {
        let any_match = RouteMatch::default();
        let mut entries = Vec::new();
        for route in routes.iter().filter(|r| r.port == 0 || r.port == port) {
            let hosts: Vec<Host> = match route.hostnames.as_slice() {
                [] => vec![Host::Any],
                names => names.iter().map(|n| Host::from_pattern(n)).collect(),
            };
            for rule in &route.rules {
                for host in &hosts {
                    let matches = match rule.matches.as_slice() {
                        [] => std::slice::from_ref(&any_match),
                        matches => matches,
                    };
                    entries.extend(matches.iter().map(|m| Entry {
                        host: host.clone(),
                        m,
                        rule,
                        object: format!("HTTPRoute/{}", route.name),
                    }));
                }
            }
        }
        // A stable sort keeps the written order among equals.
        entries.sort_by_key(|e| Reverse(e.rank()));
        let mut seen = BTreeSet::new();
        let mut virtual_hosts = Vec::new();
        for Entry { host, .. } in &entries {
            if !seen.insert(host.domain()) {
                continue;
            }
            let routes: Vec<Value> = entries
                .iter()
                .filter(|e| e.host.covers(host))
                .map(|e| self.route(e))
                .collect::<Result<_, _>>()?;
            let domain = host.domain();
            virtual_hosts.push(json!({ "name": domain, "domains": [domain], "routes": routes }));
        }
        Ok(virtual_hosts)
    }

    fn route(&self, entry: &Entry<'_>) -> Result<Value, Untranslatable> {
        let Entry {
            m, rule, object, ..
        } = entry;
        let mut wanted = match &m.path {
            PathMatch::Exact(path) => json!({ "path": path }),
            PathMatch::Prefix(path) => match path.trim_end_matches('/') {
                "" => json!({ "prefix": "/" }),
                prefix if prefix.contains(['?', '#']) => {
                    return Err(Untranslatable::Prefix {
                        object: object.clone(),
                        prefix: prefix.to_owned(),
                    });
                }
                prefix => json!({ "path_separated_prefix": prefix }),
            },
            PathMatch::Regex(regex) => {
                json!({ "safe_regex": pattern::matcher(object, "path", regex)? })
            }
        };
        let mut headers = Vec::new();
        if !m.method.is_empty() {
            headers.push(json!({ "name": ":method", "string_match": { "exact": m.method } }));
        }
        for header in &m.headers {
            let name = header.name.to_ascii_lowercase();
            let matcher = if header.regex {
                let field = format!("headers.{name}");
                json!({ "safe_regex": pattern::matcher(object, &field, &header.value)? })
            } else {
                json!({ "exact": header.value })
            };
            headers.push(json!({ "name": name, "string_match": matcher }));
        }
        if !headers.is_empty() {
            wanted["headers"] = headers.into();
        }
        let backends: Vec<_> = rule.backends.iter().filter(|b| b.weight > 0).collect();
        let mut action = self.action(rule.request_timeout_ms);
        match backends.as_slice() {
            [] => {
                // Gateway API, HTTPRouteRule `backendRefs`.
                return Ok(json!({ "match": wanted, "direct_response": { "status": 500 } }));
            }
            [backend] => {
                action["cluster"] =
                    cluster::outbound(&backend.service, backend.port, Speech::Http).into();
            }
            several => {
                let sum = several
                    .iter()
                    .try_fold(0_u32, |sum, b| sum.checked_add(b.weight));
                if sum.is_none() {
                    return Err(Untranslatable::Weights {
                        object: object.clone(),
                    });
                }
                let shares: Vec<Value> = several
                    .iter()
                    .map(|b| {
                        let name = cluster::outbound(&b.service, b.port, Speech::Http);
                        json!({ "name": name, "weight": b.weight })
                    })
                    .collect();
                action["weighted_clusters"] = json!({ "clusters": shares });
            }
        }
        Ok(json!({ "match": wanted, "route": action }))
    }

    /// Returns the settings of all routes to sidecars. Envoy's own timeout would also cut a long
    /// response short; that of a try ends with the response's head, as Tulle's does.
    fn action(&self, timeout_ms: u32) -> Value {
        let timeout_ms = match timeout_ms {
            0 => self.mesh().request_timeout_ms,
            own => own,
        };
        let mut retry = json!({});
        if timeout_ms > 0 {
            retry["per_try_timeout"] = millis(timeout_ms).into();
        }
        if self.options.retry {
            // Only requests that certainly no server has seen are sent again.
            retry["retry_on"] = "connect-failure,refused-stream,reset-before-request".into();
            retry["num_retries"] = 2.into();
            retry["retry_host_predicate"] = json!([{
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }]);
            retry["host_selection_retry_max_attempts"] = 3.into();
        }
        json!({ "timeout": "0s", "retry_policy": retry })
    }

    /// Returns the route configuration of one of the application's ports.
    pub(crate) fn app_routes(&self, port: u16) -> Value {
        let mut action = json!({ "cluster": cluster::inbound(port), "timeout": "0s" });
        let timeout_ms = self.mesh().request_timeout_ms;
        if timeout_ms > 0 {
            action["retry_policy"] = json!({ "per_try_timeout": millis(timeout_ms) });
        }
        json!({
            "virtual_hosts": [{
                "name": "all",
                "domains": ["*"],
                "routes": [{ "match": { "prefix": "/" }, "route": action }],
            }],
            "validate_clusters": false,
        })
    }
}
