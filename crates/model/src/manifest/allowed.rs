//! Values that some fields may have. The checks and the schemas (feature `schema`) both take them
//! from here.

/// Names of levels of a log, the least first.
pub const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Methods of RFC 9110 and RFC 5789, as in Gateway API.
pub(super) const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// Types of a TrafficPolicy's load balancer.
pub(super) const BALANCERS: [&str; 5] =
    ["RoundRobin", "LeastRequest", "EWMA", "Random", "RingHash"];

/// Ways to keep a client with an endpoint.
pub(super) const AFFINITIES: [&str; 2] = ["Cookie", "Header"];

/// Failures that a retry may be for, beside statuses.
pub(super) const RETRY_ON: [&str; 3] = ["connect-failure", "reset", "timeout"];

/// More tries than anybody waits for.
pub(super) const MAX_ATTEMPTS: u32 = 10;

/// The largest weight, as in Gateway API.
pub(super) const MAX_WEIGHT: u32 = 1_000_000;

/// How paths are matched.
pub(super) const PATH_MATCHES: [&str; 3] = ["Exact", "PathPrefix", "RegularExpression"];

/// How headers, parameters and methods of gRPC are matched.
pub(super) const TEXT_MATCHES: [&str; 2] = ["Exact", "RegularExpression"];

/// The group of Services, Secrets and ConfigMaps.
pub(super) const CORE_GROUPS: [&str; 2] = ["", "core"];

/// Where requests can go.
pub(super) const BACKEND_KINDS: [&str; 1] = ["Service"];

/// Actions of an AuthorizationPolicy on the calls that match.
pub(super) const ACTIONS: [&str; 2] = ["Allow", "Deny"];

/// Whether an AuthorizationPolicy is in force.
pub(super) const MODES: [&str; 2] = ["Enforce", "Audit"];

/// Clients outside the mesh.
pub(super) const SOURCE_KINDS: [&str; 3] = ["Service", "AuthenticatedPrincipal", "IPRange"];

/// Protocols of ports outside the mesh.
pub(super) const EGRESS_PROTOCOLS: [&str; 4] = ["http", "https", "tls", "tcp"];

/// Protocols for asking the server that decides about requests.
pub(super) const AUTH_PROTOCOLS: [&str; 2] = ["HTTP", "GRPC"];

/// Identities of the Service Mesh Interface.
pub(super) const IDENTITY_KINDS: [&str; 1] = ["ServiceAccount"];

/// Kinds of objects that say which calls a TrafficTarget allows.
pub(super) const RULE_KINDS: [&str; 2] = ["HTTPRouteGroup", "TCPRoute"];

/// Kinds of objects that say which requests a TrafficSplit or an Egress is about.
pub(super) const REQUEST_KINDS: [&str; 1] = ["HTTPRouteGroup"];
