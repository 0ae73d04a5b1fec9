//! Watches what only gateways need: the objects they run as, and those they refer to. Everything else comes
//! from [`crate::source`], which watches it anyway.

use super::no_rights;
use super::objects::{APP, GATEWAY_NAME};
use super::view::{Own, Text, TextState};
use crate::gateway_fields::{Key, TextKey};
use crate::restarting_watch::restarting_watch;
use crate::spawn::spawn;
use crate::watch::{Step, Taker, WatchEvent, pass_on};
use futures_util::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watch_object, watcher};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tulle_model::namespaced::ObjectName;

/// An API server that has just started refuses everything for some seconds, until it has read the roles. Only
/// refusals that last longer count: a listener must not lose its certificate by one.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the API server has refused something.
#[derive(Default)]
struct Refusal {
    since: Option<Instant>,
    told: bool,
}

impl Refusal {
    /// Takes note of one more; whether they have lasted long enough to count.
    fn lasts(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE
    }

    /// Whether the refusal was not reported yet; from now on it counts as reported.
    fn is_news(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// Notes that the API server answers; returns whether a refusal was reported before.
    fn ends(&mut self) -> bool {
        std::mem::take(self).told
    }
}

/// Takes in the Services of our gateways.
#[derive(Clone, Copy)]
struct Services;

impl Taker<Own, DynamicObject> for Services {
    fn apply(self, own: &mut Own, key: ObjectName, object: DynamicObject) {
        own.services.insert(Key::from(&key), object.into());
    }

    fn remove(self, own: &mut Own, key: &ObjectName) {
        own.services.remove(&Key::from(key));
    }

    fn keep(self, own: &mut Own, listed: &BTreeSet<ObjectName>) {
        let stays = |key: &Key| listed.contains(&key.object_name());
        own.services.retain(|key, _| stays(key));
    }
}

/// Selects the objects of our gateways.
fn of_gateways() -> watcher::Config {
    let labels = format!("app.kubernetes.io/name={APP},{GATEWAY_NAME}");
    watcher::Config::default().labels(&labels)
}

/// Starts to watch the Services of gateways in all namespaces; returns the kinds that [`WatchEvent::Listed`] will
/// name.
pub(super) fn services(
    client: &Client,
    said: &mpsc::Sender<WatchEvent<Own>>,
) -> BTreeSet<&'static str> {
    let name = "Service";
    let resource = ApiResource::erase::<Service>(&());
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let events = restarting_watch(name, move || watcher(api.clone(), of_gateways()));
    spawn(pass_on(name, events, Services, said.clone()));
    BTreeSet::from([name])
}

/// Watches the Deployments of gateways in one namespace: the controller has rights only where somebody
/// gave them. A refused list is tried again, so rights that come later are found.
pub(super) fn deployments(
    client: &Client,
    namespace: &str,
    said: mpsc::Sender<WatchEvent<Own>>,
) -> JoinHandle<()> {
    let (client, namespace) = (client.clone(), namespace.to_owned());
    spawn(in_namespace(client, namespace, said))
}

async fn in_namespace(client: Client, namespace: String, said: mpsc::Sender<WatchEvent<Own>>) {
    let resource = ApiResource::erase::<Deployment>(&());
    let api = Api::<DynamicObject>::namespaced_with(client, &namespace, &resource);
    let events = restarting_watch("Deployment", move || watcher(api.clone(), of_gateways()));
    let mut events = events.boxed();
    let mut listing = BTreeMap::new();
    let mut refusal = Refusal::default();
    while let Some(event) = events.next().await {
        let namespace = namespace.clone();
        let key = |object: &DynamicObject| Key::new(&namespace, &object.name_any());
        let step: Step<Own> = match event {
            Ok(Event::Init) => {
                listing.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listing.insert(key(&object), object.into());
                continue;
            }
            Ok(Event::InitDone) => {
                let all = std::mem::take(&mut listing);
                if refusal.ends() {
                    tracing::info!(namespace, "Gateways of this namespace are managed now");
                }
                Box::new(move |own| own.list(namespace, all))
            }
            Ok(Event::Apply(object)) => {
                let key = key(&object);
                Box::new(move |own| {
                    own.deployments.insert(key, object.into());
                })
            }
            Ok(Event::Delete(object)) => {
                let key = key(&object);
                Box::new(move |own| {
                    own.deployments.remove(&key);
                })
            }
            Err(error) if is_refusal(&error) => {
                if !refusal.lasts() {
                    continue;
                }
                if refusal.is_news() {
                    tracing::warn!(
                        "Gateways of the namespace {namespace} are not managed: {}",
                        no_rights(&namespace)
                    );
                }
                Box::new(move |own| own.deny(namespace))
            }
            Err(error) => {
                tracing::warn!(kind = "Deployment", namespace, %error, "the watch is interrupted; the last known state stays in use");
                continue;
            }
        };
        if said.send(WatchEvent::Step(step)).await.is_err() {
            return;
        }
    }
}

/// Whether the API server answered that the controller has no right to do this.
fn is_refusal(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status,
        _ => return false,
    };
    status.code == 403
}

/// Watches one Secret or ConfigMap rather than all of a kind: the controller need not know those that no
/// gateway refers to.
pub(super) fn text(
    client: &Client,
    wanted: TextKey,
    said: mpsc::Sender<WatchEvent<Own>>,
) -> JoinHandle<()> {
    spawn(one(client.clone(), wanted, said))
}

async fn one(client: Client, wanted: TextKey, said: mpsc::Sender<WatchEvent<Own>>) {
    let (kind, text): (_, fn(DynamicObject) -> Text) = match wanted.secret {
        true => (ApiResource::erase::<Secret>(&()), of_secret),
        false => (ApiResource::erase::<ConfigMap>(&()), of_config_map),
    };
    let api = Api::<DynamicObject>::namespaced_with(client, &wanted.key.namespace, &kind);
    let mut events = watch_object(api, &wanted.key.name)
        .default_backoff()
        .boxed();
    let mut refusal = Refusal::default();
    while let Some(event) = events.next().await {
        let wanted = wanted.clone();
        let step: Step<Own> = match event {
            Ok(held) => {
                let state = held.map_or(TextState::Absent, |held| TextState::Held(text(held)));
                refusal.ends();
                Box::new(move |own| drop(own.texts.insert(wanted, state)))
            }
            Err(error) if is_refusal(&error) => {
                if !refusal.lasts() {
                    continue;
                }
                if refusal.is_news() {
                    let (kind, Key { namespace, name }) = (wanted.kind(), &wanted.key);
                    tracing::warn!(
                        "{kind} {namespace}/{name} is not read: {}",
                        no_rights(namespace)
                    );
                }
                Box::new(move |own| own.hide(wanted))
            }
            Err(error) => {
                let kind = wanted.kind();
                tracing::warn!(kind, name = %wanted.key, %error, "the watch is interrupted; the last known state stays in use");
                continue;
            }
        };
        if said.send(WatchEvent::Step(step)).await.is_err() {
            return;
        }
    }
}

/// Reads the texts of a Secret. A value that is not text is left out: it can be no certificate.
fn of_secret(mut secret: DynamicObject) -> Text {
    let data = secret.data["data"].take();
    let data = BTreeMap::<String, ByteString>::deserialize(&data).unwrap_or_default();
    let texts = data.into_iter();
    let texts = texts.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)));
    texts.collect()
}

/// Reads the texts of a ConfigMap.
fn of_config_map(mut map: DynamicObject) -> Text {
    Text::deserialize(&map.data["data"].take()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(data: Value) -> DynamicObject {
        serde_json::from_value(json!({ "metadata": {}, "data": data })).unwrap()
    }

    #[test]
    fn what_is_no_text_is_left_out_of_a_secret_and_an_empty_one_has_none() {
        let held = of_secret(object(json!({ "tls.crt": "UEVN", "binary": "/w==" })));
        assert_eq!(held, BTreeMap::from([("tls.crt".into(), "PEM".into())]));
        assert_eq!(of_secret(object(Value::Null)), BTreeMap::new());
        let held = of_config_map(object(json!({ "jwks": "{}" })));
        assert_eq!(held, BTreeMap::from([("jwks".into(), "{}".into())]));
        let none = serde_json::from_value(json!({ "metadata": {} })).unwrap();
        assert_eq!(of_config_map(none), BTreeMap::new());
    }
}
