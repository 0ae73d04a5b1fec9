//! Gateways for clients outside the mesh (Gateway API).

use super::{ObjectRef, is_default};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// `gateway.networking.k8s.io/v1` Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewaySpec {
    /// `tulle` (the default) is ours.
    #[serde(default = "tulle")]
    pub gateway_class_name: String,
    /// Where it listens.
    pub listeners: Vec<ListenerSpec>,
    /// Addresses to bind. Default 127.0.0.1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<GatewayAddress>,
    /// Settings of its infrastructure.
    #[serde(default, skip_serializing_if = "is_default")]
    pub infrastructure: Option<GatewayInfrastructure>,
}

/// Settings of the infrastructure of a gateway. Gateway API leaves it to implementations what they
/// read here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GatewayInfrastructure {
    /// Labels, without meaning here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations; those that begin with `tulle.dev/` are read.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn tulle() -> String {
    "tulle".into()
}

/// An address to bind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayAddress {
    /// Only `IPAddress`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The address.
    pub value: IpAddr,
}

/// A listener of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerSpec {
    /// Unique in the gateway.
    pub name: String,
    /// Port.
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS` or `TCP`.
    pub protocol: String,
    /// Exact or `*.suffix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// How TLS is treated.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tls: Option<ListenerTlsSpec>,
    /// Which routes may attach.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allowed_routes: Option<AllowedRoutes>,
}

/// How a listener treats TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ListenerTlsSpec {
    /// `Terminate` (default) or `Passthrough`.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: Option<String>,
    /// Secrets of type `kubernetes.io/tls`.
    #[serde(skip_serializing_if = "is_default")]
    pub certificate_refs: Vec<ObjectRef>,
    /// Certificates of clients.
    #[serde(skip_serializing_if = "is_default")]
    pub frontend_validation: Option<FrontendValidation>,
}

/// Certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FrontendValidation {
    /// Key `ca.crt` of ConfigMaps or Secrets.
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `AllowValidOnly` (default) or `AllowInsecureFallback`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Option<String>,
}

/// Which routes may attach to a listener.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AllowedRoutes {
    /// The namespaces of these routes; standalone there is one.
    #[serde(skip_serializing_if = "is_default")]
    pub namespaces: Option<RouteNamespaces>,
}

/// Namespaces of routes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RouteNamespaces {
    /// `Same` or `All`.
    #[serde(skip_serializing_if = "is_default")]
    pub from: Option<String>,
}
