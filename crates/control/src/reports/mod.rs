//! The proxies that report what they count: who they are, what they use, and what they are asked.
//!
//! A proxy speaks for its own identity alone: what it claims of others is dropped and counted. What is kept of a proxy is
//! bounded, and so is what one proxy can add to the history.

mod ask;
mod claims;
mod proxy;
mod taps;

pub(crate) use ask::Silence;
pub(crate) use proxy::{Facts, Proxy, SERIES_STEP, plain};
pub(crate) use taps::Tapped;

use crate::history::{Event, History};
use crate::index::Nodes;
use ask::Questions;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use taps::Taps;
use tokio::sync::{broadcast, mpsc};
use tonic::Status;
use tulle_api::v1;
use tulle_model::identity::SpiffeId;

/// How often proxies report.
pub(crate) const REPORT_SECONDS: u32 = 5;
/// Most proxies that report at a time.
const MAX_PROXIES: usize = 20_000;
/// Most of one identity.
const MAX_OF_IDENTITY: usize = 1_000;
/// Sends to a proxy. A channel has room for 32 messages from the beginning, so what is sent is boxed.
pub(crate) type ToProxies = mpsc::Sender<Result<Box<v1::ToProxy>, Status>>;

/// Events that a watcher may be behind.
const EVENTS: usize = 256;

/// Proxies that report, and their history.
pub(crate) struct Reports {
    /// When reports were first wanted; not set: they are not.
    began: OnceLock<Mutex<f64>>,
    history: Mutex<History>,
    proxies: Mutex<Registry>,
    events: broadcast::Sender<Event>,
    pub(crate) questions: Questions,
    pub(crate) taps: Taps,
}

#[derive(Default)]
struct Registry {
    by_id: HashMap<String, Arc<Proxy>>,
    of_identity: HashMap<SpiffeId, usize>,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            began: OnceLock::new(),
            history: Mutex::default(),
            proxies: Mutex::default(),
            events: broadcast::channel(EVENTS).0,
            questions: Questions::default(),
            taps: Taps::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time, in Unix seconds.
pub(crate) fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

impl Reports {
    /// Wants reports from now on.
    pub(crate) fn begin(&self) {
        if self.began.set(Mutex::new(now())).is_ok() {
            self.happened("controller", "controller".to_owned(), "connected", "");
        }
    }

    /// Whether reports are wanted.
    pub(crate) fn are_wanted(&self) -> bool {
        self.began.get().is_some()
    }

    /// When reports were first wanted.
    pub(crate) fn since(&self) -> f64 {
        self.since_as_of(now())
    }

    /// The same as of a time. A beginning that is later was noted by a clock that was ahead, and is moved to it.
    fn since_as_of(&self, now: f64) -> f64 {
        let Some(began) = self.began.get() else {
            return 0.0;
        };
        let mut began = lock(began);
        *began = began.min(now);
        *began
    }

    /// Time goes on, or back.
    pub(crate) fn tick(&self, now: f64) {
        self.since_as_of(now);
        self.history().tick(now);
    }

    /// The history.
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    /// Notes that something happened.
    pub(crate) fn happened(&self, kind: &'static str, what: String, verb: &'static str, who: &str) {
        if !self.are_wanted() {
            return;
        }
        let event = Event {
            at: now(),
            kind,
            what,
            verb,
            who: who.to_owned(),
        };
        self.history().happened(event.clone());
        // It fails when nobody watches.
        let _ = self.events.send(event);
    }

    /// Follows what happens.
    pub(crate) fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Adds a proxy.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn join(
        &self,
        identity: SpiffeId,
        reporter: v1::Reporter,
        to: ToProxies,
    ) -> Result<Arc<Proxy>, &'static str> {
        let proxy = Arc::new(Proxy::new(identity, reporter, to));
        let mut proxies = lock(&self.proxies);
        let registry = &mut *proxies;
        let is_new = !registry.by_id.contains_key(&proxy.id);
        let siblings = registry
            .of_identity
            .entry(proxy.identity.clone())
            .or_default();
        if is_new && *siblings >= MAX_OF_IDENTITY {
            return Err("too many proxies of this identity report");
        }
        if is_new && registry.by_id.len() >= MAX_PROXIES {
            if *siblings == 0 {
                registry.of_identity.remove(&proxy.identity);
            }
            return Err("too many proxies report");
        }
        *siblings += usize::from(is_new);
        registry.by_id.insert(proxy.id.clone(), proxy.clone());
        drop(proxies);
        self.taps.joined(&proxy);
        Ok(proxy)
    }

    /// Removes a proxy, unless it is there again.
    pub(crate) fn leave(&self, proxy: &Arc<Proxy>) {
        let mut proxies = lock(&self.proxies);
        let known = proxies.by_id.get(&proxy.id);
        if !known.is_some_and(|known| Arc::ptr_eq(known, proxy)) {
            return;
        }
        proxies.by_id.remove(&proxy.id);
        if let Some(siblings) = proxies.of_identity.get_mut(&proxy.identity) {
            *siblings -= 1;
            if *siblings == 0 {
                proxies.of_identity.remove(&proxy.identity);
            }
        }
        drop(proxies);
        self.questions.left(&proxy.id);
    }

    /// A proxy by its id.
    pub(crate) fn proxy(&self, id: &str) -> Option<Arc<Proxy>> {
        lock(&self.proxies).by_id.get(id).cloned()
    }

    /// All proxies that report.
    pub(crate) fn proxies(&self) -> Vec<Arc<Proxy>> {
        lock(&self.proxies).by_id.values().cloned().collect()
    }

    /// Takes what a proxy tells.
    pub(crate) fn hear(&self, proxy: &Proxy, nodes: &Nodes, message: v1::FromProxy) {
        if let Some(interval) = message.interval {
            self.count(proxy, nodes, &interval);
            proxy.used(&interval, now());
        }
        if !message.failed.is_empty() {
            self.failed(proxy, nodes, message.failed);
        }
        if let Some(answer) = message.answer {
            self.questions.hear(&proxy.id, answer);
        }
        if let Some(lines) = message.tap {
            self.taps.hear(proxy, nodes, lines);
        }
    }

    fn count(&self, proxy: &Proxy, nodes: &Nodes, interval: &v1::Interval) {
        let time = now();
        let mut history = self.history();
        for counts in interval.edges.iter().take(claims::MAX_EDGES) {
            let Some(pair) = claims::edge(proxy, nodes, counts) else {
                proxy.dropped();
                continue;
            };
            let told_by_caller = !counts.at_source && self.reports(&counts.source);
            let counts = claims::counts(counts, told_by_caller, |code| history.reason(code));
            history.add(time, &pair, &counts);
        }
    }

    /// Whether a proxy of this identity reports.
    fn reports(&self, identity: &str) -> bool {
        let id = SpiffeId::parse(identity).ok();
        id.is_some_and(|id| lock(&self.proxies).of_identity.contains_key(&id))
    }

    fn failed(&self, proxy: &Proxy, nodes: &Nodes, failed: Vec<v1::FailedRequest>) {
        let mut history = self.history();
        for failed in failed.into_iter().take(claims::MAX_FAILED) {
            if let Some((pair, sample)) = claims::sample(proxy, nodes, failed) {
                history.failed(&pair, sample);
            }
        }
    }
}

#[cfg(test)]
mod tests;
