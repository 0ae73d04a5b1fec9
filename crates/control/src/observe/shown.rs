//! Views of the mesh as a whole: who calls whom, how it goes, and what happened.
//!
//! Times are Unix seconds, rates are per second, durations in milliseconds.

use super::pages::Why;
use serde::Serialize;
use std::collections::BTreeMap;

/// The mesh's own facts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshFacts {
    /// Name of the Mesh object.
    pub name: String,
    /// Trust domain of its identities.
    pub trust_domain: String,
    /// Version of the controller.
    pub version: String,
    /// `host` or `cluster`.
    pub platform: &'static str,
    /// For people: `this host`, or the cluster's name.
    #[serde(rename = "where")]
    pub place: String,
}

/// How something does, at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Health {
    /// Nothing has happened in the window.
    #[default]
    Idle,
    /// As it should be.
    Ok,
    /// Worth a look.
    Warning,
    /// Something fails.
    Error,
}

/// A service, a gateway, or what is outside the mesh.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// `service/reviews`, `gateway/edge`, `egress/host:example.com`, `workload/…` or `outside`.
    pub id: String,
    /// `service`, `gateway`, `outside` or `external`.
    pub kind: &'static str,
    /// Name without its namespace.
    pub name: String,
    /// In a cluster.
    pub namespace: Option<String>,
    /// Where its workloads run.
    pub hosts: Vec<String>,
    /// Connected proxies.
    pub proxies: usize,
    /// Endpoints it has.
    pub endpoints: usize,
    /// Those that may be called.
    pub ready: usize,
    /// Findings about objects with its name.
    pub findings: usize,
    /// Judged by findings, refused updates, endpoints and the success of what it serves.
    pub health: Health,
    /// SPIFFE ids of its workloads.
    pub identities: Vec<String>,
}

/// A reason code and how often it was given.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonRate {
    /// See `docs/reasons.md`.
    pub code: String,
    /// Per second.
    pub rate: f64,
}

/// Calls from one node to another.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Edge {
    /// `service/a>service/b`
    pub id: String,
    /// Id of a node.
    pub source: String,
    /// Id of a node.
    pub destination: String,
    /// `http`, `grpc` or `tcp`.
    pub protocol: &'static str,
    /// Requests a second; connections of TCP.
    pub rate: f64,
    /// (answered without failure and not denied) / all; none: nothing was asked.
    pub success: Option<f64>,
    /// Median of the durations.
    pub p50: Option<f64>,
    /// 99th percentile of them.
    pub p99: Option<f64>,
    /// `all`, `some` or `none` of it was mutual TLS.
    pub mtls: &'static str,
    /// Refused by policy, per second.
    pub denied: f64,
    /// Failed otherwise, per second.
    pub failed: f64,
    /// At most five, highest first.
    pub reasons: Vec<ReasonRate>,
    /// Per second, of TCP.
    pub bytes_in: f64,
    /// Per second, of TCP.
    pub bytes_out: f64,
    /// At a glance.
    pub health: Health,
}

/// Edges that have no place of their own.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rest {
    /// How many, at least.
    pub edges: usize,
    /// Requests a second of all of them.
    pub rate: f64,
}

/// How much of the mesh the answer knows.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Coverage {
    /// Connected proxies.
    pub proxies: usize,
    /// Those that report.
    pub reporting: usize,
    /// Where the history begins.
    pub since: f64,
}

/// The mesh in a window of time.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Graph {
    /// End of the window.
    pub at: f64,
    /// Seconds.
    pub window: u32,
    /// The last delta that it has.
    pub revision: u64,
    /// Ordered by id.
    pub nodes: Vec<Node>,
    /// Ordered by id.
    pub edges: Vec<Edge>,
    /// Calls without an edge of their own.
    pub rest: Option<Rest>,
    /// How much of the mesh it knows.
    pub coverage: Coverage,
}

/// Changes in the graph of the last 60 seconds since the revision before.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GraphDelta {
    /// It is all there is, not a change.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// One more than that of the delta before.
    pub revision: u64,
    /// End of the window.
    pub at: f64,
    /// Changed or new.
    pub nodes: Vec<Node>,
    /// Ids.
    pub removed_nodes: Vec<String>,
    /// Changed or new.
    pub edges: Vec<Edge>,
    /// Ids.
    pub removed_edges: Vec<String>,
    /// Calls without an edge of their own.
    pub rest: Option<Rest>,
    /// How much of the mesh it knows.
    pub coverage: Coverage,
}

/// How an edge or service did over time, a value per step.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeSeries {
    /// Begin of the first step.
    pub from: f64,
    /// Seconds.
    pub step: u32,
    /// Per second.
    pub rate: Vec<f64>,
    /// Per second.
    pub failed: Vec<f64>,
    /// Per second.
    pub denied: Vec<f64>,
    /// Median of the durations.
    pub p50: Vec<Option<f64>>,
    /// 99th percentile of them.
    pub p99: Vec<Option<f64>>,
}

/// One number over time.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Series1 {
    /// Begin of the first step.
    pub from: f64,
    /// Seconds.
    pub step: u32,
    /// One per step.
    pub values: Vec<Option<f64>>,
}

/// A request that failed or was refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorSample {
    /// When the last one was.
    pub at: f64,
    /// See `docs/reasons.md`.
    pub reason: String,
    /// Status that the caller got.
    pub status: u16,
    /// The same of gRPC.
    pub grpc_status: Option<u32>,
    /// As the request says.
    pub method: String,
    /// The request's path without its query.
    pub path: String,
    /// Requests like this one.
    pub count: u64,
    /// SPIFFE id of the proxy that says so.
    pub proxy: String,
    /// Where it was sent; empty: nowhere.
    pub upstream: String,
    /// The meaning of the reason.
    pub cause: String,
    /// The remedy.
    pub fix: String,
    /// Where more about it is written.
    pub doc: String,
}

/// All about an edge.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgePage {
    /// As in the window.
    pub edge: Edge,
    /// As in the window.
    pub series: EdgeSeries,
    /// Newest first.
    pub errors: Vec<ErrorSample>,
    /// Says who may call; none: it is not between two services.
    pub why: Option<Why>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// When.
    pub at: f64,
    /// `object`, `proxy` or `controller`.
    pub kind: &'static str,
    /// `TrafficTarget ratings`
    pub what: String,
    /// `created`, `changed`, `deleted`, `connected`, `gone` or `refused`.
    pub verb: &'static str,
    /// The one who did it; empty: not known.
    pub who: String,
}

/// An edge before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compared {
    /// Id of the edge.
    pub id: String,
    /// None: there was none.
    pub before: Option<Edge>,
    /// None: there is none.
    pub after: Option<Edge>,
}

/// The edges that differ in more than noise.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Those that differ most first.
    pub edges: Vec<Compared>,
}

/// A choice of requests to follow. Empty fields match everything.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TapFilter {
    /// Id of a node, or the name of a service.
    pub source: String,
    /// Id of a node, or the name of a service.
    pub destination: String,
    /// Begin of the path.
    pub path: String,
    /// As the request says.
    pub method: String,
    /// Exactly this status.
    pub status: Option<u16>,
    /// Only what failed or was refused.
    pub failed: bool,
}

/// A request that was followed.
#[derive(Debug, Clone, PartialEq)]
pub enum TapEvent {
    /// The fields of the access log, and the `proxy` that tells.
    Line(BTreeMap<String, serde_json::Value>),
    /// So many lines were dropped.
    Dropped {
        /// Since the last of these.
        count: u64,
    },
    /// It is over: time or lines are used up.
    End,
}
