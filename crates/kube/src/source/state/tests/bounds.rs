//! A Service and its EndpointSlices make a bounded number of endpoints, however small these objects are.

use super::super::room::{MOST_OF_NAMESPACE, MOST_OF_SERVICE};
use super::*;

/// A headless Service with so many ports, made in the given second.
fn wide(ports: usize, second: u32) -> Service {
    let ports = (0..ports).map(|port| json!({ "name": format!("p{port}"), "port": 1000 + port }));
    from(json!({
        "metadata": { "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z") },
        "spec": { "clusterIPs": ["None"], "ports": ports.collect::<Vec<_>>() },
    }))
}

/// A slice of a Service with these ports and so many endpoints, each meant for a number of zones.
fn full(service: &str, ports: usize, endpoints: usize, zones: usize) -> EndpointSlice {
    let ports = (0..ports).map(|port| json!({ "name": format!("p{port}"), "port": 1000 + port }));
    let zones = (0..zones).map(|zone| json!({ "name": format!("z{zone}") }));
    let zones: Vec<Value> = zones.collect();
    let endpoints = (0..endpoints).map(|number| {
        json!({
            "addresses": [format!("10.1.{}.{}", number / 250, number % 250)],
            "targetRef": { "kind": "Pod", "name": format!("pod-{number}") },
            "hints": { "forZones": zones },
        })
    });
    let endpoints: Vec<Value> = endpoints.collect();
    from(json!({
        "metadata": { "labels": { SERVICE_OF_SLICE: service } },
        "addressType": "IPv4", "ports": ports.collect::<Vec<_>>(), "endpoints": endpoints,
    }))
}

fn see(
    state: &mut State,
    (name, namespace): (&str, &str),
    second: u32,
    ports: usize,
    endpoints: usize,
) {
    let key = named(&format!("{name}.{namespace}"));
    state.service(key.clone(), &wide(ports, second));
    state.slice(key, &full(name, ports, endpoints, 0));
}

/// The number of endpoints of each Service that the index is told of, and the policies that come and go.
fn told(state: &mut State) -> (BTreeMap<String, usize>, Vec<String>) {
    let (mut services, mut policies) = (BTreeMap::new(), Vec::new());
    for edit in state.edits() {
        match edit {
            Edit::Service(service) => {
                let endpoints = service.ports.iter().map(|port| port.endpoints.len());
                services.insert(service.name.to_string(), endpoints.sum());
            }
            Edit::Put(object) => policies.push(format!("+{}", object.id())),
            Edit::Delete { kind, name } => policies.push(format!("-{kind}/{name}")),
            Edit::RemoveService(_) => {}
            other => panic!("{other:?}"),
        }
    }
    (services, policies)
}

const CLOSED: &str = "AuthorizationPolicy/endpointslice/big.evil";

#[test]
fn two_small_objects_make_no_millions_of_endpoints() {
    let mut state = State::default();
    see(&mut state, ("big", "evil"), 0, 5000, 1000);
    see(&mut state, ("web", "shop"), 0, 2, 1000);
    let edits = state.edits();
    let services = edits.iter().filter_map(|edit| match edit {
        Edit::Service(service) => Some(service),
        _ => None,
    });
    let services: Vec<_> = services.collect();
    let [big, web] = &*services else {
        panic!("{}", services.len());
    };
    let numbers = |service: &ClusterService| -> Vec<usize> {
        let ports = service.ports.iter();
        ports.map(|port| port.endpoints.len()).collect()
    };
    // Whole ports are known, and all ports are there.
    let whole = MOST_OF_SERVICE / 1000;
    let expected = (0..5000).map(|port| if port < whole { 1000 } else { 0 });
    assert_eq!(numbers(big), expected.collect::<Vec<_>>());
    assert_eq!(numbers(web), [1000, 1000]);
    // Calls are denied where not all is known, and the reason can be read.
    let closing = edits.iter().find_map(|edit| match edit {
        Edit::Put(object) => Some(object),
        _ => None,
    });
    let Some(Object::AuthorizationPolicy(policy)) = closing.map(|object| &**object) else {
        panic!("{closing:?}");
    };
    assert_eq!(policy.metadata.name, "endpointslice/big.evil");
    assert_eq!(policy.spec.target_refs[0].name, "big.evil");
    assert_eq!(policy.spec.action.as_deref(), Some("Deny"));
    let cuts: Vec<_> = state
        .cuts()
        .map(|(service, cut)| (service.to_string(), cut.text()))
        .collect();
    let [(service, text)] = &*cuts else {
        panic!("{cuts:?}");
    };
    assert_eq!(service, "big.evil");
    let expected = "its ports have 5000000 endpoints, and 50000 of them are known: a Service may have 50000, all";
    assert!(text.starts_with(expected), "{text}");
    assert!(state.cuts_changed() && !state.cuts_changed());
    // With fewer ports it is a Service as any other.
    state.service(named("big.evil"), &wide(3, 0));
    let (services, policies) = told(&mut state);
    assert_eq!(services, [("big.evil".to_owned(), 3000)].into());
    assert_eq!(policies, [format!("-{CLOSED}")]);
    assert!(state.cuts_changed() && state.cuts().next().is_none());
}

#[test]
fn of_too_many_services_of_a_namespace_the_older_ones_are_whole() {
    let mut state = State::default();
    let (services, of_each) = (4, MOST_OF_SERVICE - 1000);
    // The first by its name came last.
    for number in 0..services {
        let name = format!("s{number}");
        see(
            &mut state,
            (&name, "shop"),
            9 - number,
            of_each / 1000,
            1000,
        );
    }
    let (first, policies) = told(&mut state);
    assert_eq!(first.values().sum::<usize>(), MOST_OF_NAMESPACE);
    assert!(first["s0.shop"] < of_each && first["s1.shop"] == of_each);
    let closed = "AuthorizationPolicy/endpointslice/s0.shop";
    assert_eq!(policies, [format!("+{closed}")]);
    // An older one that grows takes from the newest alone, and what does not change is not told.
    see(&mut state, ("s3", "shop"), 6, of_each / 1000 + 1, 1000);
    let (next, policies) = told(&mut state);
    let expected = [
        ("s0.shop", first["s0.shop"] - 1000),
        ("s3.shop", of_each + 1000),
    ];
    assert_eq!(
        next,
        expected
            .map(|(name, number)| (name.to_owned(), number))
            .into()
    );
    assert!(policies.is_empty(), "{policies:?}");
    // Where there is room again, the newest has it.
    state.remove_service(&named("s2.shop"));
    let (next, policies) = told(&mut state);
    assert_eq!(next, [("s0.shop".to_owned(), of_each)].into());
    assert_eq!(policies, [format!("-{closed}")]);
}

#[test]
fn an_endpoint_counts_once_for_each_zone_that_it_is_meant_for() {
    let mut state = State::default();
    let ports = MOST_OF_SERVICE / 1000;
    state.service(named("big.evil"), &wide(ports, 0));
    state.slice(named("big.evil"), &full("big", ports, 1000, 1));
    let (services, policies) = told(&mut state);
    assert_eq!(services["big.evil"], MOST_OF_SERVICE);
    assert!(policies.is_empty());
    state.slice(named("big.evil"), &full("big", ports, 1000, 8));
    let (services, policies) = told(&mut state);
    assert_eq!(services["big.evil"], MOST_OF_SERVICE / 8);
    assert_eq!(policies, [format!("+{CLOSED}")]);
    // A Service that is gone leaves nothing behind.
    state.remove_service(&named("big.evil"));
    let (_, policies) = told(&mut state);
    assert_eq!(policies, [format!("-{CLOSED}")]);
}
