use super::*;
use crate::import::tests::{checked, lost};
use serde_json::json;

mod gateway_routes;
mod no_wider;
mod ports;
mod profiles;

const SERVICES: &str = "apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: shop}
spec: {selector: {app: ratings}, ports: [{name: http, port: 80, targetPort: web}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {selector: {app: reviews, tier: back}, ports: [{port: 8080, targetPort: 9080}, {port: 9090}]}
---
";

fn imported(text: &str) -> Imported {
    checked(&format!("{SERVICES}{text}"), import)
}

fn one(kind: &str, version: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop, labels: {{zone: a}}}}\nspec: {spec}\n---\n"
    )
}

fn policy(kind: &str, name: &str, spec: &str) -> String {
    one(kind, "policy.linkerd.io/v1beta3", name, spec)
}

fn server() -> String {
    policy(
        "Server",
        "web",
        "{podSelector: {matchLabels: {app: ratings}}, port: web, proxyProtocol: HTTP/1}",
    )
}

/// The loss of [`server`] where no policy lets anybody in.
const CLOSED: (&str, &str) = ("Server shop/web", "spec.accessPolicy");

/// The rules of the only policy that is made, of which nothing is lost.
fn rules(text: &str) -> Value {
    let imported = imported(text);
    assert_eq!(imported.lost, []);
    let [made] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    assert_eq!(made.object["spec"]["action"], "Allow");
    made.object["spec"]["rules"].clone()
}

#[test]
fn a_policy_is_about_the_service_of_its_server() {
    let text = server()
        + &policy(
            "MeshTLSAuthentication",
            "some",
            "{identities: ['web.front.serviceaccount.identity.linkerd.cluster.local', '*.jobs.serviceaccount.identity.linkerd.cluster.local'], identityRefs: [{kind: ServiceAccount, name: own}]}",
        )
        + &policy(
            "NetworkAuthentication",
            "near",
            "{networks: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}]}",
        )
        + &policy(
            "AuthorizationPolicy",
            "p",
            "{targetRef: {group: policy.linkerd.io, kind: Server, name: web}, requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: some}, {kind: NetworkAuthentication, name: near}]}",
        );
    let identities = r#"(source.namespace == "front" && source.service == "web" || source.namespace == "jobs" || source.namespace == "shop" && source.service == "own")"#;
    let networks = r#"cidr("10.0.0.0/8").containsIP(source.address) && !(cidr("10.1.0.0/16").containsIP(source.address))"#;
    let when = format!("{identities} && {networks}");
    assert_eq!(
        rules(&text),
        json!([{ "to": { "ports": [80], "when": when } }])
    );
}

#[test]
fn a_route_of_a_server_says_which_requests() {
    let route = one(
        "HTTPRoute",
        "policy.linkerd.io/v1beta3",
        "reads",
        "{parentRefs: [{kind: Server, group: policy.linkerd.io, name: web}], rules: [{matches: [{method: GET, path: {value: /a}}, {path: {type: Exact, value: /b}}]}]}",
    );
    let text = server()
        + &route
        + &policy(
            "AuthorizationPolicy",
            "p",
            "{targetRef: {kind: HTTPRoute, name: reads}, requiredAuthenticationRefs: [{kind: ServiceAccount, name: web, namespace: front}]}",
        );
    let when = r#"source.namespace == "front" && source.service == "web""#;
    let first = json!({ "paths": [{ "type": "PathPrefix", "value": "/a" }], "methods": ["GET"], "ports": [80], "when": when });
    let second =
        json!({ "paths": [{ "type": "Exact", "value": "/b" }], "ports": [80], "when": when });
    assert_eq!(rules(&text), json!([{ "to": first }, { "to": second }]));
}

#[test]
fn servers_let_in_by_themselves() {
    let access = |access: &str| {
        policy(
            "Server",
            "all",
            &format!(
                "{{podSelector: {{matchLabels: {{app: reviews}}}}, port: 9080, accessPolicy: {access}}}"
            ),
        )
    };
    assert_eq!(
        rules(&access("all-authenticated")),
        json!([{ "to": { "ports": [8080], "when": "source.identity != \"\"" } }])
    );
    // A rule without `from` is about callers with a certificate alone.
    assert_eq!(
        rules(&access("all-unauthenticated")),
        json!([{ "from": { "networks": ["0.0.0.0/0", "::/0"] }, "to": { "ports": [8080] } }])
    );
    for word in ["deny", "audit", "cluster-unauthenticated"] {
        assert!(imported(&access(word)).objects.is_empty(), "{word}");
        assert_eq!(
            lost(&imported(&access(word))),
            [("Server shop/all", "spec.accessPolicy")],
            "{word}"
        );
    }
}

#[test]
fn server_authorizations_choose_servers_by_name_or_label() {
    for choice in ["name: web", "selector: {matchLabels: {zone: a}}"] {
        let text = server()
            + &policy(
                "ServerAuthorization",
                "old",
                &format!(
                    "{{server: {{{choice}}}, client: {{meshTLS: {{serviceAccounts: [{{name: web, namespace: front}}]}}}}}}"
                ),
            );
        let when = r#"source.namespace == "front" && source.service == "web""#;
        assert_eq!(
            rules(&text),
            json!([{ "to": { "ports": [80], "when": when } }]),
            "{choice}"
        );
    }
}

#[test]
fn policies_of_one_object_have_names_of_their_own() {
    let of_reviews = |name: &str, port: u16| {
        let spec = format!("{{podSelector: {{matchLabels: {{app: reviews}}}}, port: {port}}}");
        policy("Server", name, &spec)
    };
    let text = of_reviews("web", 9080)
        + &of_reviews("admin", 9090)
        + &policy(
            "AuthorizationPolicy",
            "p",
            "{targetRef: {kind: Namespace, name: shop}, requiredAuthenticationRefs: [{kind: ServiceAccount, name: web}]}",
        );
    let imported = imported(&text);
    assert_eq!(imported.lost, []);
    let name = |n: usize| &imported.objects[n].object["metadata"]["name"];
    assert_eq!((name(0), name(1)), (&json!("p-web"), &json!("p-admin")));
}

#[test]
fn a_policy_that_would_be_another_one_is_not_made() {
    let target = "targetRef: {kind: Server, name: web}";
    for (spec, field) in [
        (
            format!(
                "{{{target}, requiredAuthenticationRefs: [{{kind: MeshTLSAuthentication, name: none}}]}}"
            ),
            "spec.requiredAuthenticationRefs[0]",
        ),
        (
            "{targetRef: {kind: Server, name: none}, requiredAuthenticationRefs: []}".to_owned(),
            "spec.targetRef",
        ),
        (
            format!("{{{target}, requiredAuthenticationRefs: [], somethingNew: 1}}"),
            "spec.somethingNew",
        ),
        (format!("{{{target}}}"), "spec.requiredAuthenticationRefs"),
    ] {
        let imported = imported(&(server() + &policy("AuthorizationPolicy", "p", &spec)));
        assert_eq!(
            lost(&imported),
            [("AuthorizationPolicy shop/p", field), CLOSED],
            "{spec}"
        );
        assert!(imported.objects.is_empty(), "{spec}");
    }
    let strange = policy(
        "MeshTLSAuthentication",
        "odd",
        "{identities: ['web.front.svc']}",
    );
    let text = server()
        + &strange
        + &policy(
            "AuthorizationPolicy",
            "p",
            &format!(
                "{{{target}, requiredAuthenticationRefs: [{{kind: MeshTLSAuthentication, name: odd}}]}}"
            ),
        );
    assert_eq!(lost(&imported(&text)).len(), 2);
    let nowhere = policy(
        "Server",
        "web",
        "{podSelector: {matchLabels: {app: none}}, port: 1, accessPolicy: all-authenticated}",
    );
    assert_eq!(lost(&imported(&nowhere)), [("Server shop/web", "spec")]);
}

#[test]
fn a_profile_becomes_a_route_and_a_budget() {
    let text = one(
        "ServiceProfile",
        "linkerd.io/v1alpha2",
        "ratings.shop.svc.cluster.local",
        "
  retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}
  routes:
  - {name: GET /a, condition: {method: GET, pathRegex: '/a/[^/]*'}, isRetryable: true, timeout: 250ms}
",
    );
    let imported = imported(&text);
    assert_eq!(imported.lost, []);
    let spec = |n: usize| &imported.objects[n].object["spec"];
    assert_eq!(
        spec(0)["retry"],
        json!({ "budget": { "percent": 20, "minPerSecond": 10 } })
    );
    let backend = json!([{ "name": "ratings", "port": 80 }]);
    let path = json!({ "type": "RegularExpression", "value": "/a/[^/]*" });
    let rule = json!({
        "matches": [{ "method": "GET", "path": path }], "timeouts": { "request": "250ms" },
        "retry": { "attempts": 1, "codes": [500, 501, 502, 503, 504] }, "backendRefs": backend,
    });
    assert_eq!(spec(1)["rules"], json!([rule, { "backendRefs": backend }]));
    assert_eq!(
        spec(1)["parentRefs"],
        json!([{ "group": "", "kind": "Service", "name": "ratings" }])
    );
}

#[test]
fn conditions_are_matches() {
    for (condition, ours) in [
        (
            "{all: [{method: GET}, {pathRegex: /a}]}",
            json!([{ "method": "GET", "path": { "type": "RegularExpression", "value": "/a" } }]),
        ),
        (
            "{any: [{method: GET}, {all: [{method: PUT}]}]}",
            json!([{ "method": "GET" }, { "method": "PUT" }]),
        ),
    ] {
        let imported = imported(&one(
            "ServiceProfile",
            "linkerd.io/v1alpha2",
            "ratings.shop.svc.cluster.local",
            &format!("{{routes: [{{name: a, condition: {condition}, timeout: 1s}}]}}"),
        ));
        assert_eq!(imported.lost, []);
        let rules = &imported.objects[0].object["spec"]["rules"];
        assert_eq!(rules[0]["matches"], ours, "{condition}");
    }
}

#[test]
fn limits_of_a_server_are_those_of_its_services() {
    let limit = |spec: &str| {
        let text = server()
            + &policy(
                "HTTPLocalRateLimitPolicy",
                "slow",
                &format!(
                    "{{targetRef: {{group: policy.linkerd.io, kind: Server, name: web}}, {spec}}}"
                ),
            );
        imported(&text)
    };
    let total = limit("total: {requestsPerSecond: 100}");
    assert_eq!(lost(&total), [CLOSED]);
    let [made] = total.objects.as_slice() else {
        panic!("{total:?}");
    };
    assert_eq!(made.object["kind"], "RateLimit");
    let requests = &made.object["spec"]["requests"];
    assert_eq!(*requests, json!({ "count": 100, "per": "1s" }));
    assert_eq!(
        made.object["spec"]["targetRefs"].as_array().unwrap().len(),
        1
    );
    let each = limit("identity: {requestsPerSecond: 10}");
    let id = "HTTPLocalRateLimitPolicy shop/slow";
    let identity = (id, "spec.identity.requestsPerSecond");
    assert_eq!(lost(&each), [identity, CLOSED]);
    assert!(each.objects.is_empty());
}

#[test]
fn overrides_are_weights() {
    let profile = |spec: &str| {
        one(
            "ServiceProfile",
            "linkerd.io/v1alpha2",
            "ratings.shop.svc.cluster.local",
            spec,
        )
    };
    let imported = imported(&profile(
        "{dstOverrides: [{authority: 'ratings.shop.svc.cluster.local:80', weight: 900m}, {authority: 'reviews.shop.svc.cluster.local.:8080', weight: 100m}]}",
    ));
    assert_eq!(imported.lost, []);
    let backends = json!([{ "name": "ratings", "port": 80, "weight": 900 }, { "name": "reviews", "port": 8080, "weight": 100 }]);
    assert_eq!(
        imported.objects[0].object["spec"]["rules"],
        json!([{ "backendRefs": backends }])
    );
    for (spec, field) in [
        (
            "{routes: [{name: a, condition: {all: [{method: GET}, {method: PUT}]}, timeout: 1s}]}",
            "spec.routes[0].condition.method",
        ),
        (
            "{routes: [{name: a, condition: {not: {method: GET}}, timeout: 1s}]}",
            "spec.routes[0].condition.not.method",
        ),
        (
            "{routes: [{name: a, condition: {method: GET}}]}",
            "spec.routes",
        ),
        ("{opaquePorts: [3306]}", "spec.opaquePorts"),
    ] {
        let imported = self::imported(&profile(spec));
        assert_eq!(
            lost(&imported),
            [("ServiceProfile shop/ratings.shop.svc.cluster.local", field)],
            "{spec}"
        );
    }
}

/// Whoever forgot the policy should know.
#[test]
fn what_no_policy_refers_to_is_named() {
    let route = "{parentRefs: [{kind: Server, group: policy.linkerd.io, name: web}], rules: [{matches: [{method: GET}]}]}";
    let some = policy("MeshTLSAuthentication", "some", "{identities: ['*']}");
    let near = policy(
        "NetworkAuthentication",
        "near",
        "{networks: [{cidr: 10.0.0.0/8}]}",
    );
    let reads = policy("HTTPRoute", "reads", route);
    let alone = imported(&(some.clone() + &near + &reads));
    assert!(alone.objects.is_empty(), "{alone:?}");
    assert_eq!(
        lost(&alone),
        [
            ("MeshTLSAuthentication shop/some", "spec"),
            ("NetworkAuthentication shop/near", "spec"),
            ("HTTPRoute shop/reads", "spec.parentRefs"),
        ]
    );
    // One of another namespace is another one.
    let demands = |namespace: &str| {
        let spec = format!(
            "{{targetRef: {{kind: HTTPRoute, name: reads}}, requiredAuthenticationRefs: [{{kind: MeshTLSAuthentication, name: some{namespace}}}]}}"
        );
        imported(&(server() + &some + &reads + &policy("AuthorizationPolicy", "p", &spec)))
    };
    assert_eq!(demands("").lost, []);
    assert_eq!(demands(", namespace: shop").lost, []);
    let other = demands(", namespace: other");
    assert_eq!(lost(&other)[0], ("MeshTLSAuthentication shop/some", "spec"));
    // The Server says of itself that it refuses everybody.
    assert_eq!(lost(&imported(&(server() + &reads))), [CLOSED]);
}

#[test]
fn a_route_of_gateway_api_has_the_version_that_is_read() {
    for (kind, version) in [
        ("HTTPRoute", "v1beta1"),
        ("GRPCRoute", "v1alpha2"),
        ("HTTPRoute", "v1"),
    ] {
        let imported = imported(&format!(
            "apiVersion: gateway.networking.k8s.io/{version}
kind: {kind}
metadata: {{name: r, namespace: shop, annotations: {{timeout.linkerd.io/request: 1s}}}}
spec: {{parentRefs: [{{group: '', kind: Service, name: ratings}}], rules: [{{backendRefs: [{{name: ratings, port: 80}}]}}]}}
"
        ));
        let annotation = "metadata.annotations.timeout.linkerd.io/request";
        assert_eq!(
            lost(&imported),
            [(format!("{kind} shop/r").as_str(), annotation)]
        );
        let made = &imported.objects[0].object;
        assert_eq!(
            made["apiVersion"], "gateway.networking.k8s.io/v1",
            "{kind} {version}"
        );
    }
}

#[test]
fn annotations_and_routes_of_callers() {
    let text = "apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {linkerd.io/inject: enabled, team: a}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: shop, annotations: {linkerd.io/created-by: x}}
spec: {template: {metadata: {annotations: {config.linkerd.io/opaque-ports: '3306', config.linkerd.io/proxy-cpu-limit: '1', config.linkerd.io/skip-inbound-ports: 80-90, config.linkerd.io/proxy-log-level: info}}}}
---
apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {name: split, namespace: shop, annotations: {retry.linkerd.io/http: 5xx, team: a}}
spec: {parentRefs: [{group: core, kind: Service, name: ratings}], rules: [{backendRefs: [{name: ratings, port: 80}]}]}
";
    let imported = imported(text);
    // The webhook would refuse a list with a range in it.
    let places = ["skip-inbound-ports", "proxy-log-level"]
        .map(|name| format!("spec.template.metadata.annotations.config.linkerd.io/{name}"));
    let retry = (
        "HTTPRoute shop/split",
        "metadata.annotations.retry.linkerd.io/http",
    );
    let [first, second] = places
        .each_ref()
        .map(|place| ("Deployment shop/d", place.as_str()));
    assert_eq!(lost(&imported), [first, second, retry]);
    let object = |n: usize| &imported.objects[n].object;
    assert_eq!(
        object(0)["metadata"],
        json!({ "name": "shop", "labels": { "tulle.dev/inject": "enabled" }, "annotations": { "team": "a" } })
    );
    assert_eq!(
        object(1)["spec"]["template"]["metadata"]["annotations"],
        json!({ "tulle.dev/opaque-ports": "3306", "tulle.dev/cpu-limit": "1" })
    );
    assert_eq!(object(2)["apiVersion"], "gateway.networking.k8s.io/v1");
    assert_eq!(object(2)["metadata"]["annotations"], json!({ "team": "a" }));
    assert_eq!(
        imported.untouched,
        ["Service shop/ratings", "Service shop/reviews"]
    );
}
