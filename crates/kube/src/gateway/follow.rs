//! Keeps gateways as they should be, for as long as the process runs.

use super::plan::plan;
use super::teller::Teller;
use super::view::{Own, Texts, View};
use super::watch;
use super::write::{Writer, wish_statuses};
use crate::gateway_fields::TextKey;
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
        let mut edits = teller.edits(&view, &own, &plan, &wanted);
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
