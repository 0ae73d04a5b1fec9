//! Feeds the objects of the API server to the index. Each kind is watched once, here.
//!
//! ```text
//!  each kind ──> watch ──┬──> state: services, pods, namespaces
//!  as `kind_watches` says       └──> objects: routes, policies ──edits───> index
//!                             (attach, refs, grants)    ──wishes──> crate::status
//!                                                       ──View────> crate::gateway
//! ```
//!
//! Nothing is fed before every kind was listed once: half a cluster would look like pods without
//! sidecars, or services without policies.

mod attach;
mod closed;
mod ingresses;
mod kind_watches;
mod named;
mod objects;
mod refs;
mod state;

#[cfg(test)]
pub(crate) use ingresses::testing;

use crate::gateway::{Texts, View};
use crate::kinds::Missing;
use crate::metadata::{Metadata, all_metadata};
use crate::metrics::RefusedObjects;
use crate::pod::Pod;
use crate::restarting_watch::restarting_watch;
use crate::spawn::spawn;
use crate::status::StatusUpdates;
use crate::watch::{Taker, WatchEvent, pass_on};
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use objects::Objects;
pub use objects::settings_of_mesh;
use state::State;
use std::collections::BTreeSet;
use tokio::sync::mpsc;
use tokio::sync::watch::{Receiver, Sender};
use tulle_control::feed::Feed;
use tulle_control::index::Edit;
use tulle_model::manifest::{MeshSpec, Object};
use tulle_model::namespaced::{Namespaced, ObjectName};

/// Objects that wait to be looked at.
const QUEUE: usize = 1024;
/// Objects that become one edit of the index, so that a burst of them wakes each proxy once.
const BATCH: usize = 256;

/// The Mesh that an edit puts in force.
fn said_of_mesh(edit: &Edit) -> Option<&MeshSpec> {
    match edit {
        Edit::Put(object) => match &**object {
            Object::Mesh(mesh) => Some(&mesh.spec),
            _ => None,
        },
        _ => None,
    }
}

/// The whole known state of the cluster.
struct Known {
    /// Where services are.
    state: State,
    /// Objects that say how services are called.
    objects: Objects,
}

impl Known {
    /// Collects the edits since the last time, and the statuses they call for; whether an object had to be looked at.
    fn edits(&mut self, wishes: &StatusUpdates) -> (Vec<Edit>, bool) {
        let mut edits = self.state.edits();
        let changed = self.objects.edits(&self.state, &mut edits, wishes);
        if self.state.cuts_changed() || changed {
            edits.extend(self.objects.refusals(&self.state));
        }
        (edits, changed)
    }
}

macro_rules! taken {
    ($($kind:ty as $object:ty, $api:path, $name:literal, $read:ident, $apply:ident, $remove:ident, $keep:ident;)+) => {
        $(
            impl Taker<Known, $object> for std::marker::PhantomData<$kind> {
                fn apply(self, known: &mut Known, key: ObjectName, object: $object) {
                    if let Some(key) = $read(key) {
                        known.state.$apply(key, &object);
                    }
                }
                fn remove(self, known: &mut Known, key: &ObjectName) {
                    if let Some(key) = $read(key.clone()) {
                        known.state.$remove(&key);
                    }
                }
                fn keep(self, known: &mut Known, listed: &BTreeSet<ObjectName>) {
                    known.state.$keep(listed);
                }
            }
        )+

        /// The kinds that are watched in every cluster.
        const ALWAYS: [&str; 6] = [$($name,)+ "CustomResourceDefinition"];

        fn watch_all(client: &Client, said: &mpsc::Sender<WatchEvent<Known>>) {
            $(
                let api: Api<$object> = $api(client.clone());
                let events = restarting_watch($name, move || watcher(api.clone(), watcher::Config::default()));
                let taker = std::marker::PhantomData::<$kind>;
                spawn(pass_on($name, events, taker, said.clone()));
            )+
            spawn(kind_watches::watch_kinds(client.clone(), said.clone()));
        }
    };
}

taken! {
    Service as Service, Api::all, "Service", namespaced, service, remove_service, keep_services;
    EndpointSlice as EndpointSlice, Api::all, "EndpointSlice", namespaced, slice, remove_slice, keep_slices;
    Pod as Pod, Api::all, "Pod", namespaced, pod, remove_pod, keep_pods;
    Node as Metadata, all_metadata::<Node>, "Node", plain, node, remove_node, keep_nodes;
    Namespace as Metadata, all_metadata::<Namespace>, "Namespace", plain, namespace, remove_namespace, keep_namespaces;
}

/// The name of an object of a namespace; the API server has no such object without one.
fn namespaced(key: ObjectName) -> Option<Namespaced> {
    key.namespaced().cloned()
}

/// The name of an object of the whole cluster.
fn plain(key: ObjectName) -> Option<String> {
    Some(key.to_string())
}

/// Kinds that an older ClusterRole of the mesh does not let the controller read. No object of these says who
/// may call whom, so the mesh can do without them.
const OF_NEWER_ROLES: [&str; 2] = ["Ingress", "IngressClass"];

/// Whether the controller can do without all kinds that are missing. If others are missing too, a refusal says
/// nothing of rights: the API server may refuse everything.
fn is_enough(missing: &Missing) -> bool {
    missing.iter().all(|kind| OF_NEWER_ROLES.contains(kind))
}

/// Returns the kinds that are not known at the start: all.
pub fn all_missing() -> Missing {
    ALWAYS.into_iter().collect()
}

/// The receivers of [`follow`], besides the index.
pub struct Told {
    /// Kinds that were not listed yet.
    pub missing: Sender<Missing>,
    /// Statuses to be written.
    pub wishes: StatusUpdates,
    /// The view of [`crate::gateway`]; `None` until all is known.
    pub views: Sender<Option<View>>,
    /// Counts of objects without effect.
    pub refused: Sender<RefusedObjects>,
    /// The Mesh in force.
    pub mesh: Sender<MeshSpec>,
}

/// Follows the cluster until the process ends. [`crate::gateway`] reads the `texts` that objects refer to.
pub async fn follow(
    client: Client,
    feed: Feed,
    mesh: Object,
    mut texts: Receiver<Texts>,
    told: Told,
) {
    let Told {
        missing,
        wishes,
        views,
        refused,
        mesh: in_force,
    } = told;
    let (sender, mut said) = mpsc::channel(QUEUE);
    watch_all(&client, &sender);
    drop(sender);
    let mut unlisted = all_missing();
    let mut known = Known {
        state: State::default(),
        objects: Objects::new(mesh),
    };
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            heard = said.recv_many(&mut batch, BATCH) => if heard == 0 { return },
            Ok(()) = texts.changed() => known.objects.see(texts.borrow_and_update().clone()),
        }
        for said in batch.drain(..) {
            match said {
                WatchEvent::Step(step) => step(&mut known),
                WatchEvent::Expected(kind) => {
                    unlisted.insert(kind);
                    missing.send_if_modified(|missing| missing.insert(kind));
                }
                WatchEvent::Forbidden(kind) if unlisted.contains(kind) && is_enough(&unlisted) => {
                    tracing::warn!(
                        kind,
                        "the controller may not list these, and goes on as if there were none: its ClusterRole is \
                         of an older version; install this version's (`tulle upgrade`, or the chart)"
                    );
                    unlisted.remove(kind);
                    missing.send_if_modified(|missing| missing.remove(kind));
                }
                WatchEvent::Forbidden(_) => {}
                WatchEvent::Listed(kind) => {
                    missing.send_if_modified(|missing| missing.remove(kind));
                    if unlisted.remove(kind) && unlisted.is_empty() {
                        tracing::info!("all kinds of objects are listed");
                    }
                }
            }
        }
        if !unlisted.is_empty() {
            continue;
        }
        let (edits, changed) = known.edits(&wishes);
        let mesh = edits.iter().rev().find_map(said_of_mesh);
        in_force.send_if_modified(|told| match mesh {
            Some(mesh) if mesh != told => {
                told.clone_from(mesh);
                true
            }
            _ => false,
        });
        // The index gets its edits before the gateways do, because [`crate::gateway`] says when all
        // is known.
        if !edits.is_empty() {
            feed.edit(edits);
        }
        if changed {
            let view = Some(known.objects.view());
            // Planning all gateways is dear, and most changes are none of theirs.
            views.send_if_modified(|told| {
                let differs = *told != view;
                *told = view;
                differs
            });
            refused.send_replace(known.objects.refused());
        }
    }
}

#[cfg(test)]
mod tests;
