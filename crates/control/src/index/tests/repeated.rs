//! Rules repeat what they name, up to a bound: sources of Plugins, keys of tokens and policies are long, and their names are
//! short.

use super::bounds::{a_service, object_of, of_shop};
use super::lengths::shop;
use super::unions::{about, closed, port};
use super::*;
use tulle_model::resource::{Action, Filter, RouteRule};

const GATEWAY: &str = "gateway.networking.k8s.io/v1";

fn told(index: &Index) -> Vec<String> {
    let problems = index.problems().into_iter();
    problems.map(|problem| problem.to_string()).collect()
}

/// A Plugin of 100 KB.
fn long_plugin(targets: Value) -> Edit {
    let source = format!("// {}", "x".repeat(100_000));
    of_shop(
        "Plugin",
        "p",
        json!({ "targetRefs": targets, "source": source }),
    )
}

/// Each rule of a RateLimit has the sources of all Plugins, at each port.
#[test]
fn a_port_whose_rules_repeat_too_much_is_closed() {
    let limited = |rules: usize, services: Value| {
        let rule = |i: usize| {
            let to = json!({ "paths": [{ "type": "Exact", "value": format!("/{i}") }] });
            json!({ "to": to, "requests": { "count": 1 } })
        };
        let rules: Vec<Value> = (0..rules).map(rule).collect();
        let other = a_service(
            "c.shop",
            &[],
            &[(81, Some("http"), 9000)],
            &[("10.244.0.5", Some("web-1"))],
        );
        let limit = json!({ "targetRefs": services, "rules": rules });
        shop([
            Edit::Service(Box::new(other)),
            long_plugin(services),
            of_shop("RateLimit", "l", limit),
        ])
    };
    let rules = |index: &Index| port(index).rules.len();
    let ordinary = limited(60, about("a"));
    assert_eq!((closed(&ordinary), rules(&ordinary)), (Vec::new(), 61));
    let too_many = limited(100, about("a"));
    assert_eq!(rules(&too_many), 0);
    let names = closed(&too_many);
    assert!(
        names.len() == 1 && names[0].contains("Plugin/p.shop and RateLimit/l.shop make rules"),
        "{names:?}"
    );
    let told = told(&too_many);
    assert!(
        told.iter().any(|t| t.contains("port 8080 is closed")),
        "{told:?}"
    );
    // The ports of a pod have one room.
    let both = json!([{ "kind": "Service", "name": "a" }, { "kind": "Service", "name": "c" }]);
    let second = limited(60, both);
    let names = closed(&second);
    assert!(
        rules(&second) == 61 && names.len() == 1 && names[0].contains("port 9000 is closed"),
        "{names:?}"
    );
}

/// A provider is a few bytes, and the keys that it refers to may be many.
#[test]
fn a_port_whose_providers_have_too_many_keys_is_closed() {
    let keyed = |providers: usize| {
        let provider = |i: usize| json!({ "issuer": format!("i{i}"), "jwksRef": { "name": "k" } });
        let providers: Vec<Value> = (0..providers).map(provider).collect();
        let keys = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "k", "namespace": "shop" },
            "data": { "jwks": " ".repeat(50_000) },
        });
        let mut keys = Object::from_json(&keys.to_string()).unwrap();
        keys.qualify();
        let auth = json!({ "targetRefs": about("a"), "jwt": { "providers": providers } });
        shop([
            Edit::Put(Box::new(keys)),
            of_shop("Authentication", "t", auth),
        ])
    };
    assert_eq!(closed(&keyed(10)), Vec::<String>::new());
    let names = closed(&keyed(1000));
    assert!(
        names.len() == 1 && names[0].contains("Authentication/t.shop make rules"),
        "{names:?}"
    );
}

/// Each rule of a route has the source of the Plugin that it names, and as many conditions as before where it does not fit.
#[test]
fn rules_of_routes_that_name_too_much_answer_with_500() {
    let parent = json!([{ "group": "", "kind": "Service", "name": "a", "namespace": "shop" }]);
    let extension = |kind: &str, name: &str| {
        let reference = json!({ "group": "tulle.dev", "kind": kind, "name": name });
        json!({ "type": "ExtensionRef", "extensionRef": reference })
    };
    let route = |namespace: &str, name: &str, rules: usize, filters: Value| {
        let rule = |i: usize| {
            let path = json!({ "type": "Exact", "value": format!("/{name}/{i}") });
            json!({ "matches": [{ "path": path }], "filters": filters })
        };
        let rules: Vec<Value> = (0..rules).map(rule).collect();
        let spec = json!({ "parentRefs": parent, "rules": rules });
        object_of(namespace, GATEWAY, "HTTPRoute", name, spec)
    };
    let filters = json!([extension("HTTPFilter", "f"), extension("Plugin", "p")]);
    let condition = json!({ "match": "request.method == 'GET'" });
    let theirs = json!({ "directResponse": { "status": 418 } });
    let index = shop([
        long_plugin(json!([])),
        of_shop("HTTPFilter", "f", condition),
        route("shop", "r", 60, filters.clone()),
        route("shop", "s", 60, filters),
        object_of("bank", "tulle.dev/v1alpha1", "HTTPFilter", "f", theirs),
        route("bank", "t", 1, json!([extension("HTTPFilter", "f")])),
    ]);
    let routes = service(&index, "a.shop").routes;
    let rules = |name: &str| -> Vec<RouteRule> {
        let found = routes.iter().find(|route| route.name == name);
        found.unwrap().rules.clone()
    };
    let status = |rule: &RouteRule| match rule.filters.as_slice() {
        [Filter::Respond(respond)] => respond.status,
        _ => 0,
    };
    assert!(rules("r.shop").iter().all(|rule| status(rule) == 0));
    let second = rules("s.shop");
    let refusing: Vec<&RouteRule> = second.iter().filter(|rule| status(rule) == 500).collect();
    assert!((30..50).contains(&refusing.len()), "{}", refusing.len());
    for (i, rule) in second.iter().enumerate() {
        let [one] = rule.matches.as_slice() else {
            panic!("{:?}", rule.matches)
        };
        assert_eq!(one.path, PathMatch::Exact(format!("/s/{i}")));
        assert_eq!(one.when.len(), 1);
    }
    assert_eq!(refusing[0].matches[0].when, ["true"]);
    assert!(tulle_model::condition::condition("true").is_ok());
    // Another namespace's routes have a room of their own.
    assert_eq!(status(&rules("t.bank")[0]), 418);
    let told = told(&index);
    let of_route = told.iter().find(|t| t.starts_with("HTTPRoute/s.shop: "));
    let text = format!("{} of its rules answer with 500", refusing.len());
    assert!(of_route.is_some_and(|t| t.contains(&text)), "{told:?}");
}

/// A gateway has policies about it for each listener, and policies about a route for each rule.
#[test]
fn policies_that_a_gateway_repeats_too_often_close_it() {
    let numbers = 0..100_u16;
    let listener =
        |i: u16| json!({ "name": format!("l{i:02}"), "port": 8000 + i, "protocol": "HTTP" });
    let gateway = json!({
        "gatewayClassName": "tulle",
        "listeners": numbers.clone().map(listener).collect::<Vec<_>>(),
    });
    let rule = |i: u16| {
        let path = json!({ "type": "Exact", "value": format!("/{i}") });
        json!({ "matches": [{ "path": path }], "backendRefs": [{ "name": "a", "port": 80 }] })
    };
    let rules: Vec<Value> = numbers.map(rule).collect();
    let networks: Vec<String> = (0..6000)
        .map(|i| format!("10.{}.{}.0/24", i / 250, i % 250))
        .collect();
    let policy = |kind: &str, name: &str| {
        let spec = json!({
            "targetRefs": [{ "group": "gateway.networking.k8s.io", "kind": kind, "name": name }],
            "rules": [{ "from": { "networks": networks } }],
        });
        object("tulle.dev/v1alpha1", "AuthorizationPolicy", name, spec)
    };
    let mut index = index();
    index.apply([
        object(GATEWAY, "Gateway", "g", gateway),
        route("r", json!({ "name": "g" }), json!(rules)),
        policy("Gateway", "g"),
        policy("HTTPRoute", "r"),
    ]);
    let found = the_gateway(&index, "g");
    let is_closed = |at: usize| {
        let policy = found.listeners[at].policy.as_deref().unwrap();
        policy.rules[0].action == Action::Deny && policy.rules[0].networks.len() == 2
    };
    assert_eq!((is_closed(0), is_closed(99)), (false, true));
    let rules = &found.routes[0].rules;
    let refuses = |rule: &RouteRule| matches!(&*rule.filters, [Filter::Respond(_)]);
    assert_eq!((refuses(&rules[0]), refuses(&rules[99])), (false, true));
    assert!(rules[99].policy.is_none() && rules[99].backends.is_empty());
    let told = told(&index);
    for text in [
        "Gateway/g: port 8099 is closed",
        "of its rules answer with 500",
    ] {
        assert!(told.iter().any(|t| t.contains(text)), "{told:?}");
    }
}
