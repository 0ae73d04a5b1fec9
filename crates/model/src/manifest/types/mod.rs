//! The kinds of manifest and their fields, as written by users. Which kinds there are says
//! `kinds.rs`.

mod access;
mod egress;
mod filter;
mod gateway;
mod limit;
mod mesh;
mod plugin;
mod route;
#[cfg(feature = "schema")]
mod schema;
mod secret;
mod smi;
mod text;
mod traffic;
mod workload;

pub use access::*;
pub use egress::*;
pub use filter::*;
pub use gateway::*;
pub use limit::*;
pub use mesh::*;
pub use plugin::*;
pub use route::*;
pub use secret::*;
pub use smi::*;
pub use traffic::*;
pub use workload::*;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A document with its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest<S> {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// The object's own fields.
    pub spec: S,
}

/// Name and labels.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Unique within its kind; a DNS label where it is a host's name, too.
    pub name: String,
    /// Ignored in standalone mode, where there is one namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels, free to use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, free to use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// When an API server made it (RFC 3339, UTC, whole seconds): of equal routes the oldest holds. Nothing
    /// that a file says.
    #[serde(skip)]
    pub created: String,
}

/// An object that a policy is about.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TargetRef {
    /// API group; empty for a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// `Service` (default); of some policies also `Gateway`, `HTTPRoute` and `GRPCRoute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
    /// Its namespace; default: this object's. Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only this port of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub port: Option<u16>,
    /// Only this part of it: a port of a service, a listener of a gateway or a rule of a route, by
    /// name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// An object in the same mesh, such as a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectRef {
    /// API group; empty for Secret and ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
    /// Its namespace; default: this object's. Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl ObjectRef {
    pub(in crate::manifest) fn is_plugin(&self) -> bool {
        self.kind.as_deref() == Some("Plugin")
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
