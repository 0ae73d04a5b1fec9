//! Services of other namespaces to which routes lead: their namespaces have to permit it.

use serde_json::Value;
use std::collections::BTreeSet;

/// Returns a note about the ReferenceGrants that a route needs. None: its backends are of its own namespace.
pub(super) fn note(kind: &str, namespace: Option<&str>, spec: &Value) -> Option<String> {
    let mut backends = Vec::new();
    collect(&spec["rules"], &mut backends);
    let parents = || spec["parentRefs"].as_array().into_iter().flatten();
    let is_elsewhere = |parent: &Value| {
        let there = parent["namespace"].as_str();
        parent["kind"] == "Service" && there.is_some() && there != namespace
    };
    // Back to the Service that was called none is needed, unless the route is about something of its own, too: then it
    // leads others there.
    let is_for_callers_alone = parents().all(is_elsewhere);
    let service = |reference: &Value| ["name", "namespace"].map(|f| reference[f].clone());
    let others = backends.into_iter().filter(|backend| {
        !is_for_callers_alone || !parents().any(|parent| service(parent) == service(backend))
    });
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_route_about_nothing_of_its_own_leads_back_without_a_grant() {
        let called = json!({"kind": "Service", "name": "web", "namespace": "shop"});
        let about = |parents: Value| {
            let backends = json!([{"name": "web", "namespace": "shop", "port": 80}, {"name": "own", "port": 80}]);
            let spec = json!({"parentRefs": parents, "rules": [{"backendRefs": backends}]});
            note("HTTPRoute", Some("team"), &spec)
        };
        assert_eq!(about(json!([called])), None);
        for other in [
            json!({"kind": "Gateway", "name": "edge"}),
            json!({"kind": "Service", "name": "own"}),
            json!({"kind": "Service", "name": "own", "namespace": "team"}),
        ] {
            let said = about(json!([called, other])).unwrap();
            assert!(
                said.contains("(shop)") && said.contains("of team"),
                "{said}"
            );
        }
    }
}
