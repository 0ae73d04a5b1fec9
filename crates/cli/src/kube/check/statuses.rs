//! Which objects say in their status that they are not in force, or that something they name is not there?

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::gateway_classes;
use crate::kube::workloads::{items, text};
use serde_json::Value;
use tulle_kube::gateway::NOT_PERMITTED;
use tulle_kube::names::CONTROLLER_NAME;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let (mut not_in_force, mut dangling) = (Vec::new(), Vec::new());
    let classes = facts.objects.iter();
    let classes =
        classes.filter(|o| text(o, "/kind") == "GatewayClass" && gateway_classes::is_own(o));
    let classes: Vec<&str> = classes.map(|c| text(c, "/metadata/name")).collect();
    for object in &facts.objects {
        for (who, condition) in conditions(object, &classes) {
            let told = format!(
                "{who}: {}: {}",
                text(condition, "/reason"),
                text(condition, "/message")
            );
            match text(condition, "/type") {
                "ResolvedRefs" => dangling.push(told),
                _ => not_in_force.push(told),
            }
        }
    }
    report.each("TK093", Outcome::Error, not_in_force, "all are");
    report.each("TK094", Outcome::Error, dangling, "all is there");
}

/// Returns the bad conditions in the status of an object, of each of its parents and of each of its
/// listeners. `classes`: those whose Gateways the mesh serves.
fn conditions<'a>(object: &'a Value, classes: &[&str]) -> Vec<(String, &'a Value)> {
    let (kind, metadata) = (text(object, "/kind"), &object["metadata"]);
    let name = match text(metadata, "/namespace") {
        "" => format!("{kind} {}", text(metadata, "/name")),
        namespace => format!("{kind} {namespace}/{}", text(metadata, "/name")),
    };
    let class = match kind {
        "GatewayClass" => Some(text(metadata, "/name")),
        "Gateway" => Some(text(object, "/spec/gatewayClassName")),
        _ => None,
    };
    // Another controller's are its own matter.
    if class.is_some_and(|class| !classes.contains(&class)) {
        return Vec::new();
    }
    let status = &object["status"];
    let mut found = bad(status, &name);
    for parent in items(status, "/parents") {
        if text(parent, "/controllerName") == CONTROLLER_NAME {
            let who = format!("{name} at {}", text(parent, "/parentRef/name"));
            found.extend(bad(parent, &who));
        }
    }
    for listener in items(status, "/listeners") {
        let who = format!("{name}, listener {}", text(listener, "/name"));
        found.extend(bad(listener, &who));
    }
    found
}

/// `Programmed` of a Gateway follows from others, or is its Service's matter.
fn bad<'a>(place: &'a Value, who: &str) -> Vec<(String, &'a Value)> {
    let all = items(place, "/conditions");
    let bad = all.filter(|c| match text(c, "/type") {
        "Accepted" | "ResolvedRefs" => text(c, "/status") == "False",
        "Conflicted" => text(c, "/status") == "True",
        _ => false,
    });
    // TK045 tells of these.
    let bad = bad.filter(|c| text(c, "/reason") != NOT_PERMITTED);
    bad.map(|c| (who.to_owned(), c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({ "type": kind, "status": status, "reason": reason, "message": "why" })
    }

    #[test]
    fn bad_statuses_are_told_and_those_of_others_are_not() {
        let named = |kind: &str, status: Value| {
            json!({
                "kind": kind, "metadata": { "namespace": "shop", "name": "a" },
                "spec": { "gatewayClassName": "tulle" }, "status": status,
            })
        };
        let parent = |controller: &str| {
            json!({
                "controllerName": controller, "parentRef": { "name": "edge" },
                "conditions": [condition("Accepted", "False", "NoMatchingParent")],
            })
        };
        let listener = json!({ "name": "https", "conditions": [
            condition("ResolvedRefs", "False", "InvalidCertificateRef"),
            condition("Programmed", "False", "Invalid"),
        ] });
        let class = |name: &str, controller: &str| {
            json!({
                "kind": "GatewayClass", "metadata": { "name": name },
                "spec": { "controllerName": controller },
                "status": { "conditions": [condition("Accepted", "False", "InvalidParameters")] },
            })
        };
        let of_class = |class: &str| {
            let status = json!({ "conditions": [condition("Accepted", "False", "Invalid")] });
            let mut gateway = named("Gateway", status);
            gateway["metadata"]["name"] = class.into();
            gateway["spec"]["gatewayClassName"] = class.into();
            gateway
        };
        let mut good = class("tulle", CONTROLLER_NAME);
        good["status"] = json!({ "conditions": [condition("Accepted", "True", "Accepted")] });
        let objects = vec![
            good,
            class("edge", CONTROLLER_NAME),
            class("nginx", "other/controller"),
            named(
                "RateLimit",
                json!({ "conditions": [
                condition("Accepted", "False", "Invalid"),
                condition("ResolvedRefs", "True", "ResolvedRefs"),
            ] }),
            ),
            named(
                "HTTPRoute",
                json!({ "parents": [parent(CONTROLLER_NAME), parent("other/controller")] }),
            ),
            named("Gateway", json!({ "listeners": [listener] })),
            named(
                "Gateway",
                json!({ "conditions": [condition("Accepted", "False", NOT_PERMITTED)] }),
            ),
            of_class("edge"),
            of_class("nginx"),
        ];
        let facts = Facts {
            objects,
            ..Facts::default()
        };
        let wrong = Report::wrong(|report| check(&facts, report));
        let found: Vec<_> = wrong.iter().map(|f| (f.id, f.finding.as_str())).collect();
        let expected = [
            ("TK093", "GatewayClass edge: InvalidParameters: why"),
            ("TK093", "RateLimit shop/a: Invalid: why"),
            ("TK093", "HTTPRoute shop/a at edge: NoMatchingParent: why"),
            ("TK093", "Gateway shop/edge: Invalid: why"),
            (
                "TK094",
                "Gateway shop/a, listener https: InvalidCertificateRef: why",
            ),
        ];
        assert_eq!(found, expected);
    }
}
