//! Services and pods of a cluster, as its API server has them.
//!
//! Names are `<name>.<namespace>` throughout, so that everything else here needs no namespaces. A pod
//! is reached at its own address, its ports are those its containers listen on, and it may belong to
//! several services or to none.

use super::{ClusterGateway, Inputs, Output, Unit, inbound, policy, services};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use tulle_model::manifest::WorkloadPort;
use tulle_model::resource::{
    Endpoint, Inbound, InboundPort, Policy, PolicyRule, Protocol, Resource, Service, ServicePort,
};

/// A Service with its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterService {
    /// `<name>.<namespace>`
    pub name: String,
    /// Its own addresses; none: it is headless.
    pub addresses: Vec<IpAddr>,
    /// Its ports.
    pub ports: Vec<ClusterPort>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPort {
    /// As clients know it.
    pub port: WorkloadPort,
    /// Where it is served.
    pub endpoints: Vec<ClusterEndpoint>,
}

/// An endpoint of a Service's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterEndpoint {
    /// Where it is.
    pub address: SocketAddr,
    /// Whose it is, if a pod's: `<name>.<namespace>`. While that pod is not known nobody is told of it.
    pub pod: Option<String>,
    /// It may be called.
    pub ready: bool,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPod {
    /// `<name>.<namespace>`
    pub name: String,
    /// Its service account, `<name>.<namespace>`.
    pub account: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Ports that its containers say they listen on.
    pub ports: Vec<u16>,
    /// It has a sidecar.
    pub sidecar: bool,
    /// `region` or `region/zone` of its node.
    pub locality: String,
}

/// How much there is of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClusterCounts {
    pub(crate) services: usize,
    pub(crate) pods: usize,
    /// Of the pods.
    pub(crate) with_sidecar: usize,
    pub(crate) gateways: usize,
}

/// What is known of a cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Cluster {
    services: BTreeMap<String, ClusterService>,
    pods: BTreeMap<String, ClusterPod>,
    /// The services of each pod.
    memberships: BTreeMap<String, BTreeSet<String>>,
    gateways: BTreeMap<String, ClusterGateway>,
}

impl Cluster {
    pub(super) fn counts(&self) -> ClusterCounts {
        ClusterCounts {
            services: self.services.len(),
            pods: self.pods.len(),
            with_sidecar: self.pods.values().filter(|pod| pod.sidecar).count(),
            gateways: self.gateways.len(),
        }
    }

    pub(super) fn put_service(&mut self, service: ClusterService) {
        self.remove_service(&service.name);
        for pod in pods_of(&service) {
            let services = self.memberships.entry(pod.to_owned()).or_default();
            services.insert(service.name.clone());
        }
        self.services.insert(service.name.clone(), service);
    }

    pub(super) fn remove_service(&mut self, name: &str) {
        let Some(service) = self.services.remove(name) else {
            return;
        };
        for pod in pods_of(&service) {
            if let Some(services) = self.memberships.get_mut(pod) {
                services.remove(name);
                if services.is_empty() {
                    self.memberships.remove(pod);
                }
            }
        }
    }

    /// What the pods of a service listen on for a port of it.
    pub(super) fn own_ports(&self, service: &str, port: u16) -> Vec<u16> {
        let ports = self.services.get(service).into_iter();
        let ports = ports.flat_map(|s| s.ports.iter().filter(move |p| p.port.port == port));
        let pods = ports.flat_map(|p| p.endpoints.iter().filter(|e| e.pod.is_some()));
        let all: BTreeSet<u16> = pods.map(|e| e.address.port()).collect();
        all.into_iter().collect()
    }

    pub(super) fn put_pod(&mut self, pod: ClusterPod) {
        self.pods.insert(pod.name.clone(), pod);
    }

    pub(super) fn remove_pod(&mut self, name: &str) {
        self.pods.remove(name);
    }

    pub(super) fn put_gateway(&mut self, gateway: ClusterGateway) {
        self.gateways.insert(gateway.name.clone(), gateway);
    }

    pub(super) fn remove_gateway(&mut self, name: &str) {
        self.gateways.remove(name);
    }

    pub(super) fn gateway(&self, name: &str) -> Option<&ClusterGateway> {
        self.gateways.get(name)
    }

    pub(super) fn service(&self, name: &str) -> Option<&ClusterService> {
        self.services.get(name)
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &String> {
        self.services.keys()
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &ClusterPod> {
        self.pods.values()
    }

    pub(super) fn pod(&self, name: &str) -> Option<&ClusterPod> {
        self.pods.get(name)
    }

    fn services_of(&self, pod: &str) -> impl Iterator<Item = &ClusterService> {
        let names = self.memberships.get(pod).into_iter().flatten();
        names.filter_map(|name| self.services.get(name))
    }

    /// What a Service has a part in.
    pub(super) fn touch_service(&self, name: &str, dirty: &mut BTreeSet<Unit>) {
        dirty.insert(Unit::Service(name.to_owned()));
        if let Some(service) = self.services.get(name) {
            dirty.extend(pods_of(service).map(|pod| Unit::Pod(pod.to_owned())));
        }
    }

    /// What a pod has a part in.
    pub(super) fn touch_pod(&self, name: &str, dirty: &mut BTreeSet<Unit>) {
        dirty.insert(Unit::Pod(name.to_owned()));
        let services = self.memberships.get(name).into_iter().flatten();
        dirty.extend(services.map(|service| Unit::Service(service.clone())));
    }

    /// Service accounts of a service's pods, once each.
    pub(super) fn accounts(&self, service: &str) -> Vec<&str> {
        let service = self.services.get(service);
        let pods = service.into_iter().flat_map(pods_of);
        let pods = pods.filter_map(|pod| self.pods.get(pod));
        let accounts: BTreeSet<&str> = pods.map(|pod| pod.account.as_str()).collect();
        accounts.into_iter().collect()
    }

    fn endpoint(&self, address: SocketAddr, pod: Option<&String>) -> Endpoint {
        let pod = pod.and_then(|name| self.pods.get(name));
        Endpoint {
            locality: pod.map(|p| p.locality.clone()).unwrap_or_default(),
            ..Endpoint::new(address, pod.is_some_and(|p| p.sidecar))
        }
    }

    /// What the API server says of services and of pods comes by different ways, and one may be late. A
    /// pod that is not known yet would look like one without a sidecar, and be called in plaintext.
    fn is_known(&self, endpoint: &ClusterEndpoint) -> bool {
        let pod = endpoint.pod.as_ref();
        pod.is_none_or(|name| self.pods.contains_key(name))
    }

    /// A pod with addresses of both families has a part of the requests as any other, not two: it is
    /// called at its first one, where it is known by it.
    fn is_second(&self, endpoint: &ClusterEndpoint, all: &BTreeSet<SocketAddr>) -> bool {
        let pod = endpoint.pod.as_ref().and_then(|name| self.pods.get(name));
        let first = pod.and_then(|pod| pod.addresses.first());
        first.is_some_and(|first| {
            *first != endpoint.address.ip()
                && all.contains(&SocketAddr::new(*first, endpoint.address.port()))
        })
    }

    /// Addresses and ports of a Service as clients see them.
    pub(super) fn ports(&self, service: &ClusterService) -> BTreeMap<u16, ServicePort> {
        let ports = service.ports.iter().map(|port| {
            let ready = port.endpoints.iter();
            let ready = ready.filter(|e| e.ready && self.is_known(e));
            let all: BTreeSet<SocketAddr> = ready.clone().map(|e| e.address).collect();
            let ready = ready.filter(|e| !self.is_second(e, &all));
            let endpoints = ready.map(|e| self.endpoint(e.address, e.pod.as_ref()));
            let made = ServicePort {
                port: port.port.port,
                protocol: services::protocol(&port.port),
                endpoints: endpoints.collect(),
                ..Default::default()
            };
            (made.port, made)
        });
        ports.collect()
    }
}

fn pods_of(service: &ClusterService) -> impl Iterator<Item = &str> {
    let endpoints = service.ports.iter().flat_map(|p| &p.endpoints);
    endpoints.filter_map(|e| e.pod.as_deref())
}

/// A pod's own resources: what its sidecar accepts, and the pod itself as a destination for those who
/// call it by its address (as with a headless service).
pub(super) fn pod_outputs(inputs: &Inputs, cluster: &Cluster, name: &str) -> Vec<Output> {
    let Some(pod) = cluster.pod(name) else {
        return Vec::new();
    };
    let Ok(owner) = inputs.identity(&pod.account) else {
        return Vec::new();
    };
    let served = served(cluster, pod);
    let mut outputs = Vec::new();
    if pod.sidecar {
        outputs.push(Output {
            name: format!("inbound/{name}"),
            rank: 0,
            owner: Some(owner.clone()),
            resource: Resource::Inbound(accepts(inputs, cluster, pod, &served)),
        });
    }
    let own_name = format!("pod/{name}");
    outputs.extend(pod.addresses.iter().map(|ip| Output {
        name: format!("address/{ip}"),
        // The address of a Service is a Service's.
        rank: 1,
        owner: None,
        resource: Resource::Alias(own_name.clone()),
    }));
    let ports = served.into_iter().map(|(port, served)| ServicePort {
        port,
        protocol: served.protocol,
        endpoints: pod
            .addresses
            .first()
            .into_iter()
            .map(|ip| cluster.endpoint(SocketAddr::new(*ip, port), Some(&pod.name)))
            .collect(),
        ..Default::default()
    });
    outputs.push(Output {
        name: format!("service/{own_name}"),
        rank: 0,
        owner: None,
        resource: Resource::Service(Service {
            name: own_name,
            addresses: pod.addresses.clone(),
            identities: vec![owner],
            ports: ports.collect(),
            ..Default::default()
        }),
    });
    outputs
}

/// A port that a pod listens on.
struct Served {
    protocol: Protocol,
    /// The services it is a port of, with the number it has there.
    services: Vec<(String, u16)>,
}

fn served(cluster: &Cluster, pod: &ClusterPod) -> BTreeMap<u16, Served> {
    let mut served: BTreeMap<u16, Served> = BTreeMap::new();
    for service in cluster.services_of(&pod.name) {
        for port in &service.ports {
            let mut own = port.endpoints.iter();
            let Some(own) = own.find(|e| e.pod.as_ref() == Some(&pod.name)) else {
                continue;
            };
            let entry = served.entry(own.address.port()).or_insert_with(|| Served {
                protocol: services::protocol(&port.port),
                services: Vec::new(),
            });
            entry.services.push((service.name.clone(), port.port.port));
        }
    }
    for port in &pod.ports {
        served.entry(*port).or_insert_with(|| Served {
            protocol: services::protocol(&WorkloadPort {
                name: None,
                port: *port,
                target_port: None,
                app_protocol: None,
                proxy_protocol: false,
            }),
            services: Vec::new(),
        });
    }
    served
}

fn accepts(
    inputs: &Inputs,
    cluster: &Cluster,
    pod: &ClusterPod,
    served: &BTreeMap<u16, Served>,
) -> Inbound {
    let ports = served.iter().map(|(number, served)| {
        // Of several services the first by name decides, apart from who may call.
        let first = served.services.first();
        let (limit, rules) = first.map_or((None, Vec::new()), |(service, port)| {
            (
                inbound::connection_limit(inputs, service, *port),
                inbound::rules(inputs, service, *port),
            )
        });
        // Not loopback: what an application does not show its clients stays hidden.
        let address = pod.addresses.first().copied();
        let address = address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
        InboundPort {
            connection_limit: limit,
            rules,
            ..InboundPort::new(*number, served.protocol, SocketAddr::new(address, *number))
        }
    });
    let name = cluster.services_of(&pod.name).next().map(|s| &s.name);
    Inbound {
        service: name.unwrap_or(&pod.name).clone(),
        ports: ports.collect(),
        policy: pod_policy(inputs, cluster, pod, served),
        locality: pod.locality.clone(),
    }
}

/// Who may call a pod: what any of its services says. Objects name the ports of services, a pod's
/// sidecar knows those it listens on.
fn pod_policy(
    inputs: &Inputs,
    cluster: &Cluster,
    pod: &ClusterPod,
    served: &BTreeMap<u16, Served>,
) -> Policy {
    let mut names: Vec<&str> = cluster
        .services_of(&pod.name)
        .map(|s| s.name.as_str())
        .collect();
    if names.is_empty() {
        names.push(""); // what is said of its identity holds without a service, too
    }
    let mut all = Policy::default();
    for service in names {
        let of_service = policy::policy(inputs, service, &pod.account);
        all.permissive = of_service.permissive;
        for rule in of_service.rules {
            if let Some(rule) = at_own_ports(rule, service, served)
                && !all.rules.contains(&rule)
            {
                all.rules.push(rule);
            }
        }
    }
    all
}

/// The rule with the ports that the pod listens on; `None`: it is about none of them.
fn at_own_ports(
    mut rule: PolicyRule,
    service: &str,
    served: &BTreeMap<u16, Served>,
) -> Option<PolicyRule> {
    if rule.ports.is_empty() {
        return Some(rule);
    }
    let is_meant = |wanted: u16, number: u16, served: &Served| {
        let mut known = served.services.iter();
        number == wanted || known.any(|(name, port)| name == service && *port == wanted)
    };
    let own = served.iter().filter(|(number, served)| {
        let mut wanted = rule.ports.iter();
        wanted.any(|wanted| is_meant(*wanted, **number, served))
    });
    let ports: Vec<u16> = own.map(|(number, _)| *number).collect();
    rule.ports = ports;
    (!rule.ports.is_empty()).then_some(rule)
}
