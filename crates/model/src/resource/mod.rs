//! Resources: the mesh as plain types, the same for every proxy.
//!
//! The controller's index produces these from manifests; a proxy compiles them into its snapshot. They
//! are also the body of `tulle-proxy --config FILE`. The controller sends them as JSON.
//!
//! A field that is not known here makes a resource invalid: a proxy that does not know a condition must
//! not take the rest for the whole. Fields with their default value are not written, so a proxy of the
//! version before understands everything that it could do.

mod access_log;
mod collector;
mod collector_address;
mod egress;
mod filter;
mod gateway;
mod inbound;
mod revoked;
mod route;
mod service;
mod telemetry;
mod traffic;
mod workload;

pub use access_log::{EVERY_REQUEST_PPM, LogLines};
pub use collector::{Collector, OtlpProtocol};
pub use collector_address::CollectorAddress;
pub use egress::{Egress, EgressPort, EgressRule, EgressTls, is_for};
pub use filter::{
    ClaimHeader, Cors, ExternalAuth, Fault, FieldValue, Filter, Header, HeaderEdit, Jwt,
    JwtProvider, MOST_AUTH_BODY, Mirror, PathEdit, Plugin, RateLimit, Redirect, Respond, Rewrite,
    When, is_protected_header,
};
pub use gateway::{Certificate, Gateway, GatewayListener, ListenerProtocol, ListenerTls};
pub use inbound::{Action, Inbound, InboundPort, InboundRule, Policy, PolicyMatch, PolicyRule};
pub use revoked::{InvalidSerial, MEMBERSHIP, MEMBERSHIP_MARK, Revoked, Serial, WITH_MEMBERSHIP};
pub use route::{
    Backend, HeaderMatch, PathMatch, Route, RouteMatch, RouteRule, Target, TcpRoute, TlsRoute,
};
pub use service::{Endpoint, Service, ServicePort};
pub use telemetry::{DEFAULT_SAMPLING_PPM, Otlp, Tracing};
pub use traffic::{
    Affinity, Balancer, Breaker, ConnectionLimits, HashKey, HealthCheck, Locality, Outlier, Retry,
    Traffic,
};
pub use workload::{KnownWorkload, ResourceLabels, Workload, Workloads};

use crate::identity::{SpiffeId, TrustDomain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> u32 {
    1
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(value: &u32) -> bool {
    *value == 1
}

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
    /// One line per request.
    pub access_log: bool,
    /// Which requests those are, and how a line is written.
    #[serde(skip_serializing_if = "is_default")]
    pub access_log_lines: LogLines,
    /// How long to wait for the first bytes before a connection is taken for opaque TCP.
    pub detect_timeout_ms: u32,
    /// Longest time from the first byte of a head to its end.
    pub header_timeout_ms: u32,
    /// Longest time without a byte in either direction.
    pub idle_timeout_ms: u32,
    /// Longest time from the end of the request's head to the end of the response's head. 0: none.
    pub request_timeout_ms: u32,
    /// TCP connect and TLS handshake together.
    pub connect_timeout_ms: u32,
    /// Longest accepted head.
    pub max_header_bytes: u32,
    /// Most header fields in a head; at most [`MOST_HEADERS`].
    pub max_headers: u32,
    /// Let workloads reach addresses that belong to no service of the mesh.
    pub allow_egress: bool,
    /// Most connections a proxy has from downstream at a time; 0: no limit of its own.
    #[serde(skip_serializing_if = "is_default")]
    pub max_connections: u32,
    /// Longest pause of a worker before it waits for events, in microseconds; 0: none.
    #[serde(skip_serializing_if = "is_default")]
    pub economy_us: u32,
    /// Names of the mesh are answered by the sidecar.
    #[serde(skip_serializing_if = "is_default")]
    pub dns: bool,
    /// Settings of spans; `None`: no spans are made.
    #[serde(skip_serializing_if = "is_default")]
    pub tracing: Option<Box<Tracing>>,
    /// Metrics and lines of the access log for a collector; `None`: none are sent.
    #[serde(skip_serializing_if = "is_default")]
    pub otlp: Option<Box<Otlp>>,
    /// Labels and names of metrics.
    #[serde(skip_serializing_if = "is_default")]
    pub metrics: MetricSettings,
    /// Certificates that are refused although they are valid.
    #[serde(skip_serializing_if = "is_default")]
    pub revoked: Revoked,
    /// Namespaces whose workloads take no plaintext and leave the mesh only by rules, whatever the mesh
    /// allows.
    #[serde(skip_serializing_if = "is_default")]
    pub strict_namespaces: BTreeSet<String>,
}

/// Chooses labels and names of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricSettings {
    /// Only the labels that version 0.1 had.
    #[serde(skip_serializing_if = "is_default")]
    pub compact: bool,
    /// No histograms of the sizes of requests and responses.
    #[serde(skip_serializing_if = "is_default")]
    pub without_sizes: bool,
    /// Requests are counted under OSM's names, too.
    #[serde(skip_serializing_if = "is_default")]
    pub osm_names: bool,
}

/// Most header fields that a head may be allowed to have. Proxies read 144 of HTTP/1.1, of which they add
/// up to 16 themselves; what comes over HTTP/2 goes on as HTTP/1.1.
pub const MOST_HEADERS: u32 = 128;

/// Longest pause that [`MeshSettings::economy_us`] may allow.
pub const LONGEST_PAUSE_US: u32 = 1000;

impl MeshSettings {
    /// Returns the settings of one workload: the mesh's settings, made strict if its namespace is.
    pub fn of_workload(mut self, identity: &SpiffeId) -> Self {
        if self.is_strict_for(identity) {
            self.strict_mtls = true;
            self.allow_egress = false;
        }
        self
    }

    /// Whether a workload's namespace is strict by itself.
    pub fn is_strict_for(&self, identity: &SpiffeId) -> bool {
        let account = identity.service_account();
        account.is_some_and(|(namespace, _)| self.strict_namespaces.contains(namespace))
    }
}

impl Default for MeshSettings {
    fn default() -> Self {
        Self {
            trust_domain: TrustDomain::default(),
            strict_mtls: true,
            log_level: "info".into(),
            access_log: false,
            access_log_lines: LogLines::default(),
            detect_timeout_ms: 100,
            header_timeout_ms: 10_000,
            idle_timeout_ms: 300_000,
            request_timeout_ms: 15_000,
            connect_timeout_ms: 5_000,
            max_header_bytes: 32 * 1024,
            max_headers: 100,
            allow_egress: false,
            max_connections: 0,
            economy_us: 0,
            dns: false,
            tracing: None,
            otlp: None,
            metrics: MetricSettings::default(),
            revoked: Revoked::default(),
            strict_namespaces: BTreeSet::new(),
        }
    }
}

/// The protocol of a port. `appProtocol` decides it first; `Detect` looks at the first bytes.
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
        matches!(self, Self::Tcp | Self::Tls)
    }

    /// Surely HTTP, of whatever version the client chooses.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2 | Self::Grpc)
    }
}

/// A named resource in the delta stream.
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
    /// `egress`
    Egress(Egress),
    /// `host/<name>`: the name of the service that has the host name (for DNS).
    Host(String),
}
