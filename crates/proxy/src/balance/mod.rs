//! Chooses the endpoint of a destination for the next request, and whether it may be asked at all.
//!
//! A port without a traffic policy goes in turn over its endpoints and asks nobody else. Everything
//! that only some ports need is behind one `Option` each: `choose` (with `ring`, `locality` and
//! `latency`) picks by other rules, `shared` holds what all contexts know together (`limits`,
//! `breaker`, `outlier`, `health`), `affinity` brings clients back, `show` tells the operator.

pub mod affinity;
pub(crate) mod choose;
pub(crate) mod health;
pub(crate) mod locality;
pub(crate) mod show;

pub use choose::EndpointHint;

use crate::config::snapshot::{KnownWorkload, Service, ServicePort, Snapshot};
use crate::config::traffic::breaker::{BreakerProbe, BreakerVerdict};
use crate::config::traffic::limits::{LimitPermits, PortLimits, RetryPlace, TooMany};
use crate::config::traffic::retry::Policy;
use crate::config::traffic::ring;
use crate::config::traffic::shared::{self, Shared};
use crate::context::WorkerContext;
use crate::telemetry::metrics::{Labels, Reporter, RequestSeries};
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use crate::upstream::permit::Permit;
use crate::upstream::pools::Pools;
use crate::upstream::{Lease, Upstream, UpstreamKey};
use affinity::Namer;
use choose::{Chooser, Chosen};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tulle_model::resource::{Affinity, Balancer, Protocol, Traffic, Workload};
use tulle_transport::StreamKind;

/// Endpoints tried before a connection attempt is given up.
const CONNECT_TRIES: usize = 3;

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

/// The ports of the configuration in force, for what outlives one.
#[derive(Default)]
pub struct InForce(RefCell<HashMap<Name, Weak<Port>>>);

/// A service and the number of its port.
type Name = (Arc<str>, u16);

impl InForce {
    /// Forgets all: another configuration comes.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Only ports with checks are looked for.
    fn add(&self, port: &Rc<Port>) {
        if port.shared.as_ref().is_some_and(|s| s.checks.is_some()) {
            let key = (port.service.clone(), port.number);
            self.0.borrow_mut().insert(key, Rc::downgrade(port));
        }
    }

    fn find(&self, service: &Arc<str>, number: u16) -> Option<Rc<Port>> {
        let known = self.0.borrow();
        known.get(&(service.clone(), number))?.upgrade()
    }
}

/// A lease that was not available at once.
pub enum Begun {
    /// No connection is open and free yet.
    Chose(Rc<Upstream>, Option<Box<Permit>>),
    /// All places are taken.
    Waits(Option<BreakerProbe>),
}

enum Admission {
    Now(Box<Permit>),
    /// All places are taken.
    Wait(Option<BreakerProbe>),
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

    /// Returns the endpoint a request prefers. `source` is the hash of the client's address.
    pub fn hint(&self, affinity: Option<&Affinity>, head: &[u8], source: u64) -> EndpointHint {
        let key = |t: &Traffic| choose::key(&t.balancer, head, source);
        EndpointHint {
            key: self.traffic().map_or(0, key),
            name: affinity.map_or(0, |a| affinity::of_request(a, head)),
        }
    }

    /// Picks the endpoint for the next request. Endpoints that are not healthy are passed over
    /// while there are others.
    ///
    /// # Errors
    /// There is no endpoint.
    pub fn pick(
        &self,
        context: &WorkerContext,
        hint: &EndpointHint,
        avoid: Option<SocketAddr>,
    ) -> Result<&Rc<Upstream>, Failure> {
        if let Some(chooser) = &self.chooser {
            chooser.note_asked();
        }
        match (self.endpoints.as_slice(), &self.chooser) {
            ([], _) => Err(self.no_endpoint()),
            ([only], _) => Ok(only),
            (endpoints, None) if hint.name == 0 => Ok(self.in_turn(context, endpoints, avoid)),
            (endpoints, _) => Ok(self.choose(context, endpoints, hint, avoid)),
        }
    }

    #[cold]
    fn no_endpoint(&self) -> Failure {
        let (service, number) = (&self.service, self.number);
        let mut text = format!("service {service} has no endpoint for port {number}");
        if self.traffic().is_some_and(|t| t.locality.is_some()) {
            text.push_str(
                " where this workload may look for one: on its node, or in regions of `failover`",
            );
        }
        Failure::new(Reason::NoEndpoint, text)
    }

    fn in_turn<'a>(
        &self,
        context: &WorkerContext,
        endpoints: &'a [Rc<Upstream>],
        avoid: Option<SocketAddr>,
    ) -> &'a Rc<Upstream> {
        let start = self.next.get();
        let count = endpoints.len();
        let wanted = |i: &usize| {
            let upstream = &endpoints[*i];
            !upstream.is_down() && avoid != Some(upstream.key.address)
        };
        let mut places = (0..count).map(|i| (start + i) % count);
        let index = places.find(wanted).unwrap_or_else(|| {
            let mut places = (0..count).map(|i| (start + i) % count);
            places
                .find(|i| !endpoints[*i].is_down())
                .unwrap_or_else(|| {
                    context.metrics.internal(|i| i.panics += 1);
                    start % count
                })
        });
        self.next.set((index + 1) % count);
        &endpoints[index]
    }

    fn choose<'a>(
        &self,
        context: &WorkerContext,
        endpoints: &'a [Rc<Upstream>],
        hint: &EndpointHint,
        avoid: Option<SocketAddr>,
    ) -> &'a Rc<Upstream> {
        let named = |name: &&u64| **name == hint.name;
        let stuck = (hint.name != 0)
            .then(|| self.names(context).iter().position(|n| named(&n)))
            .flatten();
        let chosen = match &self.chooser {
            Some(chooser) => {
                let random = || context.random();
                chooser.choose(endpoints, hint.key, stuck, avoid, random)
            }
            None => match stuck.filter(|place| !endpoints[*place].is_down()) {
                Some(place) => Chosen::Well(place),
                None => Chosen::InTurn,
            },
        };
        match chosen {
            Chosen::Well(place) => &endpoints[place],
            Chosen::InTurn => self.in_turn(context, endpoints, avoid),
            Chosen::Panic(place) => {
                context.metrics.internal(|i| i.panics += 1);
                &endpoints[place]
            }
        }
    }

    fn names(&self, context: &WorkerContext) -> &[u64] {
        self.names.get_or_init(|| {
            let namer = Namer::new(context, &self.service);
            let names = self.endpoints.iter().map(|u| namer.name(u.key.address));
            names.collect()
        })
    }

    /// Returns the field that tells a client who has served it, unless it knows already.
    pub fn name_for_client(
        &self,
        context: &WorkerContext,
        affinity: &Affinity,
        hint: &EndpointHint,
        lease: &Lease,
        secure: bool,
    ) -> Option<(String, String)> {
        let served = lease.upstream();
        let place = self.endpoints.iter().position(|u| Rc::ptr_eq(u, served))?;
        let name = *self.names(context).get(place)?;
        (name != hint.name).then(|| affinity::field(affinity, name, secure))
    }

    /// Leases a connection to an endpoint that is open already. Otherwise returns the state for
    /// `later`.
    ///
    /// # Errors
    /// There is no endpoint, or none may be asked now.
    pub fn at_once(
        &self,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
        hint: &EndpointHint,
    ) -> Result<Result<Lease, Begun>, Failure> {
        let permit = match self.guarded {
            false => None,
            true => match self.admit(context, kind)? {
                Admission::Now(permit) => Some(permit),
                Admission::Wait(probe) => return Ok(Err(Begun::Waits(probe))),
            },
        };
        let upstream = self.pick(context, hint, None)?;
        Ok(match upstream.checkout(context, kind) {
            Some(lease) => Ok(lease.with(permit)),
            None => Err(Begun::Chose(upstream.clone(), permit)),
        })
    }

    /// Leases a connection to an endpoint and waits for it: for a place, for at most `wait_ms` (0:
    /// as long as it takes), or for a new connection.
    ///
    /// # Errors
    /// No endpoint is reachable, or it took too long.
    pub async fn later(
        &self,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
        hint: &EndpointHint,
        wait_ms: u32,
        begun: Begun,
    ) -> Result<Lease, Failure> {
        let (upstream, permit) = match begun {
            Begun::Chose(upstream, permit) => (Some(upstream), permit),
            Begun::Waits(probe) => (None, Some(self.wait(kind, wait_ms, probe).await?)),
        };
        self.reach(context, kind, hint, None, upstream, permit)
            .await
    }

    /// Leases a connection to an endpoint, preferably not the one at `avoid`; waits as `later`
    /// does.
    ///
    /// # Errors
    /// There is no endpoint, none is reachable, or the limits allow no more.
    pub async fn lease(
        &self,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
        hint: &EndpointHint,
        avoid: Option<SocketAddr>,
        wait_ms: u32,
    ) -> Result<Lease, Failure> {
        let permit = match self.guarded {
            false => None,
            true => match self.admit(context, kind)? {
                Admission::Now(permit) => Some(permit),
                Admission::Wait(probe) => Some(self.wait(kind, wait_ms, probe).await?),
            },
        };
        self.reach(context, kind, hint, avoid, None, permit).await
    }

    async fn reach(
        &self,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
        hint: &EndpointHint,
        avoid: Option<SocketAddr>,
        mut chosen: Option<Rc<Upstream>>,
        permit: Option<Box<Permit>>,
    ) -> Result<Lease, Failure> {
        let mut tries = self.endpoints.len().min(CONNECT_TRIES);
        loop {
            let upstream = match chosen.take() {
                Some(upstream) => upstream,
                None => self.pick(context, hint, avoid)?.clone(),
            };
            if let Some(lease) = upstream.checkout(context, kind) {
                return Ok(lease.with(permit));
            }
            match upstream.connect(context, kind).await {
                Ok(lease) => return Ok(lease.with(permit)),
                Err(failure) => {
                    if self.observed {
                        self.count(&upstream, true, Duration::ZERO);
                    }
                    // No byte was sent, so another endpoint may be asked.
                    if tries <= 1 {
                        self.unreachable(permit);
                        return Err(failure);
                    }
                    tries -= 1;
                }
            }
        }
    }

    fn admit(&self, context: &Rc<WorkerContext>, kind: StreamKind) -> Result<Admission, Failure> {
        let now = shared::now();
        let mut probe = None;
        let mut places = Some(LimitPermits::default());
        if let Some(shared) = &self.shared {
            if let Some(checks) = &shared.checks {
                health::used(checks, context, self, now);
            }
            match shared.breaker.as_ref().map(|b| b.admit(now)) {
                Some(BreakerVerdict::Open(ms)) => return Err(self.open(shared, ms)),
                Some(BreakerVerdict::Probe(tries)) => probe = Some(tries),
                Some(BreakerVerdict::Closed) | None => {}
            }
            if let Some(limits) = &shared.limits {
                places = limits.at_once(kind);
            }
        }
        Ok(match places {
            Some(places) => Admission::Now(Box::new(Permit::new(places, probe))),
            None => Admission::Wait(probe),
        })
    }

    async fn wait(
        &self,
        kind: StreamKind,
        most_ms: u32,
        probe: Option<BreakerProbe>,
    ) -> Result<Box<Permit>, Failure> {
        let most = (most_ms > 0).then(|| Duration::from_millis(most_ms.into()));
        let limits = self.shared.as_ref().and_then(|s| s.limits.as_ref());
        let places = match limits {
            None => LimitPermits::default(),
            Some(limits) => {
                let what = format!("{}:{}", self.service, self.number);
                limits.wait(kind, most, &what).await?
            }
        };
        Ok(Box::new(Permit::new(places, probe)))
    }

    #[cold]
    fn open(&self, shared: &Shared, ms: u64) -> Failure {
        let text = format!(
            "{} has opened the circuit to {}:{} because too many requests failed or were slow; \
             one is tried in {ms} ms",
            shared.traffic.name, self.service, self.number
        );
        let failure = Failure::new(Reason::CircuitOpen, text);
        let Some(rule) = shared.traffic.breaker.as_deref() else {
            return failure;
        };
        if rule.status == 0 && rule.body.is_empty() {
            return failure;
        }
        let body = rule.body.as_bytes();
        let kind = || "text/plain; charset=utf-8".to_owned();
        failure.with_response(LocalResponse {
            status: match rule.status {
                0 => Reason::CircuitOpen.status(),
                given => given,
            },
            body: (!body.is_empty()).then(|| (kind(), body.to_vec())),
            ..LocalResponse::default()
        })
    }

    /// Counts a failed request: no endpoint was reachable.
    fn unreachable(&self, permit: Option<Box<Permit>>) {
        if let Some(breaker) = self.shared.as_ref().and_then(|s| s.breaker.as_ref()) {
            let probe = permit.and_then(|mut p| p.take_probe());
            breaker.record(shared::now(), true, 0, probe);
        }
    }

    /// Records the end of an exchange, by its status, or 0 if the upstream gave none.
    pub fn ended(&self, lease: &mut Lease, status: u16, started: Instant) {
        if self.observed {
            self.note(lease, status, started.elapsed());
        }
    }

    fn note(&self, lease: &mut Lease, status: u16, took: Duration) {
        let error = status == 0 || status >= 500;
        let upstream = lease.upstream().clone();
        self.count(&upstream, error, took);
        if let Some(breaker) = self.shared.as_ref().and_then(|s| s.breaker.as_ref()) {
            let probe = lease.permit().and_then(|p| p.take_probe());
            let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            breaker.record(shared::now(), error, ms, probe);
        }
    }

    /// Counts an answer or failure of an endpoint.
    fn count(&self, upstream: &Rc<Upstream>, error: bool, took: Duration) {
        let now = shared::now();
        let ms = took.as_secs_f64() * 1000.0;
        match error {
            true => upstream.latency().failed(ms, now),
            false => upstream.latency().observe(ms, now),
        }
        let Some(shared) = &self.shared else { return };
        let Some(outlier) = &shared.outlier else {
            return;
        };
        let member = self.members().find(|(u, _)| Rc::ptr_eq(u, upstream));
        if let Some((_, index)) = member
            && outlier.record(&shared.endpoints, index, now, error)
        {
            shared.ejections.fetch_add(1, Ordering::Relaxed);
            let ms = shared.endpoints[index].ejected_for(now);
            let address = upstream.key.address;
            tracing::warn!(service = &*self.service, port = self.number, %address, ms, "ejected");
        }
    }

    /// Begins a retry, as far as the limits allow.
    ///
    /// # Errors
    /// As many retries are under way as the limit allows.
    pub fn retry(&self) -> Result<Option<RetryPlace>, TooMany> {
        let limits = self.shared.as_ref().and_then(|s| s.limits.as_ref());
        limits.map(PortLimits::retry).transpose()
    }
}
