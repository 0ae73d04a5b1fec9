//! The mesh as a whole.

#[cfg(feature = "schema")]
use super::schema;
use super::text::{quantity, switch, write_switch};
use super::{HeaderExpression, is_default};
use crate::identity::TrustDomain;
use crate::network::Network;
use crate::resource::OtlpProtocol;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `tulle.dev/v1alpha1` Mesh. Durations are texts such as `24h`, `20s`, `100ms`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshSpec {
    /// Default `tulle.local`; in a cluster, that of the installation. Cannot change once identities
    /// are issued.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 255), regex(pattern = r"^[a-z0-9._-]+$"))
    )]
    pub trust_domain: TrustDomain,
    /// Lets any workload of the mesh call any other; TrafficTargets are ignored. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub permissive_mode: bool,
    /// Whether plaintext from outside the mesh is accepted.
    #[serde(skip_serializing_if = "is_default")]
    pub mtls: MtlsSpec,
    /// Certificates of workloads.
    #[serde(skip_serializing_if = "is_default")]
    pub certificates: CertificateSpec,
    /// Log level: error, warn, info (default), debug or trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::LOG_LEVELS)))]
    pub log_level: Option<String>,
    /// Logs one JSON line per request, if true; a mapping says which requests (`sampling`, `onlyErrors`, `when`) and how (`format`, `fields`).
    /// Default false.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "switch",
        serialize_with = "write_switch"
    )]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::switch"))]
    pub access_log: Option<AccessLogSpec>,
    /// Limits of each sidecar.
    #[serde(skip_serializing_if = "is_default")]
    pub sidecar: SidecarSpec,
    /// Timeouts of requests and connections.
    #[serde(skip_serializing_if = "is_default")]
    pub timeouts: TimeoutSpec,
    /// Limits of a message's head.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: LimitSpec,
    /// Lets workloads reach addresses outside the mesh. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_egress: bool,
    /// Sidecars answer DNS questions for names of the mesh. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub dns: bool,
    /// Spans of requests. Default: none.
    #[serde(skip_serializing_if = "is_default")]
    pub tracing: Option<TracingSpec>,
    /// Metrics and lines of the access log for a collector. Default: none.
    #[serde(skip_serializing_if = "is_default")]
    pub otlp: Option<OtlpSpec>,
    /// Labels and names of metrics.
    #[serde(skip_serializing_if = "is_default")]
    pub metrics: MetricSpec,
    /// Certificates that are refused although they are valid. Default: none.
    #[serde(skip_serializing_if = "is_default")]
    pub revoked: Vec<RevocationSpec>,
    /// Keys of tokens that the controller fetches.
    #[serde(skip_serializing_if = "is_default")]
    pub jwks: JwksSpec,
}

/// Which requests the access log has, and how a line is written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AccessLogSpec {
    /// Share of the requests that are logged, such as `10%`. Default `100%`.
    #[serde(skip_serializing_if = "is_default")]
    pub sampling: Option<String>,
    /// Logs only what failed. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub only_errors: bool,
    /// A line of text in Envoy's command operators. Default: JSON.
    #[serde(skip_serializing_if = "is_default")]
    pub format: Option<String>,
    /// A condition in CEL about the request and its response: only requests for which it holds are logged.
    #[serde(skip_serializing_if = "is_default")]
    pub when: Option<String>,
    /// Further fields of a JSON line, in CEL.
    #[serde(skip_serializing_if = "is_default")]
    pub fields: Vec<HeaderExpression>,
}

/// A revocation: exactly one of an identity, a certificate, or a list of certificates.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RevocationSpec {
    /// All certificates of a SPIFFE id, such as `spiffe://tulle.local/svc/reviews`.
    #[serde(skip_serializing_if = "is_default")]
    pub identity: String,
    /// One certificate, by its serial number in hex.
    #[serde(skip_serializing_if = "is_default")]
    pub serial: String,
    /// A certificate revocation list (PEM) of the issuer of workloads' certificates. The signature is not
    /// checked: anybody who may write this object may revoke.
    #[serde(skip_serializing_if = "is_default")]
    pub crl: String,
    /// The reason, for people. Default: none.
    #[serde(skip_serializing_if = "is_default")]
    pub reason: String,
}

/// Keys of tokens that the controller fetches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JwksSpec {
    /// Hosts that `jwksUri` of an Authentication or HTTPFilter may name. Default: none.
    #[serde(skip_serializing_if = "is_default")]
    pub hosts: Vec<JwksHostSpec>,
}

/// A host that keys may be fetched from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwksHostSpec {
    /// Host name in lower case, or an IP address.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub host: String,
    /// Port; default 443.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub port: Option<u16>,
    /// Roots (PEM) that its certificate must lead to. Default: those of the system.
    #[serde(default, skip_serializing_if = "is_default")]
    pub roots: String,
    /// Networks that its addresses must be in. Default: any of the internet, none of private use.
    #[serde(default, skip_serializing_if = "is_default")]
    pub networks: Vec<Network>,
}

impl JwksHostSpec {
    /// The port that is asked.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(443)
    }
}

/// Spans of requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TracingSpec {
    /// The collector: `host:port`, with `https://` before it for TLS.
    pub endpoint: String,
    /// The form in which it takes OTLP: `grpc` (default) or `http`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: OtlpProtocol,
    /// Roots (PEM) that its certificate must lead to. Default: those of the system.
    #[serde(default, skip_serializing_if = "is_default")]
    pub roots: String,
    /// Share of the requests without a decision that are recorded, such as `10%`. Default `1%`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::SHARE)))]
    pub sampling: Option<String>,
    /// Attributes of every span.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attributes: BTreeMap<String, String>,
}

/// Metrics and log records that proxies send to a collector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OtlpSpec {
    /// The collector: `host:port`, with `https://` before it for TLS.
    pub endpoint: String,
    /// The form in which it takes OTLP: `grpc` (default) or `http`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: OtlpProtocol,
    /// Roots (PEM) that its certificate must lead to. Default: those of the system.
    #[serde(default, skip_serializing_if = "is_default")]
    pub roots: String,
    /// Attributes of everything that is sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attributes: BTreeMap<String, String>,
    /// How often all metrics are sent, such as `30s`; from 1s to 1h. Default: never.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub metrics: Option<String>,
    /// Sends a record for each request and TCP connection, whether they are written to the log or not. Default
    /// false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub access_log: bool,
}

/// Metrics of sidecars and gateways.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricSpec {
    /// Labels of traffic; default `full`, which are Istio's.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: MetricLabels,
    /// Histograms of the sizes of requests and responses. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizes: Option<bool>,
    /// Counts requests under OSM's names, too: `osm_request_total` and `osm_request_duration_ms`. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub osm_names: bool,
}

/// Labels of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MetricLabels {
    /// All of Istio's.
    #[default]
    Full,
    /// Workloads, identities and the service; fewer bytes in each scrape.
    Compact,
}

/// Whether plaintext from outside the mesh is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MtlsSpec {
    /// Mode; default `strict`.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: MtlsMode,
}

/// Whether plaintext is accepted on inbound ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MtlsMode {
    /// Refused.
    #[default]
    Strict,
    /// Accepted (as migration aid).
    Permissive,
}

/// Certificates of workloads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CertificateSpec {
    /// Lifetime; default `24h`, at least `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub lifetime: Option<String>,
    /// Age at which a sidecar renews its certificate, less up to a tenth. Default: two thirds of the lifetime.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub renew_after: Option<String>,
    /// Lets hosts that joined renew the certificates of their own workloads while no controller answers. Default: none may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_authority: Option<HostAuthoritySpec>,
}

/// Authorities of joined hosts over their own workloads' identities.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HostAuthoritySpec {
    /// How long a host renews by itself, at most `720h` and at least the lifetime of certificates; default `720h`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub lifetime: Option<String>,
    /// Names of the hosts that get one. Default: every host that joined.
    #[serde(skip_serializing_if = "is_default")]
    pub hosts: Vec<String>,
}

/// Limits of each sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SidecarSpec {
    /// CPU limit, a Kubernetes quantity such as `500m` or `2`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::quantity"))]
    pub cpu_limit: Option<String>,
    /// Memory limit, a Kubernetes quantity such as `64Mi`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::quantity"))]
    pub memory_limit: Option<String>,
    /// Worker threads. Default: 1 when the CPU limit is at most 1, else the limit rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = schema::MAX_WORKERS)))]
    pub workers: Option<u16>,
    /// Most connections a proxy takes at a time. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_connections: Option<u32>,
    /// Longest pause of a worker before it waits for events, such as `200us`, at most `1ms`. It pauses only where events come so
    /// fast that several are then served at once: less CPU time for each, for up to that pause in each direction. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::PAUSE)))]
    pub economy: Option<String>,
}

/// Timeouts, as duration texts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TimeoutSpec {
    /// Longest wait for the first bytes of a connection; default `100ms`, at most `1s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub protocol_detection: Option<String>,
    /// Longest time to receive a message's head; default `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub header: Option<String>,
    /// Longest time without a byte in either direction; default `5m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub idle: Option<String>,
    /// Longest time until the head of the response; default `15s`; `0s` means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub request: Option<String>,
    /// Longest time to connect, with the TLS handshake; default `5s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub connect: Option<String>,
}

/// Limits of a message's head.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LimitSpec {
    /// Longest head of a message in bytes; default 32768.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1024, max = 1 << 20)))]
    pub header_bytes: Option<u32>,
    /// Most header fields in a head; default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 10, max = crate::resource::MOST_HEADERS)))]
    pub header_count: Option<u32>,
}
