//! One kind, listed and watched: anew when a watch expires or fails; meanwhile what is known stays.

use super::Known;
use futures_util::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt};
use std::collections::BTreeSet;
use std::fmt::Debug;
use tokio::sync::mpsc;

/// What a watch says, to be done to what is known.
pub(super) type Step = Box<dyn FnOnce(&mut Known) + Send>;

/// A message to [`super::follow`].
pub(super) enum Said {
    Step(Step),
    /// Nothing is fed before this kind was listed.
    Expected(&'static str),
    /// Everything of a kind was listed, or the kind is gone.
    Listed(&'static str),
}

/// Takes objects of one kind in.
pub(super) trait Taker<K>: Copy + Send + 'static {
    /// One is there, or different.
    fn apply(self, known: &mut Known, key: String, object: K);
    /// One is gone.
    fn remove(self, known: &mut Known, key: &str);
    /// These are all.
    fn keep(self, known: &mut Known, listed: &BTreeSet<String>);
}

/// Passes on what the watch of a kind says, until nobody listens.
pub(super) async fn pass_on<K>(
    kind: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    taker: impl Taker<K>,
    said: mpsc::Sender<Said>,
) where
    K: Resource + Debug + Send + 'static,
{
    let mut events = events.boxed();
    // Those of a list that is under way.
    let mut listing: BTreeSet<String> = BTreeSet::new();
    let mut listed = false;
    while let Some(event) = events.next().await {
        let mut first_list = false;
        let step: Step = match event {
            Ok(Event::Init) => {
                listing.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                let key = key(&object);
                listing.insert(key.clone());
                Box::new(move |known| taker.apply(known, key, object))
            }
            Ok(Event::InitDone) => {
                let all = std::mem::take(&mut listing);
                first_list = !std::mem::replace(&mut listed, true);
                Box::new(move |known| taker.keep(known, &all))
            }
            Ok(Event::Apply(object)) => {
                let key = key(&object);
                Box::new(move |known| taker.apply(known, key, object))
            }
            Ok(Event::Delete(object)) => {
                let key = key(&object);
                Box::new(move |known| taker.remove(known, &key))
            }
            Err(error) => {
                tracing::warn!(kind, %error, "the watch is interrupted; what is known stays");
                continue;
            }
        };
        if said.send(Said::Step(step)).await.is_err() {
            return;
        }
        if first_list && said.send(Said::Listed(kind)).await.is_err() {
            return;
        }
    }
}

/// `<name>.<namespace>`; of what has no namespace its name.
fn key(object: &impl Resource) -> String {
    let name = object.name_any();
    match object.namespace() {
        Some(namespace) => format!("{name}.{namespace}"),
        None => name,
    }
}
