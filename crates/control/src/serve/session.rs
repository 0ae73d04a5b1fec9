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

use crate::index::{EncodedResource, Patched};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tulle_api::v1;
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
        self.announced = self.anticipates && more;
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
        let Some(Told { held, asked }) = self.told.get_mut(&name) else {
            return 0;
        };
        // A name may pass to another identity while it is subscribed to.
        let mine = |e: &EncodedResource| e.owner.as_ref().is_none_or(|o| *o == self.identity);
        let bytes = match lookup(&name).filter(mine) {
            // It changes when the keys were asked for; until then the proxy goes on with what it has.
            Some(entry) if entry.awaits_keys => return 0,
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

fn check_name(name: &str) -> Result<(), Violation> {
    let rest = FORMS.iter().find_map(|form| name.strip_prefix(form));
    let good = matches!(name, "mesh" | "catalog" | "egress") || rest.is_some_and(|r| !r.is_empty());
    if good && name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(Violation::BadName(
        name.chars().take(MAX_NAME_BYTES).collect(),
    ))
}

pub(crate) fn bounded(mut text: String) -> String {
    let mut end = text.len().min(MAX_ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    struct Mesh(BTreeMap<&'static str, (u64, Option<&'static str>)>);

    impl Mesh {
        fn lookup(&self) -> impl Fn(&str) -> Option<EncodedResource> + '_ {
            |name| {
                let (version, owner) = self.0.get(name)?;
                Some(EncodedResource {
                    version: *version,
                    patch: None,
                    body: Bytes::from_static(b"body"),
                    labels: Bytes::new(),
                    owner: owner.map(id),
                    service: None,
                    backends: Vec::new(),
                    awaits_keys: false,
                })
            }
        }
    }

    fn id(name: &str) -> SpiffeId {
        SpiffeId::parse(&format!("spiffe://t/svc/{name}")).unwrap()
    }

    fn ack(nonce: u64, error: &str) -> v1::Ack {
        v1::Ack {
            nonce,
            error: error.into(),
            ..v1::Ack::default()
        }
    }

    fn names(update: &v1::ConfigUpdate) -> Vec<&str> {
        update.resources.iter().map(|r| r.name.as_str()).collect()
    }

    fn subscribe(session: &mut Session, mesh: &Mesh, names: &[&str]) -> Result<(), Violation> {
        let names = names.iter().map(|n| (*n).to_owned()).collect();
        let known = BTreeMap::new();
        let subscribed = session.subscribe(names, &known, &BTreeSet::new(), mesh.lookup());
        subscribed.map(|_| ())
    }

    #[test]
    fn sends_once_and_then_only_what_changed() {
        let mut mesh = Mesh(BTreeMap::from([
            ("service/a", (1, None)),
            ("service/b", (1, None)),
        ]));
        let mut session = Session::new(id("x"));
        subscribe(
            &mut session,
            &mesh,
            &["service/a", "service/b", "service/c"],
        )
        .unwrap();
        let update = session.next(mesh.lookup()).unwrap();
        assert_eq!(names(&update), ["service/a", "service/b"]);
        assert_eq!(update.removed, ["service/c"]);
        // One update is in flight: changes wait and are coalesced.
        mesh.0.insert("service/a", (2, None));
        session.changed(["service/a".into()]);
        mesh.0.insert("service/a", (3, None));
        session.changed(["service/a".into(), "service/b".into()]);
        assert!(session.next(mesh.lookup()).is_none());
        assert_eq!(session.acknowledged(ack(9, "")), AckResult::Stale);
        assert_eq!(session.acknowledged(ack(1, "")), AckResult::Applied(1));
        let update = session.next(mesh.lookup()).unwrap();
        assert_eq!(names(&update), ["service/a"]);
        assert_eq!(update.resources[0].version, 3);
        session.acknowledged(ack(2, ""));
        assert!(session.next(mesh.lookup()).is_none());
    }

    #[test]
    fn known_versions_are_not_sent_again() {
        let mesh = Mesh(BTreeMap::from([
            ("service/a", (7, None)),
            ("service/b", (8, None)),
        ]));
        let mut session = Session::new(id("x"));
        let known = [("service/a".to_owned(), 7), ("service/b".to_owned(), 7)];
        let wanted = vec!["service/a".to_owned(), "service/b".to_owned()];
        session
            .subscribe(wanted, &known.into(), &BTreeSet::new(), mesh.lookup())
            .unwrap();
        let update = session.next(mesh.lookup()).unwrap();
        assert_eq!(names(&update), ["service/b"]);
    }

    #[test]
    fn a_proxy_keeps_what_it_has_while_the_new_one_awaits_keys() {
        let mesh = Mesh(BTreeMap::from([
            ("service/a", (2, None)),
            ("service/b", (2, None)),
        ]));
        let awaiting = |name: &str| {
            let awaits_keys = name == "service/a";
            let entry = mesh.lookup()(name)?;
            Some(EncodedResource {
                awaits_keys,
                ..entry
            })
        };
        let mut session = Session::new(id("x"));
        let known = BTreeMap::from([("service/a".to_owned(), 1)]);
        let wanted = vec!["service/a".to_owned(), "service/b".to_owned()];
        session
            .subscribe(wanted, &known, &BTreeSet::new(), awaiting)
            .unwrap();
        let update = session.next(awaiting).unwrap();
        assert_eq!(names(&update), ["service/b"]);
        assert!(update.removed.is_empty());
        session.acknowledged(ack(1, ""));
        session.changed(["service/a".into()]);
        assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/a"]);
    }

    #[test]
    fn a_refused_update_is_taken_apart_and_the_bad_one_waits_for_a_change() {
        let mut mesh = Mesh(BTreeMap::from([
            ("service/a", (1, None)),
            ("service/b", (1, None)),
        ]));
        let mut session = Session::new(id("x"));
        subscribe(&mut session, &mesh, &["service/a", "service/b"]).unwrap();
        session.next(mesh.lookup()).unwrap();
        let refused = session.acknowledged(ack(1, "b is bad"));
        assert_eq!(refused, AckResult::Refused(1, "b is bad".into()));
        assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/a"]);
        session.acknowledged(ack(2, ""));
        assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/b"]);
        session.acknowledged(ack(3, "b is bad"));
        session.changed(["service/b".into()]);
        assert!(session.next(mesh.lookup()).is_none());
        mesh.0.insert("service/b", (2, None));
        session.changed(["service/b".into()]);
        assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/b"]);
    }

    #[test]
    fn while_memory_is_short_many_small_messages_add_no_more_than_one() {
        let mesh = Mesh(BTreeMap::new());
        let mut session = Session::new(id("x"));
        let add = |session: &mut Session, from: usize, to: usize, is_short: bool| {
            let may = session.may_add(to - from, is_short);
            if may {
                let names: Vec<String> = (from..to).map(|n| format!("service/{n}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                subscribe(session, &mesh, &names).unwrap();
            }
            may
        };
        assert!(add(&mut session, 0, 1000, false));
        // A few addresses that are new to a proxy with many names.
        for name in 1000..1000 + FEW_NAMES {
            assert!(add(&mut session, name, name + 1, true), "{name}");
        }
        let full = 1000 + FEW_NAMES;
        assert!(!add(&mut session, full, full + 1, true));
        // Names that it gives up make room.
        session.unsubscribe(&["service/7".to_owned()]);
        assert!(add(&mut session, full, full + 1, true));
        assert!(!add(&mut session, full + 1, full + 2, true));
        // Once memory is not short any more, it may add as many as ever.
        assert!(add(&mut session, full + 1, 2000, false));
        assert!(add(&mut session, 2000, 2000 + FEW_NAMES, true));
        assert!(!add(&mut session, 3000, 3001, true));
    }

    #[test]
    fn a_resource_that_goes_is_removed_once() {
        let mut mesh = Mesh(BTreeMap::from([("service/a", (1, None))]));
        let mut session = Session::new(id("x"));
        subscribe(&mut session, &mesh, &["service/a"]).unwrap();
        session.next(mesh.lookup()).unwrap();
        session.acknowledged(ack(1, ""));
        mesh.0.remove("service/a");
        session.changed(["service/a".into()]);
        assert_eq!(session.next(mesh.lookup()).unwrap().removed, ["service/a"]);
        session.acknowledged(ack(2, ""));
        session.changed(["service/a".into()]);
        assert!(session.next(mesh.lookup()).is_none());
    }

    #[test]
    fn what_belongs_to_others_is_refused_or_withheld() {
        let mut mesh = Mesh(BTreeMap::from([("inbound/y", (1, Some("y")))]));
        let mut session = Session::new(id("x"));
        let refused = subscribe(&mut session, &mesh, &["inbound/y"]);
        assert_eq!(refused, Err(Violation::NotYours("inbound/y".into())));
        subscribe(&mut session, &mesh, &["inbound/z"]).unwrap();
        mesh.0.insert("inbound/z", (1, Some("z")));
        let update = session.next(mesh.lookup()).unwrap();
        assert!(update.resources.is_empty());
        assert_eq!(update.removed, ["inbound/z"]);
    }

    #[test]
    fn names_and_their_number_are_limited() {
        let mesh = Mesh(BTreeMap::new());
        let mut session = Session::new(id("x"));
        let long = format!("service/{}", "x".repeat(MAX_NAME_BYTES));
        for bad in ["", "service/", "secret/x", "mesh/x", &long] {
            let refused = subscribe(&mut session, &mesh, &[bad]);
            assert!(matches!(refused, Err(Violation::BadName(_))), "{bad}");
        }
        let many = (0..=MAX_SUBSCRIPTIONS).map(|i| format!("service/{i}"));
        let (known, unused) = (BTreeMap::new(), BTreeSet::new());
        let refused = session.subscribe(many.collect(), &known, &unused, mesh.lookup());
        assert_eq!(refused, Err(Violation::TooMany));
    }

    #[test]
    fn large_updates_are_split() {
        let big = |_: &str| {
            Some(EncodedResource {
                version: 1,
                patch: None,
                body: Bytes::from(vec![0; 600 * 1024]),
                labels: Bytes::new(),
                owner: None,
                service: None,
                backends: Vec::new(),
                awaits_keys: false,
            })
        };
        let mut session = Session::new(id("x"));
        let wanted = (0..3).map(|i| format!("service/{i}")).collect();
        let (known, unused) = (BTreeMap::new(), BTreeSet::new());
        session.subscribe(wanted, &known, &unused, big).unwrap();
        assert_eq!(session.next(big).unwrap().resources.len(), 2);
        session.acknowledged(ack(1, ""));
        assert_eq!(session.next(big).unwrap().resources.len(), 1);
    }

    #[test]
    fn what_a_proxy_is_told_unasked_is_forgotten_unless_it_asks() {
        let mut mesh = Mesh(BTreeMap::from([
            ("service/a", (1, None)),
            ("service/b", (1, None)),
            ("service/c", (1, None)),
        ]));
        let mut session = Session::new(id("x"));
        subscribe(&mut session, &mesh, &["service/a"]).unwrap();
        let all = ["service/a", "service/b", "service/c"].map(Arc::from);
        let new = session.anticipate(all.to_vec());
        assert_eq!(new, all[1..]);
        let update = session.next(mesh.lookup()).unwrap();
        assert_eq!(names(&update).len(), 3);
        assert!(!update.more);
        session.acknowledged(ack(1, ""));
        // The resource changes and is then deleted: nobody has asked whose the name is.
        assert!(session.anticipates(&BTreeSet::from([all[1].clone()])));
        assert!(!session.anticipates(&BTreeSet::from([all[0].clone()])));
        mesh.0.insert("service/b", (2, None));
        session.changed([all[1].clone()]);
        assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/b"]);
        session.acknowledged(ack(2, ""));
        mesh.0.remove("service/b");
        session.changed([all[1].clone()]);
        let update = session.next(mesh.lookup()).unwrap();
        assert_eq!(
            (update.forgotten, update.removed),
            (vec!["service/b".into()], vec![])
        );
        assert_eq!(session.take_dropped(), all[1..2]);
        session.acknowledged(ack(3, ""));
        // A service that is used stays when it is no longer likely.
        subscribe(&mut session, &mesh, &["service/c"]).unwrap();
        assert!(session.anticipate(Vec::new()).is_empty());
        assert!(session.next(mesh.lookup()).is_none());
        assert_eq!(session.subscription_count(), 2);
    }

    #[test]
    fn the_last_update_of_many_says_so_also_when_nothing_is_left_to_say() {
        let big = |_: &str| {
            Some(EncodedResource {
                version: 1,
                patch: None,
                body: Bytes::from(vec![0; 1024 * 1024]),
                labels: Bytes::new(),
                owner: None,
                service: None,
                backends: Vec::new(),
                awaits_keys: false,
            })
        };
        let mut session = Session::new(id("x"));
        let known = BTreeMap::from([("service/c".to_owned(), 1)]);
        let names = vec!["service/a".into(), "service/c".into()];
        session
            .subscribe(names, &known, &BTreeSet::from(["service/c"]), big)
            .unwrap();
        session.anticipate(vec!["service/b".into(), "service/c".into()]);
        let mut more = Vec::new();
        for nonce in 1..=3 {
            more.push(session.next(big).unwrap().more);
            session.acknowledged(ack(nonce, ""));
        }
        assert_eq!(more, [true, true, false]);
        assert!(session.next(big).is_none());
    }

    /// A service with so many endpoints, and what makes it of the version before.
    fn service(endpoints: u16, before: Option<&EncodedResource>) -> EncodedResource {
        let all = (0..endpoints).map(|n| format!(r#"{{"address":"10.0.0.1:{}"}}"#, 10_000 + n));
        let body: Bytes = all.collect::<Vec<_>>().join(",").into();
        let mut service = EncodedResource {
            version: tulle_api::version(&body, &[]),
            patch: None,
            body,
            labels: Bytes::new(),
            owner: None,
            service: None,
            backends: Vec::new(),
            awaits_keys: false,
        };
        if let Some(before) = before {
            service.follow(before);
        }
        service
    }

    fn sent(session: &mut Session, present: &EncodedResource) -> v1::Resource {
        session.changed([Arc::from("service/a")]);
        let update = session.next(|_| Some(present.clone())).unwrap();
        let [resource] = &update.resources[..] else {
            panic!("{update:?}");
        };
        resource.clone()
    }

    #[test]
    fn a_proxy_that_takes_patches_is_sent_what_differs_from_what_it_has() {
        let first = service(20, None);
        let second = service(21, Some(&first));
        let third = service(22, Some(&second));
        for takes in [false, true] {
            let mut session = Session::new(id("x"));
            if takes {
                session.send_patches();
            }
            let known = BTreeMap::from([("service/a".to_owned(), first.version)]);
            let name = vec!["service/a".to_owned()];
            session
                .subscribe(name, &known, &BTreeSet::new(), |_| None)
                .unwrap();
            let resource = sent(&mut session, &second);
            assert_eq!(
                (resource.patch.is_some(), resource.body.is_empty()),
                (takes, takes)
            );
            if !takes {
                continue;
            }
            let patch = resource.patch.unwrap();
            let encoded = |e: &EncodedResource| tulle_api::Encoded {
                body: e.body.clone(),
                labels: e.labels.clone(),
            };
            assert_eq!(
                tulle_api::apply_patch(&encoded(&first), &patch),
                Some((encoded(&second), second.version))
            );
            // One that missed a version, or refuses a patch, is sent the whole.
            session.acknowledged(ack(1, ""));
            let fourth = service(23, Some(&third));
            assert!(sent(&mut session, &fourth).patch.is_none());
            session.acknowledged(ack(2, ""));
            let fifth = service(24, Some(&fourth));
            assert!(sent(&mut session, &fifth).patch.is_some());
            session.acknowledged(ack(3, "it does not fit"));
            let update = session.next(|_| Some(fifth.clone())).unwrap();
            assert_eq!(update.resources[0].body, fifth.body);
            session.acknowledged(ack(4, ""));
            let sixth = service(25, Some(&fifth));
            assert!(
                sent(&mut session, &sixth).patch.is_none(),
                "it is of another version"
            );
        }
    }
}
