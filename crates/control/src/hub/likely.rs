//! Services that an application is likely to call, and that its sidecar receives beforehand.
//!
//! In a small mesh these are all services. In a large one they are the services of the caller's
//! namespace and those that proxies of the same identity have used. Names and bodies together have at
//! most [`BOUND`] bytes. A proxy receives only names that every proxy may ask for.

use crate::index::EncodedResource;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use tulle_api::is_service;
use tulle_model::identity::SpiffeId;
use tulle_model::namespaced::ObjectName;

/// Bytes of names and bodies that one proxy receives unasked.
pub(crate) const BOUND: usize = 256 * 1024;
/// Services remembered for one identity.
const MOST_USED: usize = 256;
/// Identities without a proxy that are remembered.
const MOST_ABSENT: usize = 1024;

/// Forms of names that a proxy looks up, beside `service/…`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Forms {
    pub(crate) addresses: bool,
    pub(crate) hosts: bool,
}

impl Forms {
    const ALL: [Self; 4] = [
        Self::new(false, false),
        Self::new(false, true),
        Self::new(true, false),
        Self::new(true, true),
    ];

    const fn new(addresses: bool, hosts: bool) -> Self {
        Self { addresses, hosts }
    }

    fn have(self, name: &str) -> bool {
        is_service(name)
            || self.addresses && name.starts_with("address/")
            || self.hosts && name.starts_with("host/")
    }
}

/// A service's names with the bytes of each, and the services its routes refer to.
#[derive(Debug, Default)]
struct Service {
    names: BTreeMap<Arc<str>, usize>,
    backends: Vec<ObjectName>,
}

impl Service {
    fn bytes(&self, forms: Forms) -> usize {
        let names = self.names.iter().filter(|(name, _)| forms.have(name));
        names.map(|(_, bytes)| bytes).sum()
    }
}

/// A service by name. Pods, which are called by their addresses, come after all others.
type Key = (bool, ObjectName);

fn key(name: &ObjectName) -> Key {
    (name.as_str().starts_with("pod/"), name.clone())
}

/// All services of the mesh, as far as proxies may know them.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    services: BTreeMap<Key, Service>,
    namespaces: HashMap<Box<str>, BTreeSet<Key>>,
    /// Bytes of all services that are not pods, and whether the mesh is small; one pair per member of
    /// [`Forms::ALL`].
    sums: [(usize, bool); 4],
}

/// Proxies that may need other names after a change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Concerned {
    Nobody,
    Namespace(String),
    Everybody,
}

impl Catalog {
    /// Takes in that a name has another entry now.
    pub(crate) fn change(
        &mut self,
        name: &Arc<str>,
        old: Option<&EncodedResource>,
        new: Option<&EncodedResource>,
    ) -> Concerned {
        let part = |entry: Option<&EncodedResource>| {
            let entry = entry.filter(|e| e.owner.is_none())?;
            let bytes = name.len() + entry.bytes();
            Some((entry.service.clone()?, bytes, entry.backends.clone()))
        };
        let (old, new) = (part(old), part(new));
        let before = self.sums.map(|(_, small)| small);
        if let Some((service, ..)) = &old {
            self.remove(service, name);
        }
        let is_new = match (&old, &new) {
            (Some((before, _, refers)), Some((now, _, to))) => before != now || refers != to,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let service = new.map(|(service, bytes, backends)| {
            self.add(&service, name, bytes, backends);
            service
        });
        self.weigh();
        let small = self.sums.map(|(_, small)| small);
        match service {
            _ if small != before => Concerned::Everybody,
            Some(ObjectName::InNamespace(service)) if is_new && small == [false; 4] => {
                Concerned::Namespace(service.namespace().to_owned())
            }
            Some(_) if is_new => Concerned::Everybody,
            _ => Concerned::Nobody,
        }
    }

    fn add(
        &mut self,
        service: &ObjectName,
        name: &Arc<str>,
        bytes: usize,
        backends: Vec<ObjectName>,
    ) {
        let key = key(service);
        if let ObjectName::InNamespace(service) = service {
            let known = self
                .namespaces
                .entry(service.namespace().into())
                .or_default();
            known.insert(key.clone());
        }
        let is_pod = key.0;
        let known = self.services.entry(key).or_default();
        known.names.insert(name.clone(), bytes);
        if is_service(name) {
            known.backends = backends;
        }
        self.count(name, is_pod, |sum| sum + bytes);
    }

    fn remove(&mut self, service: &ObjectName, name: &Arc<str>) {
        let key = key(service);
        let Some(known) = self.services.get_mut(&key) else {
            return;
        };
        let bytes = known.names.remove(name).unwrap_or_default();
        let is_empty = known.names.is_empty();
        self.count(name, key.0, |sum| sum.saturating_sub(bytes));
        if !is_empty {
            return;
        }
        self.services.remove(&key);
        let namespace = service.namespace();
        if let Some(known) = self.namespaces.get_mut(namespace) {
            known.remove(&key);
            if known.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
    }

    fn count(&mut self, name: &str, is_pod: bool, change: impl Fn(usize) -> usize) {
        for (forms, (sum, _)) in Forms::ALL.iter().zip(&mut self.sums) {
            if !is_pod && forms.have(name) {
                *sum = change(*sum);
            }
        }
    }

    /// A mesh that has grown too large is small again only when it is clearly smaller. So a service that
    /// comes and goes does not change what everybody receives.
    fn weigh(&mut self) {
        for (sum, small) in &mut self.sums {
            let most = if *small { BOUND } else { BOUND / 8 * 7 };
            *small = *sum <= most;
        }
    }

    /// Whether the mesh is small for proxies that look up these forms, so that they receive everything.
    pub(crate) fn is_small(&self, forms: Forms) -> bool {
        let mut known = Forms::ALL.iter().zip(self.sums);
        known.any(|(known, (_, small))| *known == forms && small)
    }

    /// The names that a proxy in `namespace` (`None`: outside a cluster) receives unasked. `used` are
    /// the services that proxies of its identity have used, the latest first.
    pub(crate) fn likely(
        &self,
        namespace: Option<&str>,
        forms: Forms,
        used: &[ObjectName],
    ) -> Vec<Arc<str>> {
        let mut chosen = Chosen {
            catalog: self,
            forms,
            left: BOUND,
            services: HashSet::new(),
            names: Vec::new(),
        };
        for service in used {
            chosen.take(key(service));
        }
        // Without a cluster there is one namespace.
        let own = namespace.map(|namespace| self.namespaces.get(namespace));
        let all = own.is_none() || self.is_small(forms);
        let first_pod: Key = (true, ObjectName::Plain("".into()));
        let (services, pods) = (
            (Bound::Unbounded, Bound::Excluded(first_pod.clone())),
            (Bound::Included(first_pod), Bound::Unbounded),
        );
        for range in [services, pods] {
            for key in own
                .into_iter()
                .flatten()
                .flat_map(|own| own.range(range.clone()))
            {
                chosen.take(key.clone());
            }
            if !all {
                continue;
            }
            for (key, _) in self.services.range(range) {
                chosen.take(key.clone());
                if chosen.is_full() {
                    break;
                }
            }
        }
        chosen.names
    }
}

/// The choice for one proxy.
struct Chosen<'a> {
    catalog: &'a Catalog,
    forms: Forms,
    left: usize,
    services: HashSet<Key>,
    names: Vec<Arc<str>>,
}

impl Chosen<'_> {
    /// Takes a service and the services that its routes refer to, or nothing if they do not fit.
    fn take(&mut self, service: Key) {
        let (mut found, mut bytes) = (BTreeMap::new(), 0);
        let mut next = vec![service];
        while let Some(key) = next.pop() {
            if self.services.contains(&key) || found.contains_key(&key) {
                continue;
            }
            let Some(service) = self.catalog.services.get(&key) else {
                continue;
            };
            bytes += service.bytes(self.forms);
            if bytes > self.left {
                return;
            }
            next.extend(service.backends.iter().map(self::key));
            found.insert(key, service);
        }
        self.left -= bytes;
        for (key, service) in found {
            let names = service.names.keys().filter(|name| self.forms.have(name));
            self.names.extend(names.cloned());
            self.services.insert(key);
        }
    }

    /// Whether less room is left than the smallest service takes.
    fn is_full(&self) -> bool {
        self.left < 64
    }
}

/// The services that proxies of each identity have used.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// When each was used last, counted in uses.
    by: HashMap<SpiffeId, HashMap<ObjectName, u64>>,
    absent: VecDeque<SpiffeId>,
    now: u64,
}

impl Used {
    /// Proxies of this identity use these services; whether one of them is new.
    pub(crate) fn note<'a>(
        &mut self,
        identity: &SpiffeId,
        services: impl Iterator<Item = &'a ObjectName>,
    ) -> bool {
        let mut is_new = false;
        for service in services.take(MOST_USED) {
            self.now += 1;
            let known = self.by.entry(identity.clone()).or_default();
            is_new |= known.insert(service.clone(), self.now).is_none();
            if known.len() > MOST_USED {
                let oldest = known.iter().min_by_key(|(_, when)| **when);
                if let Some(oldest) = oldest.map(|(service, _)| service.clone()) {
                    known.remove(&oldest);
                }
            }
        }
        is_new
    }

    /// Notes that a proxy of this identity has received these services because its siblings had used
    /// them, perhaps from a controller that ran before this one.
    pub(crate) fn recall(
        &mut self,
        identity: &SpiffeId,
        services: impl Iterator<Item = ObjectName>,
    ) {
        let known = self.by.entry(identity.clone()).or_default();
        for service in services {
            if known.len() >= MOST_USED {
                break;
            }
            known.entry(service).or_default();
        }
    }

    /// The services, the latest first.
    pub(crate) fn of_identity(&self, identity: &SpiffeId) -> Vec<ObjectName> {
        let known = self.by.get(identity).into_iter().flatten();
        let mut known: Vec<_> = known.collect();
        known.sort_unstable_by(|a, b| (b.1, a.0).cmp(&(a.1, b.0)));
        known.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// A proxy of this identity is connected.
    pub(crate) fn present(&mut self, identity: &SpiffeId) {
        self.absent.retain(|absent| absent != identity);
    }

    /// The last proxy of this identity has gone. It may be a job's, or all are being replaced.
    pub(crate) fn gone(&mut self, identity: &SpiffeId) {
        if !self.by.contains_key(identity) {
            return;
        }
        self.absent.push_back(identity.clone());
        if self.absent.len() > MOST_ABSENT
            && let Some(oldest) = self.absent.pop_front()
        {
            self.by.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tulle_model::namespaced::Namespaced;

    const FORMS: Forms = Forms::new(true, false);

    fn id(text: &str) -> SpiffeId {
        SpiffeId::parse(&format!("spiffe://t/{text}")).unwrap()
    }

    /// A name of a cluster, if it has a namespace.
    fn named(name: &str) -> ObjectName {
        let in_namespace = Namespaced::parse(name).map(ObjectName::from);
        in_namespace.unwrap_or_else(|| ObjectName::Plain(name.into()))
    }

    fn entry(service: &str, bytes: usize, backends: &[&str]) -> EncodedResource {
        EncodedResource {
            version: 1,
            patch: None,
            body: Bytes::from(vec![b'x'; bytes]),
            labels: Bytes::new(),
            owner: None,
            service: Some(named(service)),
            backends: backends.iter().map(|b| named(b)).collect(),
            is_incomplete: false,
        }
    }

    fn put(catalog: &mut Catalog, service: &str, bytes: usize, backends: &[&str]) -> Concerned {
        let entry = entry(service, bytes, backends);
        catalog.change(&format!("service/{service}").into(), None, Some(&entry))
    }

    fn bytes(catalog: &Catalog, names: &[Arc<str>]) -> usize {
        let all = catalog.services.values().flat_map(|s| &s.names);
        let told = all.filter(|(name, _)| names.contains(name));
        told.map(|(_, bytes)| bytes).sum()
    }

    /// A mesh of two namespaces that is too large to be sent to everybody.
    fn large() -> Catalog {
        let mut catalog = Catalog::default();
        for i in 0..1000 {
            put(&mut catalog, &format!("s{i:03}.other"), 400, &[]);
        }
        for i in 0..10 {
            put(&mut catalog, &format!("s{i}.own"), 400, &[]);
        }
        catalog
    }

    #[test]
    fn all_of_a_small_mesh_is_told_with_the_names_that_are_looked_up() {
        let mut catalog = Catalog::default();
        put(&mut catalog, "a.x", 400, &[]);
        put(&mut catalog, "b.y", 400, &[]);
        put(&mut catalog, "pod/p.y", 400, &[]);
        for name in ["address/10.0.0.1", "host/a.x"] {
            catalog.change(&name.into(), None, Some(&entry("a.x", 10, &[])));
        }
        let told = |catalog: &Catalog, forms| {
            let mut told = catalog.likely(Some("y"), forms, &[]);
            told.sort_unstable();
            told.join(" ")
        };
        let without = "service/a.x service/b.y service/pod/p.y";
        assert_eq!(told(&catalog, Forms::default()), without);
        let addresses = format!("address/10.0.0.1 {without}");
        assert_eq!(told(&catalog, FORMS), addresses);
        let hosts = "host/a.x service/a.x service/b.y service/pod/p.y";
        assert_eq!(told(&catalog, Forms::new(false, true)), hosts);
        // A resource that belongs to one identity is never sent unasked.
        let mut own = entry("c.x", 10, &[]);
        own.owner = Some(id("svc/c"));
        catalog.change(&"service/c.x".into(), None, Some(&own));
        assert_eq!(told(&catalog, FORMS), addresses);
        // The address goes to another service, then nobody has it.
        let (old, new) = (entry("a.x", 10, &[]), entry("b.y", 10, &[]));
        catalog.change(&"address/10.0.0.1".into(), Some(&old), Some(&new));
        assert_eq!(told(&catalog, FORMS), addresses);
        catalog.change(&"address/10.0.0.1".into(), Some(&new), None);
        assert_eq!(told(&catalog, FORMS), without);
    }

    #[test]
    fn of_a_large_mesh_the_namespace_and_what_siblings_used_are_told() {
        let catalog = large();
        let used = ["s500.other", "gone.other"].map(named);
        let told = catalog.likely(Some("own"), FORMS, &used);
        assert_eq!(told.len(), 11, "{told:?}");
        assert_eq!(&*told[0], "service/s500.other");
        assert!(told[1..].iter().all(|name| name.ends_with(".own")));
        assert!(catalog.likely(Some("empty"), FORMS, &[]).is_empty());
    }

    #[test]
    fn what_is_told_never_exceeds_the_bound() {
        let mut catalog = large();
        let told = catalog.likely(Some("other"), FORMS, &[]);
        assert!((500..700).contains(&told.len()), "{}", told.len());
        assert!(bytes(&catalog, &told) <= BOUND);
        // Without a cluster all services are of one namespace.
        assert!(bytes(&catalog, &catalog.likely(None, FORMS, &[])) <= BOUND);
        // A service that is too large keeps no other out, even if a route refers to it.
        put(&mut catalog, "huge.own", BOUND + 1, &[]);
        put(&mut catalog, "a.own", 400, &["huge.own"]);
        put(&mut catalog, "b.own", 400, &["s900.other"]);
        let told = catalog.likely(Some("own"), FORMS, &[]);
        let is_told = |name: &str| told.iter().any(|told| &**told == name);
        assert_eq!(told.len(), 12, "{told:?}");
        assert!(is_told("service/b.own") && is_told("service/s900.other"));
        assert!(!is_told("service/huge.own") && !is_told("service/a.own"));
    }

    #[test]
    fn a_mesh_at_the_bound_does_not_change_what_is_told_with_each_service() {
        let mut catalog = Catalog::default();
        let half = BOUND / 2 - 100;
        assert_eq!(put(&mut catalog, "a.x", half, &[]), Concerned::Everybody);
        assert_eq!(put(&mut catalog, "b.x", half, &[]), Concerned::Everybody);
        assert_eq!(catalog.likely(Some("y"), FORMS, &[]).len(), 2);
        assert_eq!(put(&mut catalog, "c.x", half, &[]), Concerned::Everybody);
        let none: Vec<Arc<str>> = Vec::new();
        assert_eq!(catalog.likely(Some("y"), FORMS, &[]), none);
        let new = put(&mut catalog, "d.x", 10, &[]);
        assert_eq!(new, Concerned::Namespace("x".into()));
        let remove = |catalog: &mut Catalog, service: &str, bytes| {
            let old = entry(service, bytes, &[]);
            catalog.change(&format!("service/{service}").into(), Some(&old), None)
        };
        assert_eq!(remove(&mut catalog, "c.x", half), Concerned::Nobody);
        assert_eq!(catalog.likely(Some("y"), FORMS, &[]), none);
        assert_eq!(remove(&mut catalog, "b.x", half), Concerned::Everybody);
        assert_eq!(catalog.likely(Some("y"), FORMS, &[]).len(), 2);
    }

    #[test]
    fn services_that_were_used_are_remembered_up_to_a_bound() {
        let mut used = Used::default();
        let (a, b) = (id("svc/a"), id("svc/b"));
        let name = |i: usize| named(&format!("s{i}"));
        assert!(used.note(&a, [name(1), name(2)].iter()));
        assert!(!used.note(&a, [name(1)].iter()));
        used.recall(&a, [name(2), name(3)].into_iter());
        assert_eq!(used.of_identity(&a), [name(1), name(2), name(3)]);
        assert!(used.of_identity(&b).is_empty());
        for i in 0..2 * MOST_USED {
            used.note(&a, [name(i)].iter());
        }
        let known = used.of_identity(&a);
        assert_eq!(known.len(), MOST_USED);
        assert_eq!(known[0], name(2 * MOST_USED - 1));
        used.recall(&a, [name(3)].into_iter());
        assert_eq!(used.of_identity(&a), known);
        // An identity without a proxy is remembered until too many others have gone after it.
        used.gone(&a);
        used.present(&a);
        used.note(&b, [name(1)].iter());
        used.gone(&b);
        for i in 0..MOST_ABSENT {
            let other = id(&format!("svc/other{i}"));
            used.note(&other, [name(1)].iter());
            used.gone(&other);
        }
        assert!(used.of_identity(&b).is_empty());
        assert_eq!(used.of_identity(&a), known);
        assert_eq!(used.by.len(), MOST_ABSENT + 1);
    }
}
