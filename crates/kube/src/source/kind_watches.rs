//! When each kind is watched: as long as the API server has its
//! CustomResourceDefinition. Kinds of Kubernetes itself are always there.

use super::Known;
use crate::kinds::{KINDS, Kind};
use crate::metadata::{Metadata, all_metadata};
use crate::restarting_watch::restarting_watch;
use crate::spawn::spawn;
use crate::watch::{Taker, WatchEvent, pass_on};
use futures_util::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tulle_model::namespaced::ObjectName;

/// First wait for the API server to serve a new definition.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Taker<Known, DynamicObject> for &'static Kind {
    fn apply(self, known: &mut Known, key: ObjectName, object: DynamicObject) {
        known.objects.apply(self, key, object);
    }
    fn remove(self, known: &mut Known, key: &ObjectName) {
        known.objects.remove(self, key);
    }
    fn keep(self, known: &mut Known, listed: &BTreeSet<ObjectName>) {
        known.objects.keep(self, listed);
    }
}

/// Watches which of the kinds the API server has, and each that it has.
pub(super) async fn watch_kinds(client: Client, said: mpsc::Sender<WatchEvent<Known>>) {
    // Definitions are long.
    let api = all_metadata::<CustomResourceDefinition>(client.clone());
    let watch = move || watcher(api.clone(), watcher::Config::default());
    let mut events = restarting_watch("CustomResourceDefinition", watch).boxed();
    let mut watches = Watches {
        client,
        said,
        running: HashMap::new(),
    };
    for kind in KINDS.iter().filter(|kind| kind.is_built_in()) {
        let _ = watches.said.send(WatchEvent::Expected(id(kind))).await;
        let (client, said) = (watches.client.clone(), watches.said.clone());
        spawn(watch_kind(kind, client, said));
    }
    let mut listing = BTreeSet::new();
    let mut first = true;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(definition)) => {
                listing.insert(definition.name_any());
                watches.start(&definition, first).await;
            }
            Ok(Event::InitDone) => {
                watches.stop(|name| !listing.contains(name)).await;
                if std::mem::take(&mut first) {
                    let _ = watches
                        .said
                        .send(WatchEvent::Listed("CustomResourceDefinition"))
                        .await;
                }
            }
            Ok(Event::Apply(definition)) => watches.start(&definition, false).await,
            Ok(Event::Delete(definition)) => {
                let gone = definition.name_any();
                watches.stop(|name| name == gone).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the watch of definitions is interrupted; the last known state stays in use");
            }
        }
    }
}

/// A running watch, and of which generation of the definition.
type Watching = (Option<i64>, JoinHandle<()>);

struct Watches {
    client: Client,
    said: mpsc::Sender<WatchEvent<Known>>,
    running: HashMap<&'static str, (&'static Kind, Watching)>,
}

impl Watches {
    async fn start(&mut self, definition: &Metadata, expected: bool) {
        let name = definition.name_any();
        let Some(kind) = KINDS.iter().find(|k| k.definition() == name) else {
            return;
        };
        let generation = definition.metadata.generation;
        let id = id(kind);
        if let Some((_, (known, watch))) = self.running.get(id) {
            if *known == generation {
                return;
            }
            // Another version may be served now.
            watch.abort();
        }
        if expected {
            let _ = self.said.send(WatchEvent::Expected(id)).await;
        }
        let watch = spawn(watch_kind(kind, self.client.clone(), self.said.clone()));
        self.running.insert(id, (kind, (generation, watch)));
    }

    async fn stop(&mut self, gone: impl Fn(&str) -> bool) {
        let ended: Vec<&'static str> = self
            .running
            .iter()
            .filter(|(_, (kind, _))| gone(&kind.definition()))
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            let Some((kind, (_, watch))) = self.running.remove(id) else {
                continue;
            };
            watch.abort();
            let none = WatchEvent::Step(Box::new(move |known| kind.keep(known, &BTreeSet::new())));
            let _ = self.said.send(none).await;
            let _ = self.said.send(WatchEvent::Listed(id)).await;
            tracing::info!(kind = id, "the API server no longer has these");
        }
    }
}

/// Unique: two groups have a TCPRoute.
pub(super) fn id(kind: &'static Kind) -> &'static str {
    match (kind.group, kind.kind) {
        ("specs.smi-spec.io", "TCPRoute") => "TCPRoute.specs.smi-spec.io",
        _ => kind.kind,
    }
}

async fn watch_kind(kind: &'static Kind, client: Client, said: mpsc::Sender<WatchEvent<Known>>) {
    let mut pause = FIRST_PAUSE;
    let version = loop {
        match served(kind, &client).await {
            Ok(Some(version)) => break version,
            Ok(None) if pause >= LONGEST_PAUSE => tracing::warn!(
                kind = kind.definition(),
                "the API server has none of the versions {:?}",
                kind.versions
            ),
            Ok(None) => {} // not served yet
            Err(error) => {
                tracing::warn!(kind = kind.definition(), %error, "cannot find out which version is served");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    let api = Api::<DynamicObject>::all_with(client, &kind.resource(version));
    let name = id(kind);
    let events = restarting_watch(name, move || {
        watcher(api.clone(), watcher::Config::default())
    });
    pass_on(name, events, kind, said).await;
}

/// The best version that the API server has.
async fn served(kind: &Kind, client: &Client) -> kube::Result<Option<&'static str>> {
    for version in kind.versions {
        let group = format!("{}/{version}", kind.group);
        match client.list_api_group_resources(&group).await {
            Ok(list) if list.resources.iter().any(|r| r.name == kind.plural) => {
                return Ok(Some(version));
            }
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
