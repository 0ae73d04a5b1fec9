//! An object of another mesh as it was read.

use super::fields::take;
use serde_json::{Value, json};

/// Ends of their API groups, in which all kinds have the same names and fields.
const OWN: [&str; 2] = ["openservicemesh.io", "flomesh.io"];
/// An object to be translated.
pub(super) struct Source {
    /// `Kind namespace/name`.
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) spec: Value,
    whole: Value,
}

impl Source {
    pub(super) fn new(mut whole: Value) -> Self {
        let text = |pointer: &str| {
            whole
                .pointer(pointer)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let kind = text("/kind").unwrap_or_default();
        let name = text("/metadata/name").unwrap_or_default();
        let namespace = text("/metadata/namespace");
        let id = match &namespace {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        };
        if let Some(fields) = whole.as_object_mut() {
            fields.remove("status");
        }
        let spec = take(&mut whole, "spec").unwrap_or_else(|| json!({}));
        Self {
            id,
            kind,
            namespace,
            name,
            spec,
            whole,
        }
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Labels of the object itself.
    pub(super) fn labels(&self) -> Value {
        self.whole["metadata"]["labels"].clone()
    }

    /// Annotations of the object itself, as they were read: files written by hand have values that are no text.
    pub(super) fn annotations(&self) -> &Value {
        &self.whole["metadata"]["annotations"]
    }

    pub(super) fn version(&self) -> &str {
        self.whole["apiVersion"].as_str().unwrap_or_default()
    }

    pub(super) fn group(&self) -> &str {
        let version = self.version();
        version.split_once('/').map_or("", |(group, _)| group)
    }

    pub(super) fn is_own(&self) -> bool {
        let group = self.group();
        let is_of = |own: &str| {
            let before = group.strip_suffix(own);
            before.is_some_and(|g| g.is_empty() || g.ends_with('.'))
        };
        OWN.into_iter().any(is_of)
    }

    /// As it was read.
    pub(super) fn into_whole(self) -> Value {
        let mut whole = self.whole;
        if !self.spec.as_object().is_some_and(serde_json::Map::is_empty) {
            whole["spec"] = self.spec;
        }
        whole
    }
}
