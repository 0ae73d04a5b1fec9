//! Services of a proxy that gets them of its host: they stay subscribed to, and of those that it has not asked for it is
//! told the names, once.

use super::{KnownVersion, Session};
use crate::index::EncodedResource;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tulle_api::{is_service, v1};

impl Session {
    /// The proxy gets services of its host from now on.
    pub(crate) fn services_from_host(&mut self) {
        self.services_by_host = true;
    }

    /// The proxy gets services of this session from now on, if it did not; `known` says which versions it holds.
    pub(crate) fn services_from_here(&mut self, known: &BTreeMap<String, u64>) {
        if !std::mem::take(&mut self.services_by_host) {
            return;
        }
        let in_flight: HashSet<Arc<str>> = self.in_flight().cloned().collect();
        for (name, told) in self.told.iter_mut().filter(|(name, _)| is_service(name)) {
            // It was written before what is in flight arrives, and does not count for a name that is forgotten and told anew.
            let is_new = !told.asked && told.held == KnownVersion::Nothing;
            let counts = !is_new && !in_flight.contains(name);
            let version = known.get(&**name).filter(|_| counts);
            told.held = version.map_or(KnownVersion::Nothing, |v| KnownVersion::Version(*v));
            self.pending.insert(name.clone());
        }
    }

    /// Names of the update that was not answered yet.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &Arc<str>> {
        self.in_flight.iter().flat_map(|f| &f.names)
    }

    /// Adds a name to an update if the proxy neither has asked for it nor knows it; answers with the bytes added.
    pub(super) fn add_name(
        &mut self,
        name: Arc<str>,
        lookup: impl Fn(&str) -> Option<EncodedResource>,
        update: &mut v1::ConfigUpdate,
        names: &mut Vec<Arc<str>>,
    ) -> usize {
        let Some(told) = self.told.get_mut(&name).filter(|told| !told.asked) else {
            return 0;
        };
        if lookup(&name).is_none() {
            self.forget(name);
            return 0;
        }
        if !matches!(told.held, KnownVersion::Nothing | KnownVersion::Absent) {
            return 0;
        }
        told.held = KnownVersion::Name;
        let bytes = name.len();
        update.resources.push(v1::Resource {
            name: name.to_string(),
            by_host: true,
            ..Default::default()
        });
        names.push(name);
        bytes
    }

    /// Forgets what the proxy wants and has: it will say that anew. An update in flight is answered no more.
    pub(crate) fn begin_again(&mut self) -> Vec<Arc<str>> {
        self.pending.clear();
        self.alone.clear();
        self.in_flight = None;
        self.told.drain().map(|(name, _)| name).collect()
    }
}
