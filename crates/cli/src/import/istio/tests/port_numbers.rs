//! Ports of policies are those of pods, as in Istio: no rule is about others, and no denial about fewer.

use super::*;

/// Services that lead to ports of pods by number and by name, and some that may have the same pods.
const BY_PORT: &str = "apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: a, namespace: shop}
  spec: {selector: {app: a}, ports: [{port: 80, targetPort: 9080}]}
- apiVersion: v1
  kind: Service
  metadata: {name: b, namespace: shop}
  spec: {selector: {app: b}, ports: [{port: 81, targetPort: 9090}]}
- apiVersion: v1
  kind: Service
  metadata: {name: c, namespace: shop}
  spec: {selector: {app: c}, ports: [{port: 82, targetPort: 9080}, {port: 83, targetPort: 9090}]}
- apiVersion: v1
  kind: Service
  metadata: {name: mixed, namespace: ports}
  spec: {selector: {app: a}, ports: [{port: 80, targetPort: http}, {port: 81, targetPort: 9080}]}
- apiVersion: v1
  kind: Service
  metadata: {name: first, namespace: shared}
  spec: {selector: {app: a}, ports: [{port: 80, targetPort: 9080}]}
- apiVersion: v1
  kind: Service
  metadata: {name: second, namespace: shared}
  spec: {selector: {tier: back}, ports: [{port: 9090, targetPort: 8000}]}
- apiVersion: v1
  kind: Service
  metadata: {name: other, namespace: shared}
  spec: {selector: {app: b}, ports: [{port: 7070, targetPort: 8000}]}
---
";

fn by_port(namespace: &str, spec: &str) -> Imported {
    imported(&format!(
        "{BY_PORT}apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: p, namespace: {namespace}}}
spec: {{{spec}}}
"
    ))
}

/// Names of the policies that are made, and their rules.
fn made(imported: &Imported) -> Vec<(&str, &Value)> {
    let objects = imported.objects.iter().map(|made| &made.object);
    let rules = objects.map(|object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        (name, &object["spec"]["rules"])
    });
    rules.collect()
}

fn port(port: u64) -> Value {
    json!([{ "to": { "ports": [port] } }])
}

fn when(when: &str) -> Value {
    json!([{ "to": { "when": when } }])
}

#[test]
fn a_denial_holds_at_the_pods_of_all_services() {
    for (rules, expected) in [
        (
            "[{to: [{operation: {ports: ['9090']}}]}]",
            [port(9090), port(81), port(83)],
        ),
        (
            "[{when: [{key: destination.port, values: ['9090']}]}]",
            [port(9090), port(81), port(83)],
        ),
        (
            "[{to: [{operation: {ports: ['9080', '9090']}}], when: [{key: destination.port, values: ['9090', '1']}]}]",
            [port(9090), port(81), port(83)],
        ),
        (
            "[{to: [{operation: {notPorts: ['9090']}}]}]",
            [(); 3].map(|()| when("destination.port != 9090")),
        ),
        (
            "[{to: [{operation: {ports: ['9080']}}]}, {to: [{operation: {ports: ['9090']}}]}]",
            [
                json!([{ "to": { "ports": [80] } }, { "to": { "ports": [9090] } }]),
                json!([{ "to": { "ports": [9080] } }, { "to": { "ports": [81] } }]),
                json!([{ "to": { "ports": [82] } }, { "to": { "ports": [83] } }]),
            ],
        ),
    ] {
        let imported = by_port("shop", &format!("action: DENY, rules: {rules}"));
        assert_eq!(imported.lost, [], "{rules}");
        let names = ["p-a", "p-b", "p-c"].into_iter();
        let expected: Vec<(&str, &Value)> = names.zip(&expected).collect();
        assert_eq!(made(&imported), expected, "{rules}");
    }
}

#[test]
fn conditions_have_the_numbers_of_the_pods() {
    let not = |number: u64| format!("[{{to: [{{operation: {{notPorts: ['{number}']}}}}]}}]");
    let not_value =
        |number: u64| format!("[{{when: [{{key: destination.port, notValues: ['{number}']}}]}}]");
    for (action, number, expected) in [
        ("ALLOW", 9080, "destination.port != 9080"),
        ("DENY", 9080, "destination.port != 9080"),
        // A port that nobody declares is 0 to the sidecar, and could be the one that was not allowed.
        (
            "ALLOW",
            9090,
            "destination.port != 0 && destination.port != 9090",
        ),
        ("DENY", 9090, "destination.port != 9090"),
    ] {
        for rules in [not(number), not_value(number)] {
            let selector = "selector: {matchLabels: {app: a}}";
            let spec = format!("{selector}, action: {action}, rules: {rules}");
            let imported = by_port("shop", &spec);
            assert_eq!(imported.lost, [], "{spec}");
            assert_eq!(made(&imported), [("p", &when(expected))], "{spec}");
        }
    }
}

#[test]
fn the_number_of_another_port_of_the_service_is_not_that_of_the_pods() {
    let said = |imported: &Imported| {
        let mut notes = imported.objects.iter().flat_map(|made| &made.notes);
        notes.any(|note| note.contains("nobody declares"))
    };
    for (number, allow, deny) in [
        // A port by name that leads there, too, is the same port of the pods.
        (9080, port(81), port(81)),
        // Only the pods know whether it is the one that the Service names.
        (9090, port(9090), port(9090)),
        (
            80,
            when("destination.port in [80]"),
            when("destination.port in [0, 80]"),
        ),
        (
            81,
            when("destination.port in [81]"),
            when("destination.port in [0, 81]"),
        ),
    ] {
        for (action, expected) in [("ALLOW", &allow), ("DENY", &deny)] {
            let rules = format!("[{{to: [{{operation: {{ports: ['{number}']}}}}]}}]");
            let imported = by_port("ports", &format!("action: {action}, rules: {rules}"));
            assert_eq!(imported.lost, [], "{action} {number}");
            assert_eq!(made(&imported), [("p", expected)], "{action} {number}");
            let denies_more = action == "DENY" && number < 9000;
            assert_eq!(said(&imported), denies_more, "{action} {number}");
        }
    }
}

#[test]
fn the_number_of_a_port_of_another_service_of_the_pods_is_not_theirs() {
    for (selector, number, expected) in [
        // `second` may lead to the same pods.
        ("app: a", 9090, when("destination.port in [0, 9090]")),
        // Pods of `other` have another label.
        ("app: a", 7070, port(7070)),
        ("app: b", 7070, when("destination.port in [0, 7070]")),
    ] {
        let selector = format!("selector: {{matchLabels: {{{selector}}}}}");
        let rules = format!("[{{to: [{{operation: {{ports: ['{number}']}}}}]}}]");
        let imported = by_port(
            "shared",
            &format!("{selector}, action: DENY, rules: {rules}"),
        );
        assert_eq!(made(&imported), [("p", &expected)], "{selector} {number}");
    }
}

#[test]
fn a_rule_that_no_port_can_match_is_lost() {
    for (rules, field) in [
        (
            "[{to: [{operation: {ports: ['1']}}], when: [{key: destination.port, values: ['2']}]}]",
            "spec.rules",
        ),
        (
            "[{to: [{operation: {ports: ['0']}}]}]",
            "spec.rules[0].to[0].operation.ports",
        ),
        (
            "[{to: [{operation: {notPorts: [http]}}]}]",
            "spec.rules[0].to[0].operation.notPorts",
        ),
        (
            "[{when: [{key: destination.port, values: ['65536']}]}]",
            "spec.rules[0].when[0]",
        ),
    ] {
        for action in ["ALLOW", "DENY"] {
            let imported = by_port("shop", &format!("action: {action}, rules: {rules}"));
            let expected = [("AuthorizationPolicy shop/p", field)];
            assert_eq!(lost(&imported), expected, "{rules}");
            assert!(imported.objects.is_empty(), "{rules}");
        }
    }
}
