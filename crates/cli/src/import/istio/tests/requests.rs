//! Requests that rules of policies are about: a denial is of no fewer, and nothing else is let in.

use super::*;

/// A policy about ratings with one rule.
fn policy(action: &str, rule: &str) -> Imported {
    imported(&format!(
        "{SERVICES}apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: p, namespace: shop}}
spec: {{selector: {{matchLabels: {{app: ratings}}}}, action: {action}, rules: [{rule}]}}
"
    ))
}

/// The condition is the only one of the rule, whatever the policy does.
fn assert_condition(rule: &str, when: &str) {
    for action in ["ALLOW", "DENY"] {
        let imported = policy(action, rule);
        assert_eq!(imported.lost, [], "{action} {rule}");
        let rules = &imported.objects[0].object["spec"]["rules"];
        let expected = json!([{ "to": { "when": when } }]);
        assert_eq!(rules, &expected, "{action} {rule}");
    }
}

/// No policy is made, and the place is all that is lost.
fn assert_lost(rule: &str, field: &str) {
    for action in ["ALLOW", "DENY"] {
        let imported = policy(action, rule);
        let expected = [("AuthorizationPolicy shop/p", field)];
        assert_eq!(lost(&imported), expected, "{action} {rule}");
        assert!(imported.objects.is_empty(), "{action} {rule}");
    }
}

#[test]
fn hosts_are_compared_without_their_case_and_port() {
    for (hosts, when) in [
        (
            "hosts: [Admin.Example.com]",
            r#"request.host == "admin.example.com""#,
        ),
        (
            "hosts: ['*.Example.com', 'Admin.*']",
            r#"(request.host.endsWith(".example.com") || request.host.startsWith("admin."))"#,
        ),
        (
            "notHosts: [A.example, b.example]",
            r#"!(request.host in ["a.example", "b.example"])"#,
        ),
        // With any port is what a host is compared with.
        (
            "hosts: [a.example, 'A.example:*']",
            r#"request.host == "a.example""#,
        ),
        (
            "notHosts: ['a.example:*', a.example]",
            r#"!(request.host == "a.example")"#,
        ),
    ] {
        assert_condition(&format!("{{to: [{{operation: {{{hosts}}}}}]}}"), when);
    }
}

#[test]
fn a_policy_about_a_host_that_no_request_has_is_not_made() {
    for (field, hosts) in [
        ("hosts", "['a.example:8080']"),
        ("hosts", "['a.example:*']"),
        ("hosts", "[a.example, 'b.example:*']"),
        ("hosts", "[a.example, 'a.example:80']"),
        ("hosts", "[a.example.]"),
        ("notHosts", "['*:8080']"),
        ("notHosts", "['a.example:*', b.example]"),
    ] {
        let rule = format!("{{to: [{{operation: {{{field}: {hosts}}}}}]}}");
        assert_lost(&rule, &format!("spec.rules[0].to[0].operation.{field}"));
    }
}

#[test]
fn a_condition_about_what_is_no_header_is_lost() {
    for name in [":path", ":authority", "@request.auth.claims.group"] {
        for values in ["values: ['/admin*']", "notValues: [a]", "values: ['*']"] {
            let rule = format!("{{when: [{{key: 'request.headers[{name}]', {values}}}]}}");
            assert_lost(&rule, "spec.rules[0].when[0]");
        }
    }
}

#[test]
fn a_star_is_any_value_of_a_header() {
    let has = r#""x-debug" in request.headers"#;
    for (values, when) in [
        ("values: ['*']", has.to_owned()),
        // One without a text is there, too.
        ("notValues: ['*']", format!("!({has})")),
        ("notValues: [a, '*']", format!("!({has})")),
        (
            "notValues: [a]",
            format!(r#"!({has} && request.headers["x-debug"] == "a")"#),
        ),
        (
            "notValues: ['a*', '*b']",
            format!(
                r#"!({has} && (request.headers["x-debug"].startsWith("a") || request.headers["x-debug"].endsWith("b")))"#
            ),
        ),
    ] {
        let rule = format!("{{when: [{{key: 'request.headers[x-debug]', {values}}}]}}");
        assert_condition(&rule, &when);
    }
}
