//! Kinds of the Service Mesh Interface.

use super::is_default;
#[cfg(feature = "schema")]
use super::schema;
use super::text::header_map;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `access.smi-spec.io/v1alpha3` TrafficTarget.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficTargetSpec {
    /// The identity that is called.
    pub destination: IdentityRef,
    /// The identities that may call.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub sources: Vec<IdentityRef>,
    /// The calls that are allowed; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TrafficTargetRule>,
}

/// An identity.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdentityRef {
    /// Only `ServiceAccount`: standalone, the last segment of `/svc/<name>`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::IDENTITY_KINDS)))]
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace; default: this object's. Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Destination port; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub port: Option<u16>,
}

/// An HTTPRouteGroup or TCPRoute that names calls.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficTargetRule {
    /// `HTTPRouteGroup` or `TCPRoute`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::RULE_KINDS)))]
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Names of its matches; empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<String>,
}

/// `specs.smi-spec.io/v1alpha4` HTTPRouteGroup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteGroupSpec {
    /// Named kinds of request.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub matches: Vec<HttpRouteGroupMatch>,
}

/// A named kind of request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteGroupMatch {
    /// Unique in its group.
    pub name: String,
    /// Methods, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("items" = schema::methods_or_all())))]
    pub methods: Vec<String>,
    /// A regular expression for the whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_regex: Option<String>,
    /// Header name to a regular expression for the whole value. A list of mappings is accepted too.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "header_map"
    )]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::headers"))]
    pub headers: BTreeMap<String, String>,
}

/// `specs.smi-spec.io/v1alpha4` TCPRoute: TCP by port, for TrafficTargets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SmiTcpRouteSpec {
    /// Ports; without it: all.
    #[serde(skip_serializing_if = "is_default")]
    pub matches: Option<SmiTcpMatch>,
}

/// TCP by port.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SmiTcpMatch {
    /// Name.
    #[serde(skip_serializing_if = "is_default")]
    pub name: Option<String>,
    /// Service ports; empty: all.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub ports: Vec<u16>,
}

/// `split.smi-spec.io` TrafficSplit, v1alpha2 and v1alpha4.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficSplitSpec {
    /// The service clients call.
    pub service: String,
    /// v1alpha4: the split is about these requests only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub matches: Vec<TrafficSplitMatch>,
    /// The services that receive the requests.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub backends: Vec<TrafficSplitBackend>,
}

/// Requests that are split.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficSplitMatch {
    /// Only `HTTPRouteGroup`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::REQUEST_KINDS)))]
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A part of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficSplitBackend {
    /// Service name.
    pub service: String,
    /// Weight among the backends.
    #[cfg_attr(feature = "schema", schemars(range(max = schema::allowed::MAX_WEIGHT)))]
    pub weight: u32,
}
