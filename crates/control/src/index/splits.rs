//! TrafficSplits: a service's requests by weight.
//!
//! Without `matches` they become the service's `split`. With `matches` they become a route, since
//! only routes look at requests.

use super::Inputs;
use std::collections::BTreeMap;
use tulle_model::manifest::TrafficSplitSpec;
use tulle_model::namespaced::ObjectName;
use tulle_model::resource::{
    Backend, PathMatch, Route, RouteMatch, RouteRule, ServicePort, Target,
};

/// The splits of a service, by name.
fn splits_of<'a>(
    inputs: &'a Inputs,
    service: &'a ObjectName,
) -> impl Iterator<Item = (&'a ObjectName, &'a TrafficSplitSpec)> {
    inputs
        .in_namespace_of(&inputs.splits, service)
        .filter(move |(_, s)| s.service == service.as_str())
}

/// The backends that a service's requests are split over; of several splits the first by name.
pub(super) fn split(inputs: &Inputs, service: &ObjectName) -> Vec<Target> {
    let first = splits_of(inputs, service).find(|(_, s)| s.matches.is_empty());
    let target = |b: &tulle_model::manifest::TrafficSplitBackend| Target {
        service: b.service.clone(),
        port: 0,
        weight: b.weight,
    };
    first.map_or_else(Vec::new, |(_, s)| s.backends.iter().map(target).collect())
}

/// The splits that are about some requests only. All other requests go to the service.
pub(super) fn routes(inputs: &Inputs, service: &ObjectName, ports: &[ServicePort]) -> Vec<Route> {
    let mut routes = Vec::new();
    for (name, split) in splits_of(inputs, service).filter(|(_, s)| !s.matches.is_empty()) {
        let matches = matches(inputs, split);
        if matches.is_empty() {
            continue; // a rule without matches would take everything
        }
        for port in ports {
            routes.push(route(name.as_str(), split, port.port, matches.clone()));
        }
    }
    if !routes.is_empty() && inputs.has_service(service.as_str()) {
        routes.extend(ports.iter().map(|port| rest(service.as_str(), port.port)));
    }
    routes
}

fn matches(inputs: &Inputs, split: &TrafficSplitSpec) -> Vec<RouteMatch> {
    let groups = split
        .matches
        .iter()
        .filter_map(|m| inputs.groups.get(m.name.as_str()));
    groups
        .flat_map(|group| &group.matches)
        .flat_map(|m| m.route_matches())
        .collect()
}

fn route(name: &str, split: &TrafficSplitSpec, port: u16, matches: Vec<RouteMatch>) -> Route {
    let backends = split.backends.iter().map(|b| Backend {
        service: b.service.clone(),
        port,
        weight: b.weight,
        filters: Vec::new(),
    });
    Route {
        name: format!("TrafficSplit/{name}"),
        rules: vec![RouteRule {
            matches,
            backends: backends.collect(),
            ..Default::default()
        }],
        port,
        ..Default::default()
    }
}

/// Everything else, which SMI leaves to the service itself. Any other route is more specific or
/// comes first.
fn rest(service: &str, port: u16) -> Route {
    Route {
        name: format!("service/{service}"),
        rules: vec![RouteRule {
            matches: vec![RouteMatch {
                path: PathMatch::default(),
                ..Default::default()
            }],
            backends: vec![Backend {
                service: service.to_owned(),
                port,
                weight: 1,
                filters: Vec::new(),
            }],
            ..Default::default()
        }],
        port,
        ..Default::default()
    }
}

/// The ports of a service that has no workloads of its own: those of its backends.
pub(super) fn ports(inputs: &Inputs, service: &ObjectName) -> BTreeMap<u16, ServicePort> {
    let mut ports = BTreeMap::new();
    for backend in splits_of(inputs, service).flat_map(|(_, s)| &s.backends) {
        for (_, spec) in inputs.workloads_of(&backend.service) {
            for port in &spec.ports {
                ports.entry(port.port).or_insert_with(|| ServicePort {
                    port: port.port,
                    protocol: super::protocols::protocol(port.protocol(), port.port),
                    ..Default::default()
                });
            }
        }
    }
    ports
}
