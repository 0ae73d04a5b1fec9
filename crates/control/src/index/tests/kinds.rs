//! The kinds of routing and policy.

use super::*;
use tulle_model::resource::{
    Action, Filter, ListenerProtocol, PolicyRule, Redirect, Respond, Route, Target,
};

const TULLE: &str = "tulle.dev/v1alpha1";
const GATEWAY: &str = "gateway.networking.k8s.io/v1";

fn tulle(kind: &str, name: &str, spec: Value) -> Edit {
    object(TULLE, kind, name, spec)
}

fn split(name: &str, service: &str, backends: &[(&str, u32)], matches: Value) -> Edit {
    let backends = backends.iter();
    let backends: Vec<_> = backends
        .map(|(s, w)| json!({ "service": s, "weight": w }))
        .collect();
    let spec = json!({ "service": service, "backends": backends, "matches": matches });
    object("split.smi-spec.io/v1alpha4", "TrafficSplit", name, spec)
}

fn held(kind: &str, name: &str, data: Value) -> Edit {
    let key = if kind == "Secret" {
        "stringData"
    } else {
        "data"
    };
    let object = json!({
        "apiVersion": "v1", "kind": kind, "metadata": { "name": name }, key: data,
    });
    Edit::Put(Box::new(Object::from_json(&object.to_string()).unwrap()))
}

fn delete(kind: &str, name: &str) -> Edit {
    Edit::Delete {
        kind: kind.into(),
        name: name.into(),
    }
}

/// Edits that collide with those of the other kinds.
pub(super) fn some_edit() -> impl Strategy<Value = Edit> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    let to = |name: &str| json!([{ "name": name }]);
    let extension = |filter: &str| {
        json!([{
            "type": "ExtensionRef",
            "extensionRef": { "group": "tulle.dev", "kind": "HTTPFilter", "name": filter },
        }])
    };
    prop_oneof![
        (name(), name(), name(), any::<bool>()).prop_map(move |(r, parent, f, service)| {
            let parent = match service {
                true => json!({ "kind": "Service", "name": parent }),
                false => json!({ "name": parent }),
            };
            let backends = json!([{ "name": "a", "port": 80 }]);
            let rules = json!([{ "filters": extension(f), "backendRefs": backends }]);
            let spec = json!({ "parentRefs": [parent], "rules": rules });
            object(GATEWAY, "GRPCRoute", r, spec)
        }),
        (name(), name()).prop_map(|(r, parent)| {
            let rules = json!([{ "backendRefs": [{ "name": "a", "port": 80 }] }]);
            let spec = json!({ "parentRefs": [{ "name": parent }], "rules": rules });
            object(GATEWAY, "TLSRoute", r, spec)
        }),
        (name(), name(), name(), any::<bool>()).prop_map(|(s, service, group, some)| {
            let matches = match some {
                true => json!([{ "kind": "HTTPRouteGroup", "name": group }]),
                false => json!([]),
            };
            split(s, &format!("{service}x"), &[(group, 1)], matches)
        }),
        (name(), name()).prop_map(|(r, target)| {
            let rules = json!([{ "kind": "TCPRoute", "name": r }]);
            super::target(r, target, &["a"], rules)
        }),
        (name(), 1..3u16).prop_map(|(r, port)| {
            let spec = json!({ "matches": { "ports": [port] } });
            object("specs.smi-spec.io/v1alpha4", "TCPRoute", r, spec)
        }),
        (name(), name(), 1..3u8).prop_map(move |(p, s, n)| {
            tulle(
                "TrafficPolicy",
                p,
                json!({ "targetRefs": to(s), "slowStart": format!("{n}s") }),
            )
        }),
        (name(), name(), 1..3u8).prop_map(move |(p, s, n)| {
            tulle(
                "RateLimit",
                p,
                json!({ "targetRefs": to(s), "requests": { "count": n } }),
            )
        }),
        (name(), name(), any::<bool>()).prop_map(move |(p, s, deny)| {
            let action = if deny { "Deny" } else { "Allow" };
            let spec = json!({ "targetRefs": to(s), "action": action, "rules": [{}] });
            tulle("AuthorizationPolicy", p, spec)
        }),
        (name(), name(), name()).prop_map(move |(p, s, keys)| {
            let providers = json!([{ "issuer": "i", "jwksRef": { "name": keys } }]);
            let spec = json!({ "targetRefs": to(s), "jwt": { "providers": providers } });
            tulle("Authentication", p, spec)
        }),
        (name(), name(), name()).prop_map(|(p, s, from)| {
            let sources = json!([{ "kind": "Service", "name": from }]);
            tulle(
                "IngressBackend",
                p,
                json!({ "backends": [{ "name": s }], "sources": sources }),
            )
        }),
        (name(), name()).prop_map(|(f, keys)| {
            let providers = json!([{ "issuer": "i", "jwksRef": { "name": keys } }]);
            tulle(
                "HTTPFilter",
                f,
                json!({ "jwt": { "providers": providers } }),
            )
        }),
        (name(), name(), name()).prop_map(|(e, roots, group)| {
            let spec = json!({
                "hosts": ["a.example"],
                "matches": [{ "kind": "HTTPRouteGroup", "name": group }],
                "tls": { "caCertificateRef": { "name": roots } },
            });
            tulle("Egress", e, spec)
        }),
        (name(), any::<bool>()).prop_map(|(n, other)| {
            let text = if other { "one" } else { "two" };
            held("ConfigMap", n, json!({ "ca.crt": text, "jwks": text }))
        }),
        (name(), any::<bool>()).prop_map(|(n, other)| {
            let text = if other { "one" } else { "two" };
            held("Secret", n, json!({ "tls.crt": text, "tls.key": text }))
        }),
        (name(), name(), name()).prop_map(|(g, secret, roots)| secure_gateway(g, secret, roots)),
    ]
}

fn secure_gateway(name: &str, secret: &str, roots: &str) -> Edit {
    let tls = json!({
        "certificateRefs": [{ "name": secret }],
        "frontendValidation": { "caCertificateRefs": [{ "name": roots }] },
    });
    let spec = json!({ "listeners": [
        { "name": "web", "port": 8080, "protocol": "HTTP" },
        { "name": "shop", "port": 8443, "protocol": "HTTPS", "hostname": "a.example", "tls": tls },
        { "name": "pass", "port": 8443, "protocol": "TLS", "hostname": "b.example",
          "tls": { "mode": "Passthrough" } },
    ] });
    object(GATEWAY, "Gateway", name, spec)
}

#[test]
fn a_listener_waits_for_its_certificates_and_only_its_gateway_sees_the_key() {
    let mut index = index();
    index.apply([secure_gateway("edge", "shop", "clients")]);
    let listeners = |index: &Index| the_gateway(index, "edge").listeners;
    let names =
        |index: &Index| -> Vec<String> { listeners(index).into_iter().map(|l| l.name).collect() };
    assert_eq!(names(&index), ["web", "pass"]);
    index.apply([held(
        "Secret",
        "shop",
        json!({ "tls.crt": "chain", "tls.key": "key" }),
    )]);
    assert_eq!(names(&index), ["web", "pass"]);
    let changed = index.apply([held("ConfigMap", "clients", json!({ "ca.crt": "roots" }))]);
    assert_eq!(super::names(&changed), ["gateway/edge"]);
    let shop = listeners(&index).remove(1);
    assert_eq!(shop.protocol, ListenerProtocol::Https);
    let tls = shop.tls.unwrap();
    assert_eq!(
        (&*tls.certificates[0].key, tls.client_roots.trim()),
        ("key", "roots")
    );
    let listed = json!({ "ca.crt": "roots", "ca.crl": "lists" });
    let changed = index.apply([held("ConfigMap", "clients", listed)]);
    assert_eq!(super::names(&changed), ["gateway/edge"]);
    let tls = listeners(&index).remove(1).tls.unwrap();
    assert_eq!(tls.client_roots.trim(), "roots\nlists");
    for (name, entry) in index.entries() {
        let shows = String::from_utf8_lossy(&entry.body).contains("\"key\":\"key\"");
        assert_eq!(shows, &**name == "gateway/edge", "{name}");
    }
    assert!(index.get("gateway/edge").is_some_and(|e| e.owner.is_some()));
    index.apply([delete("Secret", "shop")]);
    assert_eq!(names(&index), ["web", "pass"]);
}

#[test]
fn routes_attach_to_listeners_that_take_them() {
    let mut index = index();
    let rules = json!([{ "backendRefs": [{ "name": "a", "port": 80 }] }]);
    let to = |section: &str| json!({ "name": "edge", "sectionName": section });
    let with = |parent: Value| json!({ "parentRefs": [parent], "rules": rules });
    index.apply([
        secure_gateway("edge", "shop", "clients"),
        object(GATEWAY, "TLSRoute", "t", with(to("pass"))),
        object(GATEWAY, "TLSRoute", "u", with(to("web"))),
        object(GATEWAY, "GRPCRoute", "g", with(to("shop"))),
        object(GATEWAY, "HTTPRoute", "h", with(to("pass"))),
        object(
            GATEWAY,
            "TCPRoute",
            "c",
            with(json!({ "kind": "Service", "name": "a" })),
        ),
        workload("a", "a", 80, None),
    ]);
    let edge = the_gateway(&index, "edge");
    let tls: Vec<_> = edge.tls_routes.iter().map(|r| (&*r.name, r.port)).collect();
    assert_eq!(tls, [("TLSRoute/t", 8443)]);
    // Two listeners share the port, so the route says which it means.
    let http = edge.routes.iter();
    let http: Vec<_> = http.map(|r| (&*r.name, r.port, &*r.listener)).collect();
    assert_eq!(http, [("GRPCRoute/g", 8443, "shop")]);
    assert!(edge.tcp_routes.is_empty());
    assert_eq!(service(&index, "a").tcp_routes[0].name, "TCPRoute/c");
}

fn route_of(index: &Index, name: &str) -> Route {
    let routes = service(index, "a").routes;
    routes.into_iter().find(|r| r.name == name).unwrap()
}

#[test]
fn filters_follow_what_they_refer_to() {
    let mut index = index();
    let extension = json!({
        "type": "ExtensionRef",
        "extensionRef": { "group": "tulle.dev", "kind": "HTTPFilter", "name": "stop" },
    });
    let redirect = json!({ "type": "RequestRedirect", "requestRedirect": { "scheme": "https" } });
    let parent = json!({ "group": "", "kind": "Service", "name": "a" });
    let rules = json!([{ "name": "r", "filters": [extension, redirect] }]);
    index.apply([workload("a", "a", 80, None), route("r", parent, rules)]);
    let filters = |index: &Index| route_of(index, "r").rules.remove(0).filters;
    // A filter that is absent might have refused the request, so the route answers 500.
    assert!(
        matches!(
            &filters(&index)[0],
            Filter::Respond(Respond { status: 500, .. })
        ),
        "{:?}",
        filters(&index)
    );
    let changed = index.apply([tulle(
        "HTTPFilter",
        "stop",
        json!({ "rateLimit": { "count": 5, "per": "1m" }, "directResponse": { "status": 418 } }),
    )]);
    assert_eq!(names(&changed), ["service/a"]);
    let found = filters(&index);
    let Filter::RateLimit(limit) = &found[0] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (&*limit.name, limit.tokens, limit.per_ms),
        ("HTTPFilter/stop", 5, 60_000)
    );
    assert!(
        matches!(&found[1], Filter::Respond(Respond { status: 418, .. })),
        "{found:?}"
    );
    assert!(matches!(&found[2], Filter::Redirect(Redirect { scheme, .. }) if scheme == "https"));
}

#[test]
fn a_split_stands_for_a_service_without_workloads() {
    let mut index = index();
    index.apply([
        split("s", "reviews", &[("v1", 9), ("v2", 1)], json!([])),
        workload("v1", "v1", 9080, Some("http")),
    ]);
    let reviews = service(&index, "reviews");
    assert_eq!(reviews.ports.len(), 1);
    assert_eq!(
        (reviews.ports[0].port, reviews.ports[0].protocol),
        (9080, Protocol::Http)
    );
    assert_eq!(reviews.hostnames, ["reviews"]);
    let target = |service: &str, weight| Target {
        service: service.into(),
        port: 0,
        weight,
    };
    assert_eq!(reviews.split, [target("v1", 9), target("v2", 1)]);
    let names = vec!["reviews".into(), "v1".into()];
    assert_eq!(resource(&index, "catalog"), Resource::Catalog(names));
    // A new port of a backend is one of the service.
    index.apply([workload("v2", "v2", 9081, None)]);
    assert_eq!(service(&index, "reviews").ports.len(), 2);
    index.apply([delete("TrafficSplit", "s")]);
    assert!(index.get("service/reviews").is_none());
}

#[test]
fn a_split_of_some_requests_is_a_route_and_leaves_the_rest_alone() {
    let mut index = index();
    let matches = json!([{ "kind": "HTTPRouteGroup", "name": "g" }]);
    index.apply([
        workload("a", "a", 80, None),
        split("s", "a", &[("b", 1)], matches),
    ]);
    // The group does not exist yet: nothing is split.
    assert!(service(&index, "a").routes.is_empty());
    index.apply([group(
        "g",
        json!([{ "name": "read", "methods": ["GET", "HEAD"] }]),
    )]);
    let split = route_of(&index, "TrafficSplit/s");
    let methods: Vec<_> = split.rules[0].matches.iter().map(|m| &*m.method).collect();
    assert_eq!((methods, split.port), (vec!["GET", "HEAD"], 80));
    let answer = ask(&index, "a", "a", "GET", "/");
    assert_eq!(answer.route, "TrafficSplit/s");
    let answer = ask(&index, "a", "a", "POST", "/");
    assert_eq!(answer.route, "service/a");
}

#[test]
fn traffic_policies_hold_for_ports() {
    let mut index = index();
    let spec = |port: Option<u16>, time: &str| json!({ "targetRefs": [{ "name": "a", "port": port }], "slowStart": time });
    index.apply([
        workload("a", "a", 80, None),
        tulle("TrafficPolicy", "all", spec(None, "1s")),
    ]);
    let slow = |index: &Index| {
        let traffic = service(index, "a").ports.remove(0).traffic.unwrap();
        (traffic.name, traffic.slow_start_ms)
    };
    assert_eq!(slow(&index), ("TrafficPolicy/all".into(), 1000));
    index.apply([tulle("TrafficPolicy", "one", spec(Some(80), "2s"))]);
    assert_eq!(slow(&index), ("TrafficPolicy/one".into(), 2000));
    index.apply([tulle("TrafficPolicy", "one", spec(Some(81), "2s"))]);
    assert_eq!(slow(&index).1, 1000);
}

#[test]
fn limits_and_authentication_are_the_sidecars() {
    let mut index = index();
    index.apply([
        workload("a", "a", 80, None),
        place("a", 80, "10.0.0.1:1"),
        tulle(
            "RateLimit",
            "l",
            json!({
                "targetRefs": [{ "name": "a" }],
                "connections": { "count": 7 },
                "requests": { "count": 100 },
                "rules": [{ "to": { "methods": ["POST"] }, "requests": { "count": 1 } }],
            }),
        ),
    ]);
    let port = |index: &Index| inbound(index, "a").ports.remove(0);
    assert_eq!(port(&index).connection_limit.unwrap().tokens, 7);
    let rules = port(&index).rules;
    assert_eq!(rules.len(), 2);
    assert_eq!(rules[0].matches[0].methods, ["POST"]);
    assert!(rules[1].matches.is_empty());
    // Each rule is the only one for its requests, so each asks for the token.
    let providers = json!([{ "issuer": "i", "jwksRef": { "name": "keys" } }]);
    let spec = json!({ "targetRefs": [{ "name": "a" }], "jwt": { "providers": providers } });
    index.apply([tulle("Authentication", "login", spec)]);
    let last = |index: &Index| -> Vec<Filter> {
        let rules = port(index).rules;
        rules
            .into_iter()
            .map(|mut r| r.filters.pop().unwrap())
            .collect()
    };
    // The provider's keys are absent: nobody can prove anything, so nobody passes.
    for filter in last(&index) {
        assert!(
            matches!(filter, Filter::Respond(Respond { status: 500, .. })),
            "{filter:?}"
        );
    }
    index.apply([held(
        "ConfigMap",
        "keys",
        json!({ "jwks": "{\"keys\":[]}" }),
    )]);
    for filter in last(&index) {
        assert!(matches!(&filter, Filter::Jwt(jwt) if jwt.name == "Authentication/login"));
    }
}

#[test]
fn tokens_without_expiry_are_the_exception_that_is_written() {
    let mut index = index();
    index.apply([workload("a", "a", 80, None), place("a", 80, "10.0.0.1:1")]);
    for (requires, written) in [
        (json!(null), None),
        (json!(true), None),
        (json!(false), Some(json!(true))),
    ] {
        let mut provider = json!({ "issuer": "i", "jwks": "{\"keys\":[]}" });
        if !requires.is_null() {
            provider["requireExpiry"] = requires.clone();
        }
        let jwt = json!({ "providers": [provider] });
        let spec = json!({ "targetRefs": [{ "name": "a" }], "jwt": jwt });
        index.apply([tulle("Authentication", "login", spec)]);
        let told = serde_json::to_value(inbound(&index, "a")).unwrap();
        let provider = told.pointer("/ports/0/rules/0/filters/0/jwt/providers/0");
        let lax = provider.unwrap().get("expiryOptional").cloned();
        assert_eq!(lax, written, "requireExpiry {requires}");
    }
}

fn rule_of(index: &Index, name: &str) -> PolicyRule {
    let rules = policy_of(index, "a").rules;
    rules.into_iter().find(|r| r.name == name).unwrap()
}

#[test]
fn authorization_policies_become_rules() {
    let mut index = index();
    let spec = json!({
        "targetRefs": [{ "name": "a", "port": 80 }],
        "rules": [
            { "from": { "serviceAccounts": ["b"], "principals": ["spiffe://other/svc/c"] },
              "to": { "ports": [80, 81], "methods": ["GET"],
                      "paths": [{ "type": "Exact", "value": "/x" }, { "value": "/y" }] } },
            { "to": { "ports": [81] } },
        ],
    });
    let deny = json!({
        "targetRefs": [{ "name": "a" }],
        "action": "Deny",
        "mode": "Audit",
        "rules": [{}],
    });
    index.apply([
        workload("a", "a", 80, None),
        tulle("AuthorizationPolicy", "p", spec),
        tulle("AuthorizationPolicy", "q", deny),
    ]);
    assert_eq!(policy_of(&index, "a").rules.len(), 2);
    let rule = rule_of(&index, "AuthorizationPolicy/p rules[0]");
    let ids: Vec<&str> = rule.sources.iter().map(|s| s.as_str()).collect();
    assert_eq!(ids, ["spiffe://tulle.local/svc/b", "spiffe://other/svc/c"]);
    assert_eq!((rule.ports.as_slice(), rule.matches.len()), (&[80][..], 2));
    assert_eq!(rule.matches[1].path, Some(PathMatch::Prefix("/y".into())));
    assert!(!rule.any_identity && rule.networks.is_empty());
    // A rule about a port that the reference excludes has no effect.
    let rule = rule_of(&index, "AuthorizationPolicy/q");
    assert_eq!(rule.action, Action::AuditDeny);
    assert!(rule.any_identity && rule.networks.len() == 2, "{rule:?}");
}

#[test]
fn explains_who_denies() {
    let mut index = shop();
    let deny = json!({
        "targetRefs": [{ "name": "ratings" }],
        "action": "Deny",
        "rules": [{ "to": { "paths": [{ "value": "/ratings/secret" }] } }],
    });
    index.apply([tulle("AuthorizationPolicy", "no", deny)]);
    let answer = ask(&index, "gateway", "ratings", "GET", "/ratings/1");
    assert!(answer.allowed, "{answer:?}");
    for permissive in [false, true] {
        index.apply([mesh(json!({ "permissiveMode": permissive }))]);
        let answer = ask(&index, "gateway", "ratings", "GET", "/ratings/secret/1");
        assert!(!answer.allowed, "{answer:?}");
        assert_eq!(answer.policy, "AuthorizationPolicy/no");
    }
}

#[test]
fn a_denial_can_overlook_letter_case() {
    let mut index = shop();
    let deny = |ignore: bool| {
        let rule =
            json!({ "to": { "paths": [{ "value": "/ratings/secret" }] }, "ignoreCase": ignore });
        let spec =
            json!({ "targetRefs": [{ "name": "ratings" }], "action": "Deny", "rules": [rule] });
        tulle("AuthorizationPolicy", "no", spec)
    };
    for ignore in [false, true] {
        index.apply([deny(ignore)]);
        let rules = policy_of(&index, "ratings").rules.into_iter();
        let mut rules = rules.filter(|r| r.name == "AuthorizationPolicy/no");
        assert_eq!(rules.next().unwrap().matches[0].ignore_case, ignore);
        let answer = ask(&index, "gateway", "ratings", "GET", "/ratings/SECRET/1");
        assert_eq!(answer.allowed, !ignore, "{answer:?}");
    }
}

#[test]
fn clients_outside_the_mesh_are_let_in_by_address_or_identity() {
    let mut index = index();
    let sources = json!([
        { "kind": "IPRange", "name": "10.0.0.0/8" },
        { "kind": "Service", "name": "ingress" },
        { "kind": "Service", "name": "edge" },
    ]);
    let spec = json!({ "backends": [{ "name": "a", "port": 80 }], "sources": sources });
    let changed = index.apply([
        workload("a", "a", 80, None),
        tulle("IngressBackend", "i", spec),
    ]);
    assert!(names(&changed).contains(&"inbound/a"));
    let rule = rule_of(&index, "IngressBackend/i");
    assert_eq!((rule.ports.as_slice(), rule.networks.len()), (&[80][..], 1));
    assert_eq!(rule.sources[0].as_str(), "spiffe://tulle.local/svc/ingress");
    // The service's workloads have another identity: those are meant.
    let spec = json!({ "service": "ingress", "identity": "nginx", "command": ["x"] });
    index.apply([tulle("Workload", "i1", spec)]);
    let rule = rule_of(&index, "IngressBackend/i");
    assert_eq!(rule.sources[0].as_str(), "spiffe://tulle.local/svc/nginx");
    assert_eq!(rule.sources[1].as_str(), "spiffe://tulle.local/svc/edge");
}

#[test]
fn ports_of_tcp_routes_are_allowed() {
    let mut index = index();
    let tcp = |port: u16| {
        let spec = json!({ "matches": { "ports": [port] } });
        object("specs.smi-spec.io/v1alpha4", "TCPRoute", "db", spec)
    };
    let rules = json!([
        { "kind": "TCPRoute", "name": "db" },
        { "kind": "HTTPRouteGroup", "name": "g" },
    ]);
    index.apply([
        workload("a", "a", 80, None),
        target("t", "a", &["b"], rules),
    ]);
    assert!(policy_of(&index, "a").rules.is_empty());
    index.apply([tcp(3306), group("g", json!([{ "name": "read" }]))]);
    let rules = policy_of(&index, "a").rules;
    assert_eq!(rules.len(), 2);
    assert_eq!(
        (rules[0].ports.as_slice(), rules[0].matches.len()),
        (&[3306][..], 0)
    );
    assert_eq!(
        (rules[1].ports.as_slice(), rules[1].matches.len()),
        (&[][..], 1)
    );
    let changed = index.apply([tcp(3307)]);
    assert_eq!(names(&changed), ["inbound/a"]);
}

#[test]
fn egress_follows_its_references() {
    let mut index = index();
    let spec = json!({
        "sources": [{ "kind": "ServiceAccount", "name": "a" }],
        "hosts": ["*.Example".to_lowercase()],
        "ports": [{ "number": 80, "protocol": "http" }],
        "tls": { "caCertificateRef": { "name": "roots" }, "port": 443 },
    });
    index.apply([tulle("Egress", "e", spec)]);
    assert!(index.get("egress").is_none());
    let changed = index.apply([held("ConfigMap", "roots", json!({ "ca.crt": "pem" }))]);
    assert_eq!(names(&changed), ["egress"]);
    let Resource::Egress(egress) = resource(&index, "egress") else {
        panic!("no egress");
    };
    let rule = &egress.rules[0];
    assert_eq!(rule.name, "Egress/e");
    assert_eq!(rule.tls.as_ref().unwrap().roots, "pem");
    let listed = json!({ "ca.crt": "pem", "ca.crl": "lists" });
    assert_eq!(
        names(&index.apply([held("ConfigMap", "roots", listed)])),
        ["egress"]
    );
    let Resource::Egress(listed) = resource(&index, "egress") else {
        panic!("no egress");
    };
    assert_eq!(listed.rules[0].tls.as_ref().unwrap().roots, "pem\nlists");
    assert_eq!(rule.sources[0].as_str(), "spiffe://tulle.local/svc/a");
    index.apply([mesh(json!({ "trustDomain": "other" }))]);
    let Resource::Egress(egress) = resource(&index, "egress") else {
        panic!("no egress");
    };
    assert_eq!(egress.rules[0].sources[0].as_str(), "spiffe://other/svc/a");
}

#[test]
fn explains_rule_split_and_limits() {
    let mut index = shop();
    let parent = json!({ "group": "", "kind": "Service", "name": "ratings" });
    let rules = json!([
        { "matches": [{ "path": { "value": "/other" } }] },
        {
            "name": "canary",
            "filters": [{ "type": "RequestHeaderModifier",
                          "requestHeaderModifier": { "remove": ["x-a"] } }],
            "backendRefs": [
                { "name": "ratings", "port": 9080, "weight": 999 },
                { "name": "db", "port": 5432, "weight": 1 },
            ],
            "timeouts": { "request": "2s" },
            "retry": { "attempts": 3, "codes": [503] },
        },
    ]);
    let traffic = json!({
        "targetRefs": [{ "name": "ratings" }],
        "timeouts": { "request": "9s" },
        "connections": { "maxRequests": 7 },
        "circuitBreaker": { "errors": { "percentage": "50%" } },
    });
    let limit =
        json!({ "targetRefs": [{ "name": "ratings" }], "requests": { "count": 5, "burst": 2 } });
    index.apply([
        route("r", parent, rules),
        tulle("TrafficPolicy", "t", traffic),
        tulle("RateLimit", "l", limit),
    ]);
    let answer = ask(&index, "gateway", "ratings", "GET", "/ratings/1");
    assert_eq!(
        (&*answer.route, &*answer.rule),
        ("HTTPRoute/r", "rules[1] (canary)")
    );
    assert_eq!(answer.filters, ["request headers"]);
    assert_eq!(answer.split, ["ratings:9080 99.9%", "db:5432 0.1%"]);
    assert_eq!(answer.timeout, "2s (route)");
    assert_eq!(
        answer.retry,
        "3 more on connect-failure, reset, timeout, 503 (route)"
    );
    assert_eq!(
        answer.limits,
        [
            "ratings:9080: TrafficPolicy/t: at most 7 requests at a time",
            "ratings:9080: TrafficPolicy/t: circuit opens for 30s at 50.0% errors of the last 30s",
            "ratings:9080: RateLimit/l: 5 in 1s and 2 at once",
        ]
    );
    // Without the route the policy's own timeout holds, and nothing is split.
    index.apply([delete("HTTPRoute", "r")]);
    let answer = ask(&index, "gateway", "ratings", "GET", "/ratings/1");
    assert_eq!(answer.timeout, "9s (TrafficPolicy/t)");
    assert!(
        answer.split.is_empty() && answer.retry.is_empty(),
        "{answer:?}"
    );
    assert!(
        answer.limits[0].starts_with("TrafficPolicy/t: at most 7"),
        "{answer:?}"
    );
    let answer = ask(&index, "edge", "gateway", "GET", "/");
    assert_eq!(answer.timeout, "15s (Mesh)");
}

#[test]
fn the_port_that_an_egress_names_is_a_gateway_as_long_as_it_does() {
    let mut index = index();
    index.apply([
        workload("out", "out", 3128, None),
        place("out", 3128, "10.0.0.1:3128"),
    ]);
    let is_gateway = |index: &Index| inbound(index, "out").ports[0].egress;
    assert!(!is_gateway(&index));
    let through = |port: u16| {
        let gateway = json!({ "service": "out", "port": port });
        let spec = json!({ "hosts": ["x.example"], "gateway": gateway });
        tulle("Egress", "e", spec)
    };
    let changed = index.apply([through(3128)]);
    assert!(names(&changed).contains(&"inbound/out"));
    assert!(is_gateway(&index));
    index.apply([through(3129)]);
    assert!(!is_gateway(&index));
}

#[test]
fn a_namespace_names_only_so_many_sets_of_keys() {
    let mut index = Index::of_cluster(TrustDomain::default(), "tulle-system");
    let mesh = json!({ "jwks": { "hosts": [{ "host": "login.example" }] } });
    index.apply([tulle("Mesh", "mesh", mesh)]);
    let auth = |name: &str, path: &str| {
        let providers =
            json!([{ "issuer": "i", "jwksUri": format!("https://login.example/{path}") }]);
        let spec = json!({ "targetRefs": [{ "name": "a" }], "jwt": { "providers": providers } });
        tulle("Authentication", name, spec)
    };
    for i in 0..10 {
        index.apply([auth(&format!("k{i}.greedy"), &format!("greedy/{i}"))]);
    }
    // A set that is named already needs no other place.
    index.apply([auth("again.greedy", "greedy/3"), auth("k.modest", "modest")]);
    let sources = index.inputs().key_sources();
    let asked: Vec<_> = sources.iter().map(|s| s.uri.target.as_str()).collect();
    assert_eq!(asked.len(), 9, "{asked:?}");
    assert!(asked.contains(&"/modest"), "{asked:?}");
    let problems = index.key_problems();
    let beyond: Vec<_> = problems.iter().map(|p| p.object.as_str()).collect();
    assert_eq!(
        beyond,
        ["Authentication/k8.greedy", "Authentication/k9.greedy"]
    );
    assert!(
        problems[0].text.contains("more than 8 sets"),
        "{problems:?}"
    );
}
