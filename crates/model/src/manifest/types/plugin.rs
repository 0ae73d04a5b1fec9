//! A script that reads and edits a service's requests and responses.

#[cfg(feature = "schema")]
use super::schema;
use super::{TargetRef, is_default};
use serde::{Deserialize, Serialize};

/// `tulle.dev/v1alpha1` Plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginSpec {
    /// Services whose requests it sees.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub target_refs: Vec<TargetRef>,
    /// A module of JavaScript that exports `onRequest`, `onResponse` or `onLog`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 262144)))]
    pub source: String,
    /// Its configuration: `context.config` of its hooks.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend("x-kubernetes-preserve-unknown-fields" = true))
    )]
    pub config: Option<serde_json::Map<String, serde_json::Value>>,
    /// `Closed`: requests and responses get 500 where it fails; `Open`: they pass unchanged. Default `Closed`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Closed", "Open"])))]
    pub failure_policy: Option<String>,
    /// Limits of time, memory and requests at once.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: Option<PluginLimits>,
    /// Services that it may ask.
    #[serde(default, skip_serializing_if = "is_default")]
    pub services: Vec<String>,
}

/// Limits of a plugin on each worker of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginLimits {
    /// CPU time for a request, all hooks together; default `5ms`, at most `1s`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub cpu: Option<String>,
    /// Memory; default `4Mi`, at most `256Mi`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: Option<String>,
    /// Requests under way; default 256, at most 65536.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65536)))]
    pub calls: Option<u32>,
}
