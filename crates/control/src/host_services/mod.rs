//! Services for the proxies of a joined host: the host has one subscription at the controller (`upstream`), and each proxy
//! is told what it wants of that (`proxy`). So a change crosses the line to the controller once, however many proxies of
//! the host are told of it.
//!
//! While the controller is away this says so, and proxies look to the controller themselves. So do those that want a service
//! for which there is no room here.

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
const MOST_HELD: usize = 64 * 1024 * 1024;

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
    proxies: usize,
    /// The controller has said what the service is, or that it does not exist.
    is_answered: bool,
    /// There was no room for what the controller has said. Proxies that want it look to the controller.
    lacks_room: bool,
    /// Bytes that are held of it.
    held: usize,
}

impl Wanted {
    /// Counts what the controller has said of a name, and drops that if there is no room for it.
    fn hold(&mut self, name: &str, said: &mut Option<EncodedResource>) {
        let Some(want) = self.names.get_mut(name) else {
            return;
        };
        self.held -= std::mem::take(&mut want.held);
        let bytes = said.as_ref().map_or(0, EncodedResource::bytes);
        want.lacks_room = self.held + bytes > MOST_HELD;
        want.is_answered = !want.lacks_room;
        match want.lacks_room {
            true => *said = None,
            false => {
                want.held = bytes;
                self.held += bytes;
            }
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

    /// Notes that one more proxy wants these names; `false`: there is no room for them.
    fn want(&self, names: &[Arc<str>]) -> bool {
        let mut wanted = self.wanted();
        let mut has_room = true;
        for name in names {
            if !wanted.names.contains_key(name) {
                wanted.untold.insert(name.clone());
                wanted.bytes += name.len();
            }
            let want = wanted.names.entry(name.clone()).or_default();
            want.proxies += 1;
            has_room &= !want.lacks_room;
        }
        self.changed.notify_one();
        has_room && wanted.names.len() <= MAX_SUBSCRIPTIONS && wanted.bytes <= MOST_BYTES
    }

    /// Finds a name among these for which there was no room.
    fn without_room(&self, names: &BTreeSet<Arc<str>>) -> Option<Arc<str>> {
        let wanted = self.wanted();
        let mut names = names.iter();
        let found = names.find(|name| wanted.names.get(*name).is_some_and(|w| w.lacks_room));
        found.cloned()
    }

    /// Notes that one proxy less wants these names. Nothing is kept of those that nobody wants.
    fn want_no_longer(&self, names: &[Arc<str>]) {
        let mut wanted = self.wanted();
        let mut gone = Vec::new();
        for name in names {
            let Some(want) = wanted.names.get_mut(name) else {
                continue;
            };
            want.proxies -= 1;
            if want.proxies == 0 {
                let held = want.held;
                wanted.held -= held;
                wanted.names.remove(name);
                wanted.untold.insert(name.clone());
                wanted.bytes -= name.len();
                gone.push((name.clone(), None));
            }
        }
        self.hub.publish(gone);
        self.changed.notify_one();
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
        for (name, said) in &mut changed {
            wanted.hold(name, said);
        }
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
