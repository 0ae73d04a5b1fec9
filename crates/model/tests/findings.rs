//! Findings between objects, each by its code. Every code is documented.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::BTreeSet;
use tulle_model::manifest::{Object, parse, validate_set};

const TULLE: &str = "tulle.dev/v1alpha1";
const GATEWAY: &str = "gateway.networking.k8s.io/v1";

fn object(version: &str, kind: &str, name: &str, spec: &str) -> String {
    format!("---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

fn workload(name: &str, port: &str) -> String {
    object(
        TULLE,
        "Workload",
        name,
        &format!("{{address: 127.0.0.1, ports: [{port}]}}"),
    )
}

fn route(name: &str, spec: &str) -> String {
    object(GATEWAY, "HTTPRoute", name, spec)
}

/// `code object field` of everything found.
fn found(text: &str) -> Vec<String> {
    let objects: Vec<Object> = parse("f", text)
        .unwrap_or_else(|e| panic!("{}", e[0]))
        .into_iter()
        .map(|o| o.object)
        .collect();
    let problems = validate_set(objects.iter());
    problems
        .iter()
        .map(|p| format!("{} {} {}", p.code, p.object, p.field))
        .collect()
}

fn gateway() -> String {
    object(
        GATEWAY,
        "Gateway",
        "edge",
        "{listeners: [{name: web, port: 8080, protocol: HTTP}, {name: pass, port: 8443, protocol: TLS, tls: {mode: Passthrough}}]}",
    )
}

fn base() -> String {
    let smtp = workload("mail", "{port: 25, appProtocol: tcp}");
    [
        workload("a", "{port: 80}"),
        workload("b", "{port: 80}"),
        smtp,
        gateway(),
    ]
    .concat()
}

/// Returns the findings when an object is added to the base, which has none. The base has no policies,
/// so backends that nobody may call are left out here; they have tests of their own.
fn found_with(more: &str) -> Vec<String> {
    assert_eq!(found(&base()), Vec::<String>::new());
    let mut found = found(&format!("{}{more}", base()));
    found.retain(|f| !f.starts_with("TL0050"));
    found
}

#[test]
fn references_to_what_is_not_there() {
    let to_a = "backendRefs: [{name: a, port: 80}]";
    for (object, expected) in [
        (
            route(
                "r",
                &format!(
                    "{{parentRefs: [{{name: edge, sectionName: pass}}], rules: [{{{to_a}}}]}}"
                ),
            ),
            "TL0013 HTTPRoute/r spec.parentRefs[0]",
        ),
        (
            object(
                GATEWAY,
                "TLSRoute",
                "r",
                &format!("{{parentRefs: [{{name: edge, port: 1}}], rules: [{{{to_a}}}]}}"),
            ),
            "TL0013 TLSRoute/r spec.parentRefs[0].port",
        ),
        (
            route(
                "r",
                &format!(
                    "{{parentRefs: [{{name: edge}}], rules: [{{{to_a}, filters: [{{type: ExtensionRef, extensionRef: {{group: tulle.dev, kind: HTTPFilter, name: f}}}}]}}]}}"
                ),
            ),
            "TL0016 HTTPRoute/r spec.rules[0].filters[0].extensionRef.name",
        ),
        (
            route(
                "r",
                &format!(
                    "{{parentRefs: [{{name: edge}}], rules: [{{{to_a}, filters: [{{type: RequestMirror, requestMirror: {{backendRef: {{name: a, port: 81}}}}}}]}}]}}"
                ),
            ),
            "TL0011 HTTPRoute/r spec.rules[0].filters[0].requestMirror.backendRef.port",
        ),
        (
            object(
                "split.smi-spec.io/v1alpha4",
                "TrafficSplit",
                "s",
                "{service: a, backends: [{service: gone, weight: 1}]}",
            ),
            "TL0010 TrafficSplit/s spec.backends[0].service",
        ),
        (
            object(
                "split.smi-spec.io/v1alpha4",
                "TrafficSplit",
                "s",
                "{service: a, matches: [{kind: HTTPRouteGroup, name: g}], backends: [{service: b, weight: 1}]}",
            ),
            "TL0014 TrafficSplit/s spec.matches[0].name",
        ),
        (
            object(
                "access.smi-spec.io/v1alpha3",
                "TrafficTarget",
                "t",
                "{destination: {kind: ServiceAccount, name: a}, sources: [{kind: ServiceAccount, name: b}], rules: [{kind: TCPRoute, name: r}]}",
            ),
            "TL0015 TrafficTarget/t spec.rules[0].name",
        ),
        (
            object(
                TULLE,
                "Egress",
                "e",
                "{hosts: [x.example], tls: {caCertificateRef: {name: roots}}}",
            ),
            "TL0017 Egress/e spec.tls.caCertificateRef",
        ),
        (
            object(
                TULLE,
                "Egress",
                "e",
                "{hosts: [x.example], gateway: {service: out, port: 1}}",
            ),
            "TL0010 Egress/e spec.gateway.service",
        ),
        (
            object(
                TULLE,
                "Authentication",
                "j",
                "{targetRefs: [{name: a}], jwt: {providers: [{issuer: i, jwksRef: {name: keys}}]}}",
            ),
            "TL0017 Authentication/j spec.jwt.providers[0].jwksRef",
        ),
        (
            object(
                TULLE,
                "IngressBackend",
                "i",
                "{backends: [{name: a}], sources: [{kind: Service, name: gone}]}",
            ),
            "TL0018 IngressBackend/i spec.sources[0].name",
        ),
        (
            object(
                TULLE,
                "AuthorizationPolicy",
                "p",
                "{targetRefs: [{name: a}], rules: [{from: {serviceAccounts: [gone]}}]}",
            ),
            "TL0018 AuthorizationPolicy/p spec.rules[0].from.serviceAccounts[0]",
        ),
    ] {
        assert_eq!(found_with(&object), [expected], "{object}");
    }
    let tls = "{listeners: [{name: s, port: 9443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]}";
    let secure = object(GATEWAY, "Gateway", "secure", tls);
    let missing = "TL0017 Gateway/secure spec.listeners[0].tls.certificateRefs[0]";
    assert_eq!(found_with(&secure), [missing, missing]);
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: cert}\nstringData: {tls.crt: a, tls.key: b}\n";
    assert_eq!(
        found_with(&format!("{secure}{secret}")),
        Vec::<String>::new()
    );
}

#[test]
fn routes_that_take_the_same() {
    let rule = "{matches: [{path: {value: /x}}], backendRefs: [{name: a, port: 80}]}";
    let spec = |rules: &str| format!("{{parentRefs: [{{name: edge}}], rules: [{rules}]}}");
    let both = [route("r", &spec(rule)), route("q", &spec(rule))].concat();
    // The first by name wins, whatever the order.
    assert_eq!(
        found_with(&both),
        ["TL0030 HTTPRoute/r spec.rules[0].matches[0]"]
    );
    let twice = route("r", &spec(&format!("{rule}, {rule}")));
    assert_eq!(
        found_with(&twice),
        ["TL0031 HTTPRoute/r spec.rules[1].matches[0]"]
    );
    // A match for another host, method or parent is no conflict.
    let other = spec(rule).replacen('{', "{hostnames: [a.example], ", 1);
    let method = spec(&rule.replace("/x}", "/x}, method: GET"));
    let service = spec(rule).replace("{name: edge}", "{kind: Service, name: a}");
    let all = [
        route("r", &spec(rule)),
        route("o", &other),
        route("m", &method),
        route("s", &service),
    ];
    assert_eq!(found_with(&all.concat()), Vec::<String>::new());
    let nowhere = route(
        "r",
        &spec("{backendRefs: [{name: a, port: 80, weight: 0}]}"),
    );
    let none = route("r", &spec("{matches: [{path: {value: /x}}]}"));
    for object in [nowhere, none] {
        assert_eq!(
            found_with(&object),
            ["TL0032 HTTPRoute/r spec.rules[0].backendRefs"]
        );
        let objects = parse("f", &object).unwrap().into_iter().map(|o| o.object);
        let objects: Vec<Object> = objects.collect();
        let told = validate_set(objects.iter());
        let told = told.iter().find(|p| p.code == "TL0032").unwrap();
        assert!(told.message.contains("500"), "{}", told.message);
    }
}

#[test]
fn policies_that_do_not_do_what_they_say() {
    let policy = |kind: &str, name: &str, spec: &str| object(TULLE, kind, name, spec);
    for (object, expected) in [
        (
            policy(
                "TrafficPolicy",
                "p",
                "{targetRefs: [{name: gone}], slowStart: 1s}",
            ),
            "TL0044 TrafficPolicy/p spec.targetRefs[0].name",
        ),
        (
            policy(
                "TrafficPolicy",
                "p",
                "{targetRefs: [{name: a, port: 81}], slowStart: 1s}",
            ),
            "TL0044 TrafficPolicy/p spec.targetRefs[0].port",
        ),
        (
            policy(
                "TrafficPolicy",
                "p",
                "{targetRefs: [{name: a}], retry: {attempts: 2}}",
            ),
            "TL0043 TrafficPolicy/p spec.retry",
        ),
        (
            policy(
                "RateLimit",
                "l",
                "{targetRefs: [{name: a}], requests: {count: 0}}",
            ),
            "TL0042 RateLimit/l spec.requests.count",
        ),
        (
            policy(
                "RateLimit",
                "l",
                "{targetRefs: [{name: mail}], requests: {count: 1}}",
            ),
            "TL0045 RateLimit/l spec.targetRefs[0]",
        ),
        (
            [
                policy(
                    "TrafficPolicy",
                    "l",
                    "{targetRefs: [{name: a}], timeouts: {request: 1s}}",
                ),
                policy(
                    "TrafficPolicy",
                    "m",
                    "{targetRefs: [{name: a}], timeouts: {request: 1s}}",
                ),
                // Several RateLimits all hold.
                policy(
                    "RateLimit",
                    "m",
                    "{targetRefs: [{name: a}], requests: {count: 1}}",
                ),
                policy(
                    "RateLimit",
                    "n",
                    "{targetRefs: [{name: a}], requests: {count: 1}}",
                ),
            ]
            .concat(),
            "TL0040 TrafficPolicy/m spec.targetRefs[0]",
        ),
        (
            [
                policy("Mesh", "m", "{permissiveMode: true}"),
                policy(
                    "AuthorizationPolicy",
                    "p",
                    "{targetRefs: [{name: a}], rules: [{}]}",
                ),
                policy(
                    "AuthorizationPolicy",
                    "d",
                    "{targetRefs: [{name: a}], action: Deny, rules: [{}]}",
                ),
            ]
            .concat(),
            "TL0041 AuthorizationPolicy/p ",
        ),
        (
            policy(
                "AuthorizationPolicy",
                "p",
                "{targetRefs: [{name: a}], action: Deny, rules: [{to: {paths: [{value: /x}]}}]}",
            ),
            "TL0047 AuthorizationPolicy/p spec.rules[0]",
        ),
        (
            policy(
                "RateLimit",
                "p",
                "{targetRefs: [{name: a}], rules: [{to: {paths: [{value: /x}]}, requests: {count: 1}}]}",
            ),
            "TL0047 RateLimit/p spec.rules[0]",
        ),
        (
            [
                policy("Mesh", "m", "{allowEgress: true}"),
                policy("Egress", "e", "{hosts: [a.example]}"),
            ]
            .concat(),
            "TL0041 Egress/e ",
        ),
        (
            object(
                GATEWAY,
                "Gateway",
                "front.example",
                "{listeners: [{name: web, port: 8081, protocol: HTTP}]}",
            ),
            "TL0024 Gateway/front.example metadata.name",
        ),
        (
            object(
                GATEWAY,
                "Gateway",
                "front",
                "{listeners: [{name: web, port: 8080, protocol: HTTP}]}",
            ),
            "TL0023 Gateway/front spec.listeners[0].port",
        ),
    ] {
        assert_eq!(found_with(&object), [expected], "{object}");
    }
}

#[test]
fn filters_of_routes_that_another_letter_case_goes_past() {
    let filter = |name: &str, spec: &str| object(TULLE, "HTTPFilter", name, spec);
    let filters = [
        filter("limits", "{rateLimit: {count: 5}}"),
        filter("slow", "{fault: {delay: {duration: 1s}}}"),
    ]
    .concat();
    let warned = |name: &str, path: &str, other: &str| {
        let filters = format!(
            "{filters}{}",
            route(
                "r",
                &format!(
                    "{{parentRefs: [{{name: edge}}], rules: [\
                       {{matches: [{{path: {path}}}], filters: [{{type: ExtensionRef, extensionRef: \
                         {{group: tulle.dev, kind: HTTPFilter, name: {name}}}}}], \
                         backendRefs: [{{name: a, port: 80}}]}}, \
                       {{matches: [{other}], backendRefs: [{{name: a, port: 80}}]}}]}}"
                ),
            )
        );
        let all = found(&format!("{}{filters}", base()));
        all.contains(&"TL0047 HTTPRoute/r spec.rules[0]".to_owned())
    };
    let all = "{path: {value: /}}";
    assert!(warned("limits", "{value: /api/admin}", all));
    assert!(warned(
        "limits",
        "{type: Exact, value: /api/admin}",
        "{path: {value: /api}}"
    ));
    assert!(warned("limits", "{value: /api/admin}", "{method: GET}"));
    // `/API/1` is answered with 404.
    assert!(!warned(
        "limits",
        "{value: /api/1}",
        "{path: {value: /api}}"
    ));
    assert!(!warned("limits", "{value: /1}", all));
    assert!(!warned(
        "limits",
        "{value: /api/admin}",
        "{path: {type: Exact, value: /api}}"
    ));
    let any_case = "{type: RegularExpression, value: '(?i)/admin.*'}";
    assert!(!warned("limits", any_case, all));
    assert!(
        !warned("slow", "{value: /api/admin}", all),
        "it refuses nothing"
    );
}

#[test]
fn a_service_that_a_split_stands_for_is_there() {
    let split = "{service: root, backends: [{service: a, weight: 1}, {service: b, weight: 1}]}";
    let text = [
        object("split.smi-spec.io/v1alpha2", "TrafficSplit", "s", split),
        object(
            TULLE,
            "TrafficPolicy",
            "p",
            "{targetRefs: [{name: root, port: 80}], slowStart: 1s}",
        ),
    ];
    assert_eq!(found_with(&text.concat()), Vec::<String>::new());
}

/// Returns the findings about backends that nobody may call.
fn not_admitted(more: &[&str]) -> Vec<String> {
    let all = found(&format!("{}{}", base(), more.concat()));
    all.into_iter()
        .filter(|f| f.starts_with("TL0050"))
        .collect()
}

#[test]
fn backends_that_no_policy_lets_a_route_call() {
    let to_both = "rules: [{backendRefs: [{name: a, port: 80}, {name: b, port: 80}]}]";
    let of_gateway = route("r", &format!("{{parentRefs: [{{name: edge}}], {to_both}}}"));
    let of_service = route(
        "r",
        &format!("{{parentRefs: [{{kind: Service, name: a}}], {to_both}}}"),
    );
    let a = "TL0050 HTTPRoute/r spec.rules[0].backendRefs[0]";
    let b = "TL0050 HTTPRoute/r spec.rules[0].backendRefs[1]";
    assert_eq!(not_admitted(&[&of_gateway]), [a, b]);
    assert_eq!(not_admitted(&[&of_service]), [a, b]);
    let policy = |targets: &str, rules: &str| {
        let spec = format!("{{targetRefs: [{targets}], rules: [{rules}]}}");
        object(TULLE, "AuthorizationPolicy", "p", &spec)
    };
    let target = |from: &str| {
        let spec = format!(
            "{{destination: {{kind: ServiceAccount, name: a}}, sources: [{{kind: ServiceAccount, name: {from}}}]}}"
        );
        object("access.smi-spec.io/v1alpha3", "TrafficTarget", "t", &spec)
    };
    let access = |kind: &str, name: &str| {
        let spec = format!(
            "{{backends: [{{name: a, port: 80}}], sources: [{{kind: {kind}, name: {name}}}]}}"
        );
        object(TULLE, "IngressBackend", "i", &spec)
    };
    // Each policy, whether it lets the gateway in, and whether it lets anybody in at service `a`.
    for (policy, edge, anybody) in [
        (policy("{name: a}", "{}"), true, true),
        (
            policy("{name: a}", "{from: {serviceAccounts: [edge]}}"),
            true,
            true,
        ),
        (
            policy("{name: a}", "{from: {serviceAccounts: [b]}}"),
            false,
            true,
        ),
        (
            policy("{name: a}", "{from: {principals: [spiffe://t/svc/edge]}}"),
            true,
            true,
        ),
        (
            policy("{name: a}", "{from: {networks: [10.0.0.0/8]}}"),
            false,
            false,
        ),
        (policy("{name: a}", "{to: {ports: [81]}}"), false, false),
        (
            policy("{name: a, port: 80}", "{to: {methods: [GET]}}"),
            true,
            true,
        ),
        (policy("{kind: Gateway, name: edge}", "{}"), false, false),
        (
            policy("{name: a}", "{}").replace("rules", "action: Deny, rules"),
            false,
            false,
        ),
        (
            policy("{name: a}", "{}").replace("rules", "mode: Audit, rules"),
            false,
            false,
        ),
        (target("edge"), true, true),
        (target("b"), false, true),
        (
            target("edge").replace("]}", "], rules: [{kind: HTTPRouteGroup, name: gone}]}"),
            false,
            false,
        ),
        (access("Service", "edge"), true, true),
        (access("IPRange", "10.0.0.0/8"), false, false),
    ] {
        let told = |lets_in| if lets_in { vec![b] } else { vec![a, b] };
        assert_eq!(
            not_admitted(&[&of_gateway, &policy]),
            told(edge),
            "{policy}"
        );
        assert_eq!(
            not_admitted(&[&of_service, &policy]),
            told(anybody),
            "{policy}"
        );
    }
    // Nobody is denied in a permissive mesh, and nothing goes to a weight of 0.
    let permissive = object(TULLE, "Mesh", "m", "{permissiveMode: true}");
    assert_eq!(
        not_admitted(&[&of_gateway, &permissive]),
        Vec::<String>::new()
    );
    let unused = of_gateway.replace("port: 80}", "port: 80, weight: 0}");
    assert_eq!(not_admitted(&[&unused]), Vec::<String>::new());
    let split = "{service: root, backends: [{service: a, weight: 1}, {service: b, weight: 0}]}";
    let split = object("split.smi-spec.io/v1alpha2", "TrafficSplit", "s", split);
    assert_eq!(
        not_admitted(&[&split]),
        ["TL0050 TrafficSplit/s spec.backends[0]"]
    );
}

#[test]
fn every_code_is_documented_and_unique() {
    let source = include_str!("../src/manifest/set/code.rs");
    let page = include_str!("../../../docs/findings.md");
    let codes: Vec<&str> = source.split('"').filter(|t| t.starts_with("TL")).collect();
    assert!(codes.len() > 20, "{codes:?}");
    let unique: BTreeSet<&str> = codes.iter().copied().collect();
    assert_eq!(unique.len(), codes.len());
    for code in codes {
        assert!(
            page.contains(&format!("| `{code}` |")),
            "{code} is not in docs/findings.md"
        );
    }
}

#[test]
fn routes_and_policies_may_have_dots_in_their_names() {
    let spec = "{parentRefs: [{name: edge}], rules: [{backendRefs: [{name: a, port: 80}], filters: \
                [{type: ExtensionRef, extensionRef: {group: tulle.dev, kind: HTTPFilter, name: f.x}}]}]}";
    let policy =
        "{targetRefs: [{kind: HTTPRoute, name: shop.example}], rules: [{to: {ports: [80]}}]}";
    let all = [
        route("shop.example", spec),
        object(TULLE, "HTTPFilter", "f.x", "{rateLimit: {count: 1}}"),
        object(TULLE, "AuthorizationPolicy", "no.admin", policy),
    ];
    assert_eq!(found_with(&all.concat()), Vec::<String>::new());
}

#[test]
fn nothing_is_found_in_the_demo() {
    assert_eq!(
        found(include_str!("../../../demo/mesh.yaml")),
        Vec::<String>::new()
    );
}

#[test]
fn policies_of_gateways_and_routes() {
    let shop =
        "{parentRefs: [{name: edge}], rules: [{name: all, backendRefs: [{name: a, port: 80}]}]}";
    let inner = shop.replace("{name: edge}", "{kind: Service, name: a}");
    let policy = |target: &str| {
        let policy = object(
            TULLE,
            "AuthorizationPolicy",
            "p",
            &format!("{{targetRefs: [{{{target}}}], rules: [{{to: {{ports: [80]}}}}]}}"),
        );
        found_with(&[route("shop", shop), route("inner", &inner), policy].concat())
    };
    let at = |code: &str, field: &str| {
        vec![format!(
            "{code} AuthorizationPolicy/p spec.targetRefs[0].{field}"
        )]
    };
    for fine in [
        "kind: Gateway, name: edge",
        "kind: Gateway, name: edge, sectionName: web",
        "kind: HTTPRoute, name: shop",
        "kind: HTTPRoute, name: shop, sectionName: all",
    ] {
        assert_eq!(policy(fine), Vec::<String>::new(), "{fine}");
    }
    assert_eq!(policy("kind: Gateway, name: a"), at("TL0044", "name"));
    let other = policy("kind: Gateway, name: edge, sectionName: x");
    assert_eq!(other, at("TL0044", "sectionName"));
    let other = policy("kind: Gateway, name: edge, port: 1");
    assert_eq!(other, at("TL0044", "port"));
    assert_eq!(policy("kind: GRPCRoute, name: shop"), at("TL0044", "name"));
    let other = policy("kind: HTTPRoute, name: shop, sectionName: x");
    assert_eq!(other, at("TL0044", "sectionName"));
    let other = policy("kind: Service, name: a, sectionName: http");
    assert_eq!(other, at("TL0044", "sectionName"));
    assert_eq!(policy("kind: HTTPRoute, name: inner"), at("TL0046", "name"));
}
