//! Rules repeat what they name, up to a bound: sources of Plugins, keys of tokens and policies are long, and their names are
//! short.

use super::bounds::{TULLE, a_service, object_of, of_shop};
use super::lengths::shop;
use super::unions::{JWKS, about, closed, port};
use super::*;
use crate::index::policy;
use crate::index::room::{self, Room};
use tulle_model::manifest::FilterRefs;
use tulle_model::resource::{Action, Filter, RouteRule};

const GATEWAY: &str = "gateway.networking.k8s.io/v1";

pub(super) fn told(index: &Index) -> Vec<String> {
    let problems = index.problems().into_iter();
    problems.map(|problem| problem.to_string()).collect()
}

/// A Plugin of 100 KB.
fn long_plugin(targets: Value) -> Edit {
    long_plugin_of("shop", targets)
}

fn long_plugin_of(namespace: &str, targets: Value) -> Edit {
    plugin_of(namespace, 100_000, targets)
}

pub(super) fn plugin_of(namespace: &str, bytes: usize, targets: Value) -> Edit {
    let source = format!("// {}", "x".repeat(bytes));
    let spec = json!({ "targetRefs": targets, "source": source });
    object_of(namespace, TULLE, "Plugin", "p", spec)
}

fn extension(kind: &str, name: &str) -> Value {
    let reference = json!({ "group": "tulle.dev", "kind": kind, "name": name });
    json!({ "type": "ExtensionRef", "extensionRef": reference })
}

/// A route to a.shop, with so many rules that have these filters.
fn route_of(namespace: &str, name: &str, rules: usize, filters: &Value) -> Edit {
    let parent = json!([{ "group": "", "kind": "Service", "name": "a", "namespace": "shop" }]);
    let rule = |i: usize| {
        let path = json!({ "type": "Exact", "value": format!("/{name}/{i}") });
        json!({ "matches": [{ "path": path }], "filters": filters })
    };
    let rules: Vec<Value> = (0..rules).map(rule).collect();
    let spec = json!({ "parentRefs": parent, "rules": rules });
    object_of(namespace, GATEWAY, "HTTPRoute", name, spec)
}

fn rules_of(index: &Index, name: &str) -> Vec<RouteRule> {
    let routes = service(index, "a.shop").routes.into_iter();
    let mut found = routes.filter(|route| route.name == name);
    found.next().unwrap().rules
}

/// The status with which a rule answers by itself; 0: it does not.
fn status(rule: &RouteRule) -> u16 {
    match rule.filters.as_slice() {
        [Filter::Respond(respond)] => respond.status,
        _ => 0,
    }
}

/// How many rules of a route answer with 500.
fn refusing(index: &Index, name: &str) -> usize {
    let rules = rules_of(index, name).into_iter();
    rules.filter(|rule| status(rule) == 500).count()
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
            plugin_of("shop", 130_000, services),
            of_shop("RateLimit", "l", limit),
        ])
    };
    let rules = |index: &Index| port(index).rules.len();
    let ordinary = limited(180, about("a"));
    assert_eq!((closed(&ordinary), rules(&ordinary)), (Vec::new(), 181));
    let too_many = limited(240, about("a"));
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
    let second = limited(180, both);
    let names = closed(&second);
    assert!(
        rules(&second) == 181 && names.len() == 1 && names[0].contains("port 9000 is closed"),
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

/// Nothing is copied for a port once it does not fit, and the reason still counts all that is about the port.
#[test]
fn a_port_whose_plugins_and_inline_keys_are_too_long_is_closed_and_names_some() {
    let plugin = |i: usize| {
        let source = format!("// {}", "x".repeat(250_000));
        let spec = json!({ "targetRefs": about("a"), "source": source });
        of_shop("Plugin", &format!("p{i:03}"), spec)
    };
    let provider = json!({ "issuer": "i", "jwks": JWKS.to_owned() + &" ".repeat(1 << 20) });
    let auth = json!({ "targetRefs": about("a"), "jwt": { "providers": [provider] } });
    let limited = |plugins: usize| {
        let plugins = (0..plugins).map(plugin);
        shop(plugins.chain([of_shop("Authentication", "t", auth.clone())]))
    };
    let ordinary = limited(40);
    assert_eq!(closed(&ordinary), Vec::<String>::new());
    assert_eq!(port(&ordinary).rules[0].filters.len(), 41);
    let names = closed(&limited(110));
    assert_eq!(names.len(), 1);
    let named = "(Authentication/t.shop and Plugin/p000.shop and Plugin/p001.shop and Plugin/p002.shop and Plugin/p003.shop \
                 and 106 more make rules";
    assert!(names[0].contains(named), "{}", names[0]);
}

/// A text stands at each port of each pod, and no room counts it.
#[test]
fn a_text_names_few_of_very_many_objects() {
    let long = |i: usize| format!("l{i:0240}");
    let limit = |i: usize| {
        let rate = json!({ "count": 1 });
        let spec = json!({ "targetRefs": about("a"), "requests": rate, "connections": rate });
        of_shop("RateLimit", &long(i), spec)
    };
    let mut index = shop((0..100).map(limit));
    let last = format!("RateLimit/{}.shop and 95 more", long(4));
    let found = port(&index);
    assert!(
        found.rules[0].name.ends_with(&last),
        "{}",
        found.rules[0].name
    );
    let connections = found.connection_limit.unwrap().name;
    assert!(connections.ends_with(&last), "{connections}");
    // Three of these cannot hold together.
    index.apply(["x", "y", "z"].map(|path| {
        let to = json!({ "paths": [{ "type": "RegularExpression", "value": path }] });
        let rules = json!([{ "to": to, "requests": { "count": 1 } }]);
        of_shop(
            "RateLimit",
            path,
            json!({ "targetRefs": about("a"), "rules": rules }),
        )
    }));
    let names = closed(&index);
    let some = names.len() == 1 && names[0].contains("and 98 more have conditions");
    assert!(some && names[0].len() < 2000, "{names:?}");
}

/// Each rule of a route has the source of the Plugin that it names, and as many conditions as before where it does not fit.
#[test]
fn rules_of_routes_that_name_too_much_answer_with_500() {
    let filters = json!([extension("HTTPFilter", "f"), extension("Plugin", "p")]);
    let condition = json!({ "match": "request.method == 'GET'" });
    let theirs = json!({ "directResponse": { "status": 418 } });
    let index = shop([
        long_plugin(json!([])),
        of_shop("HTTPFilter", "f", condition),
        route_of("shop", "r", 60, &filters),
        route_of("shop", "s", 60, &filters),
        object_of("bank", TULLE, "HTTPFilter", "f", theirs),
        route_of("bank", "t", 1, &json!([extension("HTTPFilter", "f")])),
    ]);
    let first = rules_of(&index, "r.shop");
    assert!(first.iter().all(|rule| status(rule) == 0));
    let second = rules_of(&index, "s.shop");
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
    assert_eq!(status(&rules_of(&index, "t.bank")[0]), 418);
    let told = told(&index);
    let of_route = told.iter().find(|t| t.starts_with("HTTPRoute/s.shop: "));
    let text = format!("{} of its rules answer with 500", refusing.len());
    assert!(of_route.is_some_and(|t| t.contains(&text)), "{told:?}");
}

/// Another rule of the same matches, and of as many conditions, does not come before one that has no room.
#[test]
fn a_rule_without_room_has_as_many_conditions_however_many_these_are() {
    let condition = json!({ "match": "request.method == 'GET'" });
    let mut filters = vec![extension("HTTPFilter", "f"); 20];
    filters.push(extension("Plugin", "p"));
    let index = shop([
        long_plugin(json!([])),
        of_shop("HTTPFilter", "f", condition),
        route_of("shop", "r", 100, &json!(filters)),
    ]);
    let rules = rules_of(&index, "r.shop");
    assert_eq!((status(&rules[0]), status(&rules[99])), (0, 500));
    let conditions = |rule: &RouteRule| rule.matches[0].when.len();
    assert_eq!((conditions(&rules[0]), conditions(&rules[99])), (20, 20));
}

/// The rule that answers for one without room counts in no room: so its conditions are no product of two long lists.
#[test]
fn a_rule_without_room_has_few_conditions_for_each_of_many_matches() {
    let condition = json!({ "match": "request.method == 'GET'" });
    let mut filters = vec![extension("HTTPFilter", "f"); 100];
    filters.extend(vec![extension("Plugin", "p"); 100]);
    let parent = json!([{ "group": "", "kind": "Service", "name": "a", "namespace": "shop" }]);
    let path = |i: usize| json!({ "path": { "type": "Exact", "value": format!("/{i}") } });
    let paths: Vec<Value> = (0..700).map(path).collect();
    let rules = json!([{ "matches": paths, "filters": filters }]);
    let spec = json!({ "parentRefs": parent, "rules": rules });
    let index = shop([
        long_plugin(json!([])),
        of_shop("HTTPFilter", "f", condition),
        object_of("shop", GATEWAY, "HTTPRoute", "r", spec),
    ]);
    let rules = rules_of(&index, "r.shop");
    assert_eq!((status(&rules[0]), rules[0].matches.len()), (500, 700));
    assert!(rules[0].matches.iter().all(|one| one.when.len() == 16));
}

/// A rule has what an HTTPFilter does once, and its condition once for each match.
#[test]
fn what_an_http_filter_does_is_counted_once_for_each_rule() {
    let answering = |rules: usize| {
        let answer = json!({ "status": 418, "body": "x".repeat(100_000) });
        shop([
            of_shop("HTTPFilter", "f", json!({ "directResponse": answer })),
            route_of("shop", "r", rules, &json!([extension("HTTPFilter", "f")])),
        ])
    };
    assert_eq!(refusing(&answering(60), "r.shop"), 0);
    let too_many = refusing(&answering(100), "r.shop");
    assert!((10..30).contains(&too_many), "{too_many}");
}

/// A proxy reads no message of more than 64 MiB, and without the service's routes it has none of its configuration.
#[test]
fn routes_of_many_namespaces_have_equal_shares_of_what_fits_in_a_message() {
    let filters = json!([extension("Plugin", "p")]);
    let attached = |namespaces: &[(&str, usize)]| {
        let namespaces = namespaces.iter().flat_map(|(namespace, rules)| {
            let plugin = long_plugin_of(namespace, json!([]));
            [plugin, route_of(namespace, "r", *rules, &filters)]
        });
        shop(namespaces.collect::<Vec<Edit>>())
    };
    // Together they have less than they may.
    let few = [("shop", 60), ("n1", 60), ("n2", 60), ("n3", 60)];
    let index = attached(&few);
    for (namespace, _) in few {
        let refusing = refusing(&index, &format!("r.{namespace}"));
        assert_eq!(refusing, 0, "{namespace}");
    }
    let many = ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"];
    let mut all = many.map(|namespace| (namespace, 60)).to_vec();
    all.extend([("light", 5), ("shop", 60)]);
    let index = attached(&all);
    let body = &index.get("service/a.shop").unwrap().body;
    assert!(body.len() < 32 << 20, "{}", body.len());
    for namespace in ["light", "shop"] {
        let refusing = refusing(&index, &format!("r.{namespace}"));
        assert_eq!(refusing, 0, "{namespace}");
    }
    for namespace in many {
        let refusing = refusing(&index, &format!("r.{namespace}"));
        // The eight share what the ninth leaves: a ninth of all is 27 of these rules.
        assert!((28..33).contains(&refusing), "{namespace}: {refusing}");
    }
}

/// A share is no more than a namespace needs, so that many that need nothing take nothing from one that does.
#[test]
fn who_has_enough_leaves_the_rest_to_others() {
    let plugins = json!([extension("Plugin", "p")]);
    let mut edits = Vec::new();
    for (namespace, rules) in [("n1", 90), ("n2", 90), ("n3", 90), ("middle", 5)] {
        edits.push(long_plugin_of(namespace, json!([])));
        edits.push(route_of(namespace, "r", rules, &plugins));
    }
    edits.extend((0..96).map(|i| route_of(&format!("plain{i}"), "r", 1, &json!([]))));
    let index = shop(edits);
    assert_eq!(refusing(&index, "r.middle"), 0);
    for namespace in ["n1", "n2", "n3"] {
        let refusing = refusing(&index, &format!("r.{namespace}"));
        assert!((7..11).contains(&refusing), "{namespace}: {refusing}");
    }
    let body = &index.get("service/a.shop").unwrap().body;
    assert!(body.len() < 26 << 20, "{}", body.len());
}

/// A namespace may have very many rules that do not fit, each of which names as much as it can.
#[test]
fn what_has_no_room_is_made_no_further() {
    let index = shop([long_plugin(json!([]))]);
    let mut room = Room::new(50_000);
    let naming = |refs: &dyn FilterRefs| {
        assert!(refs.plugin("p.shop").is_none());
        Some(RouteRule::default())
    };
    let made = room.rule(index.inputs(), (1, [].as_slice()), naming, |_, _| {
        panic!("its policy is made")
    });
    assert!(matches!(made, Some((_, false))));
    let plain = |_: &dyn FilterRefs| Some(RouteRule::default());
    let made = room.rule(index.inputs(), (1, [].as_slice()), plain, |_, _| Ok(None));
    assert!(matches!(made, Some((_, true))));
    // With the fourth that is refused, half of the room is left for others.
    let refused = (0..3).filter(|_| !room.take(50_001)).count();
    assert_eq!(refused, 3);
    assert!(!room.take(25_001) && room.take(25_000) && !room.take(1));
}

/// A namespace's own mistake in one route leaves its other routes what they need.
#[test]
fn small_rules_have_room_after_some_that_are_too_large() {
    let answer = json!({ "status": 418, "body": "x".repeat(1000) });
    let large = json!(vec![extension("Plugin", "p"); 100]);
    let index = shop([
        long_plugin(json!([])),
        of_shop("HTTPFilter", "f", json!({ "directResponse": answer })),
        route_of("shop", "r", 16, &large),
        route_of("shop", "s", 100, &json!([extension("HTTPFilter", "f")])),
    ]);
    assert_eq!(refusing(&index, "r.shop"), 16);
    let small = rules_of(&index, "s.shop");
    assert!(small.iter().all(|rule| status(rule) == 418));
}

/// A policy may have very many rules that each are long: they are made one by one, as long as they fit.
#[test]
fn rules_of_policies_are_made_as_far_as_there_is_room() {
    let networks: Vec<String> = (0..1000)
        .map(|i| format!("10.{}.{}.0/24", i / 250, i % 250))
        .collect();
    let rules = vec![json!({ "from": { "networks": networks } }); 50];
    let target = json!([{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g" }]);
    let spec = json!({ "targetRefs": target, "rules": rules });
    let mut index = index();
    index.apply([object(TULLE, "AuthorizationPolicy", "p", spec)]);
    let name = index.inputs().object_name("g").unwrap();
    let made = |left: usize, is_meant: bool| {
        policy::at_gateway(index.inputs(), "Gateway/g", &name, left, |_| is_meant)
    };
    let all = made(usize::MAX, true).ok().flatten().unwrap();
    assert_eq!(all.rules.len(), 50);
    let bytes = room::bytes(&all.rules);
    assert!(made(bytes, true).is_ok() && made(bytes - 1, true).is_err());
    // Where no policy is meant, there is room for none.
    assert!(matches!(made(0, false), Ok(None)));
}

/// A gateway has policies about it for each listener, and policies about a route for each rule.
#[test]
fn policies_that_a_gateway_repeats_too_often_close_it() {
    let numbers = 0..320_u16;
    let listener =
        |i: u16| json!({ "name": format!("l{i:03}"), "port": 8000 + i, "protocol": "HTTP" });
    let gateway = json!({
        "gatewayClassName": "tulle",
        "listeners": numbers.map(listener).collect::<Vec<_>>(),
    });
    let rule = |i: u16| {
        let path = json!({ "type": "Exact", "value": format!("/{i}") });
        json!({ "matches": [{ "path": path }], "backendRefs": [{ "name": "a", "port": 80 }] })
    };
    let rules: Vec<Value> = (0..100_u16).map(rule).collect();
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
    assert_eq!((is_closed(0), is_closed(319)), (false, true));
    let rules = &found.routes[0].rules;
    let refuses = |rule: &RouteRule| matches!(&*rule.filters, [Filter::Respond(_)]);
    assert_eq!((refuses(&rules[0]), refuses(&rules[99])), (false, true));
    assert!(rules[99].policy.is_none() && rules[99].backends.is_empty());
    let told = told(&index);
    for text in [
        "Gateway/g: port 8319 is closed",
        "of its rules answer with 500",
    ] {
        assert!(told.iter().any(|t| t.contains(text)), "{told:?}");
    }
}
