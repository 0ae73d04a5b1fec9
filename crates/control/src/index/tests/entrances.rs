//! Explanations of calls that come by gateways, and of listeners that are closed.

use super::explained::{CONTRADICTION, contradicting};
use super::*;

const GROUP: &str = "gateway.networking.k8s.io";

#[test]
fn a_call_by_a_gateway_whose_listeners_are_all_closed_is_denied() {
    let mut index = shop();
    let denied = |index: &Index, to: &str, port: u16, seen: &str| {
        let answer = ask(index, "edge", to, "GET", "/");
        assert!(!answer.allowed, "{answer:?}");
        let why = format!("Gateway/edge: port {port} is closed ({CONTRADICTION})");
        assert_eq!(answer.reason, format!("{why} denies it: {seen}"));
        assert_eq!(answer.policy, why);
    };
    assert!(ask(&index, "edge", "gateway", "GET", "/").allowed);
    let edge = json!({ "group": GROUP, "kind": "Gateway", "name": "edge" });
    index.apply(contradicting(&edge));
    denied(&index, "gateway", 8080, "answered with 403");
    // Where no route takes the request it is no other.
    index.apply([Edit::Delete {
        kind: "HTTPRoute".into(),
        name: "shop".into(),
    }]);
    denied(&index, "gateway", 8080, "answered with 403");

    let listeners = json!([
        { "name": "web", "port": 8080, "protocol": "HTTP" },
        { "name": "db", "port": 5432, "protocol": "TCP" },
    ]);
    let backends = json!([{ "name": "db", "port": 5432 }]);
    let tcp = json!({
        "parentRefs": [{ "name": "edge" }], "rules": [{ "backendRefs": backends }],
    });
    index.apply([
        object(
            "gateway.networking.k8s.io/v1",
            "Gateway",
            "edge",
            json!({ "listeners": listeners }),
        ),
        object("gateway.networking.k8s.io/v1alpha2", "TCPRoute", "db", tcp),
    ]);
    denied(&index, "db", 5432, "the connection is reset");
}

#[test]
fn a_listener_that_is_closed_is_named_with_the_reason() {
    let mut index = shop();
    let web = json!({ "group": GROUP, "kind": "Gateway", "name": "edge", "sectionName": "web" });
    index.apply(contradicting(&web));
    let answer = ask(&index, "edge", "gateway", "GET", "/");
    let rows = answer.considered.into_iter();
    let rows = rows.filter(|c| c.kind == "Gateway");
    let rows: Vec<_> = rows.map(|c| (c.name, c.outcome)).collect();
    let why = format!("edge: port 8080 is closed ({CONTRADICTION})");
    assert_eq!(rows, [(why, "at listener web: denies".to_owned())]);
}

/// An HTTPRoute that leads from these listeners of `edge` to a service.
fn edge_route(name: &str, listeners: &[&str], to: &str, port: u16) -> Edit {
    let parents = listeners.iter();
    let parents = parents.map(|listener| json!({ "name": "edge", "sectionName": listener }));
    let spec = json!({
        "parentRefs": parents.collect::<Vec<_>>(),
        "rules": [{ "backendRefs": [{ "name": to, "port": port }] }],
    });
    object("gateway.networking.k8s.io/v1", "HTTPRoute", name, spec)
}

#[test]
fn a_call_by_a_gateway_comes_by_the_listeners_that_are_open() {
    let mut index = shop();
    index.apply([edge_route("shop", &["web", "admin"], "gateway", 80)]);
    for closed in ["admin", "web"] {
        let at =
            json!({ "group": GROUP, "kind": "Gateway", "name": "edge", "sectionName": closed });
        index.apply(contradicting(&at));
        let answer = ask(&index, "edge", "gateway", "GET", "/");
        assert!(answer.allowed, "{answer:?}");
        let rows = answer.considered.iter().filter(|c| c.kind == "Gateway");
        let rows: Vec<&str> = rows.map(|c| c.outcome.as_str()).collect();
        assert_eq!(rows, [format!("at listener {closed}: denies")]);
    }
    // Where the open listener leads elsewhere, the closed one is what keeps it from the service.
    index.apply([
        edge_route("shop", &["web"], "gateway", 80),
        edge_route("shop-2", &["admin"], "ratings", 9080),
    ]);
    let answer = ask(&index, "edge", "gateway", "GET", "/");
    assert!(!answer.allowed, "{answer:?}");
    let why = format!("Gateway/edge: port 8080 is closed ({CONTRADICTION})");
    assert_eq!(answer.policy, why);
    index.apply([edge_route("shop-2", &["admin"], "gateway", 80)]);
    let answer = ask(&index, "edge", "gateway", "GET", "/");
    assert!(
        answer.allowed && answer.route == "HTTPRoute/shop-2",
        "{answer:?}"
    );
}

#[test]
fn a_policy_that_denies_everybody_closes_a_listener_or_a_route() {
    let at = |kind: &str, name: &str| json!({ "group": GROUP, "kind": kind, "name": name });
    let deny = |target: Value, rule: Value| {
        let spec = json!({ "targetRefs": [target], "action": "Deny", "rules": [rule] });
        object("tulle.dev/v1alpha1", "AuthorizationPolicy", "no", spec)
    };
    for target in [at("Gateway", "edge"), at("HTTPRoute", "shop")] {
        let mut index = shop();
        let some = json!({ "from": { "networks": ["10.0.0.0/8"] } });
        for (rule, allowed) in [(json!({}), false), (some, true)] {
            index.apply([deny(target.clone(), rule)]);
            let answer = ask(&index, "edge", "gateway", "GET", "/");
            assert_eq!(answer.allowed, allowed, "{answer:?}");
            assert_eq!(answer.policy == "AuthorizationPolicy/no", !allowed);
        }
    }
    // Another route lets the call in by another listener.
    let mut index = shop();
    index.apply([
        edge_route("shop", &["web"], "gateway", 80),
        edge_route("shop-2", &["admin"], "gateway", 80),
        deny(at("HTTPRoute", "shop"), json!({})),
    ]);
    let answer = ask(&index, "edge", "gateway", "GET", "/");
    assert!(
        answer.allowed && answer.route == "HTTPRoute/shop-2",
        "{answer:?}"
    );
}

#[test]
fn connections_come_by_the_listeners_that_lead_to_the_port() {
    let mut index = shop();
    let listener = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "TCP" });
    let listeners = json!({ "listeners": [listener("db", 5432), listener("other", 5433)] });
    let tcp = |name: &str, backend: Value| {
        let parent = json!({ "name": "edge", "sectionName": name });
        let spec = json!({ "parentRefs": [parent], "rules": [{ "backendRefs": [backend] }] });
        object("gateway.networking.k8s.io/v1alpha2", "TCPRoute", name, spec)
    };
    let db = json!({ "name": "db", "port": 5432 });
    let at = json!({ "group": GROUP, "kind": "Gateway", "name": "edge", "sectionName": "db" });
    let version = "gateway.networking.k8s.io/v1";
    index.apply([
        target("edge-to-db", "db", &["edge"], json!([])),
        object(version, "Gateway", "edge", listeners),
        tcp("db", db.clone()),
    ]);
    index.apply(contradicting(&at));
    for (backend, allowed) in [
        (db, true),
        (json!({ "name": "db", "port": 5433 }), false),
        (json!({ "name": "db", "port": 5432, "weight": 0 }), false),
    ] {
        index.apply([tcp("other", backend)]);
        let answer = ask(&index, "edge", "db", "", "");
        assert_eq!(answer.allowed, allowed, "{answer:?}");
    }
}
