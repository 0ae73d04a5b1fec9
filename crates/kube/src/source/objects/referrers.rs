//! Which objects are looked at again when something that they refer to has changed, and which Secrets and ConfigMaps
//! they need. Services and grants may be named from anywhere: for these all are looked at ([`Objects::edits`]).

use super::{Id, Objects, Seen};
use crate::gateway::view::{MOST_TEXTS, Texts};
use crate::gateway_fields::TextKey;
use crate::kinds::{GATEWAY, Kind};
use crate::object::text;
use std::collections::{BTreeMap, BTreeSet};

/// The Secrets and ConfigMaps that objects refer to, as far as their owners agree.
#[derive(Default)]
pub(super) struct ChosenTexts {
    pub(super) read: BTreeSet<TextKey>,
    /// Keys that are too many to be read.
    pub(super) unread: BTreeSet<TextKey>,
}

impl Objects {
    /// Notes that an object came, went or says something else. Filters and groups of requests are named from their
    /// own namespace alone, so that nobody makes the controller look at the objects of all others.
    pub(super) fn changed_for_referrers(&mut self, (kind, key): &Id) {
        let refers: fn(&Kind) -> bool = match kind.kind {
            "HTTPFilter" | "Plugin" => |kind| kind.group == GATEWAY,
            "HTTPRouteGroup" => |kind| kind.kind == "Egress",
            _ => return,
        };
        if self.all_changed {
            return;
        }
        let namespace = key.namespace();
        let own = self.seen.keys().filter(|(_, k)| k.namespace() == namespace);
        let referrers = own.filter(|(kind, _)| refers(kind));
        self.changed.extend(referrers.cloned());
    }

    /// Takes in which Secrets and ConfigMaps are there.
    pub(in crate::source) fn see(&mut self, texts: Texts) {
        let differs = |key: &TextKey| self.texts.0.get(key) != texts.0.get(key);
        let seen = self.seen.iter();
        let referrers = seen.filter(|(_, seen)| seen.texts.iter().any(differs));
        self.changed.extend(referrers.map(|(id, _)| id.clone()));
        self.texts = texts;
    }

    /// Chooses the Secrets and ConfigMaps that are read: those that objects refer to, in force or not, since the status
    /// of one that is refused says whether they are there, too. Across namespaces their owner must agree. If those of a
    /// namespace's objects are too many, those in force come first, so that a refused object takes nothing from
    /// the others, and of these the older ones, so that a new object takes nothing from an older one, and all replicas
    /// read the same, however long they have run. Returns the objects with a reference that is too many and was not, or
    /// was and is not.
    pub(super) fn choose_texts(&mut self) -> Vec<Id> {
        let seen = self.seen.iter();
        let mut by_age: Vec<(&str, &Id, &Seen)> = seen
            .map(|(id, seen)| {
                let created = text(&seen.object["metadata"], "creationTimestamp");
                (created, id, seen)
            })
            .collect();
        // Objects of one time stay in the order of their kinds and names.
        by_age.sort_by_key(|(created, ..)| *created);
        let mut chosen: BTreeMap<&str, BTreeSet<&TextKey>> = BTreeMap::new();
        let mut left_out = BTreeSet::new();
        for in_force in [true, false] {
            for (_, (kind, key), seen) in &by_age {
                let from = (kind.group, kind.kind, key.namespace());
                let texts = match in_force {
                    true => &seen.texts_in_force,
                    false => &seen.texts,
                };
                for text in texts {
                    let (there, grants) = (&text.key, &self.view.grants);
                    if !grants.permits(from, text.kind(), &there.namespace, &there.name) {
                        continue;
                    }
                    let own = chosen.entry(from.2).or_default();
                    if own.len() < MOST_TEXTS {
                        own.insert(text);
                    } else if !own.contains(text) {
                        left_out.insert(text);
                    }
                }
            }
        }
        let read: BTreeSet<TextKey> = chosen.into_values().flatten().cloned().collect();
        // The objects of another namespace may have room for it.
        let unread = left_out.into_iter().filter(|text| !read.contains(*text));
        let unread: BTreeSet<TextKey> = unread.cloned().collect();
        let differs = |key: &TextKey| self.chosen.unread.contains(key) != unread.contains(key);
        let seen = self.seen.iter();
        let referrers = seen.filter(|(_, seen)| seen.texts.iter().any(differs));
        let referrers: Vec<Id> = referrers.map(|(id, _)| id.clone()).collect();
        self.chosen = ChosenTexts { read, unread };
        referrers
    }
}
