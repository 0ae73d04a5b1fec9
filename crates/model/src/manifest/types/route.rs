//! Routes (Gateway API).

#[cfg(feature = "schema")]
use super::schema;
use super::{RouteFilter, is_default};
use serde::{Deserialize, Serialize};

/// `gateway.networking.k8s.io/v1` HTTPRoute.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteSpec {
    /// Gateways or services it is attached to.
    pub parent_refs: Vec<ParentRef>,
    /// Exact or `*.suffix`; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    /// Rules.
    pub rules: Vec<HttpRouteRule>,
}

/// An object that a route is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParentRef {
    /// Default `gateway.networking.k8s.io`; empty for a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// `Gateway` (default) or `Service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
    /// Its namespace; default: this object's. Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A listener's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// A listener's or service's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Matches and where matching requests go.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteRule {
    /// Unique in the route; shown where the rule decides.
    #[serde(default, skip_serializing_if = "is_default")]
    pub name: Option<String>,
    /// Matches; one is enough; empty: all requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<HttpRouteMatch>,
    /// Filters, applied in this order.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filters: Vec<RouteFilter>,
    /// Backends, chosen by weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<BackendRef>,
    /// Timeouts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<HttpRouteTimeouts>,
    /// Retries of failed requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: Option<RouteRetry>,
    /// Keeps a client with an endpoint.
    #[serde(default, skip_serializing_if = "is_default")]
    pub session_persistence: Option<SessionPersistence>,
}

/// Retries of failed requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RouteRetry {
    /// Statuses to retry.
    #[serde(skip_serializing_if = "is_default")]
    pub codes: Vec<u16>,
    /// Tries after the first; default 1.
    #[serde(skip_serializing_if = "is_default")]
    pub attempts: Option<u32>,
    /// Pause before the first retry.
    #[serde(skip_serializing_if = "is_default")]
    pub backoff: Option<String>,
}

/// Keeps a client with an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SessionPersistence {
    /// Name of the cookie or header; default `tulle-session`.
    #[serde(skip_serializing_if = "is_default")]
    pub session_name: Option<String>,
    /// Longest life of a session.
    #[serde(skip_serializing_if = "is_default")]
    pub absolute_timeout: Option<String>,
    /// `Cookie` (default) or `Header`.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub kind: Option<String>,
    /// Settings of a cookie.
    #[serde(skip_serializing_if = "is_default")]
    pub cookie_config: Option<CookieConfig>,
}

/// The cookie of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CookieConfig {
    /// `Session` (default): until the browser ends; `Permanent`: for `absoluteTimeout`.
    #[serde(skip_serializing_if = "is_default")]
    pub lifetime_type: Option<String>,
}

/// Timeouts of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteTimeouts {
    /// Timeout of all tries together; `0s`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Timeout of each try; `0s`: none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub backend_request: Option<String>,
}

/// All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteMatch {
    /// The path; default: prefix `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<HttpPathMatch>,
    /// Header conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HttpHeaderMatch>,
    /// Conditions for parameters of the query.
    #[serde(default, skip_serializing_if = "is_default")]
    pub query_params: Vec<HttpHeaderMatch>,
    /// Method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// How a path is matched.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpPathMatch {
    /// `Exact`, `PathPrefix` (default) or `RegularExpression`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::PATH_MATCHES)))]
    pub kind: Option<String>,
    /// The path or expression; default `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A condition for a header or a parameter of the query.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpHeaderMatch {
    /// `Exact` (default) or `RegularExpression`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::TEXT_MATCHES)))]
    pub kind: Option<String>,
    /// The name; its case does not matter for headers.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A destination of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendRef {
    /// API group; only the core group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::CORE_GROUPS)))]
    pub group: Option<String>,
    /// Only `Service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::BACKEND_KINDS)))]
    pub kind: Option<String>,
    /// Service name.
    pub name: String,
    /// Its namespace; default: this object's. Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Service port.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub port: u16,
    /// Weight; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = schema::allowed::MAX_WEIGHT)))]
    pub weight: Option<u32>,
    /// Filters for requests that go there, applied after those of the rule.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub filters: Vec<RouteFilter>,
}

/// `gateway.networking.k8s.io/v1` GRPCRoute.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcRouteSpec {
    /// Gateways or services it is attached to.
    pub parent_refs: Vec<ParentRef>,
    /// Exact or `*.suffix`; empty: any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hostnames: Vec<String>,
    /// Rules.
    pub rules: Vec<GrpcRouteRule>,
}

/// Matches and where matching calls go.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GrpcRouteRule {
    /// Unique in the route; shown where the rule decides.
    #[serde(skip_serializing_if = "is_default")]
    pub name: Option<String>,
    /// Matches; one is enough; empty: all calls.
    #[serde(skip_serializing_if = "is_default")]
    pub matches: Vec<GrpcRouteMatch>,
    /// Filters, applied in this order.
    #[serde(skip_serializing_if = "is_default")]
    pub filters: Vec<RouteFilter>,
    /// Backends, chosen by weight.
    #[serde(skip_serializing_if = "is_default")]
    pub backend_refs: Vec<BackendRef>,
    /// Keeps a client with an endpoint.
    #[serde(skip_serializing_if = "is_default")]
    pub session_persistence: Option<SessionPersistence>,
}

/// All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GrpcRouteMatch {
    /// The method that is called.
    #[serde(skip_serializing_if = "is_default")]
    pub method: Option<GrpcMethodMatch>,
    /// Header conditions.
    #[serde(skip_serializing_if = "is_default")]
    pub headers: Vec<HttpHeaderMatch>,
}

/// A method of a gRPC service; at least one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GrpcMethodMatch {
    /// `Exact` (default) or `RegularExpression`.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub kind: Option<String>,
    /// Service with its package, such as `shop.Cart`.
    #[serde(skip_serializing_if = "is_default")]
    pub service: Option<String>,
    /// Method.
    #[serde(skip_serializing_if = "is_default")]
    pub method: Option<String>,
}

/// `gateway.networking.k8s.io` TLSRoute: connections by the server name they ask for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsRouteSpec {
    /// Gateways or services it is attached to.
    pub parent_refs: Vec<ParentRef>,
    /// Exact or `*.suffix`; empty: any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hostnames: Vec<String>,
    /// Exactly one.
    pub rules: Vec<TcpRouteRule>,
}

/// `gateway.networking.k8s.io` TCPRoute: all connections to a port.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpRouteSpec {
    /// Gateways or services it is attached to.
    pub parent_refs: Vec<ParentRef>,
    /// Exactly one.
    pub rules: Vec<TcpRouteRule>,
}

/// Where connections go.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpRouteRule {
    /// Unique in the route.
    #[serde(default, skip_serializing_if = "is_default")]
    pub name: Option<String>,
    /// Backends, chosen by weight.
    pub backend_refs: Vec<BackendRef>,
}
