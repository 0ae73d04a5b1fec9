//! How clients treat a service.

#[cfg(feature = "schema")]
use super::schema;
use super::{TargetRef, is_default};
use serde::{Deserialize, Serialize};

/// `tulle.dev/v1alpha1` TrafficPolicy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficPolicySpec {
    /// Services it is about.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub target_refs: Vec<TargetRef>,
    /// How the endpoint of the next request is chosen.
    #[serde(default, skip_serializing_if = "is_default")]
    pub load_balancer: Option<LoadBalancerSpec>,
    /// Clients return to the endpoint that has served them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub session_affinity: Option<SessionAffinity>,
    /// Limits of each client.
    #[serde(default, skip_serializing_if = "is_default")]
    pub connections: Option<ConnectionLimitSpec>,
    /// Timeouts of requests and connections.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: Option<TrafficTimeouts>,
    /// Retries of failed requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: Option<RetrySpec>,
    /// Stops asking a service that fails.
    #[serde(default, skip_serializing_if = "is_default")]
    pub circuit_breaker: Option<CircuitBreakerSpec>,
    /// Stops asking an endpoint that fails.
    #[serde(default, skip_serializing_if = "is_default")]
    pub outlier_detection: Option<OutlierSpec>,
    /// Checks the health of endpoints.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health_check: Option<HealthCheckSpec>,
    /// A new endpoint's share grows during this time.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub slow_start: Option<String>,
    /// Prefers near endpoints.
    #[serde(default, skip_serializing_if = "is_default")]
    pub locality: Option<LocalitySpec>,
}

/// How the endpoint of the next request is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadBalancerSpec {
    /// `RoundRobin`, `LeastRequest`, `EWMA`, `Random` or `RingHash`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::BALANCERS)))]
    pub kind: String,
    /// The input of the hash of `RingHash`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hash: Option<HashSpec>,
}

/// The input of the hash; exactly one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HashSpec {
    /// A header.
    #[serde(skip_serializing_if = "is_default")]
    pub header: Option<String>,
    /// A cookie.
    #[serde(skip_serializing_if = "is_default")]
    pub cookie: Option<String>,
    /// The client's address.
    #[serde(skip_serializing_if = "is_default")]
    pub source_address: bool,
}

/// Keeps a client with an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionAffinity {
    /// `Cookie` (default) or `Header`.
    #[serde(default, rename = "type", skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::AFFINITIES)))]
    pub kind: Option<String>,
    /// Name of the cookie or header.
    pub name: String,
    /// Lifetime of the cookie. Default: the browser's session.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub max_age: Option<String>,
}

/// Limits of each client's proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ConnectionLimitSpec {
    /// Most opaque connections, and exchanges of HTTP/1.1, at a time.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_connections: Option<u32>,
    /// Most requests at a time.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_requests: Option<u32>,
    /// Most requests that wait.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_pending_requests: Option<u32>,
    /// Most retries at a time.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_retries: Option<u32>,
    /// Most requests of one connection, which then ends.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_requests_per_connection: Option<u32>,
}

/// Timeouts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TrafficTimeouts {
    /// Timeout of all tries together; `0s`: none.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub request: Option<String>,
    /// Longest time without a byte in either direction.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub idle: Option<String>,
    /// Longest time for TCP connect and TLS handshake together.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub connect: Option<String>,
}

/// Retries of failed requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetrySpec {
    /// Tries after the first; default 1.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = schema::allowed::MAX_ATTEMPTS)))]
    pub attempts: Option<u32>,
    /// Failures to retry: `connect-failure`, `reset`, `timeout`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("items" = schema::one_of(&schema::allowed::RETRY_ON))))]
    pub on: Vec<String>,
    /// Statuses to retry.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 400, max = 599))))]
    pub codes: Vec<u16>,
    /// gRPC statuses to retry.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1, max = 16))))]
    pub grpc_codes: Vec<u16>,
    /// Methods that may be sent again although they are not idempotent.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("items" = schema::one_of(&schema::allowed::METHODS))))]
    pub methods: Vec<String>,
    /// Timeout of each try.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub per_try_timeout: Option<String>,
    /// Pause before the first retry; doubled each time.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub backoff: Option<String>,
    /// Longest pause.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub max_backoff: Option<String>,
    /// How much load retries may add.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: Option<RetryBudget>,
    /// A condition in CEL: only requests for which it holds are sent again.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub when: Option<String>,
}

/// How much load retries may add.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetryBudget {
    /// Retries allowed, in percent of the requests of the last 10 s.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub percent: Option<u32>,
    /// Retries per second that are always allowed.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub min_per_second: Option<u32>,
}

/// Stops asking a service that fails, for a while.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CircuitBreakerSpec {
    /// Time whose requests count; default `30s`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub window: Option<String>,
    /// Fewest requests in that time for a decision; default 100.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub min_requests: Option<u32>,
    /// Slow responses that open the breaker.
    #[serde(skip_serializing_if = "is_default")]
    pub slow: Option<SlowSpec>,
    /// Errors that open the breaker.
    #[serde(skip_serializing_if = "is_default")]
    pub errors: Option<ErrorSpec>,
    /// How long the breaker stays open; default `30s`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub open_for: Option<String>,
    /// Status while the breaker is open; default 503.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 200, max = 599)))]
    pub status: Option<u16>,
    /// Content of the answer.
    #[serde(skip_serializing_if = "is_default")]
    pub body: String,
}

/// Slow responses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SlowSpec {
    /// A response that takes longer is slow; default `5s`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub threshold: Option<String>,
    /// How many open the breaker.
    #[serde(skip_serializing_if = "is_default")]
    pub amount: Option<u32>,
    /// The share that opens the breaker.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::SHARE)))]
    pub percentage: Option<String>,
}

/// Errors: 5xx, or no response at all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ErrorSpec {
    /// How many open the breaker.
    #[serde(skip_serializing_if = "is_default")]
    pub amount: Option<u32>,
    /// The share that opens the breaker.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::SHARE)))]
    pub percentage: Option<String>,
}

/// Stops asking an endpoint that fails.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OutlierSpec {
    /// Failures in a row that eject an endpoint; default 5.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub consecutive_failures: Option<u32>,
    /// Length of the first ejection; default `30s`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub base_ejection_time: Option<String>,
    /// Longest ejection; default `300s`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub max_ejection_time: Option<String>,
    /// Most endpoints ejected at a time, in percent; default 50.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub max_ejection_percent: Option<u32>,
}

/// Checks the health of endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HealthCheckSpec {
    /// Path of a `GET`; without it a connection is enough.
    #[serde(skip_serializing_if = "is_default")]
    pub path: Option<String>,
    /// Interval; default `10s`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub interval: Option<String>,
    /// Timeout; default `1s`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub timeout: Option<String>,
    /// Good checks in a row that make an endpoint healthy; default 2.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub healthy_threshold: Option<u32>,
    /// Bad checks in a row that make an endpoint unhealthy; default 3.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub unhealthy_threshold: Option<u32>,
}

/// Prefers near endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LocalitySpec {
    /// Endpoints elsewhere join in below this share of healthy near ones; default 70.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub min_healthy_percent: Option<u32>,
    /// Regions to fail over to, in this order.
    #[serde(skip_serializing_if = "is_default")]
    pub failover: Vec<String>,
}
