//! Watches of objects: how many there may be, and what each of them is told.
//!
//! The operator is told of every object. A host is told of those that it runs, and of the Mesh; and it is asked for its
//! state when that may have become outdated.

use super::run;
use crate::state::{Actor, MeshState};
use crate::store::{Change, StoredObject};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc};
use tonic::Status;
use tulle_api::v1;
use tulle_model::manifest::{Metadata, NODE_LABEL};

/// Watches of the operator, the mesh's own supervisor among them, and of all hosts together.
const MAX_WATCHES: usize = 256;
/// Watches of one host: its supervisor has one, and some more may not be known to be dead yet.
const MAX_WATCHES_OF_NODE: usize = 8;

/// Places for watches. Hosts cannot take those of the operator or of each other.
#[derive(Clone)]
pub(super) struct Watches {
    operator: Arc<Semaphore>,
    nodes: Arc<Semaphore>,
    of_node: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// The place of one watch.
pub(super) type Place = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl Watches {
    pub(super) fn new() -> Self {
        Self {
            operator: Arc::new(Semaphore::new(MAX_WATCHES)),
            nodes: Arc::new(Semaphore::new(MAX_WATCHES)),
            of_node: Arc::default(),
        }
    }

    /// Takes a place, unless too many are taken.
    pub(super) fn place(&self, actor: &Actor) -> Result<Place, Status> {
        let take = |from: &Arc<Semaphore>, most| {
            from.clone()
                .try_acquire_owned()
                .map_err(|_| Status::resource_exhausted(format!("{most} watches are open already")))
        };
        let Actor::Node(node) = actor else {
            return Ok((take(&self.operator, MAX_WATCHES)?, None));
        };
        let mut of_node = self.of_node.lock().unwrap_or_else(PoisonError::into_inner);
        // Hosts without a watch are forgotten.
        of_node.retain(|_, s| s.available_permits() < MAX_WATCHES_OF_NODE);
        let own = of_node.entry(node.clone());
        let own = own.or_insert_with(|| Arc::new(Semaphore::new(MAX_WATCHES_OF_NODE)));
        let own = take(own, MAX_WATCHES_OF_NODE)?;
        Ok((take(&self.nodes, MAX_WATCHES)?, Some(own)))
    }
}

pub(super) type Events = mpsc::Sender<Result<v1::WatchEvent, Status>>;

/// Sends the present objects, then every commit. A watcher that falls behind has to start anew.
pub(super) async fn watch_objects(
    state: Arc<MeshState>,
    actor: Actor,
    sender: &Events,
) -> Result<(), Status> {
    let start = state.clone();
    let mut watch = run(move || Ok(start.store().watch()?)).await?;
    let mut told = Told::default();
    let (mut authorities, mut terms) = (state.authorities(), state.certificate_terms());
    for object in watch.objects {
        let change = Change::Applied(object);
        if !send_change(&state, &actor, change, &mut told, sender).await {
            return Ok(());
        }
    }
    let synced = v1::watch_event::Event::Synced(true);
    if !send(sender, synced).await {
        return Ok(());
    }
    let is_host = matches!(actor, Actor::Node(_));
    let mut ask = true;
    loop {
        if is_host && ask && !send(sender, v1::watch_event::Event::Ask(true)).await {
            return Ok(());
        }
        ask = false;
        let commit = tokio::select! {
            commit = watch.commits.recv() => commit,
            // They fail only when the state ends, and everything else with it.
            Ok(()) = authorities.changed() => {
                ask = true;
                continue;
            }
            Ok(()) = terms.changed() => {
                ask = true;
                continue;
            }
        };
        let commit = match commit {
            Ok(commit) => commit,
            Err(broadcast::error::RecvError::Lagged(_)) => {
                return Err(Status::aborted(
                    "the watch fell behind and missed changes: watch again",
                ));
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
        };
        for change in &commit.changes {
            if !send_change(&state, &actor, change.clone(), &mut told, sender).await {
                return Ok(());
            }
        }
    }
}

/// Objects that a host was told of: those that it runs, and the Mesh.
#[derive(Default)]
struct Told(HashSet<(String, String)>);

impl Told {
    /// Returns what to tell a host of a change; `None`: nothing.
    fn change(&mut self, node: &str, change: Change) -> Option<Change> {
        let (kind, name) = match &change {
            Change::Applied(object) => (object.kind.clone(), object.name.clone()),
            Change::Deleted { kind, name } => (kind.clone(), name.clone()),
        };
        match &change {
            Change::Applied(object) if concerns(node, object) => {
                self.0.insert((kind, name));
                Some(change)
            }
            // It may run elsewhere from now on.
            _ => self
                .0
                .remove(&(kind.clone(), name.clone()))
                .then_some(Change::Deleted { kind, name }),
        }
    }
}

/// Whether a host runs it, or goes by it.
fn concerns(node: &str, object: &StoredObject) -> bool {
    #[derive(serde::Deserialize)]
    struct Labelled {
        metadata: Metadata,
    }
    if object.kind == "Mesh" {
        return true;
    }
    // One that cannot be read is told as well, as it was before: the host says so.
    let read: Result<Labelled, _> = serde_json::from_str(&object.json);
    read.map_or(true, |read| {
        let label = read.metadata.labels.get(NODE_LABEL);
        label.is_some_and(|label| label == node)
    })
}

async fn send_change(
    state: &MeshState,
    actor: &Actor,
    change: Change,
    told: &mut Told,
    sender: &Events,
) -> bool {
    let change = match actor {
        Actor::Operator => Some(change),
        Actor::Node(node) => told.change(node, change),
    };
    let event = match change {
        None => return true,
        Some(Change::Applied(object)) => {
            v1::watch_event::Event::Applied(state.visible(actor, object))
        }
        Some(Change::Deleted { kind, name }) => v1::watch_event::Event::Deleted(v1::Object {
            kind,
            name,
            json: String::new(),
        }),
    };
    send(sender, event).await
}

async fn send(sender: &Events, event: v1::watch_event::Event) -> bool {
    let event = v1::WatchEvent { event: Some(event) };
    sender.send(Ok(event)).await.is_ok()
}
