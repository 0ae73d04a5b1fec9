//! A policy never lets in more than the objects it was made from: one that would is not made, and its loss is named.

use super::*;
use crate::import::imported::Made;

#[test]
fn callers_without_a_certificate_are_named_by_address() {
    let everywhere = json!({ "networks": ["0.0.0.0/0", "::/0"] });
    let near = json!({ "networks": ["10.0.0.0/8"] });
    let some = json!({ "networks": ["10.0.0.0/8", "192.0.2.7/32"] });
    let outside = r#"(cidr("10.0.0.0/8").containsIP(source.address) && !(cidr("10.1.0.0/16").containsIP(source.address)) || cidr("192.0.2.7/32").containsIP(source.address))"#;
    for (client, from, when) in [
        ("unauthenticated: true", &everywhere, None),
        (
            "unauthenticated: true, networks: [{cidr: 10.0.0.0/8}]",
            &near,
            None,
        ),
        (
            "unauthenticated: true, networks: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}, {cidr: 192.0.2.7}]",
            &some,
            Some(outside),
        ),
    ] {
        let spec = format!("{{server: {{name: web}}, client: {{{client}}}}}");
        let mut to = json!({ "ports": [80] });
        if let Some(when) = when {
            to["when"] = when.into();
        }
        assert_eq!(
            rules(&(server() + &policy("ServerAuthorization", "old", &spec))),
            json!([{ "from": from, "to": to }]),
            "{client}"
        );
    }
    // TLS without an identity: any identity is the closest to it, and an address does not stand for a certificate.
    for (networks, to) in [
        ("", json!({ "ports": [80] })),
        (
            ", networks: [{cidr: 10.0.0.0/8}]",
            json!({ "ports": [80], "when": r#"cidr("10.0.0.0/8").containsIP(source.address)"# }),
        ),
    ] {
        let spec = format!(
            "{{server: {{name: web}}, client: {{meshTLS: {{unauthenticatedTLS: true}}{networks}}}}}"
        );
        assert_eq!(
            rules(&(server() + &policy("ServerAuthorization", "old", &spec))),
            json!([{ "to": to }]),
            "{spec}"
        );
    }
    let near_by = policy(
        "NetworkAuthentication",
        "near",
        "{networks: [{cidr: 10.0.0.0/8}]}",
    );
    for (required, from) in [
        ("", &everywhere),
        ("{kind: NetworkAuthentication, name: near}", &near),
    ] {
        let demanded = if required.is_empty() {
            ""
        } else {
            near_by.as_str()
        };
        let text = server()
            + demanded
            + &policy(
                "AuthorizationPolicy",
                "p",
                &format!(
                    "{{targetRef: {{kind: Server, name: web}}, requiredAuthenticationRefs: [{required}]}}"
                ),
            );
        assert_eq!(
            rules(&text),
            json!([{ "from": from, "to": { "ports": [80] } }]),
            "{required}"
        );
    }
    for networks in [
        "[]",
        "[{cidr: anywhere}]",
        "[{cidr: 10.0.0.0/8, odd: 1}]",
        "[{cidr: 10.0.0.0/8, except: [odd]}]",
    ] {
        let spec = format!(
            "{{server: {{name: web}}, client: {{unauthenticated: true, networks: {networks}}}}}"
        );
        let imported = imported(&(server() + &policy("ServerAuthorization", "old", &spec)));
        assert!(imported.objects.is_empty(), "{networks}: {imported:?}");
        let loss = ("ServerAuthorization shop/old", "spec.client.networks");
        assert_eq!(lost(&imported)[0], loss, "{networks}");
    }
}

/// Without its part a Server would be about every Service of the namespace.
#[test]
fn a_server_that_loses_a_part_has_no_policies() {
    let selector = "matchExpressions: [{key: app, operator: In, values: [ratings]}]";
    let policies = policy(
        "AuthorizationPolicy",
        "p",
        "{targetRef: {kind: Server, name: web}, requiredAuthenticationRefs: [{kind: ServiceAccount, name: web}]}",
    ) + &policy(
        "AuthorizationPolicy",
        "all",
        "{targetRef: {kind: Namespace, name: shop}, requiredAuthenticationRefs: [{kind: ServiceAccount, name: web}]}",
    ) + &policy(
        "ServerAuthorization",
        "old",
        "{server: {selector: {}}, client: {unauthenticated: true}}",
    ) + &policy(
        "HTTPLocalRateLimitPolicy",
        "slow",
        "{targetRef: {kind: Server, name: web}, total: {requestsPerSecond: 100}}",
    );
    for (pods, field) in [
        (
            format!("podSelector: {{{selector}}}"),
            "spec.podSelector.matchExpressions",
        ),
        (
            format!("podSelector: {{matchLabels: {{app: ratings}}, {selector}}}"),
            "spec.podSelector.matchExpressions",
        ),
        (
            "externalWorkloadSelector: {matchLabels: {app: ratings}}".to_owned(),
            "spec.externalWorkloadSelector",
        ),
        ("proxyProtocol: HTTP/1".to_owned(), "spec.podSelector"),
        (
            "podSelector: {}, somethingNew: 1".to_owned(),
            "spec.somethingNew",
        ),
        ("podSelector: []".to_owned(), "spec.podSelector"),
        (
            "podSelector: {matchLabels: {app: 7}}".to_owned(),
            "spec.podSelector.matchLabels.app",
        ),
        (
            "podSelector: {matchLabels: []}".to_owned(),
            "spec.podSelector.matchLabels",
        ),
    ] {
        for access in ["deny", "all-unauthenticated"] {
            let spec = format!("{{{pods}, port: web, accessPolicy: {access}}}");
            let imported = imported(&(policy("Server", "web", &spec) + &policies));
            assert!(imported.objects.is_empty(), "{spec}: {imported:?}");
            assert_eq!(
                lost(&imported),
                [
                    ("Server shop/web", field),
                    ("AuthorizationPolicy shop/p", "spec.targetRef"),
                    ("AuthorizationPolicy shop/all", "spec.targetRef"),
                    ("ServerAuthorization shop/old", "spec.server"),
                    ("HTTPLocalRateLimitPolicy shop/slow", "spec.targetRef"),
                ],
                "{spec}"
            );
        }
    }
    for (chosen, field) in [
        (
            "selector: {matchExpressions: [{key: zone, operator: Exists}]}",
            "spec.server.selector.matchExpressions",
        ),
        ("", "spec.server"),
    ] {
        let spec = format!("{{server: {{{chosen}}}, client: {{unauthenticated: true}}}}");
        let imported = imported(&(server() + &policy("ServerAuthorization", "old", &spec)));
        assert!(imported.objects.is_empty(), "{chosen}");
        let loss = ("ServerAuthorization shop/old", field);
        assert_eq!(lost(&imported), [loss, CLOSED], "{chosen}");
    }
}

#[test]
fn a_route_that_loses_a_part_has_no_policies() {
    let spec = |more: &str, rule: &str| {
        format!(
            "{{parentRefs: [{{kind: Server, group: policy.linkerd.io, name: web}}], {more}rules: [{rule}]}}"
        )
    };
    let text = |route: &str| {
        let reads = "{targetRef: {kind: HTTPRoute, name: reads}, requiredAuthenticationRefs: [{kind: ServiceAccount, name: web}]}";
        let route = policy("HTTPRoute", "reads", route);
        server() + &route + &policy("AuthorizationPolicy", "p", reads)
    };
    let when = r#"source.namespace == "shop" && source.service == "web""#;
    let hosts = text(&spec(
        "hostnames: [ratings.shop, '*.example.com'], ",
        "{matches: [{method: GET}]}",
    ));
    let to = json!({ "methods": ["GET"], "hosts": ["ratings.shop", "*.example.com"], "ports": [80], "when": when });
    assert_eq!(rules(&hosts), json!([{ "to": to }]));
    // It is about HTTP alone.
    let paths = json!([{ "type": "PathPrefix", "value": "/" }]);
    let to = json!({ "paths": paths, "ports": [80], "when": when });
    for rule in [
        "{name: all}",
        "{matches: [{}]}",
        "{matches: [{headers: []}]}",
    ] {
        assert_eq!(
            rules(&text(&spec("", rule))),
            json!([{ "to": to }]),
            "{rule}"
        );
    }
    for (more, rule, field) in [
        (
            "",
            "{matches: [{method: GET, queryParams: [{name: a, value: b}]}]}",
            "spec.rules[0].matches[0].queryParams",
        ),
        (
            "",
            "{matches: [{method: GET}], filters: [{type: RequestRedirect, requestRedirect: {port: 1}}]}",
            "spec.rules[0].filters",
        ),
        (
            "",
            "{matches: [{method: GET}], timeouts: {request: 1s}}",
            "spec.rules[0].timeouts.request",
        ),
        (
            "somethingNew: 1, ",
            "{matches: [{method: GET}]}",
            "spec.somethingNew",
        ),
        ("", "", "spec.rules"),
    ] {
        let imported = imported(&text(&spec(more, rule)));
        assert!(imported.objects.is_empty(), "{rule}: {imported:?}");
        let policy = ("AuthorizationPolicy shop/p", "spec.targetRef");
        assert_eq!(
            lost(&imported),
            [("HTTPRoute shop/reads", field), policy, CLOSED],
            "{rule}"
        );
    }
}

/// A mesh that is permissive would let everybody in.
#[test]
fn a_server_that_nobody_opens_is_named() {
    let alone = imported(&server());
    assert!(alone.objects.is_empty());
    assert_eq!(lost(&alone), [CLOSED]);
    let instead = &alone.lost[0].instead;
    assert!(instead.contains("permissiveMode: false"), "{instead}");
    let other = policy(
        "Server",
        "other",
        "{podSelector: {matchLabels: {app: reviews}}, port: 9080, accessPolicy: deny}",
    );
    let open = policy(
        "ServerAuthorization",
        "old",
        "{server: {name: other}, client: {unauthenticated: true}}",
    );
    let both = imported(&(server() + &other + &open));
    assert_eq!((both.objects.len(), lost(&both)), (1, vec![CLOSED]));
}

#[test]
fn a_caller_that_cannot_be_read_is_named() {
    for reference in [
        "{kind: ServiceAccount, name: 7}",
        "{kind: ServiceAccount, name: web, namespce: front}",
        "{kind: Namespace, name: []}",
        "web",
        "null",
    ] {
        let some = policy(
            "MeshTLSAuthentication",
            "some",
            &format!("{{identityRefs: [{reference}]}}"),
        );
        let spec = "{targetRef: {kind: Server, name: web}, requiredAuthenticationRefs: [{kind: MeshTLSAuthentication, name: some}]}";
        let imported = imported(&(server() + &some + &policy("AuthorizationPolicy", "p", spec)));
        assert!(imported.objects.is_empty(), "{reference}: {imported:?}");
        let loss = (
            "AuthorizationPolicy shop/p",
            "spec.requiredAuthenticationRefs[0]",
        );
        assert_eq!(lost(&imported), [loss, CLOSED], "{reference}");
    }
    for account in ["web", "7", "[web]", "true"] {
        let spec = format!(
            "{{server: {{name: web}}, client: {{meshTLS: {{serviceAccounts: [{account}]}}}}}}"
        );
        let imported = imported(&(server() + &policy("ServerAuthorization", "old", &spec)));
        assert!(imported.objects.is_empty(), "{account}: {imported:?}");
        let id = "ServerAuthorization shop/old";
        let losses = [
            (id, "spec.client.meshTLS.serviceAccounts[0]"),
            (id, "spec.client.meshTLS"),
            CLOSED,
        ];
        assert_eq!(lost(&imported), losses, "{account}");
    }
}

/// A policy about the route `name` lets its namesake in; one about the Server the account `web`.
fn routes(routes: &[(&str, &str)]) -> String {
    let about = |kind: &str, target: &str, name: &str, account: &str| {
        let spec = format!(
            "{{targetRef: {{kind: {kind}, name: {target}}}, requiredAuthenticationRefs: [{{kind: ServiceAccount, name: {account}}}]}}"
        );
        policy("AuthorizationPolicy", name, &spec)
    };
    let route = |(name, one): &(&str, &str)| {
        let spec = format!(
            "{{parentRefs: [{{kind: Server, group: policy.linkerd.io, name: web}}], rules: [{{matches: [{one}]}}]}}"
        );
        policy("HTTPRoute", name, &spec) + &about("HTTPRoute", name, name, name)
    };
    let routes: Vec<String> = routes.iter().map(route).collect();
    server() + &routes.concat() + &about("Server", "web", "all", "web")
}

fn name(made: &Made) -> &str {
    made.object["metadata"]["name"].as_str().unwrap()
}

/// Linkerd judges a request by the policies of the route that matches it best.
#[test]
fn a_policy_about_a_route_lets_nobody_send_what_another_route_guards() {
    let guarded = imported(&routes(&[
        ("rest", "{path: {value: /}}"),
        ("admin", "{path: {value: /admin}}"),
    ]));
    let losses = [("AuthorizationPolicy shop/rest", "spec.targetRef")];
    assert_eq!(lost(&guarded), losses);
    let why = &guarded.lost[0].why;
    assert!(why.contains("HTTPRoute shop/admin"), "{why}");
    let names: Vec<&str> = guarded.objects.iter().map(name).collect();
    assert_eq!(names, ["admin", "all"]);

    let apart = imported(&routes(&[
        ("reads", "{method: GET}"),
        ("writes", "{method: POST}"),
        ("ping", "{method: HEAD, path: {type: Exact, value: /ping}}"),
    ]));
    assert_eq!(apart.lost, []);
    assert_eq!(apart.objects.len(), 4);
}

/// Linkerd answers 404 to what no route of a Server with routes matches, whoever asks.
#[test]
fn a_policy_about_a_server_with_routes_is_about_what_they_match() {
    let text = routes(&[("reads", "{method: GET}"), ("writes", "{method: POST}")]);
    let imported = imported(&text);
    let mut all = imported.objects.iter();
    let all = all.find(|made| name(made) == "all").unwrap();
    let when = r#"source.namespace == "shop" && source.service == "web""#;
    let to = |method: &str| json!({ "to": { "methods": [method], "ports": [80], "when": when } });
    assert_eq!(all.object["spec"]["rules"], json!([to("GET"), to("POST")]));
}

/// One would take the place of the other when both are applied.
#[test]
fn two_that_become_objects_of_one_name_are_told_apart() {
    let open =
        "{podSelector: {matchLabels: {app: ratings}}, port: web, accessPolicy: all-authenticated}";
    let some = "{targetRef: {kind: Server, name: web}, requiredAuthenticationRefs: [{kind: ServiceAccount, name: web}]}";
    let text = policy("Server", "web", open) + &policy("AuthorizationPolicy", "web", some);
    let mut both = imported(&text);
    assert_eq!((both.objects.len(), lost(&both)), (2, vec![]));
    both.lose_twins();
    assert_eq!(both.objects.len(), 1);
    let loss = ("AuthorizationPolicy shop/web", "metadata.name");
    assert_eq!(lost(&both), [loss]);
    assert!(both.lost[0].why.contains("Server shop/web"), "{both:?}");

    // The same object twice is one.
    let mut twice = imported(&(server() + &policy("AuthorizationPolicy", "p", some).repeat(2)));
    twice.lose_twins();
    assert_eq!((twice.objects.len(), lost(&twice)), (1, vec![]));
}
