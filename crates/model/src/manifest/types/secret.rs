//! Keys, certificates and other texts that objects refer to (Kubernetes' core group).

use super::{Metadata, is_default};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// `v1` Secret.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Secret {
    /// `v1`.
    pub api_version: String,
    /// `Secret`.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// `Opaque` (default) or `kubernetes.io/tls`.
    #[serde(default, rename = "type", skip_serializing_if = "is_default")]
    pub secret_type: Option<String>,
    /// Base64.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data: BTreeMap<String, String>,
    /// Plain text; wins over `data`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub string_data: BTreeMap<String, String>,
    /// Without effect.
    #[serde(default, skip_serializing_if = "is_default")]
    pub immutable: bool,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.metadata.name)
            .finish_non_exhaustive() // what it holds is nobody's business
    }
}

/// `v1` ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMap {
    /// `v1`.
    pub api_version: String,
    /// `ConfigMap`.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// Texts by key.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data: BTreeMap<String, String>,
    /// Without effect.
    #[serde(default, skip_serializing_if = "is_default")]
    pub immutable: bool,
}
