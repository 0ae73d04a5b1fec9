//! Bounds the endpoints that Services and EndpointSlices make of each other. An endpoint is a port and an address, so two
//! small objects can make millions of them, and each is kept here, in the index and by proxies.

use std::collections::{BTreeMap, BTreeSet};
use tulle_control::name_in_place;
use tulle_model::manifest::Object;
use tulle_model::namespaced::Namespaced;

/// Endpoints that a Service may have at all its ports together. One of 5,000 pods with five ports has 25,000. An endpoint
/// that is meant for several zones counts once for each, as clients have it. Its texts are as long as their author likes
/// within what the API server takes, so it may take 1 KiB of the controller's memory, and usually takes a third of that.
pub(super) const MOST_OF_SERVICE: usize = 50_000;
/// Endpoints that all Services of a namespace may have.
pub(super) const MOST_OF_NAMESPACE: usize = 150_000;

/// The endpoints of all Services, as far as these are bounded.
#[derive(Debug, Default)]
pub(super) struct EndpointRooms {
    of_namespaces: BTreeMap<String, EndpointRoom>,
}

/// The endpoints of a namespace's Services.
#[derive(Debug, Default)]
struct EndpointRoom {
    /// The number that each Service asks for.
    asked: BTreeMap<Namespaced, usize>,
    /// The sum of these, of each Service as many as it may have at most.
    sum: usize,
    /// The Services that do not get all.
    cuts: BTreeMap<Namespaced, Cut>,
}

/// The endpoints of a Service that has too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) struct Cut {
    asked: usize,
    pub(super) kept: usize,
}

impl Cut {
    /// Says what it means, and what to do.
    pub(in crate::source) fn text(self) -> String {
        let Self { asked, kept } = self;
        format!(
            "its ports have {asked} endpoints, and {kept} of them are known: a Service may have {MOST_OF_SERVICE}, all \
             Services of a namespace {MOST_OF_NAMESPACE}, the older ones first. Until it has fewer ports or endpoints, \
             nobody may call it"
        )
    }
}

impl EndpointRooms {
    /// Takes in how many endpoints some Services ask for (`None`: a Service is gone). Returns the Services that get another
    /// part of these than before. `created` says when one was made.
    pub(super) fn ask<'a>(
        &mut self,
        changed: impl Iterator<Item = (&'a Namespaced, Option<usize>)>,
        created: impl Fn(&Namespaced) -> &'a str,
    ) -> BTreeSet<Namespaced> {
        let mut touched = BTreeSet::new();
        for (service, asked) in changed {
            let namespace = service.namespace();
            let room = self.of_namespaces.entry(namespace.to_owned());
            room.or_default().ask(service, asked);
            touched.insert(namespace);
        }
        let mut differ = BTreeSet::new();
        for namespace in touched {
            let Some(room) = self.of_namespaces.get_mut(namespace) else {
                continue;
            };
            room.cut(&created, &mut differ);
            if room.asked.is_empty() {
                self.of_namespaces.remove(namespace);
            }
        }
        differ
    }

    /// Returns how many a Service gets, if these are not all.
    pub(super) fn cut_of(&self, service: &Namespaced) -> Option<Cut> {
        let room = self.of_namespaces.get(service.namespace())?;
        room.cuts.get(service).copied()
    }

    /// The Services that do not get all.
    pub(super) fn cuts(&self) -> impl Iterator<Item = (&Namespaced, Cut)> {
        let rooms = self.of_namespaces.values();
        rooms.flat_map(|room| room.cuts.iter().map(|(service, cut)| (service, *cut)))
    }
}

impl EndpointRoom {
    fn ask(&mut self, service: &Namespaced, asked: Option<usize>) {
        let before = match asked {
            Some(asked) => self.asked.insert(service.clone(), asked),
            None => self.asked.remove(service),
        };
        let counted = |asked: Option<usize>| asked.unwrap_or_default().min(MOST_OF_SERVICE);
        self.sum = self.sum + counted(asked) - counted(before);
    }

    /// Decides what each Service gets. Older ones come first, so that a new one takes nothing from the others, and all
    /// replicas know the same.
    fn cut<'a>(
        &mut self,
        created: impl Fn(&Namespaced) -> &'a str,
        differ: &mut BTreeSet<Namespaced>,
    ) {
        let mut services: Vec<(&Namespaced, usize)> = self
            .asked
            .iter()
            .map(|(service, asked)| (service, *asked))
            .collect();
        match self.sum <= MOST_OF_NAMESPACE {
            // All but the largest get what they ask for.
            true => services.retain(|(_, asked)| *asked > MOST_OF_SERVICE),
            // Services of one time stay in the order of their names.
            false => services.sort_by_key(|(service, _)| created(service)),
        }
        let mut left = MOST_OF_NAMESPACE;
        let cuts = services.into_iter().filter_map(|(service, asked)| {
            let kept = asked.min(MOST_OF_SERVICE).min(left);
            left -= kept;
            (kept < asked).then(|| (service.clone(), Cut { asked, kept }))
        });
        let cuts: BTreeMap<Namespaced, Cut> = cuts.collect();
        if cuts != self.cuts {
            let all = cuts.keys().chain(self.cuts.keys());
            let differing = all.filter(|service| cuts.get(*service) != self.cuts.get(*service));
            differ.extend(differing.cloned());
            self.cuts = cuts;
        }
    }
}

/// The name of the policy that closes a Service some of whose endpoints are not known.
pub(in crate::source) fn name_of_closing(service: &Namespaced) -> String {
    name_in_place("EndpointSlice", service.as_str())
}

/// A policy that lets nobody call a Service some of whose endpoints are not known: what is demanded of its callers would
/// not be demanded at these.
pub(super) fn closing(service: &Namespaced) -> Option<Object> {
    let policy = serde_json::json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": { "name": "closed", "namespace": service.namespace() },
        "spec": {
            "targetRefs": [{ "kind": "Service", "name": service.name() }],
            "action": "Deny", "rules": [{}],
        },
    });
    let mut closing = crate::object::qualified(&policy).ok()?;
    closing.metadata_mut().name = name_of_closing(service);
    Some(closing)
}
