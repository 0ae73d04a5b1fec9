//! Services and pods of a cluster, as its API server has them.
//!
//! A pod is reached at its own address, and its ports are those on which its containers listen. It may
//! belong to several services or to none, all of its own namespace. An endpoint names its pod without a
//! namespace, and a pod its service account, so neither can refer to another namespace. Endpoints at the
//! address of another namespace's pod are ignored.

use super::protocols::protocol;
use super::shares::Shares;
use super::{ClusterGateway, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tulle_model::manifest::WorkloadPort;
use tulle_model::namespaced::Namespaced;
use tulle_model::resource::{
    Balancer, Endpoint, HashKey, Locality, ServicePort, Traffic, Workload,
};

/// A Service with its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterService {
    /// Its name.
    pub name: Namespaced,
    /// Creation time, as the API server writes it. If two objects claim an address, the older one has it.
    pub created: String,
    /// Its own addresses; none: it is headless.
    pub addresses: Vec<IpAddr>,
    /// Its ports.
    pub ports: Vec<ClusterPort>,
    /// A client stays with its endpoint (`sessionAffinity: ClientIP`).
    pub sticky: bool,
    /// Only clients on an endpoint's node call it (`internalTrafficPolicy: Local`).
    pub node_local: bool,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPort {
    /// The port that clients call.
    pub port: WorkloadPort,
    /// Where it is served.
    pub endpoints: Vec<ClusterEndpoint>,
}

/// An endpoint of a Service's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterEndpoint {
    /// Where it is.
    pub address: SocketAddr,
    /// The pod, if it is one: a name in the service's own namespace. Clients do not get an endpoint whose
    /// pod is not known yet.
    pub pod: Option<String>,
    /// It may be called.
    pub ready: bool,
    /// The node it is on; empty: unknown.
    pub node: String,
    /// `region/zone` of the clients that it is meant for. If all endpoints of a port say so, clients
    /// prefer those that are meant for them.
    pub zones: Vec<String>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPod {
    /// Its name.
    pub name: Namespaced,
    /// Creation time, as for a Service.
    pub created: String,
    /// Its service account, in its own namespace.
    pub account: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Ports that its containers say they listen on.
    pub ports: Vec<u16>,
    /// Ports whose bytes it wants carried without being read.
    pub opaque: Vec<u16>,
    /// Ports that clients reach without its sidecar.
    pub direct: Vec<u16>,
    /// It has a sidecar, or is an egress gateway.
    pub sidecar: bool,
    /// It is nothing but an egress gateway, so all its ports take CONNECT and nothing else.
    pub egress_gateway: bool,
    /// `region` or `region/zone` of its node.
    pub locality: String,
    /// Its node; empty: unknown.
    pub node: String,
    /// The workload that it is a part of.
    pub workload: Arc<Workload>,
}

impl ClusterPod {
    /// The service account with its namespace: the source of the pod's identity.
    pub(super) fn account(&self) -> Namespaced {
        self.name.sibling(&self.account)
    }

    /// Whether its sidecar takes what comes for this port.
    fn has_mutual_tls(&self, port: u16) -> bool {
        self.sidecar && !self.direct.contains(&port)
    }

    /// Whether it has a share of its namespace's room: no rule is repeated for a pod without a sidecar, and nobody calls
    /// one without an address.
    pub(super) fn has_share(&self) -> bool {
        self.sidecar && !self.addresses.is_empty()
    }

    /// Whether this is the name of its service account.
    pub(super) fn is_account(&self, account: &Namespaced) -> bool {
        account.name() == self.account && account.namespace() == self.name.namespace()
    }
}

/// The name of the service that stands for a pod, which clients call by its address.
pub(super) fn called_by_address(pod: &Namespaced) -> Namespaced {
    pod.sibling(&format!("pod/{}", pod.name()))
}

/// How much there is of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClusterCounts {
    pub(crate) services: usize,
    pub(crate) pods: usize,
    /// Pods that have a sidecar.
    pub(crate) with_sidecar: usize,
    pub(crate) gateways: usize,
}

/// Names by what they have in common.
type Names<K> = BTreeMap<K, BTreeSet<Namespaced>>;

/// The state of a cluster, as far as the controller knows it.
#[derive(Debug, Clone, Default)]
pub(super) struct Cluster {
    services: BTreeMap<Namespaced, ClusterService>,
    pods: BTreeMap<Namespaced, ClusterPod>,
    /// The services of each pod.
    memberships: Names<Namespaced>,
    /// The services that have an endpoint at an address.
    pointing: Names<IpAddr>,
    /// The pods that have an address.
    residents: Names<IpAddr>,
    /// Addresses of endpoints at pods of other namespaces, for [`Self::trespasses`].
    trespassed_on: BTreeSet<IpAddr>,
    gateways: BTreeMap<Namespaced, ClusterGateway>,
    /// The shares that pods have of their namespaces' room.
    pub(super) shares: Shares,
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
            add(&mut self.memberships, pod, &service.name);
        }
        let addresses = pointed_at(&service);
        for ip in &addresses {
            add(&mut self.pointing, *ip, &service.name);
        }
        self.services.insert(service.name.clone(), service);
        self.look_again(addresses);
    }

    pub(super) fn remove_service(&mut self, name: &Namespaced) {
        let Some(service) = self.services.remove(name) else {
            return;
        };
        for pod in pods_of(&service) {
            remove(&mut self.memberships, &pod, name);
        }
        let addresses = pointed_at(&service);
        for ip in &addresses {
            remove(&mut self.pointing, ip, name);
        }
        self.look_again(addresses);
    }

    pub(super) fn put_pod(&mut self, pod: ClusterPod) {
        self.remove_pod(&pod.name);
        for ip in &pod.addresses {
            add(&mut self.residents, *ip, &pod.name);
        }
        let addresses = pod.addresses.clone();
        self.pods.insert(pod.name.clone(), pod);
        self.look_again(addresses);
    }

    pub(super) fn remove_pod(&mut self, name: &Namespaced) {
        let Some(pod) = self.pods.remove(name) else {
            return;
        };
        for ip in &pod.addresses {
            remove(&mut self.residents, ip, name);
        }
        self.look_again(pod.addresses);
    }

    pub(super) fn put_gateway(&mut self, gateway: ClusterGateway) {
        self.gateways.insert(gateway.name.clone(), gateway);
    }

    pub(super) fn remove_gateway(&mut self, name: &Namespaced) {
        self.gateways.remove(name);
    }

    pub(super) fn gateway(&self, name: &str) -> Option<&ClusterGateway> {
        self.gateways.get(name)
    }

    pub(super) fn service(&self, name: &str) -> Option<&ClusterService> {
        self.services.get(name)
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &ClusterService> {
        self.services.values()
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &ClusterPod> {
        self.pods.values()
    }

    pub(super) fn pod(&self, name: &Namespaced) -> Option<&ClusterPod> {
        self.pods.get(name)
    }

    pub(super) fn services_of(&self, pod: &ClusterPod) -> impl Iterator<Item = &ClusterService> {
        let names = self.memberships.get(&pod.name).into_iter().flatten();
        names.filter_map(|name| self.services.get(name))
    }

    /// Creation time of the object behind a unit.
    pub(super) fn created(&self, unit: &Unit) -> &str {
        match unit {
            Unit::Service(name) => self.service(name.as_str()).map_or("", |s| &s.created),
            Unit::Pod(name) => self.pod(name).map_or("", |p| &p.created),
            _ => "",
        }
    }

    /// Marks the units that a Service is part of.
    pub(super) fn touch_service(&self, name: &Namespaced, dirty: &mut BTreeSet<Unit>) {
        dirty.insert(Unit::Service(name.clone().into()));
        if let Some(service) = self.services.get(name) {
            dirty.extend(pods_of(service).map(Unit::Pod));
        }
    }

    /// Marks the units that a pod is part of.
    pub(super) fn touch_pod(&self, name: &Namespaced, dirty: &mut BTreeSet<Unit>) {
        dirty.insert(Unit::Pod(name.clone()));
        let own = self.memberships.get(name);
        let addresses = self.pods.get(name).into_iter().flat_map(|p| &p.addresses);
        let others = addresses.filter_map(|ip| self.pointing.get(ip));
        let services = own.into_iter().chain(others).flatten();
        dirty.extend(services.map(|service| Unit::Service(service.clone().into())));
    }

    /// Service accounts of a service's pods, once each.
    pub(super) fn accounts(&self, service: &str) -> BTreeSet<Namespaced> {
        let service = self.services.get(service);
        let pods = service.into_iter().flat_map(pods_of);
        let pods = pods.filter_map(|pod| self.pods.get(&pod));
        pods.map(ClusterPod::account).collect()
    }

    /// The pod that an endpoint is.
    fn pod_at(&self, service: &ClusterService, endpoint: &ClusterEndpoint) -> Option<&ClusterPod> {
        let pod = endpoint.pod.as_ref()?;
        self.pods.get(&service.name.sibling(pod))
    }

    /// Finds the pod with a sidecar that has this address, if it is in another namespace than the service.
    /// Clients do not get such an endpoint: they would expect the wrong identity or none, and a gateway
    /// could be made to forward strangers to the pod.
    pub(super) fn trespassed(&self, service: &Namespaced, ip: IpAddr) -> Option<&Namespaced> {
        let residents = self.residents.get(&ip)?;
        let of_service = |pod: &&Namespaced| pod.namespace() == service.namespace();
        if residents.iter().any(|pod| of_service(&pod)) {
            return None;
        }
        let in_mesh = |pod: &&Namespaced| self.pods.get(*pod).is_some_and(|p| p.sidecar);
        residents.iter().find(in_mesh)
    }

    /// Whether clients learn of an endpoint. Services and pods arrive by separate watches, and one may be
    /// late: a pod that is not known yet would look like one without a sidecar, and be called in
    /// plaintext.
    fn is_told(&self, service: &ClusterService, endpoint: &ClusterEndpoint) -> bool {
        let known = endpoint.pod.is_none() || self.pod_at(service, endpoint).is_some();
        let ip = endpoint.address.ip();
        endpoint.ready && known && self.trespassed(&service.name, ip).is_none()
    }

    /// Addresses and ports of a Service as clients see them.
    pub(super) fn ports(&self, service: &ClusterService) -> BTreeMap<u16, ServicePort> {
        let ports = service.ports.iter().map(|port| {
            let ready = port.endpoints.iter().filter(|e| self.is_told(service, e));
            let ready: Vec<_> = ready.map(|e| (e, self.pod_at(service, e))).collect();
            let all: BTreeSet<SocketAddr> = ready.iter().map(|(e, _)| e.address).collect();
            let ready = ready.into_iter();
            let ready: Vec<_> = ready.filter(|(e, pod)| !is_second(e, *pod, &all)).collect();
            let near = Near::of_service(service, ready.iter().map(|(e, _)| *e));
            let made = ServicePort {
                port: port.port.port,
                protocol: protocol(port.port.protocol(), port.port.port),
                endpoints: ready
                    .iter()
                    .flat_map(|(e, pod)| near.endpoints(e, *pod))
                    .collect(),
                traffic: near.traffic(service),
            };
            (made.port, made)
        });
        ports.collect()
    }

    /// The pods of a service by their endpoints' addresses.
    pub(super) fn pods_by_address<'a>(
        &'a self,
        service: &'a ClusterService,
    ) -> impl Iterator<Item = (IpAddr, &'a ClusterPod)> {
        let endpoints = endpoints_of(service);
        endpoints.filter_map(|e| Some((e.address.ip(), self.pod_at(service, e)?)))
    }

    /// The pods that serve a service's port, each with the number it has there.
    pub(super) fn served_by<'a>(
        &'a self,
        service: &'a str,
        port: u16,
    ) -> impl Iterator<Item = (&'a ClusterPod, u16)> {
        let service = self.services.get(service).into_iter();
        service.flat_map(move |service| {
            let ports = service.ports.iter().filter(move |p| p.port.port == port);
            let endpoints = ports.flat_map(|p| &p.endpoints);
            endpoints.filter_map(|e| Some((self.pod_at(service, e)?, e.address.port())))
        })
    }

    /// Endpoints at pods of other namespaces: the service, the address and the pod.
    pub(super) fn trespasses(&self) -> impl Iterator<Item = (&Namespaced, IpAddr, &Namespaced)> {
        self.trespassed_on.iter().flat_map(|ip| {
            let services = self.pointing.get(ip).into_iter().flatten();
            services.filter_map(|service| Some((service, *ip, self.trespassed(service, *ip)?)))
        })
    }

    /// Updates `trespassed_on` for addresses whose services or pods have changed.
    fn look_again(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        for ip in addresses {
            let mut services = self.pointing.get(&ip).into_iter().flatten();
            match services.any(|service| self.trespassed(service, ip).is_some()) {
                true => self.trespassed_on.insert(ip),
                false => self.trespassed_on.remove(&ip),
            };
        }
    }
}

fn add<K: Ord>(names: &mut Names<K>, key: K, name: &Namespaced) {
    names.entry(key).or_default().insert(name.clone());
}

fn remove<K: Ord>(names: &mut Names<K>, key: &K, name: &Namespaced) {
    if let Some(all) = names.get_mut(key) {
        all.remove(name);
        if all.is_empty() {
            names.remove(key);
        }
    }
}

pub(super) fn endpoint(address: SocketAddr, pod: Option<&ClusterPod>) -> Endpoint {
    Endpoint {
        locality: pod.map(|p| p.locality.clone()).unwrap_or_default(),
        ..Endpoint::new(
            address,
            pod.is_some_and(|p| p.has_mutual_tls(address.port())),
        )
    }
}

/// Which endpoints of a port clients prefer, as its Service and its EndpointSlices say.
#[derive(Clone, Copy, PartialEq)]
enum Near {
    Any,
    Node,
    Zone,
}

impl Near {
    fn of_service<'a>(
        service: &ClusterService,
        ready: impl Iterator<Item = &'a ClusterEndpoint>,
    ) -> Self {
        if service.node_local {
            return Self::Node;
        }
        let mut ready = ready.peekable();
        let any = ready.peek().is_some();
        match any && ready.all(|e| !e.zones.is_empty()) {
            true => Self::Zone,
            false => Self::Any,
        }
    }

    /// The endpoint, once for each place that it is meant for.
    fn endpoints(self, said: &ClusterEndpoint, pod: Option<&ClusterPod>) -> Vec<Endpoint> {
        let made = endpoint(said.address, pod);
        let at = |locality: String| Endpoint {
            locality,
            ..made.clone()
        };
        match self {
            Self::Any => vec![made],
            Self::Node => vec![at(on_node(&made.locality, &said.node))],
            Self::Zone => said.zones.iter().cloned().map(at).collect(),
        }
    }

    /// How clients treat the port for what the Service says, if it says anything.
    fn traffic(self, service: &ClusterService) -> Option<Box<Traffic>> {
        let balancer = match service.sticky {
            true => Balancer::RingHash(HashKey::Source),
            false => Balancer::default(),
        };
        let locality = match self {
            Self::Any => None,
            Self::Node => Some(Box::new(Locality::same_node())),
            // Endpoints of other zones get requests only if no endpoint of this zone can.
            Self::Zone => Some(Box::new(Locality {
                healthy_percent: 1,
                ..Default::default()
            })),
        };
        (service.sticky || locality.is_some()).then(|| {
            Box::new(Traffic {
                name: format!("Service/{}", service.name),
                balancer,
                locality,
                ..Default::default()
            })
        })
    }
}

/// A place with its node: `region/zone/node`.
pub(super) fn on_node(locality: &str, node: &str) -> String {
    if node.is_empty() {
        return locality.to_owned();
    }
    let (region, zone) = locality.split_once('/').unwrap_or((locality, ""));
    format!("{region}/{zone}/{node}")
}

/// A pod with addresses of both families has a part of the requests as any other, not two: it is
/// called at its first one, where it is known by it.
fn is_second(
    endpoint: &ClusterEndpoint,
    pod: Option<&ClusterPod>,
    all: &BTreeSet<SocketAddr>,
) -> bool {
    let first = pod.and_then(|pod| pod.addresses.first());
    first.is_some_and(|first| {
        *first != endpoint.address.ip()
            && all.contains(&SocketAddr::new(*first, endpoint.address.port()))
    })
}

fn endpoints_of(service: &ClusterService) -> impl Iterator<Item = &ClusterEndpoint> {
    service.ports.iter().flat_map(|p| &p.endpoints)
}

fn pods_of(service: &ClusterService) -> impl Iterator<Item = Namespaced> {
    let names = endpoints_of(service).filter_map(|e| e.pod.as_deref());
    names.map(|name| service.name.sibling(name))
}

/// The addresses of its endpoints.
pub(super) fn pointed_at(service: &ClusterService) -> BTreeSet<IpAddr> {
    endpoints_of(service).map(|e| e.address.ip()).collect()
}
