//! A worker: one thread, one event loop, its own listeners, pools and counters.
//!
//! Workers share nothing but the immutable snapshot and the number of connections each has
//! (`spread`).

use crate::balance::{Destination, EndpointHint, InForce, Port, show};
use crate::config::snapshot::Snapshot;
use crate::context::lookups::Lookups;
use crate::context::{Recent, WorkerContext, memory_limit};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::export_totals::ExportTotals;
use crate::telemetry::metrics::WorkerReport;
use crate::telemetry::outside_peers;
use crate::telemetry::reason::{Failure, Reason};
use crate::telemetry::span::Span;
use crate::upstream::http2::Http2Connection;
use crate::upstream::outside::{Gateways, Lent};
use crate::upstream::pools::Pools;
use crate::upstream::{Lease, Upstream, UpstreamKey};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tulle_model::resource::Target;
use tulle_net::clock;
use tulle_net::passing::Answer;
use tulle_transport::StreamKind;

/// Endpoints of an egress gateway that are tried.
const GATEWAY_TRIES: usize = 3;
/// How often idle pools are swept.
const SWEEP: Duration = Duration::from_secs(10);

/// Requests of the main thread to a worker.
pub enum Command {
    /// A new configuration.
    Config(Arc<Snapshot>),
    /// Answered when all earlier commands are done.
    Ping(oneshot::Sender<()>),
    /// The present numbers.
    Metrics(oneshot::Sender<WorkerReport>),
    /// Recent failures.
    Errors(oneshot::Sender<Vec<Recent>>),
    /// Failures after a time, also those that applications answered with.
    FailuresSince(f64, oneshot::Sender<Vec<Recent>>),
    /// Peers outside the mesh.
    Outside(oneshot::Sender<Vec<outside_peers::Row>>),
    /// The finished spans, which the worker then forgets.
    Spans(oneshot::Sender<VecDeque<Span>>),
    /// The state of the endpoints it has used.
    Endpoints(oneshot::Sender<show::WorkerView>),
    /// Finish open exchanges and take nothing new; answered when done.
    Drain(oneshot::Sender<()>),
    /// Something that modules above know how to do.
    Do(WorkerTask),
}

/// Something to be done in a worker's thread.
pub type WorkerTask = Box<dyn FnOnce(&Rc<Worker>) + Send>;

/// Once set, its listener is to be closed. The answer is given when it is.
pub type Closing = Rc<OnceCell<Arc<Answer>>>;

/// A worker: its context, and the pools and destinations that it shares with no other.
pub struct Worker {
    this: Weak<Self>,
    context: Rc<WorkerContext>,
    config: RefCell<Rc<WorkerConfig>>,
    pools: Pools,
    in_force: Rc<InForce>,
    http2_clients: RefCell<Vec<Weak<Http2Connection>>>,
    /// Listeners that can be closed while the worker runs.
    pub listeners: RefCell<Vec<(SocketAddr, Closing)>>,
    /// Sockets of the listeners that are there as long as the worker is.
    pub sockets: RefCell<Vec<(SocketAddr, Weak<TcpListener>)>>,
    /// When `end_stuck_clients` may wake all tasks again.
    next_wake: Cell<Duration>,
}

impl Deref for Worker {
    type Target = Rc<WorkerContext>;

    fn deref(&self) -> &Rc<WorkerContext> {
        &self.context
    }
}

/// A snapshot with this worker's own state for it.
pub struct WorkerConfig {
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    destinations: RefCell<HashMap<String, Rc<Destination>>>,
}

impl Worker {
    /// A worker with its first configuration.
    pub fn new(
        snapshot: Arc<Snapshot>,
        log: AccessLog,
        spans: Arc<ExportTotals>,
        lookups: Option<Lookups>,
    ) -> Rc<Self> {
        Rc::new_cyclic(|this| Self {
            this: this.clone(),
            context: WorkerContext::new(snapshot.clone(), log, spans, lookups),
            config: RefCell::new(Rc::new(WorkerConfig::new(snapshot))),
            pools: Pools::default(),
            in_force: Rc::default(),
            http2_clients: RefCell::default(),
            listeners: RefCell::default(),
            sockets: RefCell::default(),
            next_wake: Cell::default(),
        })
    }

    /// Runs the main thread's commands until it ends.
    pub async fn run(self: Rc<Self>, mut commands: mpsc::UnboundedReceiver<Command>) {
        tokio::task::spawn_local(self.deadlines.clone().sweep());
        tokio::task::spawn_local(self.clone().sweep_pools());
        while let Some(command) = commands.recv().await {
            match command {
                Command::Config(snapshot) => self.configure(snapshot),
                // A requester that has gone needs no answer.
                Command::Ping(reply) => drop(reply.send(())),
                Command::Metrics(reply) => drop(reply.send(self.metrics.report())),
                Command::Errors(reply) => drop(reply.send(self.recent())),
                Command::FailuresSince(time, reply) => {
                    drop(reply.send(self.failures_since(time)));
                }
                Command::Outside(reply) => drop(reply.send(self.outside.rows())),
                Command::Spans(reply) => drop(reply.send(self.spans.take())),
                Command::Endpoints(reply) => drop(reply.send(self.endpoints())),
                Command::Do(what) => what(&self),
                Command::Drain(reply) => {
                    let worker = self.clone();
                    tokio::task::spawn_local(async move {
                        worker.drain().await;
                        // The main thread may have stopped waiting.
                        let _ = reply.send(());
                    });
                }
            }
        }
    }

    /// The configuration in force. Take it once per request.
    pub fn config(&self) -> Rc<WorkerConfig> {
        self.config.borrow().clone()
    }

    fn configure(&self, snapshot: Arc<Snapshot>) {
        let epoch = self.tls_epoch();
        self.set_snapshot(snapshot.clone());
        let old = self.config.replace(Rc::new(WorkerConfig::new(snapshot)));
        let config = self.config();
        let cut = self.peers.revoke(&config.snapshot.revoked);
        if cut > 0 {
            tracing::warn!(
                connections = cut,
                "cut: a certificate of a peer was revoked"
            );
        }
        self.in_force.clear();
        // Destinations in use stay set up, so that their pools are not swept as unused.
        for name in old.destinations.borrow().keys() {
            self.destination(&config, name);
        }
        self.notify();
        if self.tls_epoch() != epoch {
            // Connections made with the old certificates have to come to an end.
            self.deadlines.wake_all();
        }
        self.pools.forget_unused();
    }

    /// Returns the port of a destination, also where that takes any and does not name this one.
    pub fn port_of(
        &self,
        config: &WorkerConfig,
        to: &Destination,
        number: u16,
    ) -> Option<Rc<Port>> {
        let named = to.port(number).cloned();
        named.or_else(|| {
            let snapshot = &config.snapshot;
            to.unnamed(&self.context, &self.pools, &self.in_force, snapshot, number)
        })
    }

    /// The destination of that name, with this worker's pools.
    pub fn destination(&self, config: &WorkerConfig, name: &str) -> Option<Rc<Destination>> {
        if let Some(known) = config.destinations.borrow().get(name) {
            return Some(known.clone());
        }
        let service = config.snapshot.services.get(name)?;
        let built = Destination::new(
            &self.context,
            &self.pools,
            &self.in_force,
            &config.snapshot,
            service,
        );
        let built = Rc::new(built);
        config
            .destinations
            .borrow_mut()
            .insert(name.to_owned(), built.clone());
        Some(built)
    }

    fn endpoints(&self) -> show::WorkerView {
        let config = self.config();
        let known = config.destinations.borrow();
        let ports = known.values().flat_map(|d| d.ports());
        ports.map(|port| show::view(port)).collect()
    }

    /// Returns the pool for an endpoint; the same one as long as address and identities are the
    /// same.
    pub fn upstream(&self, key: UpstreamKey) -> Rc<Upstream> {
        self.pools.get(key)
    }

    /// Returns the lender of ways to egress gateways.
    pub fn gateways(&self) -> Weak<dyn Gateways> {
        self.this.clone()
    }

    async fn sweep_pools(self: Rc<Self>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            tulle_net::buffer::trim();
            tulle_net::splice::trim();
            self.pools.sweep(self.tls_epoch());
        }
    }

    /// Remembers a connection of a client that speaks HTTP/2, to be checked when memory is short.
    pub fn remember(&self, connection: &Rc<Http2Connection>) {
        let mut clients = self.http2_clients.borrow_mut();
        if clients.len() == clients.capacity() {
            clients.retain(|known| known.strong_count() > 0);
        }
        clients.push(Rc::downgrade(connection));
    }

    /// Ends connections whose clients do not read the bytes waiting for them, since memory is
    /// short. Woken tasks of other exchanges and tunnels check their own connections.
    #[cold]
    pub fn end_stuck_clients(&self) {
        let now = clock::monotonic();
        if now >= self.next_wake.get() {
            self.next_wake.set(now + memory_limit::PATIENCE / 4);
            self.deadlines.wake_all();
        }
        let clients = self.http2_clients.borrow();
        let stuck = clients.iter().filter_map(Weak::upgrade);
        let ended = stuck.filter(|client| client.end_if_stuck()).count();
        if ended > 0 {
            self.metrics.internal(|i| i.shed += ended as u64);
            tracing::warn!(
                connections = ended,
                "memory is short: ended connections of clients that do not read"
            );
        }
    }

    async fn drain(&self) {
        self.begin_drain();
        self.pools.retire();
        self.drained().await;
    }
}

impl Gateways for Worker {
    fn lease<'a>(&'a self, gateway: &'a Target) -> Lent<'a> {
        Box::pin(lease(self, gateway))
    }
}

/// Leases a stream to one of a gateway's endpoints.
async fn lease(worker: &Worker, gateway: &Target) -> Result<Lease, Failure> {
    let missing = |what: &str| {
        let text = format!("egress gateway {}: {what}", gateway.service);
        Failure::new(Reason::NoService, text)
    };
    let port = {
        let config = worker.config();
        let destination = worker
            .destination(&config, &gateway.service)
            .ok_or_else(|| missing("the service does not exist"))?;
        let port = destination.port(gateway.port).cloned();
        port.ok_or_else(|| missing(&format!("the service has no port {}", gateway.port)))?
    };
    let mut tries = port.endpoint_count().clamp(1, GATEWAY_TRIES);
    loop {
        let upstream = port.pick(worker, &EndpointHint::default(), None)?;
        // The name of the host outside is sent to the gateway, so never in plain text.
        if upstream.key.identities.is_none() {
            return Err(missing("its endpoints must be reached by mutual TLS"));
        }
        if let Some(lease) = upstream.checkout(worker, StreamKind::Http) {
            return Ok(lease);
        }
        match Box::pin(upstream.connect(worker, StreamKind::Http)).await {
            Ok(lease) => return Ok(lease),
            Err(failure) if tries <= 1 => return Err(failure),
            Err(_) => tries -= 1,
        }
    }
}

impl WorkerConfig {
    fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            snapshot,
            destinations: RefCell::default(),
        }
    }
}
