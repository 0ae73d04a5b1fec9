//! Explanations of several backends, of missing ones, of raw TCP, and of ports that are closed. Those of gateways are in
//! `entrances`.

use super::*;

/// Services `shop`, `next` (http) and `db` (tcp) with one workload each, and a client.
fn mesh_of_three() -> Index {
    let mut index = index();
    index.apply([
        workload("client", "client", 9, None),
        workload("shop", "shop", 80, Some("http")),
        workload("next", "next", 80, Some("http")),
        workload("db", "db", 5432, Some("tcp")),
        place("shop", 80, "10.0.0.1:15008"),
        place("next", 80, "10.0.0.2:15008"),
        place("db", 5432, "10.0.0.3:15008"),
    ]);
    index
}

fn allow(name: &str, services: &[&str]) -> Edit {
    let refs = services.iter().map(|name| json!({ "name": name }));
    let spec = json!({
        "targetRefs": refs.collect::<Vec<_>>(),
        "rules": [{ "from": { "serviceAccounts": ["client"] } }],
    });
    object("tulle.dev/v1alpha1", "AuthorizationPolicy", name, spec)
}

fn shop_route(name: &str, backends: Value) -> Edit {
    let parent = json!({ "group": "", "kind": "Service", "name": "shop" });
    route(name, parent, json!([{ "backendRefs": backends }]))
}

fn split(backends: Value) -> Edit {
    let spec = json!({ "service": "shop", "backends": backends });
    object("split.smi-spec.io/v1alpha4", "TrafficSplit", "s", spec)
}

#[test]
fn a_backend_that_is_missing_is_named() {
    for (backend, what) in [
        (
            json!({ "name": "next", "port": 81 }),
            "service next has no port 81",
        ),
        (
            json!({ "name": "gone", "port": 80 }),
            "service gone does not exist",
        ),
    ] {
        let mut index = mesh_of_three();
        index.apply([
            allow("all", &["shop", "next"]),
            shop_route("r", json!([backend])),
        ]);
        let answer = ask(&index, "client", "shop", "GET", "/");
        assert!(!answer.allowed, "{answer:?}");
        let reason = format!("HTTPRoute/r: {what}: answered with 500 (no_backend)");
        assert_eq!(answer.reason, reason);
    }
    // A connection that is split has no answer that a client could read.
    let mut index = mesh_of_three();
    let spec = json!({ "service": "db", "backends": [{ "service": "next", "weight": 1 }] });
    index.apply([
        allow("all", &["db", "next"]),
        object("split.smi-spec.io/v1alpha4", "TrafficSplit", "s", spec),
    ]);
    let answer = ask(&index, "client", "db", "", "");
    assert_eq!(
        answer.reason,
        "the split of service db: service next has no port 5432: the connection is reset (no_service)"
    );
}

#[test]
fn of_several_backends_the_one_that_fails_is_named() {
    let mut index = mesh_of_three();
    let both = json!([{ "service": "shop", "weight": 1 }, { "service": "next", "weight": 3 }]);
    index.apply([allow("shop", &["shop"]), split(both)]);
    let answer = ask(&index, "client", "shop", "GET", "/");
    assert!(!answer.allowed);
    assert_eq!(
        answer.reason,
        "backend next:80: no policy is about it: denied with 403"
    );
    assert_eq!(answer.destinations, ["shop:80", "next:80"]);
    // All backends may be called, and one has nobody who answers.
    index.apply([
        allow("next", &["next"]),
        Edit::Unplace {
            workload: "next".into(),
        },
    ]);
    let answer = ask(&index, "client", "shop", "GET", "/");
    assert!(answer.allowed);
    let missing = ", but no workload of next:80 is ready (TL0033): its share is answered with 503";
    assert!(answer.reason.ends_with(missing), "{}", answer.reason);
}

#[test]
fn a_policy_is_listed_once() {
    let mut index = mesh_of_three();
    let both = json!([{ "service": "shop", "weight": 1 }, { "service": "next", "weight": 3 }]);
    index.apply([allow("both", &["shop", "next"]), split(both)]);
    let listed = |index: &Index| {
        let answer = ask(index, "client", "shop", "GET", "/");
        let rows = answer.considered.into_iter();
        rows.map(|c| format!("{}/{}: {}", c.kind, c.name, c.outcome))
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(&index), ["AuthorizationPolicy/both: allows"]);
    // Where it says different things, each place is named.
    let spec = json!({
        "targetRefs": [{ "name": "shop" }, { "name": "next" }],
        "rules": [{ "from": { "serviceAccounts": ["client"] }, "to": { "ports": [80] } }],
    });
    index.apply([
        workload("next", "next", 81, Some("http")),
        place("next", 81, "10.0.0.2:15008"),
        object("tulle.dev/v1alpha1", "AuthorizationPolicy", "both", spec),
        Edit::Delete {
            kind: "TrafficSplit".into(),
            name: "s".into(),
        },
        shop_route(
            "r",
            json!([{ "name": "shop", "port": 80 }, { "name": "next", "port": 81 }]),
        ),
    ]);
    assert_eq!(
        listed(&index),
        [
            "AuthorizationPolicy/both: allows (shop:80)",
            "AuthorizationPolicy/both: does not match: port 81 not listed (next:81)",
        ]
    );
}

#[test]
fn raw_tcp_gets_no_status() {
    let mut index = mesh_of_three();
    let answer = ask(&index, "client", "db", "", "");
    assert_eq!(
        answer.reason,
        "no policy is about this destination: denied, the connection is reset"
    );
    let spec = json!({ "targetRefs": [{ "name": "db" }], "action": "Deny", "rules": [{}] });
    index.apply([object(
        "tulle.dev/v1alpha1",
        "AuthorizationPolicy",
        "no",
        spec,
    )]);
    let answer = ask(&index, "client", "db", "", "");
    assert_eq!(
        answer.reason,
        "AuthorizationPolicy/no denies it: the connection is reset"
    );
}

#[test]
fn the_route_that_loses_is_named() {
    let mut index = mesh_of_three();
    index.apply([
        allow("all", &["shop", "next"]),
        shop_route("first", json!([{ "name": "shop", "port": 80 }])),
        shop_route("second", json!([{ "name": "next", "port": 80 }])),
    ]);
    let answer = ask(&index, "client", "shop", "GET", "/");
    assert_eq!(answer.route, "HTTPRoute/first");
    assert_eq!(
        answer.conflicts,
        ["HTTPRoute/second rules[0] matches as well and comes later, so it does not act"]
    );
    // A route that is less specific is no conflict.
    let parent = json!({ "group": "", "kind": "Service", "name": "shop" });
    let matches = json!([{ "path": { "value": "/new" } }]);
    let backends = json!([{ "name": "next", "port": 80 }]);
    let rules = json!([{ "matches": matches, "backendRefs": backends }]);
    index.apply([route("second", parent, rules)]);
    for path in ["/", "/new"] {
        let answer = ask(&index, "client", "shop", "GET", path);
        assert!(answer.conflicts.is_empty(), "{:?}", answer.conflicts);
    }
}

#[test]
fn conditions_are_judged_for_a_request_without_headers() {
    let why = |action: &str, condition: &str, path: &str| {
        let mut index = mesh_of_three();
        let spec = json!({
            "targetRefs": [{ "name": "shop" }],
            "action": action,
            "rules": [{ "to": { "when": condition } }],
        });
        let policy = object("tulle.dev/v1alpha1", "AuthorizationPolicy", "p", spec);
        index.apply(match action {
            "Deny" => vec![allow("all", &["shop"]), policy],
            _ => vec![policy],
        });
        let answer = ask(&index, "client", "shop", "GET", path);
        let mut rows = answer.considered.into_iter();
        let row = rows.find(|c| c.name == "p").unwrap();
        (answer.allowed, row.outcome)
    };
    let own = "source.service == 'client' && request.path.startsWith('/a')";
    assert_eq!(why("Allow", own, "/a"), (true, "allows".into()));
    assert_eq!(
        why("Allow", own, "/b"),
        (
            false,
            format!("does not match: its condition does not hold (`when: {own}`)")
        )
    );
    let header = "request.headers['x-team'] == 'a'";
    let (allowed, outcome) = why("Allow", header, "/");
    assert!(!allowed && outcome.contains("headers decide"), "{outcome}");
    // A sidecar denies a request without the header, too.
    assert_eq!(why("Deny", header, "/"), (false, "denies".into()));
    let present = "has(request.headers.`x-team`)";
    let (allowed, outcome) = why("Deny", present, "/");
    assert!(allowed && outcome.contains("headers decide"), "{outcome}");
}

/// RateLimits whose regular expressions for the path no rule can have together.
pub(super) fn contradicting(target: &Value) -> [Edit; 3] {
    ["x", "y", "z"].map(|name| {
        let path = json!({ "type": "RegularExpression", "value": format!("/{name}.*") });
        let rule = json!({ "to": { "paths": [path] }, "requests": { "count": 1 } });
        let spec = json!({ "targetRefs": [target], "rules": [rule] });
        object("tulle.dev/v1alpha1", "RateLimit", name, spec)
    })
}

pub(super) const CONTRADICTION: &str = "RateLimit/x and RateLimit/y and RateLimit/z have conditions that no rule can have \
                                        both of (regular expressions for the path): make them one object";

#[test]
fn a_port_that_is_closed_is_denied_with_the_reason() {
    let mut index = mesh_of_three();
    index.apply([allow("all", &["shop", "next"])]);
    assert!(ask(&index, "client", "shop", "GET", "/").allowed);
    index.apply(contradicting(&json!({ "name": "shop" })));
    let why = format!("service/shop: port 80 is closed ({CONTRADICTION})");
    for permissive in [false, true] {
        index.apply([mesh(json!({ "permissiveMode": permissive }))]);
        let answer = ask(&index, "client", "shop", "GET", "/");
        assert!(!answer.allowed, "{answer:?}");
        assert_eq!(answer.policy, why);
        assert_eq!(answer.reason, format!("{why} denies it: answered with 403"));
        let mut rows = answer.considered.iter();
        let closes = |c: &v1::Applied| format!("{}/{}", c.kind, c.name) == why;
        assert!(
            rows.any(|c| closes(c) && c.outcome == "denies"),
            "{answer:?}"
        );
        // The sidecar's denial has the same name.
        let told = policy_of(&index, "shop").rules;
        assert!(told.iter().any(|rule| rule.name == why), "{told:?}");
        assert!(ask(&index, "client", "next", "GET", "/").allowed);
    }
}

/// A mesh with these workloads of `shop`, each with an address and two ports. The ports of a workload have one room: the
/// second has none, although it needs no more than the first.
fn crowded(workloads: &[(&str, &str, [u16; 2])], policy: Option<Edit>) -> Index {
    let mut index = mesh_of_three();
    index.apply(policy);
    for (name, at, ports) in workloads {
        let number = |port: &u16| json!({ "port": port, "appProtocol": "http" });
        let numbers: Vec<Value> = ports.iter().map(number).collect();
        let spec = json!({ "service": "shop", "command": ["x"], "ports": numbers });
        let Edit::Place(mut placed) = place(name, ports[0], at) else {
            panic!("it is a placement");
        };
        let mut second = placed.ports[0].clone();
        second.port = ports[1];
        placed.ports.push(second);
        index.apply([
            object("tulle.dev/v1alpha1", "Workload", name, spec),
            Edit::Place(placed),
        ]);
    }
    let rule = |i: usize| {
        let path = json!({ "type": "Exact", "value": format!("/{i}") });
        json!({ "to": { "paths": [path] }, "requests": { "count": 1 } })
    };
    let rules: Vec<Value> = (0..180).map(rule).collect();
    let shop = json!([{ "name": "shop" }]);
    let source = format!("// {}", "x".repeat(130_000));
    let limit = json!({ "targetRefs": shop, "rules": rules });
    let plugin = json!({ "targetRefs": shop, "source": source });
    index.apply([
        object("tulle.dev/v1alpha1", "RateLimit", "l", limit),
        object("tulle.dev/v1alpha1", "Plugin", "p", plugin),
    ]);
    index
}

/// The question whether `client` may call this port of `shop`.
fn at_shop(port: u32) -> v1::ExplainRequest {
    v1::ExplainRequest {
        from: "client".into(),
        to: "shop".into(),
        port,
        ..Default::default()
    }
}

#[test]
fn a_port_without_room_is_denied_and_the_one_before_it_is_not() {
    let mut index = crowded(&[("shop", "10.0.0.1:15008", [80, 81])], None);
    // It says nothing of calls to the other.
    let unmentioned = index.explain(&at_shop(80)).unwrap();
    let reason = "no policy is about this destination: denied with 403";
    assert_eq!(unmentioned.reason, reason);
    assert!(unmentioned.considered.is_empty(), "{unmentioned:?}");

    index.apply([allow("all", &["shop"])]);
    let first = index.explain(&at_shop(80)).unwrap();
    assert!(first.allowed, "{}", first.reason);
    let second = index.explain(&at_shop(81)).unwrap();
    let why = "service/shop: port 81 is closed (Plugin/p and RateLimit/l make rules of more than ";
    assert!(
        !second.allowed && second.policy.starts_with(why),
        "{}",
        second.reason
    );
    let cure = ": make fewer rules or shorter sources) denies it: answered with 403";
    assert!(second.reason.ends_with(cure), "{}", second.reason);
}

#[test]
fn a_port_that_one_of_several_replicas_closes_is_denied() {
    let replicas = [
        ("shop", "10.0.0.1:15008", [80, 81]),
        ("shop-2", "10.0.0.4:15008", [81, 80]),
    ];
    let index = crowded(&replicas, Some(allow("all", &["shop"])));
    let allows = index.allows();
    for port in [80, 81] {
        let answer = index.explain(&at_shop(port)).unwrap();
        assert!(!answer.allowed, "{port}: {}", answer.reason);
        let why = format!("service/shop: port {port} is closed (");
        assert!(answer.policy.starts_with(&why), "{answer:?}");
        // The same for the first and for a later question.
        assert_eq!(allows(&at_shop(port)), Ok(false), "{port}");
        assert_eq!(allows(&at_shop(port)), Ok(false), "{port}");
    }
}
