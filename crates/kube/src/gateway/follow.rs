//! Keeps gateways as they should be, for as long as the process runs.

use super::plan::{Planned, plan};
use super::view::{Own, Text, TextState, Texts, View};
use super::watch;
use super::write::{Writer, wish_statuses};
use crate::gateway_fields::{Key, TextKey};
use crate::inject::Settings;
use crate::kinds::Missing;
use crate::status::StatusUpdates;
use crate::watch::WatchEvent;
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, mpsc, watch as channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tulle_control::feed::Feed;
use tulle_control::index::{ClusterGateway, Edit, ObjectProblem};
use tulle_model::manifest::{ConfigMap, Metadata, Object, Secret};

const QUEUE: usize = 1024;
/// Time in which changes are collected, to be looked at together.
const GATHER: Duration = Duration::from_millis(50);
/// Pause before the API server's version is asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// The longest wait for a certificate to expire: the clock may be set meanwhile.
const LOOK: Duration = Duration::from_secs(3600);

/// Everything that the control of gateways needs from the controller.
pub struct Surroundings {
    /// The API server.
    pub client: Client,
    /// The index.
    pub feed: Feed,
    /// The same settings as for sidecars.
    pub settings: Settings,
    /// Whether this replica writes.
    pub leads: channel::Receiver<bool>,
    /// The cluster's watches of gateways; `None` until all is known.
    pub views: channel::Receiver<Option<View>>,
    /// Which of the Secrets and ConfigMaps that policies refer to are there.
    pub presence: channel::Sender<Texts>,
    /// The statuses that Gateways should have.
    pub wishes: StatusUpdates,
    /// Kinds that are not known yet. [`MISSING`] is removed when the index has all gateways.
    pub missing: channel::Sender<Missing>,
}

/// The missing item that is named at the start.
pub const MISSING: &str = "what Gateways and policies refer to";

/// Follows the cluster's Gateways until the process ends.
pub async fn follow(surroundings: Surroundings) {
    let Surroundings {
        client,
        feed,
        settings,
        mut leads,
        mut views,
        presence,
        wishes,
        missing: told,
    } = surroundings;
    let pause = knows_sleep(&client).await;
    let (sender, mut said) = mpsc::channel(QUEUE);
    let mut unlisted = watch::services(&client, &sender);
    let mut own = Own::default();
    let mut texts: BTreeMap<TextKey, JoinHandle<()>> = BTreeMap::new();
    let mut namespaces: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    let mut teller = Teller::default();
    let mut writer = Writer::new(client.clone());
    let mut batch = Vec::with_capacity(QUEUE);
    // When to write again what could not be written.
    let mut retry: Option<Instant> = None;
    let again = Notify::new();
    let mut until: Option<SystemTime> = None;
    loop {
        let left = until.map(|until| until.duration_since(SystemTime::now()));
        let left = left.map_or(LOOK, |left| left.unwrap_or_default().min(LOOK));
        let heard = said.recv_many(&mut batch, QUEUE);
        tokio::select! {
            heard = heard => if heard == 0 { return },
            () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {}
            changed = leads.changed() => if changed.is_err() { return },
            changed = views.changed() => if changed.is_err() { return },
            () = again.notified() => {}
            () = sleep(left), if until.is_some() => {}
        }
        retry = None;
        sleep(GATHER).await;
        batch.extend(std::iter::from_fn(|| said.try_recv().ok()));
        for said in batch.drain(..) {
            match said {
                WatchEvent::Step(step) => step(&mut own),
                WatchEvent::Listed(kind) => drop(unlisted.remove(kind)),
                WatchEvent::Expected(kind) => drop(unlisted.insert(kind)),
                // It is asked for again.
                WatchEvent::Forbidden(_) => {}
            }
        }
        // Some steps were about texts and namespaces that are no longer wanted.
        own.texts.retain(|key, _| texts.contains_key(key));
        own.access.retain(|name, _| namespaces.contains_key(name));
        let view = views.borrow_and_update().clone();
        let Some(view) = view.filter(|_| unlisted.is_empty()) else {
            continue;
        };
        let inhabited = inhabited(&view, &own);
        namespaces.retain(|name, watch| {
            let stays = inhabited.contains(name);
            if !stays {
                watch.abort();
                own.forget(name);
            }
            stays
        });
        for name in inhabited {
            namespaces
                .entry(name)
                .or_insert_with_key(|name| watch::deployments(&client, name, sender.clone()));
        }
        let mut plan = plan(&view, &own, &settings, pause, SystemTime::now());
        until = plan.values().filter_map(|p| p.until).min();
        let mut wanted = view.texts.clone();
        wanted.extend(plan.values().flat_map(|p| p.texts.clone()));
        texts.retain(|key, watch| {
            let stays = wanted.contains(key);
            if !stays {
                watch.abort();
                own.texts.remove(key);
            }
            stays
        });
        let mut known = true;
        for key in &wanted {
            known &= own.texts.contains_key(key);
            texts
                .entry(key.clone())
                .or_insert_with(|| watch::text(&client, key.clone(), sender.clone()));
        }
        let mut edits = teller.edits(&own, &plan, &wanted);
        edits.extend(teller.problems(&plan));
        if !edits.is_empty() {
            feed.edit(edits);
        }
        let answered = own.presence(&view.texts);
        presence.send_if_modified(|told| std::mem::replace(told, answered.clone()) != answered);
        if known {
            told.send_if_modified(|missing| missing.remove(MISSING));
        }
        // Until the API server has said what runs in a namespace, nothing is reported or changed
        // there.
        plan.retain(|key, _| own.access.contains_key(&key.namespace));
        wish_statuses(&view, &plan, &wishes);
        super::ingress::wish_statuses(&view, &plan, &wishes);
        if *leads.borrow_and_update() {
            let before = own.refused.clone();
            retry = writer.write(&view, &mut own, &plan).await;
            if own.refused != before {
                // Their statuses report it at once rather than with the next change.
                again.notify_one();
            }
        }
    }
}

/// Namespaces with gateways of ours, or with objects that were made for a former gateway.
fn inhabited(view: &View, own: &Own) -> BTreeSet<String> {
    let ours = view.gateways.iter();
    let ours = ours.filter(|(_, gateway)| view.class(gateway).is_some());
    let ours = ours.map(|(key, _)| key);
    ours.chain(view.ingresses.keys())
        .chain(own.services.keys())
        .map(|key| key.namespace.clone())
        .collect()
}

/// Whether the API server accepts a pause before a container ends (`sleep`); an older one refuses
/// it.
async fn knows_sleep(client: &Client) -> bool {
    loop {
        match client.apiserver_version().await {
            Ok(version) => {
                let digits: String = version
                    .minor
                    .chars()
                    .take_while(char::is_ascii_digit)
                    .collect();
                return digits.parse::<u32>().is_ok_and(|minor| minor >= 30);
            }
            Err(error) => {
                tracing::warn!(%error, "the API server's version is not known");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Gateways that the index knows already.
#[derive(Default)]
struct Teller {
    gateways: BTreeMap<Key, ClusterGateway>,
    texts: BTreeMap<TextKey, Text>,
    problems: Vec<ObjectProblem>,
}

impl Teller {
    /// Tells what of Ingresses is not served, which no status of theirs can say.
    fn problems(&mut self, plan: &BTreeMap<Key, Planned>) -> Option<Edit> {
        let all = plan.values().flat_map(|planned| &planned.problems);
        let all: Vec<ObjectProblem> = all.cloned().collect();
        (all != self.problems).then(|| {
            self.problems.clone_from(&all);
            Edit::Problems(all)
        })
    }

    fn edits(
        &mut self,
        own: &Own,
        plan: &BTreeMap<Key, Planned>,
        wanted: &BTreeSet<TextKey>,
    ) -> Vec<Edit> {
        let mut edits = Vec::new();
        // The objects that are referred to come first.
        let held = wanted.iter().filter_map(|key| match own.texts.get(key)? {
            TextState::Held(text) => Some((key.clone(), text.clone())),
            TextState::Absent | TextState::Forbidden => None,
        });
        let held: BTreeMap<TextKey, Text> = held.collect();
        for (key, text) in &held {
            if self.texts.get(key) != Some(text) {
                edits.push(Edit::Put(Box::new(object(key, text))));
            }
        }
        for (key, planned) in plan {
            if let Some(told) = &planned.told
                && self.gateways.get(key) != Some(told)
            {
                edits.push(Edit::Gateway(Box::new(told.clone())));
                self.gateways.insert(key.clone(), told.clone());
            }
        }
        self.gateways.retain(|key, told| {
            let stays = plan.get(key).is_some_and(|planned| !planned.egress);
            if !stays {
                edits.push(Edit::RemoveGateway(told.name.clone()));
            }
            stays
        });
        for key in self.texts.keys().filter(|key| !held.contains_key(key)) {
            edits.push(Edit::Delete {
                kind: key.kind().into(),
                name: key.key.object_name().to_string(),
            });
        }
        self.texts = held;
        edits
    }
}

fn object(key: &TextKey, text: &Text) -> Object {
    let metadata = Metadata {
        name: key.key.object_name().to_string(),
        ..Metadata::default()
    };
    if key.secret {
        return Object::Secret(Secret {
            api_version: "v1".into(),
            kind: "Secret".into(),
            metadata,
            string_data: text.clone(),
            ..Secret::default()
        });
    }
    Object::ConfigMap(ConfigMap {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        metadata,
        data: text.clone(),
        ..ConfigMap::default()
    })
}

/// Tells an index of gateways, with Secrets and ConfigMaps that are read at once.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Told(Teller);

#[cfg(test)]
impl Told {
    /// Returns the edits, and what each gateway refers to.
    pub(crate) fn edits(
        &mut self,
        view: &View,
        read: impl Fn(&TextKey) -> Option<Text>,
    ) -> (Vec<Edit>, BTreeMap<Key, BTreeSet<TextKey>>) {
        let settings = r#"{"image":"tulle-proxy","controller":"c:15010","trustDomain":"td"}"#;
        let settings = serde_json::from_str(settings).expect("settings");
        let mut own = Own::default();
        let first = plan(view, &own, &settings, true, std::time::SystemTime::now());
        let mut wanted = view.texts.clone();
        wanted.extend(first.values().flat_map(|p| p.texts.clone()));
        for key in &wanted {
            let state = read(key).map_or(TextState::Absent, TextState::Held);
            own.texts.insert(key.clone(), state);
        }
        let plan = plan(view, &own, &settings, true, std::time::SystemTime::now());
        let edits = self.0.edits(&own, &plan, &wanted);
        let texts = plan.into_iter().map(|(key, planned)| (key, planned.texts));
        (edits, texts.collect())
    }
}
