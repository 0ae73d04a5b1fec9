//! Destinations outside the mesh that workloads may reach.

#[cfg(feature = "schema")]
use super::schema;
use super::{IdentityRef, ObjectRef, TrafficTargetRule, is_default};
use crate::network::Network;
use serde::{Deserialize, Serialize};

/// `tulle.dev/v1alpha1` Egress. All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EgressSpec {
    /// Identities that may reach them; empty: every workload.
    #[serde(skip_serializing_if = "is_default")]
    pub sources: Vec<IdentityRef>,
    /// Hosts, exact or `*.suffix`.
    #[serde(skip_serializing_if = "is_default")]
    pub hosts: Vec<String>,
    /// Address ranges.
    #[serde(skip_serializing_if = "is_default")]
    pub ip_addresses: Vec<Network>,
    /// Ports; empty: any.
    #[serde(skip_serializing_if = "is_default")]
    pub ports: Vec<EgressPortSpec>,
    /// HTTP requests; empty: all.
    #[serde(skip_serializing_if = "is_default")]
    pub matches: Vec<TrafficTargetRule>,
    /// The sidecar encrypts plain HTTP or TCP with TLS.
    #[serde(skip_serializing_if = "is_default")]
    pub tls: Option<EgressTlsSpec>,
    /// Sends the connections through a service of the mesh.
    #[serde(skip_serializing_if = "is_default")]
    pub gateway: Option<EgressGatewayRef>,
}

/// A port outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressPortSpec {
    /// Number.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub number: u16,
    /// `http`, `https`, `tls` or `tcp`; default: detected.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::EGRESS_PROTOCOLS)))]
    pub protocol: Option<String>,
}

/// How TLS begins in the sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EgressTlsSpec {
    /// Name the server must prove; default: the request's host.
    #[serde(skip_serializing_if = "is_default")]
    pub server_name: Option<String>,
    /// Key `ca.crt` of a ConfigMap or Secret; default: the system's roots.
    #[serde(skip_serializing_if = "is_default")]
    pub ca_certificate_ref: Option<ObjectRef>,
    /// Port to connect to; default: the requested one.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub port: Option<u16>,
}

/// An egress gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressGatewayRef {
    /// Service name.
    pub service: String,
    /// Its port.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub port: u16,
}
