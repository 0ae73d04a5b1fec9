//! Counts refused objects, and tells the index why each is refused and what is in force in its place: who asks the
//! controller about the mesh sees what the index has, and not the object of the API server. Services with too many
//! endpoints are told with them, since they are closed for it and have no condition of ours.

use super::{Id, MESH, Objects};
use crate::metrics::RefusedObjects;
use crate::source::kind_watches;
use crate::source::state::{Cut, State, name_of_closing};
use std::collections::BTreeMap;
use tulle_control::index::{Edit, ObjectProblem};
use tulle_model::namespaced::Namespaced;

/// Most bytes of a reason that the index has, since all of them are answered together. The log has the whole.
const MAX_WHY: usize = 1024;
/// Most refused objects that the index has by name, since each tenant can make any number. The log has all.
const MAX_TOLD: usize = 1000;

/// An object that is not in force as it is written.
#[derive(Clone, Copy)]
enum Told<'a> {
    /// A refused object, whether it was valid before, and why it is refused.
    Refused(&'a Id, bool, &'a str),
    /// A Service some of whose endpoints are not known.
    Cut(&'a Namespaced, Cut),
}

impl Objects {
    /// How many objects of each kind have no effect.
    pub(in crate::source) fn refused(&self) -> RefusedObjects {
        let mut counts = RefusedObjects::new();
        for ((kind, _), seen) in &self.seen {
            *counts.entry(kind_watches::id(kind)).or_default() +=
                usize::from(seen.refused.is_some());
        }
        counts.extend(self.ingresses.refused());
        counts
    }

    /// Tells the index of refused objects, as of the last look; `None`: it was told the same before.
    pub(in crate::source) fn refusals(&mut self, state: &State) -> Option<Edit> {
        let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        let cut = state.cuts();
        let cut = cut.map(|(service, cut)| (service.namespace(), Told::Cut(service, cut)));
        let refused = self.seen.iter().filter_map(|(id, seen)| {
            let why = seen.refused.as_deref()?;
            let told = Told::Refused(id, seen.valid.is_some(), why);
            Some((id.1.namespace(), told))
        });
        let ranked = cut.chain(refused).map(|(namespace, told)| {
            let rank = of_namespaces.entry(namespace).or_default();
            *rank += 1;
            (*rank, told)
        });
        let mut refused: Vec<(usize, Told<'_>)> = ranked.collect();
        // The Mesh comes first: its settings are everybody's, and who shows a few shows the first. Then come one of each
        // namespace, and a second one: however many one tenant makes, those of others are told.
        refused.sort_by_key(|(rank, told)| {
            let is_first = matches!(told, Told::Refused(id, ..) if is_mesh(id));
            (!is_first, *rank)
        });
        let more = refused.len().saturating_sub(MAX_TOLD);
        let told = refused.into_iter().take(MAX_TOLD);
        let told = told.map(|(_, told)| match told {
            Told::Refused(id, was_valid, why) => self.refusal(id, was_valid, why),
            Told::Cut(service, cut) => ObjectProblem {
                object: format!("AuthorizationPolicy/{}", name_of_closing(service)),
                text: format!("Service/{service}: {}", cut.text()),
            },
        });
        let mut all: Vec<ObjectProblem> = told.collect();
        if more > 0 {
            all.push(ObjectProblem {
                object: String::new(),
                text: format!("more refused objects: {more}; the controller's log names them"),
            });
        }
        (all != self.told_refused).then(|| {
            self.told_refused.clone_from(&all);
            Edit::Refused(all)
        })
    }

    /// Describes a refused object.
    fn refusal(&self, id: &Id, was_valid: bool, why: &str) -> ObjectProblem {
        let in_place = self.fed.get(id);
        let instead = instead(id, was_valid, in_place.is_some());
        let (why, _) = why.split_at(why.floor_char_boundary(MAX_WHY));
        let (kind, name) = (kind_watches::id(id.0), &id.1);
        ObjectProblem {
            object: match in_place {
                Some(object) => object.id(),
                None if is_mesh(id) => self.base.id(),
                None => String::new(),
            },
            text: format!("{kind}/{name}: it is refused ({why}); {instead}"),
        }
    }
}

/// Says what is in force in the place of a refused object.
pub(super) fn instead(id: &Id, was_valid: bool, is_closed: bool) -> &'static str {
    match (was_valid, is_closed) {
        (true, _) => "its last valid version stays in force",
        (false, true) => "until it is corrected, nobody may call its targets",
        (false, false) if is_mesh(id) => "the settings of the installation are in force",
        (false, false) => "nothing of it is in force",
    }
}

/// Whether it is the Mesh that counts. The index has one in any case.
fn is_mesh((kind, name): &Id) -> bool {
    kind.kind == "Mesh" && name.as_str() == MESH
}
