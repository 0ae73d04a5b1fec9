//! Definitions, made of types.

mod status;
mod structural;

use super::kinds::{Column, Definition, definitions};
use crate::names::metadata;
use serde_json::{Value, json};
use structural::spec;
use tulle_model::manifest::*;

/// All definitions as objects, in the order of the documentation.
pub(crate) fn objects() -> Vec<Value> {
    definitions().iter().map(object).collect()
}

/// Returns the schema of `spec`.
pub(super) fn spec_of(definition: &Definition) -> Value {
    match (definition.group, definition.kind) {
        ("tulle.dev", "Mesh") => spec::<MeshSpec>(),
        ("tulle.dev", "TrafficPolicy") => spec::<TrafficPolicySpec>(),
        ("tulle.dev", "RateLimit") => spec::<RateLimitSpec>(),
        ("tulle.dev", "HTTPFilter") => spec::<HttpFilterSpec>(),
        ("tulle.dev", "AuthorizationPolicy") => spec::<AuthorizationPolicySpec>(),
        ("tulle.dev", "Authentication") => spec::<AuthenticationSpec>(),
        ("tulle.dev", "Plugin") => spec::<PluginSpec>(),
        ("tulle.dev", "IngressBackend") => spec::<AccessSpec>(),
        ("tulle.dev", "AccessControl") => spec::<AccessSpec>(),
        ("tulle.dev", "Egress") => spec::<EgressSpec>(),
        ("access.smi-spec.io", "TrafficTarget") => spec::<TrafficTargetSpec>(),
        ("specs.smi-spec.io", "HTTPRouteGroup") => spec::<HttpRouteGroupSpec>(),
        ("specs.smi-spec.io", "TCPRoute") => spec::<SmiTcpRouteSpec>(),
        ("split.smi-spec.io", "TrafficSplit") => spec::<TrafficSplitSpec>(),
        (group, kind) => panic!("{kind} of {group} has no type"),
    }
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
            "spec": spec_of(definition),
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
    let columns: Vec<Value> = definition.columns().into_iter().map(column).collect();
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

fn column(column: Column) -> Value {
    json!({ "name": column.name, "type": column.kind, "jsonPath": column.path })
}
