//! Workloads and their placements to services, addresses and what each sidecar accepts.
//!
//! Workloads that name the same service are its replicas. A workload that runs nowhere yet gives
//! its service ports and an identity, but no endpoint.

use super::inputs::{identity_name_of, service_of};
use super::{Inputs, Output, gateways, policy};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tulle_model::manifest::{WorkloadPort, WorkloadSpec};
use tulle_model::resource::{
    Endpoint, Inbound, InboundPort, Policy, Protocol, Resource, Service, ServicePort,
};

/// Ports whose server speaks first when nothing says otherwise: waiting for the client's first
/// bytes to detect the protocol would only delay them (SMTP, MySQL, PostgreSQL, Redis, ...).
const SERVER_FIRST: [u16; 9] = [25, 587, 3306, 4444, 5432, 6379, 9300, 11211, 27017];

pub(super) fn outputs(inputs: &Inputs, name: &str) -> Vec<Output> {
    if !inputs.has_service(name) {
        return Vec::new();
    }
    let service = service(inputs, name);
    let mut outputs: Vec<Output> = service
        .addresses
        .iter()
        .map(|ip| Output {
            name: format!("address/{ip}"),
            rank: 0,
            owner: None,
            resource: Resource::Alias(name.to_owned()),
        })
        .collect();
    inbounds(inputs, name, &mut outputs);
    outputs.push(Output {
        name: format!("service/{name}"),
        rank: 0,
        owner: None,
        resource: Resource::Service(service),
    });
    outputs
}

/// The names of all services.
pub(super) fn catalog(inputs: &Inputs) -> Vec<Output> {
    vec![Output {
        name: "catalog".into(),
        rank: 0,
        owner: None,
        resource: Resource::Catalog(inputs.services.keys().cloned().collect()),
    }]
}

pub(super) fn service(inputs: &Inputs, name: &str) -> Service {
    let mut addresses = Vec::new();
    let mut identities = Vec::new();
    let mut ports: BTreeMap<u16, ServicePort> = BTreeMap::new();
    for (workload, spec) in inputs.workloads_of(name) {
        identities.extend(inputs.identity(identity_name_of(workload, spec)));
        for port in &spec.ports {
            // Replicas must agree; where they do not, the first by name decides (see problems).
            ports.entry(port.port).or_insert_with(|| ServicePort {
                port: port.port,
                protocol: protocol(port),
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
        for placed in &placement.ports {
            // A port that the manifest does not name is not served.
            if declares(spec, placed.port)
                && let Some(port) = ports.get_mut(&placed.port)
            {
                port.endpoints
                    .push(Endpoint::new(placed.endpoint, placed.mutual_tls));
            }
        }
    }
    addresses.sort();
    addresses.dedup();
    identities.sort();
    identities.dedup();
    for port in ports.values_mut() {
        port.endpoints.sort_by_key(|e| (e.address, e.mutual_tls));
        port.endpoints.dedup();
    }
    Service {
        name: name.to_owned(),
        addresses,
        hostnames: vec![name.to_ascii_lowercase()],
        identities,
        ports: ports.into_values().collect(),
        routes: gateways::service_routes(inputs, name),
        ..Default::default()
    }
}

/// Each sidecar finds its own under the workload's name. The service's and the identity's name
/// work too, so that a sidecar that knows only one of them finds it; with several replicas these
/// stand for the first by name.
fn inbounds(inputs: &Inputs, service: &str, outputs: &mut Vec<Output>) {
    let mut policies: BTreeMap<&str, Policy> = BTreeMap::new();
    let mut aliases: BTreeMap<String, (u8, &str)> = BTreeMap::new();
    for (workload, spec) in inputs.workloads_of(service) {
        let identity = identity_name_of(workload, spec);
        policies
            .entry(identity)
            .or_insert_with(|| policy::policy(inputs, identity));
        aliases.insert(workload.to_owned(), (0, workload));
    }
    let mut alias = |name: &str, rank, workload| {
        aliases.entry(name.to_owned()).or_insert((rank, workload));
    };
    for (workload, _) in inputs.workloads_of(service).take(1) {
        alias(service, 1, workload);
    }
    for (workload, spec) in inputs.workloads_of(service) {
        alias(identity_name_of(workload, spec), 2, workload);
    }
    for (name, (rank, workload)) in aliases {
        let Some(spec) = inputs.workloads.get(workload) else {
            continue;
        };
        let identity = identity_name_of(workload, spec);
        let (Ok(owner), Some(policy)) = (inputs.identity(identity), policies.get(identity)) else {
            continue;
        };
        outputs.push(Output {
            name: format!("inbound/{name}"),
            rank,
            owner: Some(owner),
            resource: Resource::Inbound(inbound(inputs, workload, spec, policy.clone())),
        });
    }
}

fn inbound(inputs: &Inputs, workload: &str, spec: &WorkloadSpec, policy: Policy) -> Inbound {
    let placed = inputs.placements.get(workload);
    let placed = placed.map(|p| p.ports.as_slice()).unwrap_or_default();
    let ports = spec.ports.iter().filter_map(|port| {
        let target = placed.iter().find(|p| p.port == port.port)?.target;
        Some(InboundPort::new(port.port, protocol(port), target))
    });
    Inbound {
        service: service_of(workload, spec).to_owned(),
        ports: ports.collect(),
        policy,
        ..Default::default()
    }
}

/// Not an address that every workload of a host shares.
fn is_own(ip: IpAddr) -> bool {
    let shared = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    !ip.is_unspecified() && !shared.contains(&ip)
}

fn declares(spec: &WorkloadSpec, port: u16) -> bool {
    spec.ports.iter().any(|p| p.port == port)
}

pub(super) fn protocol(port: &WorkloadPort) -> Protocol {
    match port.protocol() {
        Protocol::Detect if SERVER_FIRST.contains(&port.port) => Protocol::Tcp,
        given => given,
    }
}

/// Two replicas of a service that say different things about one port.
pub(crate) fn port_conflict<'a>(
    service: &str,
    workloads: impl Iterator<Item = (&'a str, &'a WorkloadSpec)>,
) -> Option<String> {
    let mut seen: BTreeMap<u16, (&str, Protocol)> = BTreeMap::new();
    for (workload, spec) in workloads {
        for port in &spec.ports {
            let here = protocol(port);
            let (first, there) = *seen.entry(port.port).or_insert((workload, here));
            if here != there {
                return Some(format!(
                    "port {} of service {service} is {} in Workload/{first} and {} in \
                     Workload/{workload}: give both the same appProtocol",
                    port.port,
                    protocol_name(there),
                    protocol_name(here),
                ));
            }
        }
    }
    None
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Detect => "not set",
        Protocol::Http => "http",
        Protocol::Tcp => "tcp",
        Protocol::Http2 => "http2",
        Protocol::Grpc => "grpc",
        Protocol::Tls => "tls",
    }
}
