//! Destinations outside the mesh that workloads may reach.

use super::{PolicyMatch, Protocol, Target, is_default};
use crate::identity::SpiffeId;
use crate::network::Network;
use serde::{Deserialize, Serialize};

/// All rules; one that matches is enough.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Egress {
    /// Rules.
    pub rules: Vec<EgressRule>,
}

/// All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressRule {
    /// The object it comes from, such as `Egress/github`.
    pub name: String,
    /// Identities that may use it; empty: every workload (of `namespace`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub sources: Vec<SpiffeId>,
    /// In a cluster, if `sources` is empty: the namespace whose workloads may; empty: every workload.
    #[serde(default, skip_serializing_if = "is_default")]
    pub namespace: String,
    /// Hosts, exact or `*.suffix`: by the Host of HTTP and the server name of TLS. Empty: any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hosts: Vec<String>,
    /// Addresses; empty: any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub networks: Vec<Network>,
    /// Ports; empty: any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ports: Vec<EgressPort>,
    /// HTTP requests; empty: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub matches: Vec<PolicyMatch>,
    /// Plain HTTP or TCP leaves as TLS.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tls: Option<Box<EgressTls>>,
    /// The egress gateway to go through; `None`: directly.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gateway: Option<Target>,
}

impl EgressRule {
    /// Whether the rule lets this identity out.
    pub fn is_for(&self, source: &SpiffeId) -> bool {
        is_for(&self.sources, &self.namespace, source)
    }
}

/// Whether a rule with these [`EgressRule::sources`] and [`EgressRule::namespace`] is for an identity.
pub fn is_for(sources: &[SpiffeId], namespace: &str, source: &SpiffeId) -> bool {
    if !sources.is_empty() || namespace.is_empty() {
        return sources.is_empty() || sources.contains(source);
    }
    let account = source.service_account();
    account.is_some_and(|(of, _)| of == namespace)
}

/// A port outside.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressPort {
    /// Number.
    pub port: u16,
    /// The protocol of the port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: Protocol,
}

/// How TLS begins here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EgressTls {
    /// Name the server must prove; empty: the request's host.
    #[serde(skip_serializing_if = "is_default")]
    pub server_name: String,
    /// Roots (PEM) its certificate must lead to; empty: those of the system.
    #[serde(skip_serializing_if = "is_default")]
    pub roots: String,
    /// Port to connect to; 0: as asked.
    #[serde(skip_serializing_if = "is_default")]
    pub port: u16,
}
