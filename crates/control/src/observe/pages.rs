//! Pages about one service, proxy, object, call or certificate.

use super::shown::{Edge, EdgeSeries, Health, Series1};
use serde::Serialize;

/// A call to be explained.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WhyQuery {
    /// Service, gateway or identity.
    pub from: String,
    /// Service.
    pub to: String,
    /// 0: the service's only one.
    pub port: u32,
    /// Empty: GET.
    pub method: String,
    /// Empty: /.
    pub path: String,
    /// Judged with the objects of then; none: of now.
    pub at: Option<f64>,
}

/// Whether a call is allowed, by what, and where it goes.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // as in Explanation of objects.proto
pub struct Why {
    pub allowed: bool,
    pub source_identity: String,
    pub destination_identities: Vec<String>,
    pub route: String,
    pub rule: String,
    pub policy: String,
    pub reason: String,
    pub endpoints: Vec<String>,
    pub mtls: String,
    pub considered: Vec<Considered>,
    pub filters: Vec<String>,
    pub split: Vec<String>,
    pub limits: Vec<String>,
    pub timeout: String,
    pub retry: String,
    pub destinations: Vec<String>,
    pub conflicts: Vec<String>,
}

/// A policy that was looked at.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Considered {
    /// As the object says.
    pub kind: String,
    /// As the object says.
    pub name: String,
    /// The result.
    pub outcome: String,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortRow {
    /// Number.
    pub port: u16,
    /// As its service says.
    pub protocol: String,
}

/// A service in a list.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRow {
    /// With its namespace in a cluster.
    pub name: String,
    /// In a cluster.
    pub namespace: Option<String>,
    /// `service` or `gateway`.
    pub kind: &'static str,
    /// Where it is called.
    pub ports: Vec<PortRow>,
    /// How many it has.
    pub endpoints: usize,
    /// Those that may be called.
    pub ready: usize,
    /// Calls that it serves.
    pub rate: f64,
    /// Calls that it serves.
    pub success: Option<f64>,
    /// Calls that it serves.
    pub p50: Option<f64>,
    /// Calls that it serves.
    pub p99: Option<f64>,
    /// At a glance.
    pub health: Health,
    /// About objects with its name.
    pub findings: usize,
}

/// Where a service is served.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointRow {
    /// `ip:port`
    pub address: String,
    /// Empty: not known.
    pub workload: String,
    /// Empty: not known.
    pub host: String,
    /// It may be called.
    pub ready: bool,
    /// Callers' proxies that pass it over, because it failed or its health checks do.
    pub left_out_by: usize,
    /// At a glance.
    pub health: Health,
}

/// All about a service.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePage {
    /// As in the list.
    pub row: ServiceRow,
    /// Endpoints of all its ports.
    pub endpoints: Vec<EndpointRow>,
    /// Calls that it serves.
    pub series: EdgeSeries,
    /// Calls to it.
    pub inbound: Vec<Edge>,
    /// Calls by it.
    pub outbound: Vec<Edge>,
    /// Objects that act on it.
    pub objects: Vec<ObjectRow>,
    /// Those of its workloads.
    pub identities: Vec<String>,
    /// About objects with its name.
    pub findings: Vec<FindingRow>,
    /// Those of its workloads.
    pub proxies: Vec<ProxyRow>,
}

/// A connected proxy.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyRow {
    /// `<SPIFFE id>#<instance>`
    pub id: String,
    /// As its certificate says.
    pub spiffe_id: String,
    /// Name of its service or gateway.
    pub name: String,
    /// `sidecar`, `gateway` or `egress`.
    pub kind: String,
    /// Where it runs; empty: not known.
    pub host: String,
    /// Empty: not known.
    pub version: String,
    /// None: not known.
    pub started_at: Option<f64>,
    /// Cores.
    pub cpu: Option<f64>,
    /// Bytes.
    pub memory: Option<u64>,
    /// Open ones.
    pub connections: u64,
    /// Per second.
    pub requests_rate: f64,
    /// Names it is told of.
    pub subscriptions: usize,
    /// Number of the last update.
    pub sent: u64,
    /// Number of the last update that it took.
    pub acked: u64,
    /// Why it refused one; empty: it did not.
    pub last_error: String,
    /// Parts of its configuration that it cannot carry out.
    pub faults: String,
    /// Unix seconds.
    pub certificate_not_after: i64,
    /// It says what it counts.
    pub reporting: bool,
    /// Empty: not known.
    pub log_level: String,
}

/// All about a proxy.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyPage {
    /// As in the list.
    pub row: ProxyRow,
    /// Cores.
    pub cpu_series: Series1,
    /// Bytes.
    pub memory_series: Series1,
    /// Its own.
    pub certificates: Vec<CertificateRow>,
}

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRow {
    /// Such as `TrafficTarget`.
    pub kind: String,
    /// As the object says.
    pub name: String,
    /// In a cluster.
    pub namespace: Option<String>,
    /// `accepted`, `refused` or `unknown`.
    pub status: &'static str,
    /// The first finding about it.
    pub message: String,
    /// None: before the history.
    pub changed_at: Option<i64>,
}

/// A node that an object acts on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActsOn {
    /// Id of a node.
    pub on: String,
}

/// All about an object.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectPage {
    /// As in the list.
    #[serde(rename = "ref")]
    pub reference: ObjectRow,
    /// As it is kept; of a Secret only names.
    pub yaml: String,
    /// Where it has an effect.
    pub acts: Vec<ActsOn>,
    /// About it.
    pub findings: Vec<FindingRow>,
}

/// The authority of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityFacts {
    /// `steady`, `spreading` or `renewing`.
    pub step: String,
    /// The signer; empty: the root.
    pub issuer: String,
    /// Those that are believed.
    pub roots: Vec<RootFacts>,
}

/// A root that is believed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RootFacts {
    /// In lower-case hex.
    pub sha256: String,
    /// `signing`, `next`, `previous` or `issuer`.
    pub role: String,
    /// Unix seconds.
    pub not_after: i64,
}

/// A certificate in a list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRow {
    /// SPIFFE id, fingerprint or server name.
    pub subject: String,
    /// `proxy`, `gateway` or `root`.
    pub of: &'static str,
    /// Unix seconds.
    pub not_after: i64,
    /// Seconds.
    pub left: i64,
    /// `ok`, `due` or `expired`.
    pub state: &'static str,
    /// Where it is in force.
    #[serde(rename = "where")]
    pub place: String,
}

/// All certificates that the controller knows of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificatesPage {
    /// The signer.
    pub authority: AuthorityFacts,
    /// Those that end first come first.
    pub certificates: Vec<CertificateRow>,
}

/// The object that something is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AboutObject {
    /// Such as `TrafficTarget`.
    pub kind: String,
    /// As the object says.
    pub name: String,
    /// In a cluster.
    pub namespace: Option<String>,
}

/// Something that does not fit together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingRow {
    /// See `docs/findings.md`.
    pub code: String,
    /// `error` or `warning`.
    pub severity: &'static str,
    /// The object to look at.
    pub object: Option<AboutObject>,
    /// As the object says.
    pub field: String,
    /// The fault.
    pub message: String,
    /// The remedy.
    pub fix: String,
    /// Where more about it is written.
    pub doc: String,
}

/// A question to a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Its configuration, as `tulle proxy get` shows it.
    Config,
    /// How it sees what it calls.
    Endpoints,
    /// Changes how much it logs.
    SetLogLevel {
        /// `error`, `warn`, `info`, `debug` or `trace`.
        level: String,
        /// Then the level is as before.
        seconds: u32,
    },
}

/// The result of manifests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// One per object; none of a dry run.
    pub results: Vec<AppliedObject>,
    /// Something that does not fit together.
    pub findings: Vec<FindingRow>,
}

/// The result of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedObject {
    /// As the object says.
    pub kind: String,
    /// As the object says.
    pub name: String,
    /// `created`, `configured` or `unchanged`.
    pub outcome: String,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// The remedy.
    pub fix: String,
    /// Status of HTTP that fits.
    pub status: u16,
}
