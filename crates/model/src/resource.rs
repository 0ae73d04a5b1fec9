//! What a proxy is told: the mesh as plain types, the same for every proxy.
//!
//! The controller's index produces these from manifests; a proxy compiles them into its snapshot.
//! They are also the body of `tulle-proxy --config FILE`. No I/O and no wire format here: the
//! conversion to protobuf is in `tulle-api`.

use crate::identity::{SpiffeId, TrustDomain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Settings that hold for the whole mesh. Durations are milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshSettings {
    /// Every identity of this mesh is in this trust domain.
    pub trust_domain: TrustDomain,
    /// Refuse plaintext from outside the mesh on inbound ports.
    pub strict_mtls: bool,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: String,
    /// One JSON line per request.
    pub access_log: bool,
    /// How long to wait for the first bytes before a connection is taken for opaque TCP.
    pub detect_timeout_ms: u32,
    /// From the first byte of a head to its end.
    pub header_timeout_ms: u32,
    /// No byte in either direction.
    pub idle_timeout_ms: u32,
    /// From the end of the request's head to the end of the response's head. 0: none.
    pub request_timeout_ms: u32,
    /// TCP connect and TLS handshake together.
    pub connect_timeout_ms: u32,
    /// Longest accepted head.
    pub max_header_bytes: u32,
    /// Most header fields in a head.
    pub max_headers: u32,
    /// Let workloads reach addresses that belong to no service of the mesh.
    pub allow_egress: bool,
}

impl Default for MeshSettings {
    fn default() -> Self {
        Self {
            trust_domain: TrustDomain::default(),
            strict_mtls: true,
            log_level: "info".into(),
            access_log: false,
            detect_timeout_ms: 100,
            header_timeout_ms: 10_000,
            idle_timeout_ms: 300_000,
            request_timeout_ms: 15_000,
            connect_timeout_ms: 5_000,
            max_header_bytes: 32 * 1024,
            max_headers: 100,
            allow_egress: false,
        }
    }
}

/// What a port speaks. Decided by `appProtocol` first; `Detect` looks at the first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 if the first bytes say so, else opaque TCP.
    #[default]
    Detect,
    /// HTTP/1.1.
    Http,
    /// Opaque bytes; the server may speak first.
    Tcp,
    /// HTTP/2 with prior knowledge. Carried as opaque TCP for now.
    Http2,
    /// gRPC. Carried as opaque TCP for now.
    Grpc,
    /// The application's own TLS: opaque bytes.
    Tls,
}

impl Protocol {
    /// Carried without looking at the bytes.
    pub fn is_opaque(self) -> bool {
        !matches!(self, Self::Detect | Self::Http)
    }
}

/// A destination: what a client needs to reach it and to know it is the right one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// Unique in the mesh.
    pub name: String,
    /// Addresses clients connect to; a transparent outbound connection is matched by these.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Host names of the service, lower case, without port.
    #[serde(default)]
    pub hostnames: Vec<String>,
    /// The identities a server of this service may present, compared exactly.
    #[serde(default)]
    pub identities: Vec<SpiffeId>,
    /// Ports by number.
    pub ports: Vec<ServicePort>,
    /// Routes attached to the service itself (HTTPRoute with a Service parentRef).
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Balance by least requests of two random choices rather than round robin.
    #[serde(default)]
    pub least_request: bool,
}

/// One port of a service and who answers there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePort {
    /// The number clients use.
    pub port: u16,
    /// What it speaks.
    #[serde(default)]
    pub protocol: Protocol,
    /// Who answers.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
}

/// One place a service port is served.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// Where to connect.
    pub address: SocketAddr,
    /// Behind a sidecar: mutual TLS is required. False only for workloads outside the mesh.
    #[serde(default = "yes")]
    pub mutual_tls: bool,
}

fn yes() -> bool {
    true
}

/// What the sidecar of one workload accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Inbound {
    /// The service this workload belongs to.
    pub service: String,
    /// Ports by the number clients use.
    pub ports: Vec<InboundPort>,
    /// Who may call.
    #[serde(default)]
    pub policy: Policy,
}

/// A port of the application behind the sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboundPort {
    /// The service's port number (with interception, also the one the application listens on).
    pub port: u16,
    /// What it speaks.
    #[serde(default)]
    pub protocol: Protocol,
    /// The application's address.
    pub target: SocketAddr,
}

/// Who may call a service. Nothing matches: denied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// Any identity of the mesh may call; rules are ignored.
    #[serde(default)]
    pub permissive: bool,
    /// Allow rules; one that matches is enough.
    #[serde(default)]
    pub rules: Vec<PolicyRule>,
}

/// One allow rule (from a TrafficTarget).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRule {
    /// The object it comes from, such as `TrafficTarget/gateway-to-ratings`.
    pub name: String,
    /// Identities allowed, compared exactly.
    pub sources: Vec<SpiffeId>,
    /// Service ports it holds for; empty: all.
    #[serde(default)]
    pub ports: Vec<u16>,
    /// HTTP requests allowed; empty: all, and TCP. A rule with matches never allows raw TCP.
    #[serde(default)]
    pub matches: Vec<PolicyMatch>,
}

/// One kind of allowed request. All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyMatch {
    /// The match's name in its HTTPRouteGroup.
    #[serde(default)]
    pub name: String,
    /// Methods, exact; empty or `*`: all.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Matched against the whole path without the query; empty: all.
    #[serde(default)]
    pub path_regex: String,
    /// Header name (lower case) to a regular expression for the whole value.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// An entry into the mesh for clients outside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gateway {
    /// Unique in the mesh.
    pub name: String,
    /// Where it listens.
    pub listeners: Vec<GatewayListener>,
    /// HTTP routes attached to it.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// One listening port of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayListener {
    /// Unique in its gateway.
    pub name: String,
    /// Port number.
    pub port: u16,
    /// Exact host or `*.suffix`; empty: any.
    #[serde(default)]
    pub hostname: String,
}

/// An HTTPRoute, attached to a gateway or a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// The HTTPRoute's name.
    pub name: String,
    /// Exact hosts or `*.suffix`; empty: any.
    #[serde(default)]
    pub hostnames: Vec<String>,
    /// Rules; the most specific match wins as Gateway API says (exact path, longest prefix,
    /// method, most headers, then order).
    pub rules: Vec<RouteRule>,
    /// Listener or service port it is attached to; 0: all.
    #[serde(default)]
    pub port: u16,
}

/// Matches and where matching requests go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteRule {
    /// One is enough; empty: every request.
    #[serde(default)]
    pub matches: Vec<RouteMatch>,
    /// Chosen by weight. Empty: answered with 500, as Gateway API says.
    #[serde(default)]
    pub backends: Vec<Backend>,
    /// Overrides the mesh's request timeout; 0: not set.
    #[serde(default)]
    pub request_timeout_ms: u32,
}

/// All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteMatch {
    /// The path, without the query.
    #[serde(default)]
    pub path: PathMatch,
    /// Header conditions.
    #[serde(default)]
    pub headers: Vec<HeaderMatch>,
    /// Method; empty: any.
    #[serde(default)]
    pub method: String,
}

/// How a path is matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// By path elements: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    /// The whole path, as a regular expression.
    Regex(String),
}

impl Default for PathMatch {
    fn default() -> Self {
        Self::Prefix("/".into())
    }
}

/// A header condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderMatch {
    /// Lower case.
    pub name: String,
    /// The whole value.
    pub value: String,
    /// `value` is a regular expression for the whole value.
    #[serde(default)]
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
    #[serde(default = "one")]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

/// One named thing in the delta stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Resource {
    /// `mesh`
    Mesh(MeshSettings),
    /// `service/<name>`
    Service(Service),
    /// `inbound/<service>`
    Inbound(Inbound),
    /// `gateway/<name>`
    Gateway(Gateway),
    /// `address/<ip>`: the name of the service that owns the address.
    Alias(String),
    /// `catalog`: the names of all services.
    Catalog(Vec<String>),
}
