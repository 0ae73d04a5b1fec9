//! CustomResourceDefinitions of Tulle's kinds and of the Service Mesh Interface's, made of the types
//! that manifests are read as. Gateway API's are not ours: users install theirs.
//!
//! What a schema cannot say (one of two fields, a regular expression that compiles) the webhook
//! refuses, see `validate`.

mod kinds;
mod status;
mod structural;
#[cfg(test)]
mod tests;

pub use kinds::{Column, Definition, definitions};

use crate::names::metadata;
use serde_json::{Value, json};

/// All definitions as objects, in the order of the documentation.
pub fn objects() -> Vec<Value> {
    definitions().iter().map(object).collect()
}

/// The definition as an object for the API server.
fn object(definition: &Definition) -> Value {
    let Definition { group, plural, .. } = definition;
    let kind = definition.kind;
    let versions: Vec<Value> = definition
        .versions
        .iter()
        .enumerate()
        .map(|(i, name)| version(definition, name, i == 0))
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": metadata(&format!("{plural}.{group}")),
        "spec": {
            "group": group,
            "names": {
                "kind": kind, "listKind": format!("{kind}List"),
                "plural": plural, "singular": kind.to_lowercase(),
                "shortNames": definition.short_names, "categories": ["tulle"],
            },
            "scope": if definition.cluster { "Cluster" } else { "Namespaced" },
            "versions": versions,
        },
    })
}

fn version(definition: &Definition, name: &str, storage: bool) -> Value {
    let mut schema = json!({
        "description": definition.description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": (definition.spec)(),
        },
    });
    let mut subresources = json!({});
    if definition.has_status() {
        schema["properties"]["status"] = status::schema();
        subresources["status"] = json!({});
    }
    if definition.cluster {
        // A schema says nothing of other objects, but it can leave only one name.
        schema["x-kubernetes-validations"] = json!([{
            "rule": "self.metadata.name == 'mesh'",
            "message": "a cluster has one Mesh, and its name is `mesh`",
        }]);
    }
    let columns: Vec<Value> = definition
        .columns()
        .into_iter()
        .map(Column::to_json)
        .collect();
    json!({
        "name": name,
        "served": true,
        // Older versions differ only in the fields they allow, so nothing is converted.
        "storage": storage,
        "schema": { "openAPIV3Schema": schema },
        "subresources": subresources,
        "additionalPrinterColumns": columns,
    })
}
