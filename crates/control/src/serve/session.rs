//! The state of one proxy's session: its resources, its subscriptions and the last update. Pure: the
//! stream's task feeds it.
//!
//! One update is in flight at a time. Changes in the meantime are collected by name, so a slow proxy gets
//! the newest state in one update and the controller keeps nothing per change.
//! A resource that the proxy has in the version before comes as a patch of it. A refused update of
//! several resources, or of patches, is sent again one by one and whole, so that one bad resource does not hold up the others; a
//! resource refused alone is not sent again until it changes.
//!
//! Beside the names that a proxy has subscribed to, it may receive services unasked, because its
//! application is likely to need them. When one of these is deleted, the proxy forgets it.
//!
//! A proxy of a joined host may get its services of the host (`services`).

mod services;

use crate::index::{EncodedResource, Patched};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tulle_api::{is_service, v1};
use tulle_model::identity::SpiffeId;

/// Names one proxy may subscribe to.
pub(crate) const MAX_SUBSCRIPTIONS: usize = 20_000;
/// Names that a session may grow by while memory is short: those of a few addresses that are new to a proxy.
const FEW_NAMES: usize = 64;
/// Longest name.
const MAX_NAME_BYTES: usize = 300;
/// Bodies in one update; a client reads messages of up to 4 MiB.
const MAX_UPDATE_BYTES: usize = 1024 * 1024;
/// The most bytes that are kept of a proxy's reason.
const MAX_ERROR_BYTES: usize = 1024;

const FORMS: [&str; 5] = ["service/", "address/", "inbound/", "gateway/", "host/"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownVersion {
    Nothing,
    Absent,
    /// It has the rest of its host.
    Name,
    Version(u64),
}

/// The state of a name that the proxy receives.
struct Told {
    held: KnownVersion,
    /// The proxy has subscribed to it.
    asked: bool,
}

struct InFlight {
    nonce: u64,
    names: Vec<Arc<str>>,
    /// Some of them came as patches.
    patched: bool,
}

/// The meaning of a proxy's answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AckResult {
    Applied(u64),
    Refused(u64, String),
    /// It is not about the update in flight.
    Stale,
}

/// Why a stream is ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    BadName(String),
    NoService(String),
    TooMany,
    NotYours(String),
}

pub(crate) struct Session {
    identity: SpiffeId,
    told: HashMap<Arc<str>, Told>,
    /// The number of names when the proxy first added some while memory was short; `None`: it is not short.
    count_when_short: Option<usize>,
    pending: BTreeSet<Arc<str>>,
    alone: BTreeSet<Arc<str>>,
    /// Names that the next update tells the proxy to forget.
    forgotten: BTreeSet<Arc<str>>,
    /// Names whose changes no longer matter.
    dropped: Vec<Arc<str>>,
    /// Whether the proxy receives names unasked, and whether another update was announced.
    anticipates: bool,
    announced: bool,
    trust: Option<v1::Trust>,
    certificates: Option<v1::CertificateTerms>,
    in_flight: Option<InFlight>,
    nonce: u64,
    report_seconds: u32,
    /// The proxy takes patches.
    takes_patches: bool,
    /// The proxy is told by its host what services are.
    services_by_host: bool,
}

impl Session {
    pub(crate) fn new(identity: SpiffeId) -> Self {
        Self {
            identity,
            told: HashMap::new(),
            count_when_short: None,
            pending: BTreeSet::new(),
            alone: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            dropped: Vec::new(),
            anticipates: false,
            announced: false,
            trust: None,
            certificates: None,
            in_flight: None,
            nonce: 0,
            report_seconds: 0,
            takes_patches: false,
            services_by_host: false,
        }
    }

    /// Sends patches from now on, where the proxy has the version before.
    pub(crate) fn send_patches(&mut self) {
        self.takes_patches = true;
    }

    /// Wants reports of what the proxy counts so often; said in the first update.
    pub(crate) fn want_reports(&mut self, seconds: u32) {
        self.report_seconds = seconds;
    }

    pub(crate) fn subscriptions(&self) -> impl Iterator<Item = &Arc<str>> {
        self.told.keys()
    }

    /// Whether the proxy receives this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.told.contains_key(name)
    }

    pub(crate) fn subscription_count(&self) -> usize {
        self.told.len()
    }

    /// Whether the proxy may add so many names. While memory is short a session grows by a few in all, in however many
    /// messages they come: an identity may have many streams, and fill each with small messages.
    pub(crate) fn may_add(&mut self, names: usize, memory_is_short: bool) -> bool {
        if !memory_is_short {
            self.count_when_short = None;
            return true;
        }
        let count = self.told.len();
        let before = *self.count_when_short.get_or_insert(count);
        count + names <= before + FEW_NAMES
    }

    /// Adds names and returns those that are new. `known` says which versions the proxy holds, `unused`
    /// which of the names it received unasked.
    pub(crate) fn subscribe(
        &mut self,
        names: Vec<String>,
        known: &BTreeMap<String, u64>,
        unused: &BTreeSet<&str>,
        lookup: impl Fn(&str) -> Option<EncodedResource>,
    ) -> Result<Vec<Arc<str>>, Violation> {
        let mut new = Vec::new();
        for name in names {
            check_name(&name)?;
            if self.identity.node().is_some() && !is_service(&name) {
                return Err(Violation::NoService(name));
            }
            if let Some(owner) = lookup(&name).and_then(|e| e.owner)
                && owner != self.identity
            {
                return Err(Violation::NotYours(name));
            }
            let asked = !unused.contains(name.as_str());
            if let Some(told) = self.told.get_mut(name.as_str()) {
                told.asked |= asked;
                continue;
            }
            if self.told.len() >= MAX_SUBSCRIPTIONS {
                return Err(Violation::TooMany);
            }
            let held = known
                .get(&name)
                .map_or(KnownVersion::Nothing, |v| KnownVersion::Version(*v));
            let name: Arc<str> = name.into();
            self.forgotten.remove(&name);
            self.told.insert(name.clone(), Told { held, asked });
            self.pending.insert(name.clone());
            new.push(name);
        }
        Ok(new)
    }

    /// Removes names and returns those that were subscribed.
    pub(crate) fn unsubscribe(&mut self, names: &[String]) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        for name in names {
            if let Some((name, _)) = self.told.remove_entry(name.as_str()) {
                self.pending.remove(&name);
                self.alone.remove(&name);
                gone.push(name);
            }
        }
        gone
    }

    /// Takes the names that the proxy now receives unasked, and returns the new ones.
    pub(crate) fn anticipate(&mut self, likely: Vec<Arc<str>>) -> Vec<Arc<str>> {
        self.anticipates = true;
        let mut new = Vec::new();
        for name in &likely {
            if self.told.contains_key(name) || self.told.len() >= MAX_SUBSCRIPTIONS {
                continue;
            }
            self.forgotten.remove(name);
            let told = Told {
                held: KnownVersion::Nothing,
                asked: false,
            };
            self.told.insert(name.clone(), told);
            self.pending.insert(name.clone());
            new.push(name.clone());
        }
        let likely: HashSet<Arc<str>> = likely.into_iter().collect();
        let unlikely = |(name, told): &(&Arc<str>, &Told)| !told.asked && !likely.contains(*name);
        let unlikely = self.told.iter().filter(unlikely);
        let unlikely: Vec<Arc<str>> = unlikely.map(|(name, _)| name.clone()).collect();
        for name in unlikely {
            self.forget(name);
        }
        new
    }

    /// Whether the proxy receives one of these names unasked.
    pub(crate) fn anticipates(&self, names: &BTreeSet<Arc<str>>) -> bool {
        let told = |name| self.told.get(name);
        self.anticipates && names.iter().filter_map(told).any(|told| !told.asked)
    }

    fn forget(&mut self, name: Arc<str>) {
        self.pending.remove(&name);
        self.alone.remove(&name);
        self.told.remove(&name);
        self.dropped.push(name.clone());
        self.forgotten.insert(name);
    }

    /// Names whose changes no longer matter since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<str>> {
        let mut dropped = std::mem::take(&mut self.dropped);
        dropped.retain(|name| !self.told.contains_key(name));
        dropped
    }

    /// Names may have changed.
    pub(crate) fn changed(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        for name in names {
            if self.told.contains_key(&name) {
                self.pending.insert(name);
            }
        }
    }

    /// Sends these roots with the next update: they have changed, or the proxy does not have them.
    pub(crate) fn trust(&mut self, trust: v1::Trust) {
        self.trust = Some(trust);
    }

    /// The proxy does not know these terms of certificates.
    pub(crate) fn certificates(&mut self, terms: v1::CertificateTerms) {
        self.certificates = Some(terms);
    }

    /// The proxy answers an update.
    pub(crate) fn acknowledged(&mut self, ack: v1::Ack) -> AckResult {
        let of_flight = |f: &mut InFlight| f.nonce == ack.nonce;
        let Some(flight) = self.in_flight.take_if(of_flight) else {
            return AckResult::Stale;
        };
        if ack.error.is_empty() {
            return AckResult::Applied(flight.nonce);
        }
        // One that does not write what it holds as the controller does, since it is of another version, is sent whole
        // resources from now on.
        self.takes_patches &= !flight.patched;
        if flight.names.len() > 1 || flight.patched {
            for name in flight.names {
                if let Some(told) = self.told.get_mut(&name) {
                    told.held = KnownVersion::Nothing;
                    self.alone.insert(name);
                }
            }
        }
        AckResult::Refused(flight.nonce, bounded(ack.error))
    }

    /// The next update, if the last one was answered and anything differs from what the proxy has.
    pub(crate) fn next(
        &mut self,
        lookup: impl Fn(&str) -> Option<EncodedResource>,
    ) -> Option<v1::ConfigUpdate> {
        if self.in_flight.is_some() {
            return None;
        }
        let (mut update, names) = match self.collect(lookup) {
            Some(collected) => collected,
            // An update was announced, but the proxy knows its resources already.
            None if self.announced => (v1::ConfigUpdate::default(), Vec::new()),
            None => return None,
        };
        let more = !(self.pending.is_empty() && self.alone.is_empty());
        // A host tells its proxies when it has heard of all.
        self.announced = (self.anticipates || self.identity.node().is_some()) && more;
        update.more = self.announced;
        Some(self.send(update, names))
    }

    fn collect(
        &mut self,
        lookup: impl Fn(&str) -> Option<EncodedResource>,
    ) -> Option<(v1::ConfigUpdate, Vec<Arc<str>>)> {
        let mut update = v1::ConfigUpdate::default();
        let mut names = Vec::new();
        // The roots come first and alone: they decide whether the proxy can speak to anybody.
        update.trust = self.trust.take();
        update.certificates = self.certificates.take();
        if update.trust.is_some() {
            return Some((update, names));
        }
        while names.is_empty() {
            let Some(name) = self.alone.pop_first() else {
                break;
            };
            self.pending.remove(&name);
            self.add(name, &lookup, &mut update, &mut names);
        }
        if names.is_empty() {
            let mut bytes = 0;
            while bytes < MAX_UPDATE_BYTES {
                let Some(name) = self.pending.pop_first() else {
                    break;
                };
                bytes += self.add(name, &lookup, &mut update, &mut names);
            }
        }
        let forgotten = std::mem::take(&mut self.forgotten).into_iter();
        update.forgotten = forgotten.map(|name| name.to_string()).collect();
        let any =
            !names.is_empty() || !update.forgotten.is_empty() || update.certificates.is_some();
        any.then_some((update, names))
    }

    fn send(&mut self, mut update: v1::ConfigUpdate, names: Vec<Arc<str>>) -> v1::ConfigUpdate {
        self.nonce += 1;
        update.nonce = self.nonce;
        update.report_seconds = std::mem::take(&mut self.report_seconds);
        let patched = update.resources.iter().any(|r| r.patch.is_some());
        self.in_flight = Some(InFlight {
            nonce: self.nonce,
            names,
            patched,
        });
        update
    }

    /// Adds a name to an update if the proxy has something else; answers with the bytes added.
    fn add(
        &mut self,
        name: Arc<str>,
        lookup: impl Fn(&str) -> Option<EncodedResource>,
        update: &mut v1::ConfigUpdate,
        names: &mut Vec<Arc<str>>,
    ) -> usize {
        if self.services_by_host && is_service(&name) {
            return self.add_name(name, lookup, update, names);
        }
        let Some(Told { held, asked }) = self.told.get_mut(&name) else {
            return 0;
        };
        // A name may pass to another identity while it is subscribed to.
        let mine = |e: &EncodedResource| e.owner.as_ref().is_none_or(|o| *o == self.identity);
        let bytes = match lookup(&name).filter(mine) {
            // It changes when it has what it lacks; until then the proxy goes on with what it has.
            Some(entry) if entry.is_incomplete => return 0,
            Some(entry) if *held == KnownVersion::Version(entry.version) => return 0,
            Some(entry) => {
                let before = std::mem::replace(held, KnownVersion::Version(entry.version));
                let bytes = name.len() + entry.bytes();
                let fits = |p: &Arc<Patched>| before == KnownVersion::Version(p.from);
                let patch = entry.patch.filter(|p| self.takes_patches && fits(p));
                let (version, body, labels) = match patch {
                    Some(_) => Default::default(),
                    None => (entry.version, entry.body, entry.labels),
                };
                update.resources.push(v1::Resource {
                    name: name.to_string(),
                    version,
                    body,
                    labels,
                    patch: patch.map(|p| p.patch.clone()),
                    by_host: false,
                });
                bytes
            }
            None if *held == KnownVersion::Absent => return 0,
            // The proxy has not asked which identity has the name.
            None if !*asked => {
                self.forget(name);
                return 0;
            }
            None => {
                *held = KnownVersion::Absent;
                update.removed.push(name.to_string());
                name.len()
            }
        };
        names.push(name);
        bytes
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Violation> {
    let rest = FORMS.iter().find_map(|form| name.strip_prefix(form));
    let good = matches!(name, "mesh" | "catalog" | "egress") || rest.is_some_and(|r| !r.is_empty());
    if good && name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(Violation::BadName(
        name.chars().take(MAX_NAME_BYTES).collect(),
    ))
}

/// Cuts what a proxy says, and takes out what a terminal would obey: `tulle status` prints it.
pub(crate) fn bounded(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests;
