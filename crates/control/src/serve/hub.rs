//! Which streams want which names, and what has changed for each since it last looked.
//!
//! A change costs a look-up per changed name and a wake-up per stream that has it; streams that are
//! busy collect names in their mailbox, which cannot hold more than what they subscribed to.

use crate::index::{Changed, Entry};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;
use tulle_api::v1;
use tulle_model::identity::SpiffeId;

/// Most streams at a time.
const MAX_STREAMS: usize = 20_000;
/// Most streams of one identity: replicas, and connections that are not known to be dead yet.
const MAX_STREAMS_PER_IDENTITY: usize = 1_000;

/// One proxy's stream, as others see it.
#[derive(Debug)]
pub(crate) struct Stream {
    id: u64,
    pub(crate) identity: SpiffeId,
    mailbox: Mutex<Mailbox>,
    pub(crate) wake: Notify,
    status: Mutex<StreamStatus>,
}

/// Names that changed, and when the first of them did.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    pub(crate) names: BTreeSet<Arc<str>>,
    pub(crate) since: Option<Instant>,
}

/// What `tulle status` shows of a stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamStatus {
    pub(crate) subscriptions: usize,
    pub(crate) sent: u64,
    pub(crate) acked: u64,
    pub(crate) last_error: String,
    /// What the proxy cannot carry out of what it has.
    pub(crate) faults: String,
    pub(crate) certificate_not_after: i64,
    /// What certificates are in force there; an older proxy does not say.
    pub(crate) trusts: Option<v1::TrustReport>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Arc<str>, Entry>,
    interested: HashMap<Arc<str>, BTreeSet<u64>>,
    streams: BTreeMap<u64, Arc<Stream>>,
    per_identity: HashMap<SpiffeId, usize>,
    next_id: u64,
}

pub(crate) struct Hub {
    state: Mutex<State>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// What changed since the last call.
    pub(crate) fn take_changed(&self) -> Mailbox {
        std::mem::take(&mut *lock(&self.mailbox))
    }

    pub(crate) fn status(&self) -> StreamStatus {
        lock(&self.status).clone()
    }

    pub(crate) fn update_status(&self, update: impl FnOnce(&mut StreamStatus)) {
        update(&mut lock(&self.status));
    }
}

impl Hub {
    pub(crate) fn new(entries: impl Iterator<Item = (Arc<str>, Entry)>) -> Self {
        Self {
            state: Mutex::new(State {
                entries: entries.collect(),
                ..State::default()
            }),
        }
    }

    /// Makes changes visible and wakes the streams that subscribed to them.
    pub(crate) fn publish(&self, changed: Vec<Changed>) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let mut woken: BTreeSet<u64> = BTreeSet::new();
        for (name, entry) in changed {
            for id in state.interested.get(&name).into_iter().flatten() {
                if let Some(stream) = state.streams.get(id) {
                    let mut mailbox = lock(&stream.mailbox);
                    mailbox.names.insert(name.clone());
                    mailbox.since.get_or_insert(now);
                    woken.insert(*id);
                }
            }
            match entry {
                Some(entry) => state.entries.insert(name, entry),
                None => state.entries.remove(&name),
            };
        }
        for id in woken {
            if let Some(stream) = state.streams.get(&id) {
                stream.wake.notify_one();
            }
        }
    }

    /// Adds a stream; `None` when there are too many.
    pub(crate) fn join(&self, identity: SpiffeId, not_after: i64) -> Option<Arc<Stream>> {
        let mut state = lock(&self.state);
        let of_identity = state.per_identity.get(&identity).copied().unwrap_or(0);
        if state.streams.len() >= MAX_STREAMS || of_identity >= MAX_STREAMS_PER_IDENTITY {
            return None;
        }
        state.next_id += 1;
        let id = state.next_id;
        let stream = Arc::new(Stream {
            id,
            identity: identity.clone(),
            mailbox: Mutex::default(),
            wake: Notify::new(),
            status: Mutex::new(StreamStatus {
                certificate_not_after: not_after,
                ..StreamStatus::default()
            }),
        });
        state.streams.insert(id, stream.clone());
        *state.per_identity.entry(identity).or_default() += 1;
        Some(stream)
    }

    /// Removes a stream and its interest in names.
    pub(crate) fn leave<'a>(&self, stream: &Stream, names: impl Iterator<Item = &'a Arc<str>>) {
        let mut state = lock(&self.state);
        for name in names {
            state.lose_interest(name, stream.id);
        }
        state.streams.remove(&stream.id);
        if let Some(count) = state.per_identity.get_mut(&stream.identity) {
            *count -= 1;
            if *count == 0 {
                state.per_identity.remove(&stream.identity);
            }
        }
    }

    /// From now on changes of these names wake the stream.
    pub(crate) fn watch(&self, stream: &Stream, names: &[Arc<str>]) {
        let mut state = lock(&self.state);
        for name in names {
            let interested = state.interested.entry(name.clone()).or_default();
            interested.insert(stream.id);
        }
    }

    /// Changes of these names no longer wake the stream.
    pub(crate) fn unwatch(&self, stream: &Stream, names: &[Arc<str>]) {
        let mut state = lock(&self.state);
        for name in names {
            state.lose_interest(name, stream.id);
        }
    }

    /// What a name stands for now.
    pub(crate) fn get(&self, name: &str) -> Option<Entry> {
        lock(&self.state).entries.get(name).cloned()
    }

    /// All streams.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        lock(&self.state).streams.values().cloned().collect()
    }

    /// A renewed certificate: shown with the streams of its identity.
    pub(crate) fn renewed(&self, identity: &SpiffeId, not_after: i64) {
        for stream in self.streams() {
            if stream.identity == *identity {
                stream.update_status(|s| {
                    s.certificate_not_after = s.certificate_not_after.max(not_after);
                });
            }
        }
    }
}

impl State {
    fn lose_interest(&mut self, name: &Arc<str>, id: u64) {
        if let Some(interested) = self.interested.get_mut(name) {
            interested.remove(&id);
            if interested.is_empty() {
                self.interested.remove(name);
            }
        }
    }
}
