//! How clients treat a port of a service: balancing, limits, retries, and ejection of endpoints
//! that fail. Durations are milliseconds; 0 means the default or none.

use super::is_default;
use serde::{Deserialize, Serialize};

/// How clients treat a port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Traffic {
    /// The object it comes from, such as `TrafficPolicy/ratings`.
    pub name: String,
    /// How the endpoint of the next request is chosen.
    #[serde(skip_serializing_if = "is_default")]
    pub balancer: Balancer,
    /// Clients return to the endpoint that has served them.
    #[serde(skip_serializing_if = "is_default")]
    pub affinity: Option<Box<Affinity>>,
    /// Limits of each client's proxy.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: ConnectionLimits,
    /// Sending again.
    #[serde(skip_serializing_if = "is_default")]
    pub retry: Option<Box<Retry>>,
    /// Timeout of all tries together; 0: the mesh's, `u32::MAX`: none.
    #[serde(skip_serializing_if = "is_default")]
    pub request_timeout_ms: u32,
    /// 0: the mesh's.
    #[serde(skip_serializing_if = "is_default")]
    pub idle_timeout_ms: u32,
    /// 0: the mesh's.
    #[serde(skip_serializing_if = "is_default")]
    pub connect_timeout_ms: u32,
    /// Stops asking a service that fails.
    #[serde(skip_serializing_if = "is_default")]
    pub breaker: Option<Box<Breaker>>,
    /// Stops asking an endpoint that fails.
    #[serde(skip_serializing_if = "is_default")]
    pub outlier: Option<Box<Outlier>>,
    /// Asks endpoints how they are.
    #[serde(skip_serializing_if = "is_default")]
    pub health_check: Option<Box<HealthCheck>>,
    /// A new endpoint's share grows to its full size during this time.
    #[serde(skip_serializing_if = "is_default")]
    pub slow_start_ms: u32,
    /// Near endpoints are preferred.
    #[serde(skip_serializing_if = "is_default")]
    pub locality: Option<Box<Locality>>,
}

/// How the endpoint of the next request is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Balancer {
    /// In turn, by weight.
    #[default]
    RoundRobin,
    /// The less busy of two random ones.
    LeastRequest,
    /// The better of two random ones by latency (moving average, peaks count at once) times
    /// requests under way.
    Ewma,
    /// Any.
    Random,
    /// The one that a hash on a ring selects: a key stays with its endpoint as others come and go.
    RingHash(HashKey),
}

/// The input of the hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HashKey {
    /// The value of a header, lower case. Without it: any endpoint.
    Header(String),
    /// The value of a cookie. Without it: any endpoint.
    Cookie(String),
    /// The client's address.
    Source,
}

/// Keeps a client with an endpoint, by a cookie or header that the proxy makes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Affinity {
    /// Name of the cookie or header.
    pub name: String,
    /// In a header rather than a cookie.
    #[serde(skip_serializing_if = "is_default")]
    pub header: bool,
    /// Lifetime of the cookie; 0: of the browser's session.
    #[serde(skip_serializing_if = "is_default")]
    pub max_age_s: u32,
}

/// Limits of one client's proxy towards the port; 0: none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ConnectionLimits {
    /// Opaque connections, and exchanges of HTTP/1.1, at a time.
    #[serde(skip_serializing_if = "is_default")]
    pub connections: u32,
    /// Requests at a time.
    #[serde(skip_serializing_if = "is_default")]
    pub requests: u32,
    /// Requests that may wait for a place; more are refused.
    #[serde(skip_serializing_if = "is_default")]
    pub pending: u32,
    /// Retries at a time.
    #[serde(skip_serializing_if = "is_default")]
    pub retries: u32,
    /// Most requests of one connection, which then ends.
    #[serde(skip_serializing_if = "is_default")]
    pub requests_per_connection: u32,
}

/// Sending a request again. Only what is whole in memory, and either idempotent, refused unseen
/// by the upstream, or listed in `methods`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retry {
    /// Tries after the first.
    pub attempts: u32,
    /// Timeout of each try; 0: none.
    #[serde(skip_serializing_if = "is_default")]
    pub try_timeout_ms: u32,
    /// Statuses that are tried again.
    #[serde(skip_serializing_if = "is_default")]
    pub statuses: Vec<u16>,
    /// gRPC statuses that are tried again, when they come without a message.
    #[serde(skip_serializing_if = "is_default")]
    pub grpc_statuses: Vec<u16>,
    /// A connection that cannot be made.
    #[serde(skip_serializing_if = "is_default")]
    pub connect_failure: bool,
    /// An upstream that ends the connection before a response.
    #[serde(skip_serializing_if = "is_default")]
    pub reset: bool,
    /// A try that takes too long.
    #[serde(skip_serializing_if = "is_default")]
    pub timeout: bool,
    /// Methods that may be sent again although they are not idempotent.
    #[serde(skip_serializing_if = "is_default")]
    pub methods: Vec<String>,
    /// Pause before the first; doubled each time, with jitter; 0: 25 ms.
    #[serde(skip_serializing_if = "is_default")]
    pub backoff_ms: u32,
    /// Longest pause; 0: ten times the first.
    #[serde(skip_serializing_if = "is_default")]
    pub backoff_max_ms: u32,
    /// Retries may add this share to the requests of the last 10 s; 0: 20 %.
    #[serde(skip_serializing_if = "is_default")]
    pub budget_percent: u32,
    /// Retries per second that are always allowed; 0: 10.
    #[serde(skip_serializing_if = "is_default")]
    pub budget_min_per_s: u32,
    /// A condition in CEL: other requests are not sent again; empty: none.
    #[serde(skip_serializing_if = "is_default")]
    pub when: String,
}

/// Stops asking a service that fails, for a while (as osm-edge's circuitBreaking).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Breaker {
    /// Requests of this time count; 0: 30 s.
    #[serde(skip_serializing_if = "is_default")]
    pub window_ms: u32,
    /// Fewer requests prove nothing; 0: 100.
    #[serde(skip_serializing_if = "is_default")]
    pub min_requests: u32,
    /// A response that takes longer is slow; 0: 5 s.
    #[serde(skip_serializing_if = "is_default")]
    pub slow_ms: u32,
    /// How many slow ones open it; 0: the amount does not count.
    #[serde(skip_serializing_if = "is_default")]
    pub slow_amount: u32,
    /// The share of slow ones that opens it; 0: the share does not count.
    #[serde(skip_serializing_if = "is_default")]
    pub slow_ppm: u32,
    /// How many errors (5xx, or no response) open it.
    #[serde(skip_serializing_if = "is_default")]
    pub error_amount: u32,
    /// The share of errors that opens it.
    #[serde(skip_serializing_if = "is_default")]
    pub error_ppm: u32,
    /// How long it stays open; 0: 30 s. Then one request tests whether the service works again.
    #[serde(skip_serializing_if = "is_default")]
    pub open_ms: u32,
    /// Status while it is open; 0: 503.
    #[serde(skip_serializing_if = "is_default")]
    pub status: u16,
    /// Content of the answer; empty: the reason.
    #[serde(skip_serializing_if = "is_default")]
    pub body: String,
}

/// Stops asking an endpoint that fails.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Outlier {
    /// Failures (5xx, reset, cannot connect) in a row that eject an endpoint; 0: 5.
    #[serde(skip_serializing_if = "is_default")]
    pub consecutive: u32,
    /// First time out; each further one is longer by as much; 0: 30 s.
    #[serde(skip_serializing_if = "is_default")]
    pub base_ms: u32,
    /// Longest time out; 0: 300 s.
    #[serde(skip_serializing_if = "is_default")]
    pub max_ms: u32,
    /// The largest share of the endpoints that is ejected at a time; 0: 50 %.
    #[serde(skip_serializing_if = "is_default")]
    pub max_percent: u32,
}

/// Asks endpoints how they are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HealthCheck {
    /// `GET` this path and expect 200-399; empty: a connection is enough.
    #[serde(skip_serializing_if = "is_default")]
    pub path: String,
    /// Time between checks; 0: 10 s.
    #[serde(skip_serializing_if = "is_default")]
    pub interval_ms: u32,
    /// 0: 1 s.
    #[serde(skip_serializing_if = "is_default")]
    pub timeout_ms: u32,
    /// Good checks in a row that bring an endpoint back; 0: 2.
    #[serde(skip_serializing_if = "is_default")]
    pub healthy: u32,
    /// Bad checks in a row that take an endpoint out; 0: 3.
    #[serde(skip_serializing_if = "is_default")]
    pub unhealthy: u32,
}

/// Near endpoints are preferred while enough of them are well.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Locality {
    /// Endpoints elsewhere join in when fewer than this share of the near ones are well; 0: 70 %.
    #[serde(skip_serializing_if = "is_default")]
    pub healthy_percent: u32,
    /// Regions to fail over to, in this order; empty: any. One without a name: nowhere beyond this node.
    #[serde(skip_serializing_if = "is_default")]
    pub failover: Vec<String>,
}

impl Locality {
    /// Endpoints on the client's node and no others.
    pub fn same_node() -> Self {
        Self {
            healthy_percent: 1,
            failover: vec![String::new()],
        }
    }

    /// Whether it is [`Self::same_node`].
    pub fn is_same_node(&self) -> bool {
        self.failover.first().is_some_and(String::is_empty)
    }
}
