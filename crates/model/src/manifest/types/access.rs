//! Policies about who may call a service.

#[cfg(feature = "schema")]
use super::schema;
use super::{ExternalAuthSpec, HttpHeaderMatch, HttpPathMatch, JwtSpec, TargetRef, is_default};
use crate::network::Network;
use serde::{Deserialize, Serialize};

/// `tulle.dev/v1alpha1` AuthorizationPolicy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthorizationPolicySpec {
    /// Services it protects.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub target_refs: Vec<TargetRef>,
    /// `Allow` (default) or `Deny`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::ACTIONS)))]
    pub action: Option<String>,
    /// `Enforce` (default) or `Audit`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::MODES)))]
    pub mode: Option<String>,
    /// Rules; a match of one is enough.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub rules: Vec<AuthorizationRule>,
}

/// All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthorizationRule {
    /// The callers that the rule is about.
    #[serde(skip_serializing_if = "is_default")]
    pub from: Option<AuthorizationFrom>,
    /// The requests that the rule is about.
    #[serde(skip_serializing_if = "is_default")]
    pub to: Option<HttpConditions>,
    /// Whether paths are compared in any letter case. Only where `action` is `Deny`.
    #[serde(skip_serializing_if = "is_default")]
    pub ignore_case: Option<bool>,
}

/// Callers; one match is enough.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthorizationFrom {
    /// SPIFFE ids, exact.
    #[serde(skip_serializing_if = "is_default")]
    pub principals: Vec<String>,
    /// Service accounts of this namespace; standalone, last parts of
    /// `spiffe://<trust-domain>/svc/<name>`.
    #[serde(skip_serializing_if = "is_default")]
    pub service_accounts: Vec<String>,
    /// Address ranges of the callers.
    #[serde(skip_serializing_if = "is_default")]
    pub networks: Vec<Network>,
}

/// Conditions for requests. All given parts must match, one item of each is enough; of `headers`
/// all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpConditions {
    /// Service ports.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub ports: Vec<u16>,
    /// Methods.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("items" = schema::one_of(&schema::allowed::METHODS))))]
    pub methods: Vec<String>,
    /// Paths without the query.
    #[serde(skip_serializing_if = "is_default")]
    pub paths: Vec<HttpPathMatch>,
    /// Headers.
    #[serde(skip_serializing_if = "is_default")]
    pub headers: Vec<HttpHeaderMatch>,
    /// Hosts, exact or `*.suffix`.
    #[serde(skip_serializing_if = "is_default")]
    pub hosts: Vec<String>,
    /// A condition in CEL, such as `request.headers['x-tenant'] == source.namespace`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub when: Option<String>,
}

/// `tulle.dev/v1alpha1` IngressBackend (for somebody else's ingress) and AccessControl (for other
/// clients outside the mesh).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccessSpec {
    /// Services that may be called.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub backends: Vec<AccessBackend>,
    /// Clients that may call; one match is enough.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub sources: Vec<AccessSource>,
}

/// A service that may be called.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccessBackend {
    /// Service name.
    pub name: String,
    /// Its port; absent: all.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub port: Option<u16>,
}

/// A client that may call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccessSource {
    /// `Service`, `AuthenticatedPrincipal` or `IPRange`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::SOURCE_KINDS)))]
    pub kind: String,
    /// Name of a service or gateway, a SPIFFE id, or a range of addresses.
    pub name: String,
    /// Its namespace; default: this object's. Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "is_default")]
    pub namespace: Option<String>,
}

/// `tulle.dev/v1alpha1` Authentication: of the people and programs behind requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthenticationSpec {
    /// Services it protects.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub target_refs: Vec<TargetRef>,
    /// Requires a signed token.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jwt: Option<JwtSpec>,
    /// Asks another service whether a request may pass.
    #[serde(default, skip_serializing_if = "is_default")]
    pub external_auth: Option<ExternalAuthSpec>,
}
