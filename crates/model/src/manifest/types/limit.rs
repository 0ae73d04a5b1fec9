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
    /// Limit of new connections.
    #[serde(default, skip_serializing_if = "is_default")]
    pub connections: Option<ConnectionRate>,
    /// Limit of all HTTP requests that none of `rules` is about.
    #[serde(default, skip_serializing_if = "is_default")]
    pub requests: Option<RequestLimit>,
    /// Limits of kinds of requests; the first rule that matches counts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: Vec<RateLimitRule>,
}

/// A number of connections per interval.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConnectionRate {
    /// How many per interval.
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
    /// The requests.
    pub to: HttpConditions,
    /// Whether paths are compared in any letter case.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_case: Option<bool>,
    /// The limit.
    pub requests: RequestLimit,
}
