//! Result of a translation: objects of Tulle, and what is lost.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// An object of Tulle.
#[derive(Debug, Serialize)]
pub(super) struct Made {
    /// Objects that it was made from, as `Kind namespace/name`.
    pub(super) from: Vec<String>,
    /// Differences from before.
    pub(super) notes: Vec<String>,
    pub(super) object: Value,
}

/// A part of an object that has no counterpart.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Loss {
    pub(super) object: String,
    pub(super) field: String,
    pub(super) why: String,
    pub(super) instead: String,
}

/// Result of the translation.
#[derive(Debug, Default, Serialize)]
pub(super) struct Imported {
    pub(super) objects: Vec<Made>,
    pub(super) lost: Vec<Loss>,
    /// Objects that are not the other mesh's: they stay as they are.
    pub(super) untouched: Vec<String>,
}

impl Imported {
    pub(super) fn make(&mut self, from: &str, object: Value) -> &mut Made {
        self.objects.push(Made {
            from: vec![from.to_owned()],
            notes: Vec::new(),
            object,
        });
        // It was pushed just now.
        let last = self.objects.len() - 1;
        &mut self.objects[last]
    }

    pub(super) fn lose(&mut self, object: &str, field: &str, why: &str, instead: &str) {
        self.lost.push(Loss {
            object: object.to_owned(),
            field: field.to_owned(),
            why: why.to_owned(),
            instead: instead.to_owned(),
        });
    }
}

/// An object of one of Tulle's own kinds.
pub(super) fn object(kind: &str, namespace: Option<&str>, name: &str, spec: Value) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), name.into());
    if let Some(namespace) = namespace {
        metadata.insert("namespace".into(), namespace.into());
    }
    json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec,
    })
}
