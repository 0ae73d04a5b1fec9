//! Chooses the endpoint of a destination for the next request, and whether it may be asked at all.
//!
//! `lease` asks whether the port allows it, has `pick` say which endpoint, and connects; `results`
//! records what came of it.
//!
//! A port without a traffic policy goes in turn over its endpoints and asks nobody else. Everything
//! that only some ports need is behind one `Option` each: `choose` (with `ring`, `locality` and
//! `latency`) picks by other rules, `shared` holds what all contexts know together (`limits`,
//! `breaker`, `outlier`, `health`), `affinity` brings clients back, `show` tells the operator.

pub mod affinity;
pub(crate) mod choose;
pub(crate) mod health;
mod in_force;
mod lease;
pub(crate) mod locality;
mod pick;
mod results;
pub(crate) mod show;

pub use choose::EndpointHint;
pub use in_force::InForce;
pub use lease::Begun;

use crate::config::snapshot::{KnownWorkload, Service, ServicePort, Snapshot};
use crate::config::traffic::retry::Policy;
use crate::config::traffic::ring;
use crate::config::traffic::shared::Shared;
use crate::context::WorkerContext;
use crate::telemetry::metrics::{Labels, Reporter, RequestSeries};
use crate::upstream::pools::Pools;
use crate::upstream::{Upstream, UpstreamKey};
use choose::Chooser;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use tulle_model::resource::{Affinity, Balancer, Protocol, Traffic, Workload};

/// Ports kept of those that a destination does not name. An application may try all there are.
const MOST_UNNAMED: usize = 8;

/// A destination with this worker's pools and counters.
pub struct Destination {
    /// The service.
    pub service: Arc<Service>,
    ports: Vec<Rc<Port>>,
    /// Ports that the service does not name, the latest last.
    unnamed: RefCell<Vec<Rc<Port>>>,
}

/// A port of a destination.
pub struct Port {
    /// Service name.
    pub service: Arc<str>,
    /// Port number.
    pub number: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Requests to it, as this proxy sees them.
    pub http: Rc<RequestSeries>,
    /// Opaque connections to it.
    pub tcp: Rc<RequestSeries>,
    /// The same for each of its workloads; none if there is at most one.
    by_workload: Box<[WorkloadSeries]>,
    endpoints: Vec<Rc<Upstream>>,
    next: Cell<usize>,
    chooser: Option<Box<Chooser>>,
    shared: Option<Arc<Shared>>,
    /// The port has limits or a breaker, which decide before a request begins.
    guarded: bool,
    /// Results of requests are recorded.
    observed: bool,
    /// The endpoints' names for clients, computed on first use.
    names: OnceCell<Box<[u64]>>,
    /// For its checks, which go on when the configuration changes.
    in_force: Rc<InForce>,
}

/// Counters of what one of a port's workloads was asked.
pub struct WorkloadSeries {
    workload: Arc<Workload>,
    /// Requests to it.
    pub http: Rc<RequestSeries>,
    /// Opaque connections to it.
    pub tcp: Rc<RequestSeries>,
}

impl Destination {
    /// Sets up the ports of a service.
    pub fn new(
        context: &WorkerContext,
        pools: &Pools,
        in_force: &Rc<InForce>,
        snapshot: &Snapshot,
        service: &Arc<Service>,
    ) -> Self {
        let named = service.ports.iter().filter(|port| port.port != 0);
        let build = |port: &ServicePort| {
            Port::new(
                context,
                pools,
                in_force,
                snapshot,
                service,
                (port, port.port),
            )
        };
        let ports: Vec<_> = named.map(build).collect();
        ports.iter().for_each(|port| in_force.add(port));
        Self {
            service: service.clone(),
            ports,
            unnamed: RefCell::default(),
        }
    }

    /// A port that the service does not name, if it has those, too: a pod, called by its address.
    #[cold]
    pub fn unnamed(
        &self,
        context: &WorkerContext,
        pools: &Pools,
        in_force: &Rc<InForce>,
        snapshot: &Snapshot,
        number: u16,
    ) -> Option<Rc<Port>> {
        let mut unnamed = self.unnamed.borrow_mut();
        if let Some(known) = unnamed.iter().find(|p| p.number == number) {
            return Some(known.clone());
        }
        let any = self.service.port(0)?;
        let port = Port::new(
            context,
            pools,
            in_force,
            snapshot,
            &self.service,
            (any, number),
        );
        if unnamed.len() == MOST_UNNAMED {
            unnamed.remove(0);
        }
        unnamed.push(port.clone());
        Some(port)
    }

    /// A port by number.
    pub fn port(&self, number: u16) -> Option<&Rc<Port>> {
        self.ports.iter().find(|p| p.number == number)
    }

    /// All ports.
    pub fn ports(&self) -> &[Rc<Port>] {
        &self.ports
    }
}

/// The hash of a client's address, or of the workload behind this proxy: its address may be that of
/// others, too (loopback), but the process of its proxy is its own.
pub fn hash_of_client(client: Option<IpAddr>) -> u64 {
    static WORKLOAD: OnceLock<u64> = OnceLock::new();
    if let Some(client) = client.filter(|c| !c.is_loopback()) {
        return ring::of_address((client, 0).into()).max(1);
    }
    *WORKLOAD.get_or_init(|| {
        // On a host without a name, the process id alone has to do.
        let mut own = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        own.extend_from_slice(&std::process::id().to_be_bytes());
        ring::of_bytes(&own).max(1)
    })
}

impl Port {
    /// Sets up a port of a service. `number` is another than the port's only if that is 0.
    fn new(
        context: &WorkerContext,
        pools: &Pools,
        in_force: &Rc<InForce>,
        snapshot: &Snapshot,
        service: &Arc<Service>,
        (port, number): (&ServicePort, u16),
    ) -> Rc<Self> {
        let shared = port.shared.as_ref();
        let traffic = shared.map(|s| &*s.traffic);
        let near = traffic.and_then(|t| t.locality.as_deref());
        let (order, ends) = choose::arrange(&port.endpoints, near, snapshot.locality());
        let upstream = |index: &usize| {
            let endpoint = &port.endpoints[*index];
            let mut address = endpoint.address;
            if address.port() == 0 {
                address.set_port(number);
            }
            let identities = endpoint.mutual_tls.then(|| service.identities.clone());
            let upstream = pools.get(UpstreamKey {
                address,
                identities,
                http_version: port.protocol.into(),
                external: None,
                own: false,
            });
            upstream.apply_traffic_policy(traffic);
            upstream.set_workload(service.workload_of(port, *index).map(|k| &k.workload));
            upstream
        };
        let endpoints: Vec<_> = order.iter().map(upstream).collect();
        let labels = |known: Option<&KnownWorkload>, tcp| Labels {
            reporter: Reporter::Source,
            source: Some(snapshot.identity.clone()),
            source_workload: snapshot.workload().cloned(),
            destination_service: service.name.clone(),
            destination: match known {
                Some(known) => Some(known.identity.clone()),
                None => service.identities.first().cloned(),
            },
            destination_workload: known.map(|known| known.workload.clone()),
            mutual_tls: port.endpoints.iter().all(|e| e.mutual_tls),
            tcp,
        };
        let workloads = service.workloads_of(port);
        let (only, several) = match &*workloads {
            [only] => (Some(*only), &[] as &[&KnownWorkload]),
            several => (None, several),
        };
        let by_workload = several.iter().map(|known| WorkloadSeries {
            workload: known.workload.clone(),
            http: context.metrics.series(labels(Some(known), false)),
            tcp: context.metrics.series(labels(Some(known), true)),
        });
        let by_workload = by_workload.collect();
        // Workers and proxies must not all begin with the same endpoint.
        let first = usize::try_from(context.random()).unwrap_or_default();
        let ewma = traffic.is_some_and(|t| t.balancer == Balancer::Ewma);
        Rc::new(Port {
            service: service.name.clone(),
            number,
            protocol: port.protocol,
            http: context.metrics.series(labels(only, false)),
            tcp: context.metrics.series(labels(only, true)),
            by_workload,
            next: Cell::new(first.checked_rem(endpoints.len()).unwrap_or_default()),
            chooser: Chooser::new(&port.endpoints, &order, ends, shared),
            guarded: shared.is_some_and(|s| s.is_guarded() || s.checks.is_some()),
            observed: ewma || shared.is_some_and(|s| s.is_observed()),
            shared: shared.cloned(),
            in_force: in_force.clone(),
            names: OnceCell::new(),
            endpoints,
        })
    }

    /// Returns the counters for an endpoint, if they are other than the port's own.
    pub fn series_of(&self, upstream: &Upstream) -> Option<&WorkloadSeries> {
        let mut all = self.by_workload.iter();
        all.find(|series| upstream.is_of(&series.workload))
    }

    /// How many endpoints there are.
    pub fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    /// The state that all workers share, if traffic of this port is configured.
    pub fn shared(&self) -> Option<&Arc<Shared>> {
        self.shared.as_ref()
    }

    /// Returns its traffic policy, if configured.
    pub fn traffic(&self) -> Option<&Traffic> {
        self.shared.as_ref().map(|s| &*s.traffic)
    }

    /// The endpoints with their indices in the resource.
    pub fn members(&self) -> impl Iterator<Item = (&Rc<Upstream>, usize)> {
        let index = |place| self.chooser.as_ref().map_or(place, |c| c.index(place));
        let indexed = self.endpoints.iter().enumerate();
        indexed.map(move |(place, upstream)| (upstream, index(place)))
    }

    /// The time for a whole request: the route's, the port's or the mesh's; 0: none.
    pub fn request_timeout_ms(&self, of_route: u32, of_mesh: u32) -> u32 {
        let own = self.traffic().map_or(0, |t| t.request_timeout_ms);
        let given = [of_route, own].into_iter().find(|ms| *ms > 0);
        match given.unwrap_or(of_mesh) {
            u32::MAX => 0,
            ms => ms,
        }
    }

    /// Silence that ends an exchange: the port's or the mesh's.
    pub fn idle_timeout_ms(&self, of_mesh: u32) -> u32 {
        match self.traffic().map_or(0, |t| t.idle_timeout_ms) {
            0 => of_mesh,
            own => own,
        }
    }

    /// Returns the session affinity: the route's or else the port's.
    pub fn affinity(&self, of_route: Option<&Arc<Affinity>>) -> Option<Arc<Affinity>> {
        let own = || self.shared.as_ref()?.affinity.as_ref();
        of_route.or_else(own).cloned()
    }

    /// Returns the retry policy for routes that have none.
    pub fn retry_policy(&self) -> Option<&Arc<Policy>> {
        self.shared.as_ref()?.retry.as_ref()
    }

    /// Whether the port balances by hash.
    pub fn is_hashed(&self) -> bool {
        self.shared.as_ref().is_some_and(|s| s.ring.is_some())
    }
}
