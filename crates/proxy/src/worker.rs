//! A worker: one thread, one event loop, its own listeners, pools and counters.
//!
//! Workers share nothing but the immutable snapshot and the number of connections each has
//! (`spread`).

use crate::balance::{Destination, show};
use crate::config::retry::Budgets;
use crate::config::snapshot::Snapshot;
use crate::context::admission::Admission;
use crate::context::memory_limit;
use crate::context::peers::Peers;
use crate::control::client::Lookups;
use crate::decision::Scope;
use crate::http::exchange;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::{Metrics, Report};
use crate::telemetry::outside_peers::{self, OutsidePeers};
use crate::telemetry::reason::{Failure, Reason};
use crate::telemetry::span::{self, Span};
use crate::upstream::http2::Http2Connection;
use crate::upstream::link::Link;
use crate::upstream::{Upstream, UpstreamKey};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, mpsc, oneshot};
use tulle_net::{Buf, Deadlines, clock};

/// Failures kept for `/errors`.
const RECENT: usize = 64;
/// Stream handlers kept for the next stream.
const IDLE_HANDLERS: usize = 512;
/// How often idle pools are swept.
const SWEEP: Duration = Duration::from_secs(10);

/// How long a connection without a request delays the end of this proxy: one that has sent nothing
/// yet, or one of a client outside the mesh.
pub const LAST_CHANCE: Duration = Duration::from_secs(2);

/// Requests of the main thread to a worker.
pub enum Command {
    /// A new configuration.
    Config(Arc<Snapshot>),
    /// Answered when all earlier commands are done.
    Ping(oneshot::Sender<()>),
    /// The present numbers.
    Metrics(oneshot::Sender<Report>),
    /// Recent failures.
    Errors(oneshot::Sender<Vec<Recent>>),
    /// Peers outside the mesh.
    Outside(oneshot::Sender<Vec<outside_peers::Row>>),
    /// The finished spans, which the worker then forgets.
    Spans(oneshot::Sender<VecDeque<Span>>),
    /// The state of the endpoints it has used.
    Endpoints(oneshot::Sender<show::View>),
    /// Finish open exchanges and take nothing new; answered when done.
    Drain(oneshot::Sender<()>),
}

/// A failure as shown to operators.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Recent {
    /// Seconds since 1970.
    pub time: f64,
    /// Caller's identity, or `unknown`.
    pub source: String,
    /// Service called, or `unknown`.
    pub destination: String,
    /// Request target, if known.
    pub path: String,
    /// Status answered; 0 for TCP.
    pub code: u16,
    /// Reason code.
    pub reason: &'static str,
    /// Facts an operator needs to know.
    pub detail: String,
}

/// State of one worker.
pub struct Worker {
    /// Deadlines of all tasks.
    pub deadlines: Rc<Deadlines>,
    /// Connections from clients.
    pub admission: Admission,
    /// Connections with peers of the mesh.
    pub peers: Rc<Peers>,
    /// Counters.
    pub metrics: Metrics,
    /// Peers outside the mesh.
    pub outside: OutsidePeers,
    /// The access log.
    pub log: AccessLog,
    /// Spans for the exporter.
    pub spans: span::Ring,
    /// Budgets of retries.
    pub retry_budgets: Budgets,
    /// Asks the controller for names that are not in the snapshot.
    pub lookups: Option<Lookups>,
    config: RefCell<Rc<Config>>,
    upstreams: RefCell<HashMap<UpstreamKey, Rc<Upstream>>>,
    handlers: RefCell<Vec<Rc<Mailbox>>>,
    recent: RefCell<VecDeque<Recent>>,
    random: Cell<u64>,
    open: Cell<u64>,
    draining: Cell<bool>,
    changed: Notify,
    http2_clients: RefCell<Vec<Weak<Http2Connection>>>,
    /// When `end_stuck_clients` may wake all tasks again.
    next_wake: Cell<Duration>,
}

/// A snapshot with this worker's own state for it.
pub struct Config {
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    destinations: RefCell<HashMap<String, Rc<Destination>>>,
}

/// Counts a connection as open until dropped.
pub struct Open(Rc<Worker>);

impl Drop for Open {
    fn drop(&mut self) {
        let open = self.0.open.get().saturating_sub(1);
        self.0.open.set(open);
        self.0.metrics.internal(|i| i.open = open);
        if self.0.draining.get() && open == 0 {
            self.0.changed.notify_waiters();
        }
    }
}

impl Worker {
    /// A worker with its first configuration.
    pub fn new(
        snapshot: Arc<Snapshot>,
        log: AccessLog,
        spans: Arc<span::Totals>,
        lookups: Option<Lookups>,
    ) -> Rc<Self> {
        Rc::new(Self {
            deadlines: Deadlines::new(),
            admission: Admission::default(),
            peers: Rc::default(),
            metrics: Metrics::default(),
            outside: OutsidePeers::default(),
            log,
            spans: span::Ring::new(spans),
            retry_budgets: Budgets::default(),
            lookups,
            config: RefCell::new(Rc::new(Config::new(snapshot))),
            upstreams: RefCell::default(),
            handlers: RefCell::default(),
            recent: RefCell::default(),
            random: Cell::new(seed()),
            open: Cell::new(0),
            draining: Cell::new(false),
            changed: Notify::new(),
            http2_clients: RefCell::default(),
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
                Command::Errors(reply) => {
                    drop(reply.send(self.recent.borrow().iter().cloned().collect()));
                }
                Command::Outside(reply) => drop(reply.send(self.outside.rows())),
                Command::Spans(reply) => drop(reply.send(self.spans.take())),
                Command::Endpoints(reply) => drop(reply.send(self.endpoints())),
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
    pub fn config(&self) -> Rc<Config> {
        self.config.borrow().clone()
    }

    /// Whether the access log or a watcher needs a line for each request.
    pub fn logs(&self) -> bool {
        self.log.wanted(self.config().snapshot.mesh.access_log)
    }

    fn configure(&self, snapshot: Arc<Snapshot>) {
        let old = self.config.replace(Rc::new(Config::new(snapshot)));
        let config = self.config();
        let cut = self.peers.revoke(&config.snapshot.revoked);
        if cut > 0 {
            tracing::warn!(
                connections = cut,
                "cut: a certificate of a peer was revoked"
            );
        }
        // Destinations in use stay set up, so that their pools are not swept as unused.
        for name in old.destinations.borrow().keys() {
            self.destination(&config, name);
        }
        self.changed.notify_waiters();
        if config.tls_epoch() != old.tls_epoch() {
            // Connections made with the old certificates have to come to an end.
            self.deadlines.wake_all();
        }
        self.forget_unused();
    }

    /// Returns the epoch of the certificates in use.
    pub fn tls_epoch(&self) -> Option<u64> {
        self.config.borrow().tls_epoch()
    }

    /// Completes at the next configuration change (or the end of a drain).
    pub fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// The destination of that name, with this worker's pools.
    pub fn destination(&self, config: &Config, name: &str) -> Option<Rc<Destination>> {
        if let Some(known) = config.destinations.borrow().get(name) {
            return Some(known.clone());
        }
        let service = config.snapshot.services.get(name)?;
        let built = Rc::new(Destination::new(self, &config.snapshot, service));
        config
            .destinations
            .borrow_mut()
            .insert(name.to_owned(), built.clone());
        Some(built)
    }

    fn endpoints(&self) -> show::View {
        let config = self.config();
        let known = config.destinations.borrow();
        let ports = known.values().flat_map(|d| d.ports());
        ports.map(|port| show::view(port)).collect()
    }

    /// Returns the pool for an endpoint; the same one as long as address and identities are the
    /// same.
    pub fn upstream(&self, key: UpstreamKey) -> Rc<Upstream> {
        let mut upstreams = self.upstreams.borrow_mut();
        upstreams
            .entry(key.clone())
            .or_insert_with(|| Rc::new(Upstream::new(key)))
            .clone()
    }

    async fn sweep_pools(self: Rc<Self>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            tulle_net::buffer::trim();
            tulle_net::splice::trim();
            let epoch = self.tls_epoch();
            for upstream in self.upstreams.borrow().values() {
                upstream.sweep(epoch);
            }
            self.forget_unused();
        }
    }

    fn forget_unused(&self) {
        self.upstreams.borrow_mut().retain(|_, upstream| {
            let used = Rc::strong_count(upstream) > 1 || upstream.is_busy();
            if !used {
                upstream.retire();
            }
            used
        });
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

    /// Counts a connection as open.
    pub fn connection_opened(self: &Rc<Self>) -> Open {
        let open = self.open.get() + 1;
        self.open.set(open);
        self.metrics.internal(|i| i.open = open);
        Open(self.clone())
    }

    /// Whether it takes nothing new.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    async fn drain(&self) {
        self.draining.set(true);
        self.changed.notify_waiters();
        self.deadlines.wake_all();
        for upstream in self.upstreams.borrow().values() {
            upstream.retire();
        }
        while self.open.get() > 0 {
            self.changed().await;
        }
    }

    /// Returns a random number, good enough for balancing and ids, but not for keys.
    pub fn random(&self) -> u64 {
        // splitmix64
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Remembers a failure for `/errors`.
    pub fn failed(
        &self,
        source: Option<&str>,
        destination: &str,
        path: &[u8],
        code: u16,
        failure: &Failure,
    ) {
        // A client that leaves is no failure of ours, and would push out other entries.
        if failure.reason == Reason::ClientClosed {
            return;
        }
        let time = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let shown = path.get(..256).unwrap_or(path);
        let entry = Recent {
            time: time.as_secs_f64(),
            source: source.unwrap_or("unknown").to_owned(),
            destination: destination.to_owned(),
            path: String::from_utf8_lossy(shown).into_owned(),
            code,
            reason: failure.reason.code(),
            detail: failure.detail.clone(),
        };
        tracing::debug!(
            source = entry.source,
            destination,
            path = entry.path,
            code,
            reason = entry.reason,
            detail = entry.detail,
            "failed"
        );
        let mut recent = self.recent.borrow_mut();
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(entry);
    }

    /// Gives a stream of exchanges to a handler: an idle one if there is one, so that a request
    /// costs no allocation and no new task.
    pub fn handle(self: &Rc<Self>, stream: Link, scope: Rc<Scope>) {
        let job = (stream, scope);
        let idle = self.handlers.borrow_mut().pop();
        match idle {
            Some(mailbox) => mailbox.put(job),
            None => {
                let mailbox = Rc::new(Mailbox {
                    job: Cell::new(Some(job)),
                    waker: Cell::default(),
                });
                tokio::task::spawn_local(Self::handler(self.clone(), mailbox));
            }
        }
    }

    /// Serves streams one after another. Clients decide how many handlers wait for them, so each
    /// byte of its state counts thousands of times. (An `async fn` stores each argument twice.)
    #[expect(clippy::manual_async_fn, reason = "smaller")]
    fn handler(worker: Rc<Self>, mailbox: Rc<Mailbox>) -> impl Future<Output = ()> {
        async move {
            loop {
                let (stream, scope) = mailbox.take().await;
                exchange::serve(&worker, stream, Buf::new(), &scope).await;
                drop(scope);
                if !worker.keeps_handler(&mailbox) {
                    return;
                }
            }
        }
    }

    fn keeps_handler(&self, mailbox: &Rc<Mailbox>) -> bool {
        let mut idle = self.handlers.borrow_mut();
        let kept = idle.len() < IDLE_HANDLERS;
        if kept {
            idle.push(mailbox.clone());
        }
        kept
    }
}

impl Config {
    fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            snapshot,
            destinations: RefCell::default(),
        }
    }

    fn tls_epoch(&self) -> Option<u64> {
        self.snapshot.tls.as_ref().map(tulle_tls::Context::epoch)
    }
}

type Job = (Link, Rc<Scope>);

/// Delivers the next stream to a handler.
struct Mailbox {
    job: Cell<Option<Job>>,
    waker: Cell<Option<Waker>>,
}

impl Mailbox {
    fn put(&self, job: Job) {
        self.job.set(Some(job));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn take(&self) -> Job {
        poll_fn(|cx| match self.job.take() {
            Some(job) => Poll::Ready(job),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// Returns a seed from the standard library's per-process random keys.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::thread::current().id())
}
