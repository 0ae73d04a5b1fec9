//! Translates the ports that rules name into those that a pod listens on.

use super::{ANY, MOST_NAMED, OfObject, Served, named, numbers};
use crate::index::ClusterPod;
use crate::index::cluster::Cluster;
use crate::index::policy::About;
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use tulle_model::namespaced::ObjectName;
use tulle_model::resource::PolicyRule;

/// Most ports that all rules of a pod's policy have together: each of many thousands may be about each of thousands.
pub(super) const MOST_OF_RULES: usize = 1_000_000;

/// The services of a pod that an object is about.
struct Parts<'a> {
    /// `None`: it is about the pod's account.
    about: Option<&'a About>,
    /// The ports of all services of which it is about some ports.
    ports: BTreeSet<u16>,
    /// Whether it is about all ports of a service.
    any_whole: bool,
}

impl<'a> Parts<'a> {
    fn new(about: Option<&'a About>) -> Self {
        let services = || about.into_iter().flat_map(BTreeMap::values);
        Self {
            about,
            ports: services().flatten().copied().collect(),
            any_whole: services().any(BTreeSet::is_empty),
        }
    }

    /// Whether it is about a port of that number, of some service.
    fn have(&self, port: u16) -> bool {
        self.about.is_none() || self.any_whole || self.ports.contains(&port)
    }

    /// Whether it is about this port of the service.
    fn have_of(&self, service: &ObjectName, port: u16) -> bool {
        self.about.is_none_or(|about| {
            let ports = about.get(service);
            ports.is_some_and(|ports| ports.is_empty() || ports.contains(&port))
        })
    }
}

/// Translates ports of services, which objects name, into the ports that the pod listens on. Objects may have very many
/// rules and ports, and make as many ports known, so no rule looks at all ports for each that it names.
pub(super) struct OwnPorts<'a> {
    served: &'a BTreeMap<u16, Served>,
    /// Port numbers of all its services.
    declared: BTreeSet<u16>,
    /// The services that lead to ports, with the pod's own number, by the number that a service has for it.
    places: BTreeMap<u16, Vec<(&'a ObjectName, u16)>>,
    /// The services whose rules may be about all ports.
    whole: BTreeSet<&'a str>,
}

impl<'a> OwnPorts<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        pod: &'a ClusterPod,
        served: &'a BTreeMap<u16, Served>,
    ) -> Self {
        let mut places: BTreeMap<u16, Vec<(&ObjectName, u16)>> = BTreeMap::new();
        for (number, served) in served {
            for (name, port) in &served.places {
                places.entry(*port).or_default().push((name, *number));
            }
        }
        let names = cluster.services_of(pod).map(|s| s.name.as_str());
        let is_whole = |service: &str| {
            let mut served = served.values();
            served.all(|served| is_of(served, |name| name.as_str() == service))
        };
        Self {
            served,
            declared: cluster.services_of(pod).flat_map(numbers).collect(),
            places,
            whole: names.filter(|name| is_whole(name)).collect(),
        }
    }

    /// Why rules about ports that nobody declares are about all or none of these; `None`: each that they name is known.
    pub(super) fn too_many(&self, rules: &[OfObject]) -> Option<String> {
        let is_unknown = |p: &u16| !self.declared.contains(p) && !self.served.contains_key(p);
        let counted = rules.iter().map(|object| {
            let unknown = named(std::slice::from_ref(object)).filter(is_unknown);
            (unknown.collect::<BTreeSet<u16>>().len(), &object.1)
        });
        let (most, rules) = counted.max_by_key(|(count, _)| *count)?;
        let name = &rules.first().filter(|_| most > 0)?.name;
        let (name, _) = name.split_once(" rules[").unwrap_or((name, ""));
        Some(format!(
            "rules about its pods name more than {MOST_NAMED} ports that neither a Service nor the pod declares (most of \
             them {name}), so those that allow are about none of these, and those that deny are about all that nobody \
             declares: name fewer"
        ))
    }

    /// Translates the ports of each rule, object by object, for all services of the object together: a rule says the
    /// same of each. Of a rule, `None` is all ports that there may be, and an empty list none. Returns `None` if they
    /// are too many; a port counts as often as a rule names one that means it, since this is the work, too.
    pub(super) fn of_rules(&self, objects: &[OfObject]) -> Option<Vec<Option<Vec<u16>>>> {
        let mut left = MOST_OF_RULES;
        let mut translated = Vec::new();
        for (about, rules) in objects {
            // All of them allow, or all deny.
            let denies = rules.iter().any(|rule| rule.action.denies());
            let parts = Parts::new(about.as_ref());
            let all = LazyCell::new(|| self.all(&parts, denies));
            // An object may have as many rules as it is long, and each may name the same ports.
            let mut known: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
            for rule in rules {
                if rule.ports.is_empty() {
                    let own = &*all;
                    left = left.checked_sub(own.as_ref().map_or(0, Vec::len))?;
                    translated.push(own.clone());
                    continue;
                }
                let wanted: BTreeSet<u16> = rule.ports.iter().copied().collect();
                let mut own = BTreeSet::new();
                for port in wanted {
                    let meant = known.entry(port);
                    let meant = meant.or_insert_with(|| self.meant(port, &parts, denies).collect());
                    left = left.checked_sub(meant.len())?;
                    own.extend(meant.iter().copied());
                }
                translated.push(Some(own.into_iter().collect()));
            }
        }
        Some(translated)
    }

    /// The rules where their ports are too many: one that allows some ports allows none, and one that denies some
    /// denies all.
    pub(super) fn without_ports(&self, objects: Vec<OfObject>) -> Vec<PolicyRule> {
        let rules = objects.into_iter().flat_map(|(about, rules)| {
            let is_whole = self.is_whole(about.as_ref(), false);
            let kept = move |rule: &PolicyRule| {
                rule.action.denies() || (is_whole && rule.ports.is_empty())
            };
            rules.into_iter().filter(kept)
        });
        let rules = rules.map(|rule| PolicyRule {
            ports: Vec::new(),
            ..rule
        });
        rules.collect()
    }

    /// Whether a rule that names no port means all that there may be.
    fn is_whole(&self, about: Option<&About>, denies: bool) -> bool {
        about.is_none_or(|about| {
            let mut whole = about.iter().filter(|(_, ports)| ports.is_empty());
            whole.any(|(service, _)| denies || self.whole.contains(service.as_str()))
        })
    }

    /// The ports of the pod that a rule means which names none; `None`: all that there may be.
    fn all(&self, parts: &Parts<'_>, denies: bool) -> Option<Vec<u16>> {
        let about = parts.about?;
        if self.is_whole(parts.about, denies) {
            return None;
        }
        // Most services have the same few ports, and each of these leads to all of them.
        let own = parts.ports.iter();
        let own = own.flat_map(|w| self.meant(*w, parts, denies));
        let mut own: BTreeSet<u16> = own.collect();
        if parts.any_whole {
            let is_whole = |name: &ObjectName| about.get(name).is_some_and(BTreeSet::is_empty);
            let served = self.served.iter();
            let served = served.filter(|(_, served)| is_of(served, is_whole));
            own.extend(served.map(|(number, _)| *number));
        }
        Some(own.into_iter().collect())
    }

    /// The ports of the pod that a rule means which names the port `wanted`. A rule may name the pod's
    /// own number only if no service of the pod has a port of that number. Where rules name too many of these, one that
    /// denies means all that nobody declares, and one that allows none.
    fn meant(&self, wanted: u16, parts: &Parts<'_>, denies: bool) -> impl Iterator<Item = u16> {
        let is_about = move |service: &ObjectName| parts.have_of(service, wanted);
        let own = match self.served.get(&wanted) {
            _ if self.declared.contains(&wanted) => None,
            Some(own) => is_of(own, is_about).then_some(wanted),
            None => denies.then_some(ANY),
        };
        let own = own.filter(|_| parts.have(wanted));
        let led = self.places.get(&wanted).into_iter().flatten();
        let led = led.filter(move |(service, _)| is_about(service));
        own.into_iter().chain(led.map(|(_, number)| *number))
    }
}

/// Whether rules about some services may be about a port: one of these leads to it, or no service does.
fn is_of(served: &Served, is_about: impl Fn(&ObjectName) -> bool) -> bool {
    let mut places = served.places.iter();
    served.places.is_empty() || places.any(|(name, _)| is_about(name))
}
