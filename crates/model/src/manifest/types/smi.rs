//! Kinds of the Service Mesh Interface.

use super::is_default;
use super::text::header_map;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `access.smi-spec.io/v1alpha3` TrafficTarget.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficTargetSpec {
    /// Who is called.
    pub destination: IdentityRef,
    /// Who may call.
    pub sources: Vec<IdentityRef>,
    /// What may be called; empty: everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TrafficTargetRule>,
}

/// An identity.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdentityRef {
    /// Only `ServiceAccount`: standalone, the last segment of `/svc/<name>`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Destination port; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// What may be called.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficTargetRule {
    /// `HTTPRouteGroup` or `TCPRoute`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Names of its matches; empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<String>,
}

/// `specs.smi-spec.io/v1alpha4` HTTPRouteGroup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteGroupSpec {
    /// Named kinds of request.
    pub matches: Vec<HttpRouteGroupMatch>,
}

/// A named kind of request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteGroupMatch {
    /// Unique in its group.
    pub name: String,
    /// Methods, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// For the whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_regex: Option<String>,
    /// Header name to a regular expression for the whole value. A list of mappings is accepted too.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "header_map"
    )]
    pub headers: BTreeMap<String, String>,
}

/// `specs.smi-spec.io/v1alpha4` TCPRoute: TCP by port, for TrafficTargets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SmiTcpRouteSpec {
    /// Ports; without it: all.
    #[serde(skip_serializing_if = "is_default")]
    pub matches: Option<SmiTcpMatch>,
}

/// TCP by port.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SmiTcpMatch {
    /// Name.
    #[serde(skip_serializing_if = "is_default")]
    pub name: Option<String>,
    /// Service ports; empty: all.
    #[serde(skip_serializing_if = "is_default")]
    pub ports: Vec<u16>,
}

/// `split.smi-spec.io` TrafficSplit, v1alpha2 and v1alpha4.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficSplitSpec {
    /// The service clients call.
    pub service: String,
    /// v1alpha4: only these requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub matches: Vec<TrafficSplitMatch>,
    /// Who gets them.
    pub backends: Vec<TrafficSplitBackend>,
}

/// Requests that are split.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficSplitMatch {
    /// Only `HTTPRouteGroup`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A part of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficSplitBackend {
    /// Service name.
    pub service: String,
    /// Share beside the others.
    pub weight: u32,
}
