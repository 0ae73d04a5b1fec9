//! Routes: which requests and connections go where.

use super::{Affinity, Filter, Policy, Respond, Retry, is_default, is_one, one};
use crate::namespaced::Namespaced;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// An HTTPRoute or GRPCRoute, attached to a gateway or a service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// The object it comes from. An HTTPRoute by its bare name, others such as `GRPCRoute/name`.
    pub name: String,
    /// Exact hosts or `*.suffix`; empty: any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hostnames: Vec<String>,
    /// Rules; the most specific match wins as Gateway API says (exact path, longest prefix,
    /// method, most headers, most query parameters, then order).
    pub rules: Vec<RouteRule>,
    /// Listener or service port it is attached to; 0: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub port: u16,
    /// Only requests of this listener of the gateway; empty: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub listener: String,
    /// Only requests of clients in this namespace, for whom it stands before the routes of the service's
    /// own namespace; empty: of all clients.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clients: String,
}

impl Route {
    /// Routes as a proxy of a workload in this namespace follows them. A plugin runs only in proxies of the namespace that it is
    /// of, because its engine shares their process with their private keys. In place of another one requests are answered with
    /// 500. `None`: on a host, where there are no namespaces.
    pub fn with_own_plugins<'a>(
        routes: Cow<'a, [Self]>,
        namespace: Option<&str>,
    ) -> Cow<'a, [Self]> {
        let Some(namespace) = namespace else {
            return routes;
        };
        let is_foreign =
            |plugin: &str| Namespaced::split(plugin).is_none_or(|(_, of)| of != namespace);
        let foreign = |filter: &Filter| match filter {
            Filter::Plugin(plugin) if is_foreign(&plugin.name) => Some(Filter::Respond(Respond {
                status: 500,
                body: format!("plugin {} runs only in its own namespace\n", plugin.name),
                content_type: String::new(),
            })),
            _ => None,
        };
        let filters = routes.iter().flat_map(|r| &r.rules).flat_map(|rule| {
            let of_backends = rule.backends.iter().flat_map(|b| &b.filters);
            rule.filters.iter().chain(of_backends)
        });
        if filters.filter_map(foreign).next().is_none() {
            return routes;
        }
        let mut routes = routes.into_owned();
        for rule in routes.iter_mut().flat_map(|r| &mut r.rules) {
            let of_backends = rule.backends.iter_mut().flat_map(|b| &mut b.filters);
            for filter in rule.filters.iter_mut().chain(of_backends) {
                if let Some(instead) = foreign(filter) {
                    *filter = instead;
                }
            }
        }
        Cow::Owned(routes)
    }
}

/// Matches and where matching requests go.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteRule {
    /// The rule's name in the manifest; may be empty.
    #[serde(default, skip_serializing_if = "is_default")]
    pub name: String,
    /// Matches; one is enough; empty: every request.
    #[serde(default, skip_serializing_if = "is_default")]
    pub matches: Vec<RouteMatch>,
    /// Chosen by weight. Empty: answered with 500, as Gateway API says, unless a filter answers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub backends: Vec<Backend>,
    /// Overrides the mesh's request timeout, for all tries together; 0: not set, `u32::MAX`: none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_timeout_ms: u32,
    /// Timeout of each try; 0: none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub try_timeout_ms: u32,
    /// Filters, applied in this order.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filters: Vec<Filter>,
    /// Overrides that of the backend's port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: Option<Box<Retry>>,
    /// Overrides that of the backend's port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub affinity: Option<Box<Affinity>>,
    /// In a gateway's routes only: clients whose requests it takes, by address. `None`: everybody's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: Option<Box<Policy>>,
}

/// All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteMatch {
    /// The path, without the query.
    #[serde(default, skip_serializing_if = "is_default")]
    pub path: PathMatch,
    /// Header conditions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub headers: Vec<HeaderMatch>,
    /// Conditions for the first parameter of a name in the query, names compared exactly.
    #[serde(default, skip_serializing_if = "is_default")]
    pub query: Vec<HeaderMatch>,
    /// Method; empty: any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub method: String,
    /// Conditions in CEL, all of which must hold.
    #[serde(default, skip_serializing_if = "is_default")]
    pub when: Vec<String>,
}

/// How a path is matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// A prefix of whole path elements: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    /// The whole path, as a regular expression.
    Regex(String),
}

impl Default for PathMatch {
    fn default() -> Self {
        Self::Prefix("/".into())
    }
}

/// A condition for a header or query parameter.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderMatch {
    /// Lower case, if a header's.
    pub name: String,
    /// The whole value.
    pub value: String,
    /// `value` is a regular expression for the whole value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub regex: bool,
}

/// Where a rule sends requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backend {
    /// Service name.
    pub service: String,
    /// Service port.
    pub port: u16,
    /// Share of the rule's requests. 0: none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// Filters for requests that go to this backend, applied after those of the rule.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filters: Vec<Filter>,
}

/// Where connections, or requests no route takes, are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Target {
    /// Service name.
    pub service: String,
    /// Service port.
    pub port: u16,
    /// Share. 0: none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
}

/// Connections whose ClientHello names one of these servers. Where it is attached says whether TLS
/// ends before they are passed on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsRoute {
    /// The object it comes from, such as `TLSRoute/shop`.
    pub name: String,
    /// Exact or `*.suffix`; the most specific wins; empty: any, also none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hostnames: Vec<String>,
    /// Chosen by weight.
    pub targets: Vec<Target>,
    /// Listener or service port it is attached to; 0: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub port: u16,
    /// Listener it is attached to, where others share the port; empty: all of the port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub listener: String,
}

/// All connections to a port.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpRoute {
    /// The object it comes from, such as `TCPRoute/db`.
    pub name: String,
    /// Chosen by weight.
    pub targets: Vec<Target>,
    /// Listener or service port it is attached to; 0: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub port: u16,
    /// Listener it is attached to, where others share the port; empty: all of the port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub listener: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Plugin;

    #[test]
    fn a_plugin_runs_only_in_its_own_namespace() {
        let plugin = |name: &str| {
            Filter::Plugin(Plugin {
                name: name.to_owned(),
                ..Plugin::default()
            })
        };
        let backend = Backend {
            service: "web.shop".to_owned(),
            port: 80,
            weight: 1,
            filters: vec![plugin("b.shop"), plugin("c.bank")],
        };
        let routes = [Route {
            rules: vec![RouteRule {
                filters: vec![plugin("a.shop"), plugin("a.x.bank"), plugin("plain")],
                backends: vec![backend],
                ..RouteRule::default()
            }],
            ..Route::default()
        }];
        let seen = |namespace: Option<&str>| -> Vec<String> {
            let routes = Route::with_own_plugins(Cow::Borrowed(&routes), namespace);
            let rule = &routes[0].rules[0];
            let filters = rule.filters.iter().chain(&rule.backends[0].filters);
            let name = |filter: &Filter| match filter {
                Filter::Plugin(plugin) => plugin.name.clone(),
                Filter::Respond(respond) => respond.status.to_string(),
                _ => String::new(),
            };
            filters.map(name).collect()
        };
        assert_eq!(
            seen(Some("shop")),
            ["a.shop", "500", "500", "b.shop", "500"]
        );
        assert_eq!(
            seen(Some("bank")),
            ["500", "a.x.bank", "500", "500", "c.bank"]
        );
        assert_eq!(
            seen(None),
            ["a.shop", "a.x.bank", "plain", "b.shop", "c.bank"]
        );
    }
}
