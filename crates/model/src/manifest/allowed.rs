//! What some fields may be. The checks and the schemas (feature `schema`) both take it from here.

/// Of a log.
pub(super) const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Methods of RFC 9110 and RFC 5789, as in Gateway API.
pub(super) const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// Of a TrafficPolicy's load balancer.
pub(super) const BALANCERS: [&str; 5] =
    ["RoundRobin", "LeastRequest", "EWMA", "Random", "RingHash"];

/// What keeps a client with an endpoint.
pub(super) const AFFINITIES: [&str; 2] = ["Cookie", "Header"];

/// What a retry may be for, beside statuses.
pub(super) const RETRY_ON: [&str; 3] = ["connect-failure", "reset", "timeout"];

/// More tries than anybody waits for.
pub(super) const MAX_ATTEMPTS: u32 = 10;

/// As in Gateway API.
pub(super) const MAX_WEIGHT: u32 = 1_000_000;

/// How paths are matched.
pub(super) const PATH_MATCHES: [&str; 3] = ["Exact", "PathPrefix", "RegularExpression"];

/// How headers, parameters and methods of gRPC are matched.
pub(super) const TEXT_MATCHES: [&str; 2] = ["Exact", "RegularExpression"];

/// The group of Services, Secrets and ConfigMaps.
pub(super) const CORE_GROUPS: [&str; 2] = ["", "core"];

/// Where requests can go.
pub(super) const BACKEND_KINDS: [&str; 1] = ["Service"];

/// What an AuthorizationPolicy does with what matches.
pub(super) const ACTIONS: [&str; 2] = ["Allow", "Deny"];

/// Whether an AuthorizationPolicy is in force.
pub(super) const MODES: [&str; 2] = ["Enforce", "Audit"];

/// Clients outside the mesh.
pub(super) const SOURCE_KINDS: [&str; 3] = ["Service", "AuthenticatedPrincipal", "IPRange"];

/// Of ports outside the mesh.
pub(super) const EGRESS_PROTOCOLS: [&str; 4] = ["http", "https", "tls", "tcp"];

/// How who decides about requests is asked.
pub(super) const AUTH_PROTOCOLS: [&str; 2] = ["HTTP", "GRPC"];

/// Identities of the Service Mesh Interface.
pub(super) const IDENTITY_KINDS: [&str; 1] = ["ServiceAccount"];

/// What a TrafficTarget allows.
pub(super) const RULE_KINDS: [&str; 2] = ["HTTPRouteGroup", "TCPRoute"];

/// What a TrafficSplit or an Egress is about.
pub(super) const REQUEST_KINDS: [&str; 1] = ["HTTPRouteGroup"];
