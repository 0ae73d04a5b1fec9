//! The configuration in force, compiled once and shared by all workers without locks.
//!
//! A snapshot never changes: an update builds a new one and sends it to every worker, so a
//! request sees one consistent configuration from beginning to end.

use crate::config::authz::Policy;
use crate::config::connection_route::{ConnectionRoutes, Targets};
use crate::config::egress_rule::Egress;
use crate::config::gateway_listener::Gateway;
use crate::config::inbound_rules::InboundRules;
use crate::config::route::RouteTable;
use crate::config::traffic::shared::Shared;
use crate::filter::plugin::Configured;
use crate::filter::rate_limit::Bucket;
use crate::telemetry::log_rules::LogRules;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{
    self, Endpoint, MeshSettings, Protocol, Resource, Revoked, Route, Workload,
};
use tulle_tls::outside::OutsideClient;

/// Everything a worker needs to know.
#[derive(Clone)]
pub struct Snapshot {
    /// Grows with each change.
    pub generation: u64,
    /// Identity of this proxy.
    pub identity: SpiffeId,
    /// Settings of the mesh.
    pub mesh: MeshSettings,
    /// Revoked certificates, taken from the settings, where they are left empty.
    pub revoked: Arc<Revoked>,
    /// How the access log is written; `None`: it is off.
    pub access_log: Option<Arc<LogRules>>,
    /// Certificates; `None` until the first one is issued.
    pub tls: Option<tulle_tls::Context>,
    /// Destinations by name.
    pub services: HashMap<String, Arc<Service>>,
    /// Owner of an address; `None`: the controller knows none.
    pub addresses: HashMap<IpAddr, Option<String>>,
    /// The service that has a host name; `None`: the controller knows none.
    pub hosts: HashMap<String, Option<String>>,
    /// Whether it is the application behind this proxy.
    pub inbound: Option<Arc<Inbound>>,
    /// Gateways served here.
    pub gateways: HashMap<String, Arc<Gateway>>,
    /// Rules about destinations outside the mesh; `None`: there are none.
    pub egress: Option<Arc<Egress>>,
    /// Whether everything asked for has been answered at least once.
    pub complete: bool,
    /// Names of resources that the controller sent unasked and that the application has not used.
    pub unused: Arc<HashSet<Box<str>>>,
    /// Why the controller is unreachable; `None`: it is reachable, or the proxy is trying to reach
    /// it.
    pub away: Option<Arc<str>>,
}

/// A destination.
pub struct Service {
    /// Unique in the mesh.
    pub name: Arc<str>,
    /// Addresses clients connect to.
    pub addresses: Box<[IpAddr]>,
    /// Identities that may answer.
    pub identities: Arc<[SpiffeId]>,
    /// Ports by number.
    pub ports: Vec<ServicePort>,
    /// Routes attached to the service; `None`: requests go to the service itself.
    pub routes: Option<RouteTable>,
    /// Routes of connections; `None`: they go to the service itself.
    pub connections: Option<Box<ConnectionRoutes>>,
    /// Traffic split of requests that no route takes.
    pub split: Option<Box<Targets>>,
    /// Workloads behind its endpoints.
    pub workloads: Box<[Option<KnownWorkload>]>,
}

/// A workload behind endpoints of a service.
pub struct KnownWorkload {
    /// Its description.
    pub workload: Arc<Workload>,
    /// Its identity.
    pub identity: SpiffeId,
}

/// A port of a destination.
pub struct ServicePort {
    /// Number.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Its traffic policy, and the state that workers share; `None`: the defaults.
    pub shared: Option<Arc<Shared>>,
    /// For each endpoint the place of its workload: see [`resource::Workloads`].
    pub workloads: Box<[u16]>,
}

/// Whether it is the application behind this proxy.
pub struct Inbound {
    /// Its service.
    pub service: Arc<str>,
    /// Its ports.
    pub ports: Vec<InboundPort>,
    /// The policy about callers.
    pub policy: Policy,
    /// Its location: `region/zone`; empty: unknown.
    pub locality: String,
    /// Its workload; `None`: unknown.
    pub workload: Option<Arc<Workload>>,
}

/// A port of the application.
pub struct InboundPort {
    /// Number.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Address on which the application listens.
    pub target: SocketAddr,
    /// Connections from outside the mesh begin with a PROXY header.
    pub proxied: bool,
    /// Rate limit of new connections.
    pub connections: Option<Arc<Bucket>>,
    /// Demands on requests; `None`: there are none.
    pub rules: Option<Arc<InboundRules>>,
    /// Plugins that look at connections of opaque bytes.
    pub plugins: Arc<[Arc<Configured>]>,
    /// Whether it takes CONNECT to the outside instead of calls to an application.
    pub egress: bool,
}

/// Why a resource cannot be used; the last good one is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// Resource name.
    pub resource: String,
    /// Why it cannot be used.
    pub why: String,
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.resource, self.why)
    }
}

impl std::error::Error for Unusable {}

impl Snapshot {
    /// A snapshot that holds only our identity.
    pub fn empty(identity: SpiffeId) -> Self {
        Self {
            generation: 0,
            identity,
            mesh: MeshSettings::default(),
            revoked: Arc::default(),
            access_log: None,
            tls: None,
            services: HashMap::new(),
            addresses: HashMap::new(),
            hosts: HashMap::new(),
            inbound: None,
            gateways: HashMap::new(),
            egress: None,
            complete: false,
            unused: Arc::default(),
            away: None,
        }
    }

    /// The namespace of this workload; `None`: it is on a host.
    fn namespace(&self) -> Option<&str> {
        self.identity.service_account().map(|(n, _)| n)
    }

    /// Names the source of this workload's strict mode: its namespace, or else the Mesh.
    pub fn strict_by(&self, mesh: &str) -> String {
        match self.identity.service_account() {
            Some((namespace, _)) if self.mesh.is_strict_for(&self.identity) => {
                format!("namespace {namespace} is strict")
            }
            _ => format!("Mesh {mesh}"),
        }
    }

    /// Sets the settings of the mesh.
    ///
    /// # Errors
    /// The access log's format cannot be read; nothing has changed.
    pub fn set_mesh(&mut self, mesh: MeshSettings) -> Result<(), String> {
        self.access_log = LogRules::compile(&mesh)?.map(Arc::new);
        self.mesh = mesh;
        Ok(())
    }

    /// Compiles a resource and replaces the one of the same name.
    ///
    /// # Errors
    /// The resource makes no sense; the snapshot is unchanged.
    pub fn apply(&mut self, name: &str, resource: &Resource) -> Result<(), Unusable> {
        let unusable = |why: String| Unusable {
            resource: name.to_owned(),
            why,
        };
        match resource {
            Resource::Mesh(mesh) => {
                if mesh.trust_domain.as_str() != self.identity.trust_domain() {
                    return Err(unusable(format!(
                        "trust domain {} is not that of this proxy's identity {}",
                        mesh.trust_domain, self.identity
                    )));
                }
                if let Some(tracing) = &mesh.tracing {
                    // An invalid root would fail each use.
                    let roots = OutsideClient::new(&tracing.roots);
                    roots.map_err(|e| unusable(format!("tracing: {e}")))?;
                }
                let settings = MeshSettings {
                    revoked: Revoked::default(),
                    ..mesh.clone().of_workload(&self.identity)
                };
                self.set_mesh(settings).map_err(unusable)?;
                if mesh.revoked != *self.revoked {
                    self.revoked = Arc::new(mesh.revoked.clone());
                }
            }
            Resource::Service(service) => {
                let before = self.services.get(&service.name).map(|s| &**s);
                let namespace = self.namespace();
                let compiled = Service::compile(service, before, namespace).map_err(unusable)?;
                self.services
                    .insert(service.name.clone(), Arc::new(compiled));
            }
            Resource::Inbound(inbound) => {
                let compiled = Inbound::compile(inbound).map_err(unusable)?;
                self.inbound = Some(Arc::new(compiled));
            }
            Resource::Gateway(gateway) => {
                let old = self.gateways.get(&gateway.name).map(|g| &**g);
                let namespace = self.namespace();
                let compiled = Gateway::compile(gateway, old, namespace).map_err(unusable)?;
                self.gateways
                    .insert(gateway.name.clone(), Arc::new(compiled));
            }
            Resource::Alias(service) => {
                let address = name.strip_prefix("address/").and_then(|a| a.parse().ok());
                let address =
                    address.ok_or_else(|| unusable("the name has no address".to_owned()))?;
                self.addresses.insert(address, Some(service.clone()));
            }
            // This is for data planes that cannot ask for an address on first use. This proxy can.
            Resource::Catalog(_) => {}
            Resource::Egress(egress) => {
                let compiled = Egress::compile(egress).map_err(unusable)?;
                self.egress = Some(Arc::new(compiled));
            }
            Resource::Host(service) => {
                let host = name.strip_prefix("host/");
                let host = host.ok_or_else(|| unusable("the name has no host".to_owned()))?;
                self.hosts.insert(host.to_owned(), Some(service.clone()));
            }
        }
        Ok(())
    }

    /// Forgets a resource. An address or host name is kept as belonging to no service.
    pub fn remove(&mut self, name: &str) {
        match name.split_once('/') {
            Some(("service", service)) => {
                self.services.remove(service);
            }
            Some(("gateway", gateway)) => {
                self.gateways.remove(gateway);
            }
            Some(("inbound", _)) => self.inbound = None,
            Some(("host", host)) => {
                self.hosts.insert(host.to_owned(), None);
            }
            Some(("address", address)) => {
                if let Ok(address) = address.parse() {
                    self.addresses.insert(address, None);
                }
            }
            None if name == "egress" => self.egress = None,
            _ => {}
        }
    }

    /// Forgets a resource that was sent unasked. Afterwards it is unknown whether it exists.
    pub fn forget(&mut self, name: &str) {
        match name.split_once('/') {
            Some(("host", host)) => {
                self.hosts.remove(host);
            }
            Some(("address", address)) => {
                if let Ok(address) = address.parse() {
                    self.addresses.remove(&address);
                }
            }
            _ => self.remove(name),
        }
    }

    /// Returns the location of this proxy, from its workload or gateway; empty: unknown.
    pub fn locality(&self) -> &str {
        let gateways = self.gateways.values().map(|g| &*g.locality);
        let inbound = self.inbound.iter().map(|i| &*i.locality);
        let mut known = inbound.chain(gateways).filter(|l| !l.is_empty());
        known.next().unwrap_or_default()
    }

    /// Returns the workload of this proxy, or of its gateway; `None`: unknown.
    pub fn workload(&self) -> Option<&Arc<Workload>> {
        let gateways = self.gateways.values().filter_map(|g| g.workload.as_ref());
        let inbound = self.inbound.iter().filter_map(|i| i.workload.as_ref());
        inbound.chain(gateways).next()
    }

    /// Returns the service of this proxy: that of its application, or a gateway.
    pub fn service(&self) -> &str {
        let inbound = self.inbound.as_ref().map(|i| &*i.service);
        let gateway = || self.gateways.keys().map(String::as_str).min();
        inbound
            .or_else(gateway)
            .unwrap_or_else(|| self.identity.name())
    }

    /// Describes the parts that are not in force as they were told; each once, in order.
    pub fn faults(&self) -> BTreeSet<String> {
        let routes = self.services.values().filter_map(|s| s.routes.as_ref());
        let routes = routes.chain(self.gateways.values().map(|g| &g.routes));
        let ports = self.inbound.iter().flat_map(|i| &i.ports);
        let rules = ports.filter_map(|p| p.rules.as_ref());
        let filters = rules.flat_map(|rules| rules.filters());
        let filters = filters.chain(routes.flat_map(|routes| routes.filters()));
        let of_filters = filters.flat_map(|f| f.faults()).map(str::to_owned);
        let of_gateways = self.gateways.values().flat_map(|g| g.faults());
        of_filters.chain(of_gateways).collect()
    }

    /// Names of all services that routes and rules of this snapshot send requests to.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let gateways = self.gateways.values().flat_map(|g| g.backends());
        let services = || self.services.values();
        let routes = services().filter_map(|s| s.routes.as_ref());
        let connections = services().filter_map(|s| s.connections.as_deref());
        let splits = services().filter_map(|s| s.split.as_deref());
        let ports = self.inbound.iter().flat_map(|i| &i.ports);
        let rules = ports.filter_map(|p| p.rules.as_ref());
        gateways
            .chain(routes.flat_map(RouteTable::backends))
            .chain(connections.flat_map(ConnectionRoutes::backends))
            .chain(splits.flat_map(Targets::services))
            .chain(rules.flat_map(|r| r.services()))
            .chain(self.egress.iter().flat_map(|e| e.backends()))
    }
}

/// Rejects configuration this proxy cannot enforce, so nobody believes it is in effect.
fn unless(fine: bool, what: &str) -> Result<(), String> {
    if fine {
        return Ok(());
    }
    Err(format!("this proxy does not support: {what}"))
}

/// Takes over the table of workloads. One that cannot be shown stays unknown, in its place.
fn known_workloads(service: &resource::Service) -> Box<[Option<KnownWorkload>]> {
    let known = service.workloads.known.iter().map(|known| {
        let identity = service.identities.get(usize::from(known.identity));
        Some(KnownWorkload {
            workload: Workload::shown(Some(&known.workload))?,
            identity: identity.cloned()?,
        })
    });
    known.collect()
}

impl Service {
    /// Compiles a service as clients of this namespace see it.
    fn compile(
        service: &resource::Service,
        before: Option<&Self>,
        namespace: Option<&str>,
    ) -> Result<Self, String> {
        let guarded = service.routes.iter().flat_map(|r| &r.rules);
        let open = guarded.map(|r| &r.policy).all(Option::is_none);
        unless(open, "a policy of a route that is not a gateway's")?;
        let routes = Route::with_own_plugins(service.routes_for(namespace), namespace);
        let routes = match &*routes {
            [] => None,
            routes => Some(RouteTable::compile(routes)?),
        };
        Ok(Self {
            name: service.name.as_str().into(),
            addresses: service.addresses.clone().into(),
            identities: service.identities.clone().into(),
            workloads: known_workloads(service),
            ports: service
                .ports
                .iter()
                .enumerate()
                .map(|(place, p)| {
                    let old = before.and_then(|s| s.port(p.port));
                    let old = old.and_then(|o| Some((o.shared.as_deref()?, &*o.endpoints)));
                    Ok(ServicePort {
                        port: p.port,
                        protocol: p.protocol,
                        endpoints: p.endpoints.clone(),
                        shared: Shared::new(p, old)?,
                        workloads: service.workloads.of_port(place).into(),
                    })
                })
                .collect::<Result<_, String>>()?,
            routes,
            connections: (!service.tls_routes.is_empty() || !service.tcp_routes.is_empty()).then(
                || {
                    Box::new(ConnectionRoutes::compile(
                        &service.tls_routes,
                        &service.tcp_routes,
                    ))
                },
            ),
            split: (!service.split.is_empty()).then(|| {
                let name = format!("TrafficSplit of {}", service.name);
                Box::new(Targets::new(&name, &service.split))
            }),
        })
    }

    /// Returns the workload behind an endpoint of a port.
    pub fn workload_of(&self, port: &ServicePort, endpoint: usize) -> Option<&KnownWorkload> {
        let place = resource::Workloads::place(&port.workloads, endpoint)?;
        self.workloads.get(place)?.as_ref()
    }

    /// Returns the workloads behind a port, each of them once.
    pub fn workloads_of(&self, port: &ServicePort) -> Vec<&KnownWorkload> {
        let places = 0..port.endpoints.len();
        let places = places.filter_map(|e| resource::Workloads::place(&port.workloads, e));
        let places: BTreeSet<usize> = places.collect();
        let known = places
            .into_iter()
            .filter_map(|place| self.workloads.get(place));
        known.flatten().collect()
    }

    /// A port by number.
    pub fn port(&self, port: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|p| p.port == port)
    }
}

impl InboundPort {
    fn compile(service: &str, port: &resource::InboundPort) -> Result<Self, String> {
        let limit = port.connection_limit.as_ref();
        let silent = limit.is_none_or(|l| l.status == 0 && l.headers.is_empty());
        unless(silent, "an answer to connections beyond a limit")?;
        let plain = !port.egress || port.rules.is_empty();
        unless(plain, "rules of a port that is an egress gateway's")?;
        let place = format!("connections to {service}:{}", port.port);
        let rules = InboundRules::compile(&format!("{service}:{}", port.port), &port.rules)?;
        let plugins = rules.as_ref().filter(|_| !port.protocol.is_http());
        Ok(Self {
            plugins: plugins.map(|rules| rules.plugins()).unwrap_or_default(),
            port: port.port,
            protocol: port.protocol,
            target: port.target,
            proxied: port.proxy_protocol,
            egress: port.egress,
            connections: limit.map(|l| Bucket::shared(&place, l)).transpose()?,
            rules,
        })
    }
}

impl Inbound {
    fn compile(inbound: &resource::Inbound) -> Result<Self, String> {
        Ok(Self {
            service: inbound.service.as_str().into(),
            ports: inbound
                .ports
                .iter()
                .map(|p| InboundPort::compile(&inbound.service, p))
                .collect::<Result<_, _>>()?,
            policy: Policy::compile(&inbound.policy)?,
            locality: inbound.locality.clone(),
            workload: Workload::shown(inbound.workload.as_deref()),
        })
    }

    /// A port by number; port 0 stands for all that are not there.
    pub fn port(&self, port: u16) -> Option<&InboundPort> {
        let of_number = |number: u16| self.ports.iter().find(|p| p.port == number);
        of_number(port).or_else(|| of_number(0))
    }

    /// The number by which the policy knows a port.
    pub fn number(&self, port: u16) -> u16 {
        self.port(port).map_or(port, |p| p.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_0_stands_for_all_that_have_no_entry() {
        let inbound = |numbers: &[u16]| {
            let port = |number: &u16| {
                let target = SocketAddr::from(([10, 0, 0, 1], *number));
                resource::InboundPort::new(*number, Protocol::Detect, target)
            };
            let inbound = resource::Inbound {
                ports: numbers.iter().map(port).collect(),
                ..Default::default()
            };
            Inbound::compile(&inbound).unwrap()
        };
        let any = inbound(&[0, 8080]);
        let seen = [8080, 9999].map(|port| (any.port(port).map(|p| p.port), any.number(port)));
        assert_eq!(seen, [(Some(8080), 8080), (Some(0), 0)]);
        let some = inbound(&[8080]);
        assert!(some.port(9999).is_none());
        assert_eq!(some.number(9999), 9999);
    }
}
