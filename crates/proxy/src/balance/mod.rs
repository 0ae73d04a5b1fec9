//! Which endpoint of a destination gets the next request, and whether it may be asked at all.
//!
//! A port without a traffic policy goes in turn over its endpoints and asks nobody else. Everything
//! that only some ports need is behind one `Option` each: `choose` (with `ring`, `locality` and
//! `latency`) picks by other rules, `shared` holds what all workers know together (`limits`,
//! `breaker`, `outlier`, `health`), `affinity` brings clients back, `show` tells the operator.

pub mod affinity;
pub mod breaker;
pub mod choose;
pub mod health;
pub mod latency;
pub mod limits;
pub mod locality;
pub mod outlier;
pub mod ring;
pub mod shared;
pub mod show;

pub use choose::Steer;

use crate::metrics::{Labels, Reporter, Series};
use crate::reason::{Answer, Failure, Reason};
use crate::retry::Policy;
use crate::snapshot::{Service, ServicePort, Snapshot};
use crate::upstream::{Lease, Upstream, UpstreamKey};
use crate::worker::{Config, Worker};
use affinity::Namer;
use breaker::{Probe, Verdict};
use choose::{Chooser, Chosen};
use limits::{Limits, Places, RetryPlace, TooMany};
use shared::Shared;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tulle_model::resource::{Affinity, Balancer, Protocol, Traffic};
use tulle_transport::StreamKind;

/// Endpoints tried when a connection cannot be made.
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
    /// What it speaks.
    pub protocol: Protocol,
    /// Requests to it, as this proxy sees them.
    pub http: Rc<Series>,
    /// Opaque connections to it.
    pub tcp: Rc<Series>,
    endpoints: Vec<Rc<Upstream>>,
    next: Cell<usize>,
    chooser: Option<Box<Chooser>>,
    shared: Option<Arc<Shared>>,
    /// Requests ask before they begin: there are limits or a breaker.
    guarded: bool,
    /// How requests end is told.
    observed: bool,
    /// The endpoints' names for clients, once anybody has asked for them.
    names: OnceCell<Box<[u64]>>,
}

/// What an exchange holds of a port that is guarded; given back when it is dropped.
pub struct Permit {
    _places: Places,
    probe: Option<Probe>,
}

/// A lease that could not be had at once.
pub enum Begun {
    /// There is no connection yet, or none that is free.
    Chose(Rc<Upstream>, Option<Box<Permit>>),
    /// All places are taken.
    Waits(Option<Probe>),
}

enum Admission {
    Now(Box<Permit>),
    /// All places are taken.
    Wait(Option<Probe>),
}

impl Destination {
    /// Sets up the ports of a service.
    pub fn new(worker: &Worker, snapshot: &Snapshot, service: &Arc<Service>) -> Self {
        let named = service.ports.iter().filter(|port| port.port != 0);
        let ports = named.map(|port| Port::new(worker, snapshot, service, port, port.port));
        Self {
            service: service.clone(),
            ports: ports.collect(),
            unnamed: RefCell::default(),
        }
    }

    /// A port that the service does not name, if it has those, too: a pod, called by its address.
    #[cold]
    pub fn unnamed(&self, worker: &Worker, config: &Config, number: u16) -> Option<Rc<Port>> {
        let mut unnamed = self.unnamed.borrow_mut();
        if let Some(known) = unnamed.iter().find(|p| p.number == number) {
            return Some(known.clone());
        }
        let any = self.service.port(0)?;
        let port = Port::new(worker, &config.snapshot, &self.service, any, number);
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
        // Of a host without a name the process has to do.
        let mut own = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        own.extend_from_slice(&std::process::id().to_be_bytes());
        ring::of_bytes(&own).max(1)
    })
}

impl Port {
    /// Sets up a port of a service. `number` is another than the port's only if that is 0.
    fn new(
        worker: &Worker,
        snapshot: &Snapshot,
        service: &Arc<Service>,
        port: &ServicePort,
        number: u16,
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
            let upstream = worker.upstream(UpstreamKey {
                address,
                identities,
                speaks: port.protocol.into(),
                beyond: None,
                own: false,
            });
            upstream.treat(traffic);
            upstream
        };
        let endpoints: Vec<_> = order.iter().map(upstream).collect();
        let labels = |tcp| Labels {
            reporter: Reporter::Source,
            source: Some(snapshot.identity.clone()),
            destination_service: service.name.clone(),
            destination: service.identities.first().cloned(),
            mutual_tls: port.endpoints.iter().all(|e| e.mutual_tls),
            tcp,
        };
        // Workers and proxies must not all begin with the same endpoint.
        let first = usize::try_from(worker.random()).unwrap_or_default();
        let ewma = traffic.is_some_and(|t| t.balancer == Balancer::Ewma);
        Rc::new(Port {
            service: service.name.clone(),
            number,
            protocol: port.protocol,
            http: worker.metrics.series(labels(false)),
            tcp: worker.metrics.series(labels(true)),
            next: Cell::new(first.checked_rem(endpoints.len()).unwrap_or_default()),
            chooser: Chooser::new(&port.endpoints, &order, ends, shared),
            guarded: shared.is_some_and(|s| s.is_guarded() || s.checks.is_some()),
            observed: ewma || shared.is_some_and(|s| s.is_observed()),
            shared: shared.cloned(),
            names: OnceCell::new(),
            endpoints,
        })
    }

    /// How many endpoints there are.
    pub fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    /// What the workers know together, if its traffic is configured.
    pub fn shared(&self) -> Option<&Arc<Shared>> {
        self.shared.as_ref()
    }

    /// How it is treated, if that is configured.
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

    /// What keeps a client with an endpoint: the route's way or the port's.
    pub fn affinity(&self, of_route: Option<&Arc<Affinity>>) -> Option<Arc<Affinity>> {
        let own = || self.shared.as_ref()?.affinity.as_ref();
        of_route.or_else(own).cloned()
    }

    /// Sending again, where the route says nothing of it.
    pub fn retry_policy(&self) -> Option<&Arc<Policy>> {
        self.shared.as_ref()?.retry.as_ref()
    }

    /// Requests are hashed.
    pub fn is_hashed(&self) -> bool {
        self.shared.as_ref().is_some_and(|s| s.ring.is_some())
    }

    /// Where a request wants to go. `source` is the hash of the client's address.
    pub fn steer(&self, affinity: Option<&Affinity>, head: &[u8], source: u64) -> Steer {
        let key = |t: &Traffic| choose::key(&t.balancer, head, source);
        Steer {
            key: self.traffic().map_or(0, key),
            name: affinity.map_or(0, |a| affinity::of_request(a, head)),
        }
    }

    /// The endpoint for the next request. Endpoints that are not well are passed over while there are
    /// others.
    ///
    /// # Errors
    /// There is none.
    pub fn pick(
        &self,
        worker: &Worker,
        steer: &Steer,
        avoid: Option<SocketAddr>,
    ) -> Result<&Rc<Upstream>, Failure> {
        if let Some(chooser) = &self.chooser {
            chooser.note_asked();
        }
        match (self.endpoints.as_slice(), &self.chooser) {
            ([], _) => Err(self.no_endpoint()),
            ([only], _) => Ok(only),
            (endpoints, None) if steer.name == 0 => Ok(self.in_turn(worker, endpoints, avoid)),
            (endpoints, _) => Ok(self.choose(worker, endpoints, steer, avoid)),
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
        worker: &Worker,
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
                    worker.metrics.internal(|i| i.panics += 1);
                    start % count
                })
        });
        self.next.set((index + 1) % count);
        &endpoints[index]
    }

    fn choose<'a>(
        &self,
        worker: &Worker,
        endpoints: &'a [Rc<Upstream>],
        steer: &Steer,
        avoid: Option<SocketAddr>,
    ) -> &'a Rc<Upstream> {
        let named = |name: &&u64| **name == steer.name;
        let stuck = (steer.name != 0)
            .then(|| self.names(worker).iter().position(|n| named(&n)))
            .flatten();
        let chosen = match &self.chooser {
            Some(chooser) => {
                let random = || worker.random();
                chooser.choose(endpoints, steer.key, stuck, avoid, random)
            }
            None => match stuck.filter(|place| !endpoints[*place].is_down()) {
                Some(place) => Chosen::Well(place),
                None => Chosen::InTurn,
            },
        };
        match chosen {
            Chosen::Well(place) => &endpoints[place],
            Chosen::InTurn => self.in_turn(worker, endpoints, avoid),
            Chosen::Panic(place) => {
                worker.metrics.internal(|i| i.panics += 1);
                &endpoints[place]
            }
        }
    }

    fn names(&self, worker: &Worker) -> &[u64] {
        self.names.get_or_init(|| {
            let namer = Namer::new(worker, &self.service);
            let names = self.endpoints.iter().map(|u| namer.name(u.key.address));
            names.collect()
        })
    }

    /// The field that tells a client who has served it, unless it knows.
    pub fn name_for_client(
        &self,
        worker: &Worker,
        affinity: &Affinity,
        steer: &Steer,
        lease: &Lease,
        secure: bool,
    ) -> Option<(String, String)> {
        let served = lease.upstream();
        let place = self.endpoints.iter().position(|u| Rc::ptr_eq(u, served))?;
        let name = *self.names(worker).get(place)?;
        (name != steer.name).then(|| affinity::field(affinity, name, secure))
    }

    /// A way to an endpoint that is there already. Else what has been begun, for `later`.
    ///
    /// # Errors
    /// There is no endpoint, or none may be asked now.
    pub fn at_once(
        &self,
        worker: &Rc<Worker>,
        kind: StreamKind,
        steer: &Steer,
    ) -> Result<Result<Lease, Begun>, Failure> {
        let permit = match self.guarded {
            false => None,
            true => match self.admit(worker, kind)? {
                Admission::Now(permit) => Some(permit),
                Admission::Wait(probe) => return Ok(Err(Begun::Waits(probe))),
            },
        };
        let upstream = self.pick(worker, steer, None)?;
        Ok(match upstream.checkout(worker, kind) {
            Some(lease) => Ok(lease.with(permit)),
            None => Err(Begun::Chose(upstream.clone(), permit)),
        })
    }

    /// A way to an endpoint for which something has to be waited for: its turn, for at most `wait_ms`
    /// (0: as long as it takes), or a new connection.
    ///
    /// # Errors
    /// None can be reached, or it took too long.
    pub async fn later(
        &self,
        worker: &Rc<Worker>,
        kind: StreamKind,
        steer: &Steer,
        wait_ms: u32,
        begun: Begun,
    ) -> Result<Lease, Failure> {
        let (upstream, permit) = match begun {
            Begun::Chose(upstream, permit) => (Some(upstream), permit),
            Begun::Waits(probe) => (None, Some(self.wait(kind, wait_ms, probe).await?)),
        };
        self.reach(worker, kind, steer, None, upstream, permit)
            .await
    }

    /// A way to an endpoint, rather not to the one at `avoid`; waits as `later`.
    ///
    /// # Errors
    /// There is none, none can be reached, or no more may be asked.
    pub async fn lease(
        &self,
        worker: &Rc<Worker>,
        kind: StreamKind,
        steer: &Steer,
        avoid: Option<SocketAddr>,
        wait_ms: u32,
    ) -> Result<Lease, Failure> {
        let permit = match self.guarded {
            false => None,
            true => match self.admit(worker, kind)? {
                Admission::Now(permit) => Some(permit),
                Admission::Wait(probe) => Some(self.wait(kind, wait_ms, probe).await?),
            },
        };
        self.reach(worker, kind, steer, avoid, None, permit).await
    }

    async fn reach(
        &self,
        worker: &Rc<Worker>,
        kind: StreamKind,
        steer: &Steer,
        avoid: Option<SocketAddr>,
        mut chosen: Option<Rc<Upstream>>,
        permit: Option<Box<Permit>>,
    ) -> Result<Lease, Failure> {
        let mut tries = self.endpoints.len().min(CONNECT_TRIES);
        loop {
            let upstream = match chosen.take() {
                Some(upstream) => upstream,
                None => self.pick(worker, steer, avoid)?.clone(),
            };
            if let Some(lease) = upstream.checkout(worker, kind) {
                return Ok(lease.with(permit));
            }
            match upstream.connect(worker, kind).await {
                Ok(lease) => return Ok(lease.with(permit)),
                Err(failure) => {
                    if self.observed {
                        self.count(&upstream, true, Duration::ZERO);
                    }
                    // Nothing was sent, so another endpoint may be asked.
                    if tries <= 1 {
                        self.unreachable(permit);
                        return Err(failure);
                    }
                    tries -= 1;
                }
            }
        }
    }

    fn admit(&self, worker: &Rc<Worker>, kind: StreamKind) -> Result<Admission, Failure> {
        let now = shared::now();
        let mut probe = None;
        let mut places = Some(Places::default());
        if let Some(shared) = &self.shared {
            if let Some(checks) = &shared.checks {
                checks.used(worker, self, now);
            }
            match shared.breaker.as_ref().map(|b| b.admit(now)) {
                Some(Verdict::Open(ms)) => return Err(self.open(shared, ms)),
                Some(Verdict::Probe(tries)) => probe = Some(tries),
                Some(Verdict::Closed) | None => {}
            }
            if let Some(limits) = &shared.limits {
                places = limits.at_once(kind);
            }
        }
        Ok(match places {
            Some(places) => Admission::Now(Box::new(Permit {
                _places: places,
                probe,
            })),
            None => Admission::Wait(probe),
        })
    }

    async fn wait(
        &self,
        kind: StreamKind,
        most_ms: u32,
        probe: Option<Probe>,
    ) -> Result<Box<Permit>, Failure> {
        let most = (most_ms > 0).then(|| Duration::from_millis(most_ms.into()));
        let limits = self.shared.as_ref().and_then(|s| s.limits.as_ref());
        let _places = match limits {
            None => Places::default(),
            Some(limits) => {
                let what = format!("{}:{}", self.service, self.number);
                limits.wait(kind, most, &what).await?
            }
        };
        Ok(Box::new(Permit { _places, probe }))
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
        failure.answered(Answer {
            status: match rule.status {
                0 => Reason::CircuitOpen.status(),
                given => given,
            },
            body: (!body.is_empty()).then(|| (kind(), body.to_vec())),
            ..Answer::default()
        })
    }

    /// No endpoint could be reached: one more request that failed.
    fn unreachable(&self, permit: Option<Box<Permit>>) {
        if let Some(breaker) = self.shared.as_ref().and_then(|s| s.breaker.as_ref()) {
            let probe = permit.and_then(|mut p| p.probe.take());
            breaker.record(shared::now(), true, 0, probe);
        }
    }

    /// An exchange has ended, well or not: with a status, or 0 if the upstream gave none.
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
            let probe = lease.permit().and_then(|p| p.probe.take());
            let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            breaker.record(shared::now(), error, ms, probe);
        }
    }

    /// One more answer or failure of an endpoint.
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

    /// A request may be sent again, as far as the limits are concerned.
    ///
    /// # Errors
    /// Too many are at it already.
    pub fn retry(&self) -> Result<Option<RetryPlace>, TooMany> {
        let limits = self.shared.as_ref().and_then(|s| s.limits.as_ref());
        limits.map(Limits::retry).transpose()
    }
}
