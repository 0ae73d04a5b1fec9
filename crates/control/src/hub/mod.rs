//! Which streams want which names, and what has changed for each since it last looked.
//!
//! A change costs a look-up per changed name and a wake-up per stream that has it; streams that are busy collect
//! names in their mailbox, which cannot hold more than their subscriptions.
//!
//! Some proxies receive services before they ask (`likely`). The hub knows which services those are, and which
//! services their siblings have used.

mod likely;

pub(crate) use likely::Forms;

use crate::index::{Changed, EncodedResource};
use likely::{Catalog, Concerned, Used};
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
/// Most streams of a host, which needs one.
const MAX_STREAMS_PER_HOST: usize = 16;

/// One proxy's stream, as others see it.
#[derive(Debug)]
pub(crate) struct Stream {
    id: u64,
    pub(crate) identity: SpiffeId,
    mailbox: Mutex<Mailbox>,
    pub(crate) wake: Notify,
    /// Another needs its place or its room.
    pub(crate) displaced: Notify,
    status: Mutex<StreamStatus>,
}

/// Names that changed, and when the first of them did.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    pub(crate) names: BTreeSet<Arc<str>>,
    pub(crate) since: Option<Instant>,
    /// The proxy's likely services may have changed.
    pub(crate) likely: bool,
}

/// The figures of a stream that `tulle status` shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamStatus {
    pub(crate) subscriptions: usize,
    pub(crate) sent: u64,
    pub(crate) acked: u64,
    pub(crate) last_error: String,
    /// The parts of its configuration that the proxy cannot carry out.
    pub(crate) faults: String,
    pub(crate) certificate_not_after: i64,
    /// Tells proxies of one identity apart; an older proxy has none.
    pub(crate) instance: String,
    /// The certificates in force at the proxy; an older proxy does not report them.
    pub(crate) trusts: Option<v1::TrustReport>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Arc<str>, EncodedResource>,
    interested: HashMap<Arc<str>, BTreeSet<u64>>,
    streams: BTreeMap<u64, Arc<Stream>>,
    per_identity: HashMap<SpiffeId, BTreeSet<u64>>,
    next_id: u64,
    catalog: Catalog,
    used: Used,
    /// Streams that receive likely services unasked.
    anticipating: HashMap<u64, Forms>,
}

pub(crate) struct Hub {
    state: Mutex<State>,
    /// A change is kept as a patch of the version before as well.
    makes_patches: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// Its number.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether a joined host has it for its proxies.
    pub(crate) fn is_of_host(&self) -> bool {
        self.identity.node().is_some()
    }

    /// Takes the changes since the last call.
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
    pub(crate) fn new(entries: impl Iterator<Item = (Arc<str>, EncodedResource)>) -> Self {
        let mut state = State::default();
        for (name, entry) in entries {
            state.catalog.change(&name, None, Some(&entry));
            state.entries.insert(name, entry);
        }
        Self {
            state: Mutex::new(state),
            makes_patches: true,
        }
    }

    /// An empty one none of whose streams takes patches.
    pub(crate) fn without_patches() -> Self {
        Self {
            makes_patches: false,
            ..Self::new(std::iter::empty())
        }
    }

    /// Makes changes visible and wakes the streams that subscribed to them.
    pub(crate) fn publish(&self, changed: Vec<Changed>) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let mut woken: BTreeSet<u64> = BTreeSet::new();
        let mut concerned = BTreeSet::new();
        for (name, mut entry) in changed {
            for id in state.interested.get(&name).into_iter().flatten() {
                if let Some(stream) = state.streams.get(id) {
                    let mut mailbox = lock(&stream.mailbox);
                    mailbox.names.insert(name.clone());
                    mailbox.since.get_or_insert(now);
                    woken.insert(*id);
                }
            }
            let state = &mut *state;
            let old = state.entries.get(&name);
            if let (true, Some(old), Some(entry)) = (self.makes_patches, old, entry.as_mut()) {
                entry.follow(old);
            }
            concerned.insert(state.catalog.change(&name, old, entry.as_ref()));
            match entry {
                Some(entry) => state.entries.insert(name, entry),
                None => state.entries.remove(&name),
            };
        }
        concerned.remove(&Concerned::Nobody);
        state.look_again(&concerned, now, &mut woken);
        for id in woken {
            if let Some(stream) = state.streams.get(&id) {
                stream.wake.notify_one();
            }
        }
    }

    /// Adds a stream; `None` when there are too many. Where all together are too many, the identity with the
    /// most gives one up to an identity that has fewer.
    pub(crate) fn join(&self, identity: SpiffeId, not_after: i64) -> Option<Arc<Stream>> {
        let mut state = lock(&self.state);
        let siblings = state.per_identity.get(&identity);
        let siblings = siblings.map_or(0, BTreeSet::len);
        let most = match identity.node() {
            Some(_) => MAX_STREAMS_PER_HOST,
            None => MAX_STREAMS_PER_IDENTITY,
        };
        if siblings >= most || (state.streams.len() >= MAX_STREAMS && !state.make_room(siblings)) {
            return None;
        }
        state.next_id += 1;
        let id = state.next_id;
        let stream = Arc::new(Stream {
            id,
            identity: identity.clone(),
            mailbox: Mutex::default(),
            wake: Notify::new(),
            displaced: Notify::new(),
            status: Mutex::new(StreamStatus {
                certificate_not_after: not_after,
                ..StreamStatus::default()
            }),
        });
        state.streams.insert(id, stream.clone());
        if siblings == 0 {
            state.used.present(&identity);
        }
        state.per_identity.entry(identity).or_default().insert(id);
        Some(stream)
    }

    /// Removes a stream and its interest in names.
    pub(crate) fn leave<'a>(&self, stream: &Stream, names: impl Iterator<Item = &'a Arc<str>>) {
        let mut state = lock(&self.state);
        for name in names {
            state.lose_interest(name, stream.id);
        }
        state.streams.remove(&stream.id);
        state.anticipating.remove(&stream.id);
        if let Some(siblings) = state.per_identity.get_mut(&stream.identity) {
            siblings.remove(&stream.id);
            if siblings.is_empty() {
                state.per_identity.remove(&stream.identity);
                state.used.gone(&stream.identity);
            }
        }
    }

    /// Sends the proxy likely services unasked from now on. `unused`: those it received before and has not used.
    pub(crate) fn anticipate(&self, stream: &Stream, forms: Forms, unused: &BTreeSet<&str>) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.anticipating.insert(stream.id, forms);
        // The proxy receives those of its own namespace in any case, and all in a small mesh.
        let namespace = stream.identity.service_account().map(|(n, _)| n);
        let services = unused.iter().filter_map(|name| {
            let service = state.entries.get(*name)?.service.clone()?;
            (namespace != Some(service.namespace())).then_some(service)
        });
        if namespace.is_some() && !state.catalog.is_small(forms) {
            state.used.recall(&stream.identity, services);
        }
    }

    /// Returns the names that the proxy receives unasked; `None`: it never does.
    pub(crate) fn likely(&self, stream: &Stream) -> Option<Vec<Arc<str>>> {
        let state = lock(&self.state);
        let forms = *state.anticipating.get(&stream.id)?;
        let namespace = stream.identity.service_account().map(|(n, _)| n);
        let used = state.used.of_identity(&stream.identity);
        Some(state.catalog.likely(namespace, forms, &used))
    }

    /// Notes that the proxy's application uses these names. Its siblings receive their services.
    pub(crate) fn used<'a>(&self, stream: &Stream, names: impl Iterator<Item = &'a str>) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let services = names.filter_map(|name| state.entries.get(name)?.service.as_ref());
        if !state.used.note(&stream.identity, services) {
            return;
        }
        let siblings = state.per_identity.get(&stream.identity);
        for id in siblings.into_iter().flatten() {
            if *id != stream.id
                && state.anticipating.contains_key(id)
                && let Some(sibling) = state.streams.get(id)
            {
                lock(&sibling.mailbox).likely = true;
                sibling.wake.notify_one();
            }
        }
    }

    /// Wakes the stream from now on when these names change.
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

    /// Returns the present entry of a name.
    pub(crate) fn get(&self, name: &str) -> Option<EncodedResource> {
        lock(&self.state).entries.get(name).cloned()
    }

    /// Returns the stream with this number.
    pub(crate) fn stream(&self, id: u64) -> Option<Arc<Stream>> {
        lock(&self.state).streams.get(&id).cloned()
    }

    /// All streams of proxies. Hosts have some for their proxies.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        let state = lock(&self.state);
        let proxies = state.streams.values().filter(|s| !s.is_of_host());
        proxies.cloned().collect()
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
    /// Wakes streams whose likely services may have changed: once for all changes.
    fn look_again(&self, concerned: &BTreeSet<Concerned>, now: Instant, woken: &mut BTreeSet<u64>) {
        if concerned.is_empty() {
            return;
        }
        let everybody = concerned.contains(&Concerned::Everybody);
        for id in self.anticipating.keys() {
            let Some(stream) = self.streams.get(id) else {
                continue;
            };
            let account = stream.identity.service_account();
            if let (false, Some((own, _))) = (everybody, account)
                && !concerned.contains(&Concerned::Namespace(own.to_owned()))
            {
                continue;
            }
            let mut mailbox = lock(&stream.mailbox);
            mailbox.likely = true;
            mailbox.since.get_or_insert(now);
            woken.insert(*id);
        }
    }

    /// Ends the oldest stream of the identity that has the most, for one of an identity that has `own`. Two with
    /// equal shares do not take each other's places in turn.
    fn make_room(&mut self, own: usize) -> bool {
        let most = self.per_identity.values_mut().max_by_key(|ids| ids.len());
        let Some(ids) = most.filter(|ids| ids.len() >= own + 2) else {
            return false;
        };
        let Some(stream) = ids.pop_first().and_then(|id| self.streams.remove(&id)) else {
            return false;
        };
        // Its task ends, and gives up its interest in names.
        stream.displaced.notify_one();
        true
    }

    fn lose_interest(&mut self, name: &Arc<str>, id: u64) {
        if let Some(interested) = self.interested.get_mut(name) {
            interested.remove(&id);
            if interested.is_empty() {
                self.interested.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tulle_model::namespaced::{Namespaced, ObjectName};

    const FORMS: Forms = Forms {
        addresses: true,
        hosts: false,
    };

    fn named(service: &str) -> ObjectName {
        Namespaced::parse(service).unwrap().into()
    }

    fn entry(service: &str) -> (Arc<str>, EncodedResource) {
        let entry = EncodedResource {
            version: 1,
            patch: None,
            body: Bytes::from(vec![b'x'; 400]),
            labels: Bytes::new(),
            owner: None,
            service: Some(named(service)),
            backends: Vec::new(),
            is_incomplete: false,
        };
        (format!("service/{service}").into(), entry)
    }

    /// A hub of two namespaces, one of which has this many services, and a proxy of the other.
    fn hub(services: usize) -> (Hub, Arc<Stream>) {
        let others = (0..services).map(|i| entry(&format!("s{i:03}.other")));
        let hub = Hub::new(others.chain([entry("s.own")]));
        let stream = join(&hub);
        (hub, stream)
    }

    fn join(hub: &Hub) -> Arc<Stream> {
        let identity = SpiffeId::parse("spiffe://t/ns/own/sa/a").unwrap();
        hub.join(identity, 0).unwrap()
    }

    fn likely(hub: &Hub, stream: &Stream) -> String {
        hub.likely(stream).unwrap().join(" ")
    }

    fn publish(hub: &Hub, service: &str) {
        let (name, entry) = entry(service);
        hub.publish(vec![(name, Some(entry))]);
    }

    #[test]
    fn a_service_that_comes_wakes_those_who_are_told_of_it() {
        let (small, stream) = hub(3);
        publish(&small, "first.other");
        assert!(!stream.take_changed().likely, "it has not asked for that");
        assert_eq!(small.likely(&stream), None);
        small.anticipate(&stream, FORMS, &BTreeSet::new());
        assert_eq!(small.likely(&stream).unwrap().len(), 5);
        publish(&small, "second.other");
        assert!(stream.take_changed().likely);

        let (large, stream) = hub(1000);
        large.anticipate(&stream, FORMS, &BTreeSet::new());
        publish(&large, "first.other");
        assert!(!stream.take_changed().likely);
        publish(&large, "first.own");
        assert!(stream.take_changed().likely);
        assert_eq!(likely(&large, &stream), "service/first.own service/s.own");
    }

    #[tokio::test]
    async fn identities_with_many_streams_keep_no_other_out() {
        let hub = Hub::new(std::iter::empty());
        let join = |name: usize| {
            let identity = SpiffeId::parse(&format!("spiffe://t/ns/evil/sa/a{name}")).unwrap();
            hub.join(identity, 0)
        };
        let mut streams = Vec::new();
        for name in 0..MAX_STREAMS / MAX_STREAMS_PER_IDENTITY {
            streams.extend((0..MAX_STREAMS_PER_IDENTITY).map(|_| join(name).unwrap()));
            assert!(join(name).is_none(), "it has its share");
        }
        let first = join(1_000).unwrap();
        assert!(join(1_001).is_some());
        assert_eq!(hub.streams().len(), MAX_STREAMS);
        let there: BTreeSet<u64> = hub.streams().iter().map(|s| s.id).collect();
        let gone: Vec<_> = streams.iter().filter(|s| !there.contains(&s.id)).collect();
        assert_eq!(gone.len(), 2);
        for stream in gone {
            stream.displaced.notified().await;
            hub.leave(stream, std::iter::empty());
        }
        assert!(there.contains(&first.id));
        assert_eq!(hub.streams().len(), MAX_STREAMS);
    }

    #[test]
    fn what_siblings_use_is_told_and_outlives_the_controller() {
        let (large, stream) = hub(1000);
        large.anticipate(&stream, FORMS, &BTreeSet::new());
        assert_eq!(likely(&large, &stream), "service/s.own");
        let sibling = join(&large);
        large.used(&sibling, ["service/s500.other", "mesh"].into_iter());
        assert!(stream.take_changed().likely);
        let told = "service/s500.other service/s.own";
        assert_eq!(likely(&large, &stream), told);
        // Once more is no news.
        large.used(&sibling, ["service/s500.other"].into_iter());
        assert!(!stream.take_changed().likely);

        let (next, stream) = hub(1000);
        let held = BTreeSet::from(["service/s500.other", "service/s.own"]);
        next.anticipate(&stream, FORMS, &held);
        assert_eq!(likely(&next, &stream), told);
        // In a small mesh, the services that a proxy holds do not show which it uses.
        let (small, stream) = hub(3);
        small.anticipate(&stream, FORMS, &BTreeSet::from(["service/s001.other"]));
        let state = lock(&small.state);
        assert!(state.used.of_identity(&stream.identity).is_empty());
    }
}
