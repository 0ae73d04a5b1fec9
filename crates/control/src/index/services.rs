//! Turns workloads and their placements into services, addresses and what each sidecar accepts.
//!
//! Workloads that name the same service are its replicas. A workload that runs nowhere yet gives its
//! service ports and an identity, but no endpoint.

use super::inputs::identity_name_of;
use super::protocols::protocol;
use super::{Inputs, ObjectProblem, Output, gateways, inbound, splits, workloads};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tulle_model::manifest::TrafficPolicySpec;
use tulle_model::namespaced::ObjectName;
use tulle_model::resource::{Endpoint, Resource, Service, ServicePort, Traffic};

pub(super) fn outputs(
    inputs: &Inputs,
    name: &ObjectName,
    problems: &mut Vec<ObjectProblem>,
) -> Vec<Output> {
    if !inputs.knows_service(name.as_str()) {
        return Vec::new();
    }
    let service = service(inputs, name, problems);
    let is_incomplete = inputs.awaited_keys();
    let mut outputs: Vec<Output> = service
        .addresses
        .iter()
        .map(|ip| Output {
            name: format!("address/{ip}"),
            rank: 0,
            owner: None,
            resource: Resource::Alias(name.to_string()),
            is_incomplete: false,
        })
        .collect();
    outputs.extend(hosts(inputs, name.as_str()).map(|host| Output {
        name: format!("host/{host}"),
        rank: 0,
        owner: None,
        resource: Resource::Host(name.to_string()),
        is_incomplete: false,
    }));
    inbound::outputs(inputs, name, &mut outputs, problems);
    outputs.push(Output {
        name: format!("service/{name}"),
        rank: 0,
        owner: None,
        resource: Resource::Service(service),
        is_incomplete,
    });
    outputs
}

/// Names by which an application may look a service up. Without a cluster there is one namespace. In a
/// cluster the name has its namespace, and a resolver there asks for no shorter one.
fn hosts(inputs: &Inputs, service: &str) -> impl Iterator<Item = String> {
    let name = service.to_ascii_lowercase();
    let forms: &[&str] = match inputs.cluster {
        None => &["", ".default", ".default.svc", ".default.svc.cluster.local"],
        Some(_) => &["", ".svc", ".svc.cluster.local"],
    };
    forms.iter().map(move |form| format!("{name}{form}"))
}

/// The names of all services.
pub(super) fn catalog(inputs: &Inputs) -> Vec<Output> {
    let mut names: BTreeSet<String> = inputs.services.keys().cloned().collect();
    names.extend(
        inputs
            .cluster
            .iter()
            .flat_map(|c| c.services().map(|s| s.name.to_string())),
    );
    names.extend(inputs.splits.values().map(|s| s.service.clone()));
    vec![Output {
        name: "catalog".into(),
        rank: 0,
        owner: None,
        resource: Resource::Catalog(names.into_iter().collect()),
        is_incomplete: false,
    }]
}

pub(super) fn service(
    inputs: &Inputs,
    of: &ObjectName,
    problems: &mut Vec<ObjectProblem>,
) -> Service {
    let name = of.as_str();
    let mut addresses = Vec::new();
    let mut identities = Vec::new();
    let mut ports: BTreeMap<u16, ServicePort> = BTreeMap::new();
    for (workload, spec) in inputs.workloads_of(name) {
        identities.extend(inputs.identity_named(identity_name_of(workload, spec)));
        for port in &spec.ports {
            // Replicas must agree; where they do not, the first by name decides (see problems).
            ports.entry(port.port).or_insert_with(|| ServicePort {
                port: port.port,
                protocol: protocol(port.protocol(), port.port),
                ..Default::default()
            });
        }
        let Some(placement) = inputs.placements.get(workload) else {
            continue;
        };
        addresses.extend(placement.addresses.iter().filter(|ip| is_own(**ip)));
        if placement.not_ready {
            continue;
        }
        let declared: BTreeSet<u16> = spec.ports.iter().map(|p| p.port).collect();
        for placed in &placement.ports {
            // A port that the manifest does not name is not served.
            if declared.contains(&placed.port)
                && let Some(port) = ports.get_mut(&placed.port)
            {
                port.endpoints.push(Endpoint {
                    weight: spec.weight.unwrap_or(1),
                    locality: spec.locality.clone().unwrap_or_default(),
                    ..Endpoint::new(placed.endpoint, placed.mutual_tls)
                });
            }
        }
    }
    // In the order of the placements, where a service's own come before a workload's: names are
    // answered with the first ones.
    let mut seen = BTreeSet::new();
    addresses.retain(|ip| seen.insert(*ip));
    identities.sort_unstable();
    identities.dedup();
    if let (Some(cluster), Some(service)) = (&inputs.cluster, inputs.cluster_service(name)) {
        addresses.extend(&service.addresses);
        let accounts = cluster.accounts(name).into_iter();
        identities.extend(accounts.flat_map(|account| inputs.identity(&account.into())));
        ports = cluster.ports(service);
    }
    if !inputs.has_service(name) {
        ports = splits::ports(inputs, of);
    }
    for port in ports.values_mut() {
        port.endpoints.sort_by_key(|e| (e.address, e.mutual_tls));
        port.endpoints.dedup();
        let said = port.traffic.take();
        port.traffic = with_service(inputs, of, port.port, said);
    }
    let ports: Vec<ServicePort> = ports.into_values().collect();
    let mut routes = gateways::service_routes(inputs, of, problems);
    routes.extend(splits::routes(inputs, of, &ports));
    let workloads = workloads::table(inputs, name, &identities, &ports);
    Service {
        name: name.to_owned(),
        addresses,
        hostnames: vec![name.to_ascii_lowercase()],
        identities,
        ports,
        routes,
        tls_routes: gateways::service_tls_routes(inputs, of),
        tcp_routes: gateways::service_tcp_routes(inputs, of),
        split: splits::split(inputs, of),
        workloads,
    }
}

/// How clients treat a port. A TrafficPolicy that names the port takes precedence, then the first by
/// name.
pub(super) fn traffic(inputs: &Inputs, service: &ObjectName, port: u16) -> Option<Traffic> {
    let (name, spec) = traffic_policy(inputs, service, port)?;
    Some(named_traffic(name, spec))
}

fn named_traffic(name: &ObjectName, spec: &TrafficPolicySpec) -> Traffic {
    spec.traffic(format!("TrafficPolicy/{name}"))
}

/// How clients treat a port of which the cluster's Service `said` something. A TrafficPolicy wins where it
/// says something else, but not against `internalTrafficPolicy: Local`, which is no preference.
fn with_service(
    inputs: &Inputs,
    service: &ObjectName,
    port: u16,
    said: Option<Box<Traffic>>,
) -> Option<Box<Traffic>> {
    let Some((name, spec)) = traffic_policy(inputs, service, port) else {
        return said;
    };
    let mut traffic = named_traffic(name, spec);
    if let Some(said) = said {
        if spec.load_balancer.is_none() {
            traffic.balancer = said.balancer;
        }
        let strict = said.locality.as_ref().is_some_and(|l| l.is_same_node());
        if strict || spec.locality.is_none() {
            traffic.locality = said.locality;
        }
    }
    Some(Box::new(traffic))
}

fn traffic_policy<'a>(
    inputs: &'a Inputs,
    service: &'a ObjectName,
    port: u16,
) -> Option<(&'a ObjectName, &'a TrafficPolicySpec)> {
    let meant = |exact: bool| {
        inputs
            .in_namespace_of(&inputs.traffic, service)
            .find(|(_, spec)| {
                let refs = spec.target_refs.iter();
                let refs = refs.filter(|r| r.is_whole() != exact);
                inbound::applies_to(inputs, refs, service, port)
            })
    };
    meant(true).or_else(|| meant(false))
}

/// Whether an address belongs to one workload, and is not shared by every workload of a host.
fn is_own(ip: IpAddr) -> bool {
    let shared = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    !ip.is_unspecified() && !shared.contains(&ip)
}
