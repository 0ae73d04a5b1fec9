//! Plain objects in, resources out.

mod bounds;
mod cluster;
mod entrances;
mod explained;
mod kinds;
mod lengths;
mod pods;
mod repeated;
mod shares;
mod unions;
mod workloads;

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use tulle_api::v1;
use tulle_model::manifest::Object;
use tulle_model::resource::{Gateway, Inbound, PathMatch, Policy, Protocol, Service};

pub(super) fn index() -> Index {
    Index::new(TrustDomain::default())
}

fn object(api: &str, kind: &str, name: &str, spec: Value) -> Edit {
    let manifest = json!({
        "apiVersion": api, "kind": kind, "metadata": { "name": name }, "spec": spec,
    });
    Edit::Put(Box::new(Object::from_json(&manifest.to_string()).unwrap()))
}

fn workload(name: &str, service: &str, port: u16, protocol: Option<&str>) -> Edit {
    let mut port = json!({ "port": port });
    if let Some(protocol) = protocol {
        port["appProtocol"] = protocol.into();
    }
    let spec = json!({ "service": service, "command": ["x"], "ports": [port] });
    object("tulle.dev/v1alpha1", "Workload", name, spec)
}

fn mesh(spec: Value) -> Edit {
    object("tulle.dev/v1alpha1", "Mesh", "mesh", spec)
}

fn target(name: &str, to: &str, from: &[&str], rules: Value) -> Edit {
    let reference = |n: &&str| json!({ "kind": "ServiceAccount", "name": n });
    let spec = json!({
        "destination": reference(&to),
        "sources": from.iter().map(reference).collect::<Vec<_>>(),
        "rules": rules,
    });
    object("access.smi-spec.io/v1alpha3", "TrafficTarget", name, spec)
}

fn group(name: &str, matches: Value) -> Edit {
    let spec = json!({ "matches": matches });
    object("specs.smi-spec.io/v1alpha4", "HTTPRouteGroup", name, spec)
}

fn gateway(name: &str) -> Edit {
    let spec = json!({ "listeners": [
        { "name": "web", "port": 8080, "protocol": "HTTP", "hostname": "shop.example" },
        { "name": "admin", "port": 8081, "protocol": "HTTP" },
    ] });
    object("gateway.networking.k8s.io/v1", "Gateway", name, spec)
}

fn route(name: &str, parent: Value, rules: Value) -> Edit {
    let spec = json!({ "parentRefs": [parent], "rules": rules });
    object("gateway.networking.k8s.io/v1", "HTTPRoute", name, spec)
}

fn place(workload: &str, port: u16, at: &str) -> Edit {
    Edit::Place(Placement {
        not_ready: false,
        workload: workload.into(),
        node: String::new(),
        ports: vec![PlacedPort {
            port,
            endpoint: at.parse().unwrap(),
            target: format!("127.0.0.1:{port}").parse().unwrap(),
            mutual_tls: true,
        }],
        addresses: vec![at.parse::<std::net::SocketAddr>().unwrap().ip()],
    })
}

fn resource(index: &Index, name: &str) -> Resource {
    let entry = index.get(name).unwrap_or_else(|| panic!("no {name}"));
    tulle_api::decode_body(&entry.body).unwrap()
}

fn service(index: &Index, name: &str) -> Service {
    match resource(index, &format!("service/{name}")) {
        Resource::Service(service) => service,
        other => panic!("{other:?}"),
    }
}

fn inbound(index: &Index, name: &str) -> Inbound {
    match resource(index, &format!("inbound/{name}")) {
        Resource::Inbound(inbound) => inbound,
        other => panic!("{other:?}"),
    }
}

fn the_gateway(index: &Index, name: &str) -> Gateway {
    match resource(index, &format!("gateway/{name}")) {
        Resource::Gateway(gateway) => gateway,
        other => panic!("{other:?}"),
    }
}

fn policy_of(index: &Index, name: &str) -> Policy {
    inbound(index, name).policy
}

fn names(changed: &[Changed]) -> Vec<&str> {
    changed.iter().map(|(name, _)| &**name).collect()
}

#[test]
fn replicas_merge_into_one_service() {
    let mut index = index();
    let changed = index.apply([
        workload("r1", "reviews", 9080, Some("http")),
        workload("r2", "reviews", 9080, Some("http")),
        workload("r3", "reviews", 9080, Some("http")),
        place("r1", 9080, "10.0.0.1:15008"),
        place("r2", 9080, "10.0.0.2:15008"),
    ]);
    assert_eq!(
        names(&changed),
        [
            "address/10.0.0.1",
            "address/10.0.0.2",
            "catalog",
            "host/reviews",
            "host/reviews.default",
            "host/reviews.default.svc",
            "host/reviews.default.svc.cluster.local",
            "inbound/r1",
            "inbound/r2",
            "inbound/r3",
            "inbound/reviews",
            "service/reviews",
        ]
    );
    let reviews = service(&index, "reviews");
    assert_eq!(reviews.ports.len(), 1);
    assert_eq!(reviews.ports[0].protocol, Protocol::Http);
    // r3 runs nowhere yet: no endpoint.
    let at: Vec<String> = reviews.ports[0]
        .endpoints
        .iter()
        .map(|e| e.address.to_string())
        .collect();
    assert_eq!(at, ["10.0.0.1:15008", "10.0.0.2:15008"]);
    assert_eq!(
        reviews.identities,
        [SpiffeId::parse("spiffe://tulle.local/svc/reviews").unwrap()]
    );
    assert_eq!(
        resource(&index, "address/10.0.0.1"),
        Resource::Alias("reviews".into())
    );
    let owner = index.get("inbound/r1").unwrap().owner.clone();
    assert_eq!(owner.unwrap().name(), "reviews");
    assert!(index.problems().is_empty(), "{:?}", index.problems());
}

#[test]
fn a_workload_that_leaves_takes_its_part_along() {
    let mut index = index();
    index.apply([
        workload("r1", "reviews", 9080, None),
        workload("r2", "reviews", 9080, None),
        place("r1", 9080, "10.0.0.1:1"),
        place("r2", 9080, "10.0.0.2:1"),
    ]);
    let changed = index.apply([Edit::Unplace {
        workload: "r1".into(),
    }]);
    assert_eq!(
        names(&changed),
        [
            "address/10.0.0.1",
            "inbound/r1",
            "inbound/reviews",
            "service/reviews"
        ]
    );
    assert!(changed[0].1.is_none());
    let delete = |name: &str| Edit::Delete {
        kind: "Workload".into(),
        name: name.into(),
    };
    index.apply([delete("r1"), delete("r2")]);
    assert_eq!(names(&all(&index)), ["catalog", "mesh"]);
}

fn all(index: &Index) -> Vec<Changed> {
    let mut all: Vec<Changed> = index
        .entries()
        .map(|(n, e)| (n.clone(), Some(e.clone())))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn an_edit_that_changes_nothing_changes_nothing() {
    let mut index = index();
    index.apply([workload("a", "a", 80, None), place("a", 80, "10.0.0.1:1")]);
    assert!(
        index
            .apply([workload("a", "a", 80, None), place("a", 80, "10.0.0.1:1")])
            .is_empty()
    );
}

#[test]
fn a_workload_that_moves_to_another_service_leaves_the_first() {
    let mut index = index();
    index.apply([workload("w", "a", 80, None), place("w", 80, "10.0.0.1:1")]);
    let changed = index.apply([workload("w", "b", 80, None)]);
    assert_eq!(
        names(&changed),
        [
            "address/10.0.0.1",
            "catalog",
            "host/a",
            "host/a.default",
            "host/a.default.svc",
            "host/a.default.svc.cluster.local",
            "host/b",
            "host/b.default",
            "host/b.default.svc",
            "host/b.default.svc.cluster.local",
            "inbound/a",
            "inbound/b",
            "inbound/w",
            "service/a",
            "service/b"
        ]
    );
    assert!(index.get("service/a").is_none());
    assert_eq!(service(&index, "b").ports[0].endpoints.len(), 1);
}

#[test]
fn protocols_come_from_the_manifest_then_from_well_known_ports() {
    let mut index = index();
    index.apply([
        workload("a", "a", 80, Some("grpc")),
        workload("b", "b", 3306, None),
        workload("c", "c", 3306, Some("http")),
        workload("d", "d", 80, None),
    ]);
    for (name, protocol) in [
        ("a", Protocol::Grpc),
        ("b", Protocol::Tcp),
        ("c", Protocol::Http),
        ("d", Protocol::Detect),
    ] {
        assert_eq!(service(&index, name).ports[0].protocol, protocol, "{name}");
    }
    // The number is no reason for the server's own sidecar to leave requests unread.
    index.apply([place("b", 3306, "10.0.0.2:3306")]);
    assert_eq!(inbound(&index, "b").ports[0].protocol, Protocol::Detect);
}

#[test]
fn replicas_that_disagree_about_a_port_are_reported() {
    let mut index = index();
    index.apply([
        workload("a1", "a", 80, Some("http")),
        workload("a2", "a", 80, Some("tcp")),
    ]);
    assert_eq!(service(&index, "a").ports[0].protocol, Protocol::Http);
    let problems = index.problems();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].text.contains("port 80"), "{}", problems[0]);
}

#[test]
fn the_mesh_reaches_everyone() {
    let mut index = index();
    index.apply([workload("a", "a", 80, None)]);
    let changed = index.apply([mesh(json!({
        "trustDomain": "shop.example",
        "permissiveMode": true,
        "timeouts": { "request": "1m30s" },
    }))]);
    assert_eq!(names(&changed), ["inbound/a", "mesh", "service/a"]);
    let Resource::Mesh(settings) = resource(&index, "mesh") else {
        panic!("no settings");
    };
    assert_eq!(settings.request_timeout_ms, 90_000);
    assert_eq!(settings.trust_domain.as_str(), "shop.example");
    assert!(policy_of(&index, "a").permissive);
    let id = &service(&index, "a").identities[0];
    assert_eq!(id.as_str(), "spiffe://shop.example/svc/a");
}

#[test]
fn targets_become_rules_of_their_destination_only() {
    let mut index = index();
    index.apply([
        workload("a", "a", 80, None),
        workload("b", "b", 80, None),
        group(
            "g",
            json!([
                { "name": "read", "methods": ["GET"], "pathRegex": "/ratings/.*" },
                { "name": "write", "methods": ["POST"], "headers": { "X-Role": "admin" } },
            ]),
        ),
    ]);
    let rules = json!([{ "kind": "HTTPRouteGroup", "name": "g", "matches": ["write"] }]);
    let changed = index.apply([target("t", "a", &["b", "c"], rules)]);
    assert_eq!(names(&changed), ["inbound/a"]);
    let policy = policy_of(&index, "a");
    assert!(!policy.permissive);
    let rule = &policy.rules[0];
    assert_eq!(rule.name, "TrafficTarget/t");
    assert_eq!(rule.sources[1].as_str(), "spiffe://tulle.local/svc/c");
    assert_eq!(rule.matches.len(), 1);
    assert_eq!(rule.matches[0].name, "write");
    assert_eq!(rule.matches[0].headers["x-role"], "admin");
    // A change of the group reaches the destination too.
    let changed = index.apply([group("g", json!([{ "name": "write", "methods": ["PUT"] }]))]);
    assert_eq!(names(&changed), ["inbound/a"]);
}

#[test]
fn what_dangles_allows_nothing() {
    let to_g = json!([{ "kind": "HTTPRouteGroup", "name": "g" }]);
    let to_match = json!([{ "kind": "HTTPRouteGroup", "name": "g", "matches": ["gone"] }]);
    for (rules, groups) in [
        (to_g, vec![]),
        (
            to_match,
            vec![group("g", json!([{ "name": "read", "methods": ["GET"] }]))],
        ),
    ] {
        let mut index = index();
        index.apply(groups);
        index.apply([
            workload("a", "a", 80, None),
            target("t", "a", &["b"], rules),
        ]);
        assert!(policy_of(&index, "a").rules.is_empty());
        assert!(
            index
                .problems()
                .iter()
                .any(|p| p.object == "TrafficTarget/t"),
            "{:?}",
            index.problems()
        );
    }
    // One good rule beside a dangling one still counts, and only it.
    let mut index = index();
    index.apply([
        workload("a", "a", 80, None),
        group("g", json!([{ "name": "read", "methods": ["GET"] }])),
        target(
            "t",
            "a",
            &["b"],
            json!([
                { "kind": "HTTPRouteGroup", "name": "gone" },
                { "kind": "HTTPRouteGroup", "name": "g" },
            ]),
        ),
    ]);
    let rules = policy_of(&index, "a").rules;
    assert_eq!((rules.len(), rules[0].matches.len()), (1, 1));
    // Deleting the group closes the door.
    index.apply([Edit::Delete {
        kind: "HTTPRouteGroup".into(),
        name: "g".into(),
    }]);
    assert!(policy_of(&index, "a").rules.is_empty());
}

#[test]
fn routes_attach_to_gateways_listeners_and_services() {
    let mut index = index();
    let rules = json!([{
        "matches": [{
            "path": { "type": "Exact", "value": "/x" },
            "headers": [{ "name": "X-User", "value": "j.*", "type": "RegularExpression" }],
        }],
        "backendRefs": [{ "name": "a", "port": 80, "weight": 9 }, { "name": "b", "port": 80 }],
        "timeouts": { "request": "2s" },
    }]);
    index.apply([
        gateway("edge"),
        workload("a", "a", 80, None),
        workload("b", "b", 80, None),
        route("all", json!({ "name": "edge" }), rules.clone()),
        route(
            "one",
            json!({ "name": "edge", "sectionName": "admin" }),
            rules.clone(),
        ),
        route(
            "none",
            json!({ "name": "edge", "sectionName": "gone" }),
            rules.clone(),
        ),
        route(
            "mesh",
            json!({ "group": "", "kind": "Service", "name": "a", "port": 80 }),
            rules,
        ),
    ]);
    let edge = the_gateway(&index, "edge");
    assert_eq!(edge.listeners[0].hostname, "shop.example");
    let ports: Vec<_> = edge.routes.iter().map(|r| (&*r.name, r.port)).collect();
    assert_eq!(ports, [("all", 0), ("one", 8081)]);
    let rule = &edge.routes[0].rules[0];
    assert_eq!(rule.matches[0].path, PathMatch::Exact("/x".into()));
    assert_eq!(rule.matches[0].headers[0].name, "x-user");
    assert!(rule.matches[0].headers[0].regex);
    assert_eq!(rule.request_timeout_ms, 2000);
    let weights: Vec<u32> = rule.backends.iter().map(|b| b.weight).collect();
    assert_eq!(weights, [9, 1]);
    let owner = index.get("gateway/edge").unwrap().owner.clone();
    assert_eq!(owner.unwrap().as_str(), "spiffe://tulle.local/svc/edge");
    let routes = service(&index, "a").routes;
    assert_eq!((routes.len(), routes[0].port), (1, 80));
    let problems = index.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].object, "HTTPRoute/none");
}

#[test]
fn an_address_that_all_share_is_nobodys() {
    let mut index = index();
    index.apply([
        workload("a", "a", 80, None),
        place("a", 80, "127.0.0.1:1"),
        workload("b", "b", 80, None),
        place("b", 80, "[::1]:1"),
    ]);
    assert!(service(&index, "a").addresses.is_empty());
    assert!(service(&index, "b").addresses.is_empty());
    assert_eq!(service(&index, "a").ports[0].endpoints.len(), 1);
}

#[test]
fn an_address_has_one_service() {
    let mut index = index();
    index.apply([
        workload("b", "b", 80, None),
        place("b", 80, "10.0.0.1:2"),
        workload("a", "a", 80, None),
        place("a", 80, "10.0.0.1:1"),
    ]);
    assert_eq!(
        resource(&index, "address/10.0.0.1"),
        Resource::Alias("a".into())
    );
    assert_eq!(index.problems().len(), 1);
    index.apply([Edit::Unplace {
        workload: "a".into(),
    }]);
    assert_eq!(
        resource(&index, "address/10.0.0.1"),
        Resource::Alias("b".into())
    );
}

fn ask(index: &Index, from: &str, to: &str, method: &str, path: &str) -> v1::Explanation {
    let request = v1::ExplainRequest {
        from: from.into(),
        to: to.into(),
        path: path.into(),
        method: method.into(),
        port: 0,
        ..Default::default()
    };
    index.explain(&request).unwrap()
}

fn shop() -> Index {
    let mut index = index();
    index.apply([
        gateway("edge"),
        workload("gateway", "gateway", 80, Some("http")),
        workload("ratings", "ratings", 9080, Some("http")),
        workload("db", "db", 5432, Some("tcp")),
        place("ratings", 9080, "10.0.0.1:15008"),
        group(
            "ratings",
            json!([{ "name": "read", "methods": ["GET"], "pathRegex": "/ratings/.+" }]),
        ),
        target(
            "gateway-to-ratings",
            "ratings",
            &["gateway"],
            json!([{ "kind": "HTTPRouteGroup", "name": "ratings" }]),
        ),
        target(
            "ratings-to-db",
            "db",
            &["ratings"],
            json!([{ "kind": "HTTPRouteGroup", "name": "ratings" }]),
        ),
        target("edge-to-gateway", "gateway", &["edge"], json!([])),
        route(
            "shop",
            json!({ "name": "edge" }),
            json!([
                { "matches": [{ "path": { "value": "/ratings" } }],
                  "backendRefs": [{ "name": "ratings", "port": 9080 }] },
                { "backendRefs": [{ "name": "gateway", "port": 80 }] },
            ]),
        ),
    ]);
    index
}

#[test]
fn explains_who_allows() {
    let index = shop();
    let answer = ask(&index, "gateway", "ratings", "GET", "/ratings/1?x=/y");
    assert!(answer.allowed, "{answer:?}");
    assert_eq!(answer.policy, "TrafficTarget/gateway-to-ratings");
    assert_eq!(answer.source_identity, "spiffe://tulle.local/svc/gateway");
    assert_eq!(
        answer.destination_identities,
        ["spiffe://tulle.local/svc/ratings"]
    );
    assert_eq!(answer.endpoints, ["10.0.0.1:15008"]);
    assert_eq!(answer.mtls, "strict");
    let answer = ask(&index, "edge", "gateway", "GET", "/");
    assert!(
        answer.allowed && answer.route == "HTTPRoute/shop",
        "{answer:?}"
    );
    assert!(answer.reason.contains("no workload"), "{}", answer.reason);
}

#[test]
fn explains_what_leaves_the_mesh() {
    let mut index = shop();
    let outside = |index: &Index, from: &str, to: &str, port| {
        index
            .explain(&v1::ExplainRequest {
                from: from.into(),
                to: to.into(),
                port,
                ..Default::default()
            })
            .unwrap()
    };
    let answer = outside(&index, "gateway", "books.example.com", 0);
    assert!(!answer.allowed, "{answer:?}");
    assert_eq!(
        answer.reason,
        "no Egress lets anyone out, and Mesh spec.allowEgress is false: HTTP is answered with 502, any other \
         connection is reset"
    );
    // An Egress that refers to something absent gives proxies no rule either.
    let dangling = json!({
        "hosts": ["x.test"], "matches": [{ "kind": "HTTPRouteGroup", "name": "absent" }],
    });
    index.apply([object("tulle.dev/v1alpha1", "Egress", "out", dangling)]);
    let answer = outside(&index, "gateway", "books.example.com", 0);
    assert!(answer.reason.contains("502"), "{answer:?}");
    let spec = json!({
        "hosts": ["*.example.com"], "ipAddresses": ["203.0.113.0/24"],
        "ports": [{ "number": 80 }],
        "sources": [{ "kind": "ServiceAccount", "name": "gateway" }],
        "gateway": { "service": "ratings", "port": 9080 },
    });
    index.apply([object("tulle.dev/v1alpha1", "Egress", "out", spec)]);
    let answer = outside(&index, "gateway", "Books.example.com.", 80);
    assert!(answer.allowed, "{answer:?}");
    assert_eq!(answer.policy, "Egress/out");
    assert_eq!(answer.route, "through the egress gateway ratings:9080");
    assert_eq!(answer.limits, ["the address must be in 203.0.113.0/24"]);
    for (from, to, port, why) in [
        ("ratings", "books.example.com", 80, "source not listed"),
        ("gateway", "example.com", 80, "host example.com not listed"),
        ("gateway", "books.example.com", 81, "port 81 not listed"),
        ("gateway", "203.0.113.1", 80, "host 203.0.113.1 not listed"),
    ] {
        let answer = outside(&index, from, to, port);
        assert!(!answer.allowed, "{answer:?}");
        assert_eq!(
            answer.reason,
            "no Egress lets it out: HTTP is denied with 403, any other connection is reset"
        );
        let outcome = &answer.considered[0].outcome;
        assert!(outcome.contains(why), "{outcome:?} lacks {why:?}");
    }
    // A method or a path says that it is HTTP.
    for (method, path) in [("GET", "/novels"), ("POST", "")] {
        let asked = v1::ExplainRequest {
            from: "ratings".into(),
            to: "books.example.com".into(),
            method: method.into(),
            path: path.into(),
            ..Default::default()
        };
        let answer = index.explain(&asked).unwrap();
        assert_eq!(answer.reason, "no Egress lets it out: denied with 403");
    }
}

#[test]
fn explains_why_not() {
    let index = shop();
    for (from, to, method, path, why) in [
        ("edge", "ratings", "GET", "/ratings/1", "source not listed"),
        ("gateway", "ratings", "POST", "/ratings/1", "method POST"),
        // Regular expressions hold for the whole path.
        (
            "gateway",
            "ratings",
            "GET",
            "/x/ratings/1",
            "path /x/ratings/1",
        ),
        ("gateway", "ratings", "GET", "/ratings/", "path /ratings/"),
        ("gateway", "ratings", "CONNECT", "/", "a tunnel needs"),
        ("ratings", "db", "GET", "/ratings/1", "raw TCP"),
    ] {
        let refused = if to == "db" { "is reset" } else { "403" };
        let answer = ask(&index, from, to, method, path);
        assert!(!answer.allowed && answer.policy.is_empty(), "{answer:?}");
        let outcome = &answer.considered[0].outcome;
        assert!(outcome.contains(why), "{outcome:?} lacks {why:?}");
        assert!(answer.reason.contains(refused), "{}", answer.reason);
    }
    // The gateway's route leads elsewhere.
    let answer = ask(&index, "edge", "gateway", "GET", "/ratings/1");
    assert!(!answer.allowed);
    assert!(
        answer.reason.contains("to ratings, not to gateway"),
        "{}",
        answer.reason
    );
    // A port of its own.
    let request = v1::ExplainRequest {
        from: "gateway".into(),
        to: "ratings".into(),
        port: 1,
        ..Default::default()
    };
    let error = index.explain(&request).unwrap_err();
    assert!(error.to_string().contains("[9080]"), "{error}");
    let request = v1::ExplainRequest {
        from: "nobody".into(),
        ..request
    };
    assert!(matches!(
        index.explain(&request),
        Err(ExplainError::UnknownSource(_))
    ));
}

#[test]
fn explains_permissive_mode_and_strangers() {
    let mut index = shop();
    index.apply([mesh(json!({ "permissiveMode": true }))]);
    let answer = ask(&index, "edge", "ratings", "GET", "/ratings/1");
    assert!(answer.allowed);
    assert_eq!(answer.policy, "Mesh/permissiveMode");
    let answer = ask(&index, "spiffe://other/svc/gateway", "ratings", "GET", "/");
    assert!(!answer.allowed);
    assert!(answer.reason.contains("trust domain"), "{}", answer.reason);
}

/// A small world of edits, most of which collide.
fn some_edit() -> impl Strategy<Value = Edit> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        (name(), name(), any::<bool>())
            .prop_map(|(w, s, tcp)| { workload(w, s, 80, tcp.then_some("tcp")) }),
        (name(), 1..3u8).prop_map(|(w, ip)| place(w, 80, &format!("10.0.0.{ip}:1"))),
        name().prop_map(|w| Edit::Unplace { workload: w.into() }),
        (name(), name(), name()).prop_map(|(t, to, g)| {
            target(
                t,
                to,
                &["a"],
                json!([{ "kind": "HTTPRouteGroup", "name": g }]),
            )
        }),
        (name(), any::<bool>()).prop_map(|(g, get)| {
            let method = if get { "GET" } else { "POST" };
            group(g, json!([{ "name": "m", "methods": [method] }]))
        }),
        name().prop_map(gateway),
        (name(), name(), any::<bool>()).prop_map(|(r, parent, to_service)| {
            let parent = match to_service {
                true => json!({ "group": "", "kind": "Service", "name": parent }),
                false => json!({ "name": parent }),
            };
            let rules = json!([{ "backendRefs": [{ "name": "a", "port": 80 }] }]);
            route(r, parent, rules)
        }),
        any::<bool>().prop_map(|permissive| mesh(json!({ "permissiveMode": permissive }))),
        kinds::some_edit(),
        (
            prop::sample::select(vec![
                "Workload",
                "Gateway",
                "HTTPRoute",
                "TrafficTarget",
                "HTTPRouteGroup",
                "TCPRoute.specs.smi-spec.io",
                "GRPCRoute",
                "TLSRoute",
                "TrafficSplit",
                "TrafficPolicy",
                "RateLimit",
                "AuthorizationPolicy",
                "Authentication",
                "Plugin",
                "IngressBackend",
                "HTTPFilter",
                "Egress",
                "Secret",
                "ConfigMap"
            ]),
            name()
        )
            .prop_map(|(kind, name)| Edit::Delete {
                kind: kind.into(),
                name: name.into()
            }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Recomputing only what an edit touches gives the same result as recomputing everything. The
    /// names reported as changed are exactly those that changed.
    #[test]
    fn incremental_is_the_same_as_from_scratch(edits in prop::collection::vec(some_edit(), 1..40)) {
        let mut index = index();
        let mut seen: BTreeMap<Arc<str>, Option<EncodedResource>> = all(&index).into_iter().collect();
        for edit in edits {
            for (name, entry) in index.apply([edit]) {
                let old = seen.insert(name.clone(), entry.clone());
                prop_assert_ne!(old.flatten(), entry, "{} did not change", name);
            }
        }
        seen.retain(|_, entry| entry.is_some());
        prop_assert_eq!(&seen.into_iter().collect::<Vec<_>>(), &all(&index));
        let mut dirty = BTreeSet::new();
        dependents::all(index.inputs(), &mut dirty);
        let changed = index.recompute(dirty);
        prop_assert!(changed.is_empty(), "{:?}", names(&changed));
    }
}

/// Prints the cost of a change in a large mesh; it does not judge.
#[test]
fn scale() {
    use std::time::Instant;
    let mut edits = vec![];
    for s in 0..1000 {
        let name = format!("s{s}");
        edits.push(target(&name, &name, &["s0", "s1"], json!([])));
        for r in 0..10 {
            let replica = format!("s{s}-{r}");
            edits.push(workload(&replica, &name, 80, Some("http")));
            let at = format!("10.{}.{}.{}:80", s / 250, s % 250, r);
            edits.push(place(&replica, 80, &at));
        }
    }
    let mut index = index();
    let begin = Instant::now();
    index.apply(edits);
    println!(
        "1,000 services x 10 endpoints from nothing: {:?}",
        begin.elapsed()
    );
    let timed = |index: &mut Index, edit: Edit| {
        let begin = Instant::now();
        let changed = index.apply([edit]).len();
        (begin.elapsed(), changed)
    };
    let (one, _) = timed(&mut index, place("s7-3", 80, "10.9.9.9:80"));
    println!("one placement: {one:?}");
    let (one, changed) = timed(&mut index, target("s7", "s7", &["s0"], json!([])));
    assert_eq!(changed, 11);
    println!("one policy: {one:?}");
    let (all, changed) = timed(&mut index, mesh(json!({ "permissiveMode": true })));
    assert!(changed > 10_000);
    println!("the whole mesh ({changed} resources): {all:?}");
    let begin = Instant::now();
    index.problems();
    println!("looking for problems: {:?}", begin.elapsed());
}

#[test]
fn a_workload_that_is_not_ready_is_not_called_but_knows_its_ports() {
    let Edit::Place(ready) = place("a", 80, "10.0.0.1:80") else {
        panic!("no placement")
    };
    let starting = Placement {
        not_ready: true,
        ..ready.clone()
    };
    let mut index = index();
    index.apply([workload("a", "a", 80, None), Edit::Place(starting)]);
    assert!(service(&index, "a").ports[0].endpoints.is_empty());
    assert_eq!(inbound(&index, "a").ports.len(), 1);
    index.apply([Edit::Place(ready)]);
    assert_eq!(service(&index, "a").ports[0].endpoints.len(), 1);
}

#[test]
fn the_catalog_names_every_service_and_changes_with_them_alone() {
    let mut index = index();
    let catalog = |index: &Index| resource(index, "catalog");
    assert_eq!(catalog(&index), Resource::Catalog(Vec::new()));
    index.apply([workload("b", "b", 80, None), workload("a1", "a", 80, None)]);
    let both = Resource::Catalog(vec!["a".into(), "b".into()]);
    assert_eq!(catalog(&index), both);
    let changed = index.apply([place("b", 80, "10.0.0.1:1"), workload("a2", "a", 80, None)]);
    assert!(
        !names(&changed).contains(&"catalog"),
        "{:?}",
        names(&changed)
    );
    assert!(index.get("catalog").is_some_and(|e| e.owner.is_none()));
}
