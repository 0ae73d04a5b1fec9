//! A script that reads and edits a service's requests and responses.

#[cfg(feature = "schema")]
use super::schema;
use super::{ObjectRef, TargetRef, is_default};
use serde::{Deserialize, Serialize};

/// The key of a ConfigMap that has the module of a plugin.
pub const PLUGIN_KEY: &str = "plugin.js";

/// `tulle.dev/v1alpha1` Plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginSpec {
    /// Services whose requests it sees, beside those of routes that refer to it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub target_refs: Vec<TargetRef>,
    /// A module of JavaScript that exports `onRequest`, `onRequestBody`, `onResponse`, `onResponseBody` or `onLog`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(length(max = 262144)))]
    pub source: String,
    /// The ConfigMap (or Secret) that has the module instead, under the key `plugin.js`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub source_ref: Option<ObjectRef>,
    /// A file with the module instead, beside the manifest: `tulle apply` and `tulle up` read it. Nobody else does.
    #[serde(default, skip_serializing_if = "is_default")]
    pub source_file: Option<String>,
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
    /// Services that it may ask. In a route it asks nobody.
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
    /// The longest body that `onRequestBody` and `onResponseBody` see; default `256Ki`, at most `1Mi`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub body: Option<String>,
}
