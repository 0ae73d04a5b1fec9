//! Services of other namespaces to which routes lead: their namespaces have to permit it.

use serde_json::Value;
use std::collections::BTreeSet;

/// Returns a note about the ReferenceGrants that a route needs. None: its backends are of its own namespace.
pub(super) fn note(kind: &str, namespace: Option<&str>, spec: &Value) -> Option<String> {
    let mut backends = Vec::new();
    collect(&spec["rules"], &mut backends);
    // Back to the Service that was called none is needed.
    let is_called = |backend: &Value| {
        let mut parents = spec["parentRefs"].as_array().into_iter().flatten();
        parents.any(|parent| {
            parent["kind"] == "Service"
                && ["name", "namespace"].map(|f| &parent[f])
                    == ["name", "namespace"].map(|f| &backend[f])
        })
    };
    let others = backends.into_iter().filter(|backend| !is_called(backend));
    let namespaces: BTreeSet<&str> = others.filter_map(|b| b["namespace"].as_str()).collect();
    if namespaces.is_empty() {
        return None;
    }
    let there = Vec::from_iter(namespaces).join(", ");
    let own = namespace.unwrap_or("its own namespace");
    Some(format!(
        "it leads to Services of another namespace ({there}): that needs a ReferenceGrant there for a {kind} of {own}"
    ))
}

/// Collects the backends of rules, also those that get copies of requests.
fn collect<'v>(value: &'v Value, backends: &mut Vec<&'v Value>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field) {
                    ("backendRefs", Value::Array(all)) => backends.extend(all),
                    ("backendRef", one) => backends.push(one),
                    _ => {}
                }
                collect(field, backends);
            }
        }
        Value::Array(all) => all.iter().for_each(|item| collect(item, backends)),
        _ => {}
    }
}
