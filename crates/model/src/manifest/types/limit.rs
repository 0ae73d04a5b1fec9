//! How often a service may be called.

#[cfg(feature = "schema")]
use super::schema;
use super::{HttpConditions, RequestLimit, TargetRef, is_default};
use serde::{Deserialize, Serialize};

/// `tulle.dev/v1alpha1` RateLimit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimitSpec {
    /// Services it protects.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub target_refs: Vec<TargetRef>,
    /// New connections.
    #[serde(default, skip_serializing_if = "is_default")]
    pub connections: Option<ConnectionRate>,
    /// All HTTP requests that none of `rules` is about.
    #[serde(default, skip_serializing_if = "is_default")]
    pub requests: Option<RequestLimit>,
    /// Requests of one kind; the first rule that matches.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: Vec<RateLimitRule>,
}

/// So many connections in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConnectionRate {
    /// How many.
    pub count: u32,
    /// Interval; default `1s`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub per: Option<String>,
    /// How many more may come at once.
    #[serde(default, skip_serializing_if = "is_default")]
    pub burst: u32,
}

/// A limit for requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimitRule {
    /// Which requests.
    pub to: HttpConditions,
    /// Whether paths are compared in any letter case.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_case: Option<bool>,
    /// How many.
    pub requests: RequestLimit,
}
