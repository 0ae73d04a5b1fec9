//! Services of one pod: the demands of each hold, in every order of names and arrivals. The property of random
//! limits is in `tests/properties/unions.rs`.

use super::bounds::{TULLE, a_pod, a_service, object_of, of_shop};
use super::cluster::cluster;
use super::*;
use std::collections::BTreeSet;
use tulle_model::resource::{Action, Filter, InboundPort, PathMatch};

fn permutations<T: Clone>(all: &[T]) -> Vec<Vec<T>> {
    if all.is_empty() {
        return vec![Vec::new()];
    }
    let each = all.iter().enumerate().flat_map(|(i, first)| {
        let mut rest = all.to_vec();
        rest.remove(i);
        let rest = permutations(&rest).into_iter();
        rest.map(move |rest| [vec![first.clone()], rest].concat())
    });
    each.collect()
}

/// A Service of port 80 that leads to port 8080 of web-1.shop.
pub(super) fn leading(name: &str, protocol: Option<&str>) -> Edit {
    Edit::Service(Box::new(a_service(
        &format!("{name}.shop"),
        &[],
        &[(80, protocol, 8080)],
        &[("10.244.0.5", Some("web-1"))],
    )))
}

pub(super) fn the_pod() -> Edit {
    Edit::Pod(Box::new(a_pod("web-1.shop", "web", "10.244.0.5", &[8080])))
}

pub(super) fn about(service: &str) -> Value {
    json!([{ "kind": "Service", "name": service }])
}

pub(super) fn port(index: &Index) -> InboundPort {
    let mut ports = inbound(index, "web-1.shop").ports;
    let at = ports.iter().position(|p| p.port == 8080).unwrap();
    ports.remove(at)
}

/// Names of the rules that deny everybody.
pub(super) fn closed(index: &Index) -> Vec<String> {
    let rules = inbound(index, "web-1.shop").policy.rules.into_iter();
    let closing = rules.filter(|r| r.action == Action::Deny && r.any_identity);
    closing.map(|r| r.name).collect()
}

/// Kinds of filters in the last rule, the one for all other requests.
fn kinds(index: &Index) -> BTreeSet<&'static str> {
    let port = port(index);
    let last = port.rules.last().map(|r| r.filters.clone());
    let mut kinds: BTreeSet<_> = last
        .into_iter()
        .flatten()
        .map(|filter| match filter {
            Filter::RateLimit(_) => "limit",
            Filter::ExternalAuth(_) => "asks",
            Filter::Jwt(_) => "token",
            _ => "other",
        })
        .collect();
    if port.connection_limit.is_some() {
        kinds.insert("connections");
    }
    kinds
}

/// A demand of its own for each of four services.
fn demand(which: usize, name: &str, service: &str) -> Edit {
    let refs = about(service);
    match which {
        0 => of_shop(
            "Authentication",
            name,
            json!({ "targetRefs": refs, "jwt": { "providers": [{ "issuer": "i", "jwks": JWKS }] } }),
        ),
        1 => of_shop(
            "RateLimit",
            name,
            json!({ "targetRefs": refs, "requests": { "count": 7 } }),
        ),
        2 => of_shop(
            "RateLimit",
            name,
            json!({ "targetRefs": refs, "connections": { "count": 7 } }),
        ),
        _ => of_shop(
            "Authentication",
            name,
            json!({
                "targetRefs": refs,
                "externalAuth": { "backendRef": { "name": "a", "port": 80 }, "protocol": "HTTP" },
            }),
        ),
    }
}

pub(super) const JWKS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

#[test]
fn the_demands_of_all_services_hold_in_every_order() {
    let names = ["a", "b", "c", "d"];
    let all = BTreeSet::from(["token", "limit", "connections", "asks"]);
    for services in permutations(&names) {
        for arrival in permutations(&[0, 1, 2, 3]) {
            let mut index = cluster();
            index.apply([the_pod()]);
            for which in arrival {
                index.apply([
                    demand(which, names[3 - which], services[which]),
                    leading(services[which], Some("http")),
                ]);
            }
            assert_eq!(kinds(&index), all, "{services:?}");
            assert!(closed(&index).is_empty());
        }
    }
}

/// A RateLimit about some requests does not switch off another one about them.
#[test]
fn limits_of_some_requests_hold_together() {
    for names in permutations(&["l", "m"]) {
        let mut index = cluster();
        let limit = |name: &str, service: &str, to: Value, count: u32| {
            let rules = json!([{ "to": to, "requests": { "count": count } }]);
            of_shop(
                "RateLimit",
                name,
                json!({ "targetRefs": about(service), "rules": rules }),
            )
        };
        index.apply([
            the_pod(),
            leading("a", Some("http")),
            leading("b", Some("http")),
            limit(names[0], "a", json!({ "methods": ["POST"] }), 1),
            limit(
                names[1],
                "b",
                json!({ "paths": [{ "value": "/login" }] }),
                2,
            ),
            demand(0, "token", "b"),
        ]);
        let held: BTreeSet<_> = port(&index)
            .rules
            .iter()
            .map(|rule| {
                let conditions = rule
                    .matches
                    .iter()
                    .map(|m| (m.methods.len(), m.path.is_some()));
                let limits = rule.filters.iter().filter_map(|f| match f {
                    Filter::RateLimit(limit) => Some(limit.tokens),
                    _ => None,
                });
                let mut limits: Vec<u32> = limits.collect();
                limits.sort_unstable();
                let token = rule.filters.iter().any(|f| matches!(f, Filter::Jwt(_)));
                (conditions.collect::<Vec<_>>(), limits, token)
            })
            .collect();
        let wanted = [
            (vec![(1, true)], vec![1, 2], true),
            (vec![(1, false)], vec![1], true),
            (vec![(0, true)], vec![2], true),
            (vec![], vec![], true),
        ];
        assert_eq!(held, BTreeSet::from(wanted));
    }
}

/// Two limits of which one overlooks letter case: no request escapes either.
#[test]
fn limits_in_any_letter_case_hold_with_others() {
    for names in permutations(&["l", "m"]) {
        let mut index = cluster();
        let limit = |name: &str, path: &str, ignore: bool, count: u32| {
            let rules = json!([{
                "to": { "paths": [{ "value": path }] }, "requests": { "count": count },
                "ignoreCase": ignore,
            }]);
            of_shop(
                "RateLimit",
                name,
                json!({ "targetRefs": about("a"), "rules": rules }),
            )
        };
        index.apply([
            the_pod(),
            leading("a", Some("http")),
            limit(names[0], "/API", true, 1),
            limit(names[1], "/api/v1", false, 2),
        ]);
        let held = port(&index).rules.into_iter().map(|rule| {
            let only = rule.matches.into_iter().next().unwrap();
            let Some(PathMatch::Prefix(path)) = only.path else {
                panic!("{only:?}");
            };
            (path, only.ignore_case, rule.filters.len())
        });
        let wanted = [
            ("/api/v1".to_owned(), true, 2),
            ("/API".to_owned(), true, 1),
            ("/api/v1".to_owned(), false, 1),
        ];
        assert_eq!(held.collect::<BTreeSet<_>>(), BTreeSet::from(wanted));
    }
}

#[test]
fn services_that_say_different_things_of_a_port_close_it() {
    for (one, other, closes) in [
        (Some("http"), Some("tcp"), true),
        (Some("grpc"), Some("tls"), true),
        (Some("http"), None, false),
        (None, Some("tcp"), false),
        (Some("http"), Some("grpc"), false),
        (Some("tcp"), Some("tls"), false),
    ] {
        let mut seen = BTreeSet::new();
        for names in permutations(&["a", "b"]) {
            let mut index = cluster();
            index.apply([
                the_pod(),
                leading(names[0], one),
                leading(names[1], other),
                mesh(json!({ "permissiveMode": true })),
            ]);
            assert_eq!(
                closed(&index).len(),
                usize::from(closes),
                "{one:?} {other:?}"
            );
            let problems = index.problems();
            assert_eq!(problems.len(), usize::from(closes), "{problems:?}");
            seen.insert(format!("{:?}", port(&index).protocol));
            let asked = v1::ExplainRequest {
                from: "spiffe://tulle.local/ns/shop/sa/web".into(),
                to: "a.shop".into(),
                ..Default::default()
            };
            let answer = index.explain(&asked).unwrap();
            assert_eq!(answer.allowed, !closes, "{}", answer.reason);
            if closes {
                let why = "service/a.shop: port 8080 is closed (";
                assert!(answer.policy.starts_with(why), "{}", answer.policy);
            }
        }
        assert_eq!(seen.len(), 1, "{one:?} {other:?}: {seen:?}");
    }
}

#[test]
fn a_pod_says_that_a_port_is_opaque() {
    let says = |protocol: Option<&str>| {
        let mut index = cluster();
        let pod = ClusterPod {
            opaque: vec![8080, 9000],
            ..a_pod("web-1.shop", "web", "10.244.0.5", &[8080])
        };
        let mesh = mesh(json!({ "permissiveMode": true }));
        index.apply([Edit::Pod(Box::new(pod)), leading("a", protocol), mesh]);
        index
    };
    for (protocol, expected) in [
        (None, Protocol::Tcp),
        (Some("tcp"), Protocol::Tcp),
        (Some("tls"), Protocol::Tls),
    ] {
        let index = says(protocol);
        assert_eq!(port(&index).protocol, expected, "{protocol:?}");
        assert!(closed(&index).is_empty(), "{protocol:?}");
        let mut ports = inbound(&index, "web-1.shop").ports.into_iter();
        // No container declares it.
        assert!(ports.any(|p| p.port == 9000 && p.protocol == Protocol::Tcp));
        // Callers of the Service go by what the Service says.
        let service = service(&index, "a.shop");
        assert_eq!(service.ports[0].protocol.is_opaque(), protocol.is_some());
    }
    // Nothing passes unread that the Service wants read.
    let index = says(Some("http"));
    assert_eq!(port(&index).protocol, Protocol::Http);
    let closed = closed(&index);
    assert!(
        closed.len() == 1 && closed[0].contains("opaque-ports"),
        "{closed:?}"
    );
}

#[test]
fn tokens_that_no_request_can_have_close_the_port() {
    let tokens = |name: &str, service: &str, provider: Value| {
        let mut provider = provider;
        provider["jwks"] = JWKS.into();
        let jwt = json!({ "providers": [provider] });
        of_shop(
            "Authentication",
            name,
            json!({ "targetRefs": about(service), "jwt": jwt }),
        )
    };
    let with = |one: Value, other: Value| {
        let mut index = cluster();
        index.apply([
            the_pod(),
            leading("a", Some("http")),
            leading("b", Some("http")),
            tokens("one", "a", one),
            tokens("two", "b", other),
        ]);
        index
    };
    let forwarded = |index: &Index| -> Vec<bool> {
        let port = port(index);
        let filters = port.rules[0].filters.iter();
        let forward = |f: &Filter| match f {
            Filter::Jwt(jwt) => jwt.providers[0].forward,
            other => panic!("{other:?}"),
        };
        filters.map(forward).collect()
    };
    let (i, j) = (json!({ "issuer": "i" }), json!({ "issuer": "j" }));
    assert_eq!(closed(&with(i.clone(), j.clone())).len(), 1);
    let beside = json!({ "issuer": "j", "header": "x-token" });
    let index = with(i.clone(), beside);
    assert_eq!(
        (closed(&index).len(), forwarded(&index)),
        (0, vec![false; 2])
    );
    // The second must see what the first has checked; it goes on only if both say so.
    let keeps = json!({ "issuer": "i", "forward": true });
    for (one, other, forward) in [
        (&i, &i, [true, false]),
        (&keeps, &i, [true, false]),
        (&i, &keeps, [true, false]),
        (&keeps, &keeps, [true, true]),
    ] {
        let index = with(one.clone(), other.clone());
        assert_eq!(
            (closed(&index).len(), forwarded(&index)),
            (0, forward.to_vec())
        );
    }
}

/// Slices that somebody writes may lead from one port of a Service to several ports of a pod.
#[test]
fn a_demand_holds_on_every_port_that_its_service_leads_to() {
    let Edit::Service(mut service) = leading("a", Some("http")) else {
        panic!("it is a Service");
    };
    let endpoints = &mut service.ports[0].endpoints;
    let mut second = endpoints[0].clone();
    second.address.set_port(9000);
    endpoints.push(second);
    let mut index = cluster();
    index.apply([
        the_pod(),
        Edit::Service(service),
        demand(0, "token", "a"),
        allow("p", "a", &[80]),
    ]);
    let told = inbound(&index, "web-1.shop");
    for number in [8080, 9000] {
        let port = told.ports.iter().find(|p| p.port == number).unwrap();
        assert_eq!(
            (port.rules.len(), port.protocol),
            (1, Protocol::Http),
            "{number}"
        );
    }
    assert_eq!(open(&index), [8080, 9000]);
}

/// A bucket for all gives no more than any of them.
#[test]
fn of_connections_the_smallest_and_slowest_count() {
    for names in permutations(&["a", "b", "c"]) {
        let mut index = cluster();
        index.apply([the_pod(), leading("a", None)]);
        let limits = [
            json!({ "count": 10, "per": "1s", "burst": 5 }),
            json!({ "count": 100, "per": "1m" }),
            json!({ "count": 50, "per": "1s" }),
        ];
        for (name, connections) in names.iter().zip(limits) {
            let spec = json!({ "targetRefs": about("a"), "connections": connections });
            index.apply([of_shop("RateLimit", name, spec)]);
        }
        let limit = port(&index).connection_limit.unwrap();
        assert_eq!((limit.tokens, limit.per_ms, limit.burst), (15, 9000, 0));
        let name = "RateLimit/a.shop and RateLimit/b.shop and RateLimit/c.shop";
        assert_eq!(limit.name, name);
    }
}

fn allow(name: &str, service: &str, ports: &[u16]) -> Edit {
    let mut rule = json!({ "from": { "serviceAccounts": ["front"] } });
    if !ports.is_empty() {
        rule["to"] = json!({ "ports": ports });
    }
    let spec = json!({ "targetRefs": about(service), "rules": [rule] });
    of_shop("AuthorizationPolicy", name, spec)
}

/// The ports of the pod that a rule opens.
fn open(index: &Index) -> Vec<u16> {
    let inbound = inbound(index, "web-1.shop");
    let opens = |port: u16| {
        let mut rules = inbound.policy.rules.iter();
        rules.any(|r| r.ports.is_empty() || r.ports.contains(&port))
    };
    let ports = inbound.ports.iter().map(|p| p.port);
    ports.filter(|port| opens(*port)).collect()
}

#[test]
fn a_rule_names_ports_of_its_service_and_opens_no_others() {
    let pod = || {
        let pod = a_pod("web-1.shop", "web", "10.244.0.5", &[8080, 9999, 9000]);
        Edit::Pod(Box::new(pod))
    };
    let service = |name: &str, port: u16, own: u16| {
        Edit::Service(Box::new(a_service(
            name,
            &[],
            &[(port, Some("http"), own)],
            &[("10.244.0.5", Some("web-1"))],
        )))
    };
    let with = |policy: Edit| {
        let mut index = cluster();
        index.apply([
            pod(),
            service("web.shop", 9999, 8080),
            service("admin.shop", 90, 9000),
            policy,
        ]);
        // `tulle why` says the same.
        for (service, port, own) in [("web.shop", 9999, 8080), ("admin.shop", 90, 9000)] {
            let asked = v1::ExplainRequest {
                from: "spiffe://tulle.local/ns/shop/sa/front".into(),
                to: service.into(),
                port,
                ..Default::default()
            };
            let answer = index.explain(&asked).unwrap();
            let allows = inbound(&index, "web-1.shop").policy.rules.iter().any(|r| {
                r.action == Action::Allow && (r.ports.is_empty() || r.ports.contains(&own))
            });
            assert_eq!(answer.allowed, allows, "{service}: {}", answer.reason);
        }
        index
    };
    // `web:9999` is 8080, and not what the pod happens to have at 9999.
    assert_eq!(open(&with(allow("p", "web", &[9999]))), [8080]);
    // A rule may name the pod's own number if no service gives that number another meaning.
    assert_eq!(open(&with(allow("p", "web", &[8080]))), [8080]);
    // 90 is admin's, and so is 9000.
    assert_eq!(open(&with(allow("p", "web", &[90]))), [0u16; 0]);
    assert_eq!(open(&with(allow("p", "web", &[9000]))), [0u16; 0]);
    // A policy for all of web opens web's ports and those of no service, and none of admin's.
    assert_eq!(open(&with(allow("p", "web", &[]))), [0, 8080, 9999]);
    // A policy of the account may name any of them.
    let account = |name: &str| json!({ "kind": "ServiceAccount", "name": name });
    for (port, opens) in [(None, vec![0, 8080, 9000, 9999]), (Some(90), vec![9000])] {
        let mut destination = account("web");
        if let Some(port) = port {
            destination["port"] = port.into();
        }
        let spec =
            json!({ "destination": destination, "sources": [account("front")], "rules": [] });
        let api = "access.smi-spec.io/v1alpha3";
        assert_eq!(
            open(&with(object_of("shop", api, "TrafficTarget", "t", spec))),
            opens
        );
    }
    // A rule that denies all of a service denies all of its pods.
    let deny = json!({ "targetRefs": about("web"), "action": "Deny", "rules": [{}] });
    let index = with(object_of("shop", TULLE, "AuthorizationPolicy", "p", deny));
    assert!(
        inbound(&index, "web-1.shop").policy.rules[0]
            .ports
            .is_empty()
    );
    // Without a service the pod's own numbers are all there are.
    let mut index = cluster();
    let spec = json!({
        "destination": { "kind": "ServiceAccount", "name": "web", "port": 9999 },
        "sources": [account("front")], "rules": [],
    });
    let api = "access.smi-spec.io/v1alpha3";
    index.apply([pod(), object_of("shop", api, "TrafficTarget", "t", spec)]);
    assert_eq!(open(&index), [9999]);
}
