//! What the API server has, fed to the index.
//!
//! Each kind is listed and watched by kube's watcher, which lists anew when a watch expires and backs
//! off from errors; meanwhile the last good state holds. Nothing is fed before every kind was listed
//! once: half a cluster would look like pods without sidecars.

mod state;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use state::State;
use std::collections::BTreeSet;
use std::fmt::Debug;
use tokio::sync::{mpsc, watch};
use tulle_control::cluster::Feed;

/// Objects that wait to be looked at.
const QUEUE: usize = 1024;
/// Objects that become one edit of the index, so that a burst of them wakes each proxy once.
const BATCH: usize = 256;

/// How an object is taken in and removed again.
trait Seen: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static {
    fn apply(state: &mut State, key: String, object: &Self);
    fn remove(state: &mut State, key: &str);
}

impl Seen for Service {
    fn apply(state: &mut State, key: String, object: &Self) {
        state.service(key, object);
    }
    fn remove(state: &mut State, key: &str) {
        state.remove_service(key);
    }
}

impl Seen for EndpointSlice {
    fn apply(state: &mut State, key: String, object: &Self) {
        state.slice(key, object);
    }
    fn remove(state: &mut State, key: &str) {
        state.remove_slice(key);
    }
}

impl Seen for Pod {
    fn apply(state: &mut State, key: String, object: &Self) {
        state.pod(key, object);
    }
    fn remove(state: &mut State, key: &str) {
        state.remove_pod(key);
    }
}

impl Seen for Node {
    fn apply(state: &mut State, key: String, object: &Self) {
        state.node(key.trim_end_matches('.'), object);
    }
    fn remove(state: &mut State, key: &str) {
        state.remove_node(key.trim_end_matches('.'));
    }
}

/// What a watch says, to be done to the state.
type Step = Box<dyn FnOnce(&mut State) + Send>;

enum Said {
    Step(Step),
    /// Everything of one kind was listed.
    Listed,
}

/// Follows the cluster until the process ends. `synced` becomes true when all of it has been fed.
pub async fn follow(client: Client, feed: Feed, synced: watch::Sender<bool>) {
    let (sender, mut said) = mpsc::channel(QUEUE);
    let watches = [
        tokio::spawn(watch_kind::<Service>(client.clone(), sender.clone())),
        tokio::spawn(watch_kind::<EndpointSlice>(client.clone(), sender.clone())),
        tokio::spawn(watch_kind::<Pod>(client.clone(), sender.clone())),
        tokio::spawn(watch_kind::<Node>(client, sender)),
    ];
    let mut state = State::default();
    let mut missing = watches.len();
    let mut batch = Vec::with_capacity(BATCH);
    while said.recv_many(&mut batch, BATCH).await > 0 {
        for said in batch.drain(..) {
            match said {
                Said::Step(step) => step(&mut state),
                Said::Listed => missing = missing.saturating_sub(1),
            }
        }
        if missing > 0 {
            continue;
        }
        let edits = state.edits();
        if !edits.is_empty() {
            feed.edit(edits);
        }
        if !*synced.borrow() {
            tracing::info!("all of the cluster is known");
            synced.send_replace(true);
        }
    }
}

async fn watch_kind<K: Seen>(client: Client, said: mpsc::Sender<Said>) {
    let api: Api<K> = Api::all(client);
    let kind = K::kind(&()).into_owned();
    let mut events = watcher(api, watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut known: BTreeSet<String> = BTreeSet::new();
    // Those of a list that is under way.
    let mut listing: BTreeSet<String> = BTreeSet::new();
    let mut listed = false;
    let key = |object: &K| {
        let meta = object.meta();
        state::key(meta.name.as_ref(), meta.namespace.as_ref())
    };
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
                Box::new(move |state| K::apply(state, key, &object))
            }
            Ok(Event::InitDone) => {
                let listed_now = std::mem::take(&mut listing);
                let gone: Vec<String> = known.difference(&listed_now).cloned().collect();
                known = listed_now;
                first_list = !std::mem::replace(&mut listed, true);
                Box::new(move |state| gone.iter().for_each(|key| K::remove(state, key)))
            }
            Ok(Event::Apply(object)) => {
                let key = key(&object);
                known.insert(key.clone());
                Box::new(move |state| K::apply(state, key, &object))
            }
            Ok(Event::Delete(object)) => {
                let key = key(&object);
                known.remove(&key);
                Box::new(move |state| K::remove(state, &key))
            }
            Err(error) => {
                tracing::warn!(kind, %error, "the watch is interrupted; what is known stays");
                continue;
            }
        };
        if said.send(Said::Step(step)).await.is_err() {
            return;
        }
        if first_list && said.send(Said::Listed).await.is_err() {
            return;
        }
    }
}
