//! Services for the proxies of a joined host: the host has one subscription at the controller (`upstream`), and each proxy
//! is told what it wants of that (`proxy`). So a change crosses the line to the controller once, however many proxies of
//! the host are told of it.
//!
//! While the controller is away this says so, and proxies look to the controller themselves. So do those that take the most
//! room, where there is none here for all that is wanted.

mod proxy;
mod upstream;

use crate::hub::Hub;
use crate::index::EncodedResource;
use crate::serve::session::MAX_SUBSCRIPTIONS;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};
use tulle_api::v1;

/// Most bytes of names that proxies of this host want: with versions, the first request has to fit into what a controller reads.
const MOST_BYTES: usize = 1024 * 1024;
/// Most bytes of services that are held: as many as the longest update, so that any service fits that a proxy can take.
const MOST_HELD: usize = upstream::MAX_UPDATE_BYTES;

/// The services that proxies of this host want.
pub struct HostServices {
    hub: Hub,
    wanted: Mutex<Wanted>,
    /// Other names are wanted now.
    changed: Notify,
    /// A proxy is there.
    attached: Notify,
    /// The number of the session in which the controller tells of changes; 0: there is none.
    session: watch::Sender<u64>,
}

#[derive(Default)]
struct Wanted {
    names: BTreeMap<Arc<str>, Want>,
    /// Names that are wanted for the first time, or no longer, since the controller was told last.
    untold: BTreeSet<Arc<str>>,
    /// Names that the controller was told.
    told: HashSet<Arc<str>>,
    /// Bytes of the names.
    bytes: usize,
    /// Bytes of the services that are held.
    held: usize,
}

#[derive(Default)]
struct Want {
    /// Numbers of the streams of those that want it.
    proxies: BTreeSet<u64>,
    /// The controller has said what the service is, or that it does not exist.
    is_answered: bool,
    /// Bytes that are held of it.
    held: usize,
}

impl Wanted {
    /// Counts what the controller has said of a name.
    fn hold(&mut self, name: &str, said: Option<&EncodedResource>) {
        if let Some(want) = self.names.get_mut(name) {
            let before = std::mem::replace(&mut want.held, said.map_or(0, EncodedResource::bytes));
            self.held = self.held - before + want.held;
            want.is_answered = true;
        }
    }

    /// Notes that a proxy does not want a name any longer; whether nobody does now. Nothing is kept of it then.
    fn want_no_longer(&mut self, proxy: u64, name: &Arc<str>) -> bool {
        let Some(want) = self.names.get_mut(name) else {
            return false;
        };
        if !want.proxies.remove(&proxy) || !want.proxies.is_empty() {
            return false;
        }
        self.held -= want.held;
        self.bytes -= name.len();
        self.names.remove(name);
        self.untold.insert(name.clone());
        true
    }

    /// Finds the proxy that is to give up its room, and the service that makes the most of that: the one that takes the most
    /// of those whose leaving frees enough, and without such of all; of equals the newest. The bytes of a service count in
    /// equal parts for all that want it, so one that all use weighs little with each.
    fn greediest(&self) -> Option<(u64, Arc<str>)> {
        let mut all: BTreeMap<u64, Taken<'_>> = BTreeMap::new();
        for (name, want) in &self.names {
            let part = want.held / want.proxies.len();
            for proxy in &want.proxies {
                let taken = all.entry(*proxy).or_insert_with(|| Taken::new(name));
                taken.bytes += part;
                taken.most = (part, name).max(taken.most);
                if want.proxies.len() == 1 {
                    taken.alone += part;
                }
            }
        }
        let excess = self.held.saturating_sub(MOST_HELD);
        let weight = |(_, taken): &(u64, Taken<'_>)| (taken.alone >= excess, taken.bytes);
        let greediest = all.into_iter().max_by_key(weight);
        greediest.map(|(proxy, taken)| (proxy, taken.most.1.clone()))
    }
}

/// The room that a proxy takes.
struct Taken<'a> {
    /// With its parts of what others want, too.
    bytes: usize,
    /// Without these: what is free once it leaves.
    alone: usize,
    /// Its largest part, and of which service.
    most: (usize, &'a Arc<str>),
}

impl<'a> Taken<'a> {
    fn new(name: &'a Arc<str>) -> Self {
        Self {
            bytes: 0,
            alone: 0,
            most: (0, name),
        }
    }
}

impl Default for HostServices {
    fn default() -> Self {
        Self {
            // A socket on this host needs no patches.
            hub: Hub::without_patches(),
            wanted: Mutex::default(),
            changed: Notify::new(),
            attached: Notify::new(),
            session: watch::Sender::new(0),
        }
    }
}

impl HostServices {
    /// It is taken before the hub's own lock, so that nobody finds a name answered before its answer is there.
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a proxy wants these names; `false`: they are too many.
    fn want(&self, proxy: u64, names: &[Arc<str>]) -> bool {
        let mut wanted = self.wanted();
        for name in names {
            if !wanted.names.contains_key(name) {
                wanted.untold.insert(name.clone());
                wanted.bytes += name.len();
            }
            let want = wanted.names.entry(name.clone()).or_default();
            want.proxies.insert(proxy);
        }
        self.changed.notify_one();
        wanted.names.len() <= MAX_SUBSCRIPTIONS && wanted.bytes <= MOST_BYTES
    }

    /// Notes that a proxy does not want these names any longer. Nothing is kept of those that nobody wants.
    fn want_no_longer(&self, proxy: u64, names: &[Arc<str>]) {
        let mut wanted = self.wanted();
        let gone = names.iter().filter(|n| wanted.want_no_longer(proxy, n));
        let gone = gone.map(|name| (name.clone(), None)).collect();
        self.hub.publish(gone);
        self.changed.notify_one();
    }

    /// Leaves proxies to the controller until what the others want fits. Returns the names that nobody wants any longer.
    fn make_room(&self, wanted: &mut Wanted) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        while wanted.held > MOST_HELD
            && let Some((proxy, service)) = wanted.greediest()
        {
            // At once, and not when its task ends: the room is needed now.
            let mut names: Vec<Arc<str>> = wanted.names.keys().cloned().collect();
            names.retain(|name| wanted.want_no_longer(proxy, name));
            gone.append(&mut names);
            self.changed.notify_one();
            if let Some(stream) = self.hub.stream(proxy) {
                tracing::warn!(
                    identity = %stream.identity,
                    %service,
                    most_bytes = MOST_HELD,
                    "this host has no room for all services that its sidecars want: this one takes much of it, above all for this service, and gets all of its services from the controller"
                );
                stream.displaced.notify_one();
            }
        }
        gone
    }

    /// Returns what is known of a wanted name.
    fn get(&self, name: &str) -> Option<EncodedResource> {
        let wanted = self.wanted();
        match wanted.names.get(name) {
            Some(want) if want.is_answered => self.hub.get(name),
            _ => Some(EncodedResource {
                is_incomplete: true,
                ..resource(0, Bytes::new(), Bytes::new())
            }),
        }
    }

    /// The first request of a session: all names, with the versions that are held.
    fn first_request(&self) -> v1::SubscribeRequest {
        let mut wanted = self.wanted();
        wanted.untold.clear();
        wanted.told = wanted.names.keys().cloned().collect();
        let version = |name: &Arc<str>| Some((name.to_string(), self.hub.get(name)?.version));
        v1::SubscribeRequest {
            subscribe: wanted.names.keys().map(ToString::to_string).collect(),
            known: wanted.names.keys().filter_map(version).collect(),
            takes_patches: true,
            ..Default::default()
        }
    }

    /// The names that the controller is to be told; `None`: it knows them.
    fn next_request(&self) -> Option<v1::SubscribeRequest> {
        let mut wanted = self.wanted();
        let wanted = &mut *wanted;
        let mut request = v1::SubscribeRequest::default();
        for name in std::mem::take(&mut wanted.untold) {
            // One that is wanted again was given up meanwhile, and nothing is held of it.
            if wanted.told.remove(&name) {
                request.unsubscribe.push(name.to_string());
            }
            if wanted.names.contains_key(&name) {
                request.subscribe.push(name.to_string());
                wanted.told.insert(name);
            }
        }
        let any = !request.subscribe.is_empty() || !request.unsubscribe.is_empty();
        any.then_some(request)
    }

    /// Takes an update of the controller, and tells those who want it.
    fn take(&self, update: v1::ConfigUpdate) -> v1::Ack {
        let mut wanted = self.wanted();
        let mut error = String::new();
        let mut changed = Vec::new();
        for sent in update.resources {
            let Some((name, _)) = wanted.names.get_key_value(sent.name.as_str()) else {
                continue;
            };
            let name = name.clone();
            if sent.patch.is_some() && !wanted.names.get(&name).is_some_and(|w| w.is_answered) {
                // It was given up when this was sent. The whole comes, because it is asked for anew.
                continue;
            }
            // The message that they are a part of may be a megabyte.
            let own = |part: &Bytes| Bytes::copy_from_slice(part);
            let taken = match &sent.patch {
                None => Some(resource(sent.version, own(&sent.body), own(&sent.labels))),
                Some(patch) => self.hub.get(&name).and_then(|held| patched(held, patch)),
            };
            match taken {
                Some(taken) => changed.push((name, Some(taken))),
                None => error = format!("{name}: the patch does not fit what this host holds"),
            }
        }
        for name in update.removed {
            if let Some((name, _)) = wanted.names.get_key_value(name.as_str()) {
                changed.push((name.clone(), None));
            }
        }
        // All of it is counted before room is made: the result has to fit, whatever comes before what is removed.
        for (name, said) in &changed {
            wanted.hold(name, said.as_ref());
        }
        let gone = self.make_room(&mut wanted);
        changed.extend(gone.into_iter().map(|name| (name, None)));
        self.hub.publish(changed);
        v1::Ack {
            nonce: update.nonce,
            error,
            ..Default::default()
        }
    }
}

fn patched(held: EncodedResource, patch: &v1::ResourcePatch) -> Option<EncodedResource> {
    let held = tulle_api::Encoded {
        body: held.body,
        labels: held.labels,
    };
    let (whole, version) = tulle_api::apply_patch(&held, patch)?;
    Some(resource(version, whole.body, whole.labels))
}

/// A service as the controller encodes it; proxies judge it.
fn resource(version: u64, body: Bytes, labels: Bytes) -> EncodedResource {
    EncodedResource {
        version,
        patch: None,
        body,
        labels,
        owner: None,
        service: None,
        backends: Vec::new(),
        is_incomplete: false,
    }
}

#[cfg(test)]
mod tests;
