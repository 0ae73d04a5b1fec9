//! Answers questions about the mesh: who calls whom, how it goes, why, and what changed.
//!
//! Beneath are the history of what proxies report (`history`, `reports`), the index and the state. Nothing here changes
//! the mesh but [`Observer::apply`], [`Observer::delete`] and [`Observer::revoke`], which do what the operator's commands
//! do.

mod ask;
mod change;
mod edge;
mod findings;
mod follow;
mod graph;
mod guide;
mod objects;
mod pages;
mod proxies;
mod services;
mod shown;

pub use pages::*;
pub use shown::*;

use crate::history::Event;
use crate::state::{Actor, MeshState, Refused};
use findings::Found;
use follow::Followed;
use std::sync::{Arc, Mutex};
use tokio::sync::broadcast;

/// Answers questions about a mesh. Clones are cheap and answer alike.
#[derive(Clone)]
pub struct Observer {
    state: Arc<MeshState>,
    followed: Arc<Followed>,
    found: Arc<Mutex<Option<Found>>>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Observer {
    pub(crate) fn new(state: Arc<MeshState>) -> Self {
        Self {
            state,
            followed: Arc::default(),
            found: Arc::default(),
        }
    }

    /// Whether objects are a cluster's.
    fn in_cluster(&self) -> bool {
        self.state.accounts().is_some()
    }

    /// Says what mesh this is.
    pub fn mesh(&self) -> MeshFacts {
        let (platform, place) = match self.in_cluster() {
            true => ("cluster", "cluster"),
            false => ("host", "this host"),
        };
        let trust_domain = self.state.trust_domain().to_string();
        // Where no Mesh object is stored the trust domain is what tells meshes apart.
        let stored = self.state.list(&Actor::Operator, "Mesh", "");
        let named = stored.unwrap_or_default().into_iter().next();
        MeshFacts {
            name: named.map_or_else(|| trust_domain.clone(), |mesh| mesh.name),
            trust_domain,
            version: env!("CARGO_PKG_VERSION").into(),
            platform,
            place: place.into(),
        }
    }

    /// Lists what happened between two times.
    pub fn marks(&self, from: f64, to: f64) -> Vec<Mark> {
        let events = self.state.reports.history().events(from, to);
        events.into_iter().map(mark).collect()
    }

    /// Follows what happens.
    pub fn new_marks(&self) -> broadcast::Receiver<Mark> {
        self.followed.marks.subscribe()
    }
}

fn mark(event: Event) -> Mark {
    Mark {
        at: event.at,
        kind: event.kind,
        what: event.what,
        verb: event.verb,
        who: event.who,
    }
}

fn not_found(what: &str) -> Refusal {
    Refusal {
        code: "not_found",
        message: format!("{what} is not there"),
        fix: String::new(),
        status: 404,
    }
}

fn refusal(refused: Refused) -> Refusal {
    let (code, status) = match &refused {
        Refused::Invalid(_) => ("invalid", 422),
        Refused::NotFound(_) => ("not_found", 404),
        Refused::NotAllowed(_) => ("not_allowed", 403),
        Refused::Conflict(_) => ("conflict", 409),
        Refused::TooMany(_) => ("too_many", 429),
        Refused::Failed(_) => ("failed", 500),
    };
    Refusal {
        code,
        message: refused.to_string(),
        fix: String::new(),
        status,
    }
}
