//! Which objects are looked at again when something that they refer to has changed, and which Secrets and ConfigMaps
//! they need. Services and grants may be named from anywhere: for these all are looked at ([`Objects::edits`]).

use super::{Id, Objects};
use crate::gateway::view::Texts;
use crate::gateway_fields::TextKey;
use crate::kinds::{GATEWAY, Kind};
use std::collections::BTreeSet;

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

    /// Returns the Secrets and ConfigMaps that objects refer to, in force or not: the status of one that is refused
    /// says whether they are there, too. Across namespaces their owner must agree.
    pub(super) fn texts(&self) -> BTreeSet<TextKey> {
        let mut all = BTreeSet::new();
        for ((kind, key), seen) in &self.seen {
            let from = (kind.group, kind.kind, key.namespace());
            let granted = |text: &&TextKey| {
                let there = &text.key;
                let grants = &self.view.grants;
                grants.permits(from, text.kind(), &there.namespace, &there.name)
            };
            let both = seen.texts.union(&seen.texts_in_force);
            all.extend(both.filter(granted).cloned());
        }
        all
    }
}
