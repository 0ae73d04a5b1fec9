//! The configuration of the receiving side of a workload's sidecar: ports, callers, rules.

use super::{Filter, HeaderMatch, PathMatch, Protocol, RateLimit, Workload, is_default};
use crate::identity::SpiffeId;
use crate::network::Network;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Everything that the sidecar of one workload accepts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Inbound {
    /// The service this workload belongs to.
    pub service: String,
    /// Ports by the number clients use.
    pub ports: Vec<InboundPort>,
    /// Rules about who may call.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: Policy,
    /// Where this workload runs, widest first: `region/zone` or `region/zone/node`; empty: unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub locality: String,
    /// The workload that this is for, for metrics.
    #[serde(default, skip_serializing_if = "is_default")]
    pub workload: Option<Box<Workload>>,
}

/// A port of the application behind the sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboundPort {
    /// The service's port number (with interception, also the one the application listens on). 0: every
    /// port that has no entry; `target` has port 0 then, and a policy means these by 0.
    pub port: u16,
    /// The protocol of the port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: Protocol,
    /// The application's address.
    pub target: SocketAddr,
    /// An egress gateway: peers ask with CONNECT for hosts outside the mesh, which the rules for
    /// egress must let them reach. `target` is not used.
    #[serde(default, skip_serializing_if = "is_default")]
    pub egress: bool,
    /// Every connection begins with a PROXY protocol header (v1 or v2), but for other sidecars', which
    /// begin with their TLS.
    #[serde(default, skip_serializing_if = "is_default")]
    pub proxy_protocol: bool,
    /// New connections.
    #[serde(default, skip_serializing_if = "is_default")]
    pub connection_limit: Option<RateLimit>,
    /// Rules for each HTTP request that the policy allows, in this order: rate limits, faults,
    /// authentication. Only the first rule that matches is applied.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: Vec<InboundRule>,
}

impl InboundPort {
    /// A port without anything special.
    pub fn new(port: u16, protocol: Protocol, target: SocketAddr) -> Self {
        Self {
            port,
            protocol,
            target,
            egress: false,
            proxy_protocol: false,
            connection_limit: None,
            rules: Vec::new(),
        }
    }
}

/// Filters for requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboundRule {
    /// The object it comes from, such as `RateLimit/ratings`.
    pub name: String,
    /// Which requests; empty: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub matches: Vec<PolicyMatch>,
    /// The filters, in order.
    pub filters: Vec<Filter>,
}

/// Rules about who may call a service. A call that no rule matches is denied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// Any identity of the mesh may call unless a rule denies it; allow rules are ignored.
    #[serde(default, skip_serializing_if = "is_default")]
    pub permissive: bool,
    /// Rules. One that denies is enough to refuse; otherwise one that allows is enough to let in.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: Vec<PolicyRule>,
}

/// The effect of a rule on the calls it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Lets it in.
    #[default]
    Allow,
    /// Refuses it, whatever allows it.
    Deny,
    /// Only counts and logs what it would have allowed.
    AuditAllow,
    /// Only counts and logs what it would have refused.
    AuditDeny,
}

impl Action {
    /// Whether the rule refuses, or would refuse if it did more than watch.
    pub fn denies(self) -> bool {
        matches!(self, Self::Deny | Self::AuditDeny)
    }

    /// Whether the rule only watches.
    pub fn audits(self) -> bool {
        matches!(self, Self::AuditAllow | Self::AuditDeny)
    }
}

/// One rule (from a TrafficTarget, AuthorizationPolicy, IngressBackend or AccessControl). All
/// given parts must match. Without identities and addresses a rule allows nobody, and denies
/// everybody.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRule {
    /// The object it comes from, such as `TrafficTarget/gateway-to-ratings`.
    pub name: String,
    /// The effect of the rule.
    #[serde(default, skip_serializing_if = "is_default")]
    pub action: Action,
    /// Any verified identity of the mesh, beside `sources`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub any_identity: bool,
    /// Identities, compared exactly.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sources: Vec<SpiffeId>,
    /// Addresses of clients, beside `sources`. A client without a certificate is let in by these
    /// alone, also where mutual TLS is strict.
    #[serde(default, skip_serializing_if = "is_default")]
    pub networks: Vec<Network>,
    /// Service ports it holds for; empty: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ports: Vec<u16>,
    /// HTTP requests; empty: all, and TCP. A rule with matches never allows raw TCP, and one that
    /// denies refuses it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub matches: Vec<PolicyMatch>,
}

/// One kind of request. All given parts must match.
///
/// A path is compared both as it was sent and percent-decoded: a rule that allows must match both, one
/// that denies either. With several header fields of one name, likewise all of them must match, or
/// any. For a port with conditions on paths, a path that servers read in different ways is refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyMatch {
    /// The match's name in its HTTPRouteGroup.
    #[serde(default, skip_serializing_if = "is_default")]
    pub name: String,
    /// Methods, exact; empty or `*`: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub methods: Vec<String>,
    /// Matched against the whole path without the query; empty: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub path_regex: String,
    /// The path, beside `path_regex`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub path: Option<PathMatch>,
    /// A rule that denies compares paths in any letter case, too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_case: bool,
    /// Header name (lower case) to a regular expression for the whole value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub headers: BTreeMap<String, String>,
    /// Further header conditions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub header_matches: Vec<HeaderMatch>,
    /// Hosts, exact or `*.suffix`; empty: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hosts: Vec<String>,
    /// Conditions in CEL, all of which must hold ([`tulle_expression::request::scope`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub when: Vec<String>,
}
