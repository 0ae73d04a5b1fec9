//! State that all code of one worker shares: the clock, the snapshot in force, counters, and the tasks that wait
//! for its end.
//!
//! Pools and destinations stand above it (`worker`).

pub(crate) mod admission;
pub(crate) mod lookups;
pub(crate) mod memory_limit;
pub(crate) mod peers;
#[cfg(feature = "plugins")]
pub(crate) mod plugins;

use crate::config::snapshot::Snapshot;
use crate::config::traffic::retry::RetryBudgets;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::export_totals::ExportTotals;
use crate::telemetry::log_rules::LogRules;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::outside_peers::OutsidePeers;
use crate::telemetry::reason::{Failure, Reason};
use crate::telemetry::span;
use admission::Admission;
use lookups::Lookups;
use peers::Peers;
#[cfg(feature = "plugins")]
use plugins::Plugins;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tulle_net::{Deadlines, moderation};

/// Failures kept for `/errors`.
const RECENT: usize = 64;
/// How long a connection without a request delays the end of this proxy.
pub const LAST_CHANCE: Duration = Duration::from_secs(2);

/// A failure as shown to operators.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Recent {
    /// Seconds since 1970.
    pub time: f64,
    /// Caller's identity, or `unknown`.
    pub source: String,
    /// Service called, or `unknown`.
    pub destination: String,
    /// Request method, if known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Request target, if known.
    pub path: String,
    /// Status answered; 0 for TCP.
    pub code: u16,
    /// Reason code.
    pub reason: &'static str,
    /// Facts an operator needs to know.
    pub detail: String,
    /// The endpoint that was asked, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<SocketAddr>,
    /// Status of a gRPC call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<u8>,
}

/// Facts about a request that failed.
#[derive(Default)]
pub struct RequestFacts<'a> {
    /// Method.
    pub method: &'a [u8],
    /// Target.
    pub target: &'a [u8],
    /// The endpoint that was asked.
    pub upstream: Option<SocketAddr>,
    /// Status of a gRPC call.
    pub grpc: Option<u8>,
}

/// The snapshot in force, as one worker lends it to its tasks: counting these costs no atomic operation.
pub struct Present(Arc<Snapshot>);

impl Deref for Present {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

/// The state that all code of one worker shares.
pub struct WorkerContext {
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
    pub retry_budgets: RetryBudgets,
    /// Engines of plugins.
    #[cfg(feature = "plugins")]
    pub plugins: Plugins,
    /// Asks the controller for names that are not in the snapshot.
    pub lookups: Option<Lookups>,
    snapshot: RefCell<Rc<Present>>,
    recent: RefCell<VecDeque<Recent>>,
    /// Failures that applications answered with. They are no failures of ours, so only the controller hears of them.
    answered: RefCell<VecDeque<Recent>>,
    random: Cell<u64>,
    open: Cell<u64>,
    draining: Cell<bool>,
    changed: Notify,
}

/// Counts a connection as open until dropped.
pub struct Open(Rc<WorkerContext>);

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

/// Sets how long this thread pauses before it waits for events.
fn moderate(snapshot: &Snapshot) {
    moderation::set_longest(Duration::from_micros(snapshot.mesh.economy_us.into()));
}

impl WorkerContext {
    /// With the first configuration.
    pub fn new(
        snapshot: Arc<Snapshot>,
        log: AccessLog,
        spans: Arc<ExportTotals>,
        lookups: Option<Lookups>,
    ) -> Rc<Self> {
        moderate(&snapshot);
        let metrics = Metrics::default();
        metrics.set(snapshot.mesh.metrics);
        Rc::new(Self {
            deadlines: Deadlines::new(),
            admission: Admission::default(),
            peers: Rc::default(),
            metrics,
            outside: OutsidePeers::default(),
            log,
            spans: span::Ring::new(spans),
            retry_budgets: RetryBudgets::default(),
            #[cfg(feature = "plugins")]
            plugins: Plugins::default(),
            lookups,
            snapshot: RefCell::new(Rc::new(Present(snapshot))),
            recent: RefCell::default(),
            answered: RefCell::default(),
            random: Cell::new(seed()),
            open: Cell::new(0),
            draining: Cell::new(false),
            changed: Notify::new(),
        })
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> Rc<Present> {
        self.snapshot.borrow().clone()
    }

    /// Puts another snapshot in force. Who waits for that is told by `notify`.
    pub fn set_snapshot(&self, snapshot: Arc<Snapshot>) {
        moderate(&snapshot);
        self.metrics.set(snapshot.mesh.metrics);
        self.snapshot.replace(Rc::new(Present(snapshot)));
    }

    /// Wakes who waits for a change of the configuration, or for the end of a drain.
    pub fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Returns how the access log is written; `None`: it is off.
    pub fn log_rules(&self) -> Option<Arc<LogRules>> {
        self.snapshot.borrow().access_log.clone()
    }

    /// Returns the same for something without an id that could decide whether it is sampled.
    pub fn log_rules_at_random(&self) -> Option<Arc<LogRules>> {
        let random = self.random();
        self.log_rules()
            .filter(|lines| lines.samples_number(random))
    }

    /// Whether the access log or a watcher may need lines.
    pub fn logs(&self) -> bool {
        self.log.wanted(self.snapshot.borrow().access_log.is_some())
    }

    /// Returns the epoch of the certificates in use.
    pub fn tls_epoch(&self) -> Option<u64> {
        self.snapshot
            .borrow()
            .tls
            .as_ref()
            .map(tulle_tls::Context::epoch)
    }

    /// Completes at the next configuration change (or the end of a drain).
    pub fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
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

    /// Begins to take nothing new.
    pub fn begin_drain(&self) {
        self.draining.set(true);
        self.notify();
        self.deadlines.wake_all();
    }

    /// Completes when no connection is open.
    pub async fn drained(&self) {
        while self.open.get() > 0 {
            self.changed().await;
        }
    }

    /// Recent failures.
    pub fn recent(&self) -> Vec<Recent> {
        self.recent.borrow().iter().cloned().collect()
    }

    /// Failures after that time, also those that applications answered with.
    pub fn failures_since(&self, time: f64) -> Vec<Recent> {
        let (recent, answered) = (self.recent.borrow(), self.answered.borrow());
        let all = recent.iter().chain(answered.iter());
        all.filter(|r| r.time > time).cloned().collect()
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
        let facts = RequestFacts {
            target: path,
            ..RequestFacts::default()
        };
        self.request_failed(source, destination, &facts, code, failure);
    }

    /// Remembers a request that failed for `/errors`. Without a reason it is the application's own answer, which only
    /// the controller hears of.
    #[cold]
    pub fn request_failed(
        &self,
        source: Option<&str>,
        destination: &str,
        facts: &RequestFacts<'_>,
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
        let shown = |text: &[u8], most: usize| {
            let text = text.get(..most).unwrap_or(text);
            String::from_utf8_lossy(text).into_owned()
        };
        let entry = Recent {
            time: time.as_secs_f64(),
            source: source.unwrap_or("unknown").to_owned(),
            destination: destination.to_owned(),
            method: shown(facts.method, 32),
            path: shown(facts.target, 256),
            code,
            reason: failure.reason.code(),
            detail: failure.detail.clone(),
            upstream: facts.upstream,
            grpc: facts.grpc,
        };
        if failure.reason == Reason::Ok {
            remember(&self.answered, entry);
            return;
        }
        tracing::debug!(
            source = entry.source,
            destination,
            path = entry.path,
            code,
            reason = entry.reason,
            detail = entry.detail,
            "failed"
        );
        remember(&self.recent, entry);
    }
}

fn remember(all: &RefCell<VecDeque<Recent>>, entry: Recent) {
    let mut all = all.borrow_mut();
    if all.len() == RECENT {
        all.pop_front();
    }
    all.push_back(entry);
}

/// Whether this process or the system can have no more sockets.
pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// Returns a seed from the standard library's per-process random keys.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::thread::current().id())
}
