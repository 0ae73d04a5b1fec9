//! Services that a policy was about and is not any more are named.

use super::*;

const WAYS: &str = "apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: istio-ingressgateway, namespace: istio-system}
  spec: {selector: {app: istio-ingressgateway, istio: ingressgateway}, ports: [{port: 80}]}
- apiVersion: v1
  kind: Service
  metadata: {name: way, namespace: shop}
  spec: {selector: {app: way}, ports: [{port: 80}]}
- apiVersion: v1
  kind: Service
  metadata: {name: own-istio, namespace: shop}
  spec: {selector: {gateway.networking.k8s.io/gateway-name: own}, ports: [{port: 80}]}
- apiVersion: networking.istio.io/v1
  kind: Gateway
  metadata: {name: front, namespace: shop}
  spec: {selector: {app: way}, servers: [{port: {number: 80, protocol: HTTP}, hosts: ['*']}]}
---
";

/// A policy that denies everything, and an object about tokens.
fn both(namespace: &str, selector: &str) -> [(&'static str, Imported); 2] {
    let object = |kind: &'static str, body: &str| {
        let text = format!(
            "{SERVICES}{WAYS}apiVersion: security.istio.io/v1
kind: {kind}
metadata: {{name: p, namespace: {namespace}}}
spec: {{{selector} {body}}}
"
        );
        (kind, beside_gateways(&text))
    };
    [
        object("AuthorizationPolicy", "action: DENY, rules: [{}]"),
        object(
            "RequestAuthentication",
            "jwtRules: [{issuer: a, jwks: '{\"keys\": []}'}]",
        ),
    ]
}

/// Names of the Services of each object that is made.
fn services(imported: &Imported) -> Vec<Vec<&str>> {
    let specs = imported.objects.iter().map(|made| &made.object["spec"]);
    let services = specs.map(|spec| {
        let refs = spec["targetRefs"].as_array().unwrap().iter();
        refs.map(|r| r["name"].as_str().unwrap()).collect()
    });
    services.collect()
}

#[test]
fn a_policy_about_a_gateway_of_istio_is_lost() {
    for (namespace, selector, field) in [
        (
            "istio-system",
            "selector: {matchLabels: {istio: ingressgateway}},",
            "spec.selector",
        ),
        (
            "istio-system",
            "targetRefs: [{group: '', kind: Service, name: istio-ingressgateway}],",
            "spec.targetRefs",
        ),
        // Its Gateway says so.
        (
            "shop",
            "selector: {matchLabels: {app: way}},",
            "spec.selector",
        ),
        (
            "shop",
            "selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: own}},",
            "spec.selector",
        ),
    ] {
        for (kind, imported) in both(namespace, selector) {
            let id = format!("{kind} {namespace}/p");
            assert_eq!(lost(&imported), [(id.as_str(), field)], "{selector}");
            assert!(imported.lost[0].why.contains("gateway"), "{selector}");
            assert!(imported.lost[0].instead.contains("gateway-policies.md"));
            assert!(imported.objects.is_empty(), "{selector}");
        }
    }
}

#[test]
fn a_policy_about_all_names_the_gateways_that_it_was_about() {
    for (kind, imported) in both("istio-system", "") {
        assert_eq!(
            services(&imported),
            [vec!["reviews"], vec!["reviews", "ratings"]],
            "{kind}"
        );
        let id = format!("{kind} istio-system/p");
        assert_eq!(lost(&imported), [(id.as_str(), "spec.selector")]);
        let named = "istio-system/istio-ingressgateway, shop/way, shop/own-istio";
        let why = &imported.lost[0].why;
        assert!(why.contains(named), "{why}");
    }
}

#[test]
fn a_reference_to_no_service_is_named_beside_those_that_are_found() {
    let refs = |names: &[&str]| {
        let one = |name: &&str| format!("{{group: '', kind: Service, name: {name}}}");
        let all: Vec<String> = names.iter().map(one).collect();
        format!("targetRefs: [{}],", all.join(", "))
    };
    for (names, kept, fields) in [
        (
            ["ratings", "missing"],
            vec![["ratings"]],
            vec!["spec.targetRefs[1]"],
        ),
        (
            ["missing", "ratings"],
            vec![["ratings"]],
            vec!["spec.targetRefs[0]"],
        ),
        // A Gateway is found by name.
        (
            ["way", "missing"],
            vec![],
            vec!["spec.targetRefs[1]", "spec.targetRefs"],
        ),
        (["missing", "gone"], vec![], vec!["spec.targetRefs"]),
    ] {
        for (kind, imported) in both("shop", &refs(&names)) {
            assert_eq!(services(&imported), kept, "{kind} {names:?}");
            let id = format!("{kind} shop/p");
            let expected: Vec<_> = fields.iter().map(|field| (id.as_str(), *field)).collect();
            assert_eq!(lost(&imported), expected, "{kind} {names:?}");
        }
    }
}

#[test]
fn a_service_only_some_of_whose_pods_are_meant_is_named() {
    let services_of = |namespace: &str, of: &[(&str, &str)]| -> String {
        let one = |(name, selector): &(&str, &str)| {
            format!(
                "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {{{selector}}}, ports: [{{port: 80}}]}}
---
"
            )
        };
        of.iter().map(one).collect()
    };
    let policy = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {selector: {matchLabels: {app: a, version: v2}}, action: DENY, rules: [{}]}
";
    let all = [
        ("second", "app: a, version: v2"),
        ("more", "app: a, version: v2, tier: back"),
        ("whole", "app: a"),
        ("first", "app: a, version: v1"),
        ("other", "app: b"),
        ("back", "tier: back"),
    ];
    let elsewhere = services_of("other", &[("whole", "app: a")]);
    let imported = imported(&(services_of("shop", &all) + &elsewhere + policy));
    assert_eq!(services(&imported), [["second", "more"]]);
    let expected = [("AuthorizationPolicy shop/p", "spec.selector")];
    assert_eq!(lost(&imported), expected);
    let why = &imported.lost[0].why;
    assert!(
        why.contains("some pods of shop/whole, shop/back and"),
        "{why}"
    );
}
