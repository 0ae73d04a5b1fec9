//! What of the API server only gateways look at: what they run as, and what they refer to. Everything
//! else they know from [`crate::source`], which watches it anyway.

use super::objects::{APP, GATEWAY_NAME};
use super::view::{Key, Own, Text, TextKey};
use crate::anew::anew;
use crate::source::watch::{Said, Taker, pass_on};
use futures_util::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Kinds of which those of our gateways are watched.
#[derive(Clone, Copy)]
enum Kind {
    Service,
    Deployment,
}

impl Taker<Own, DynamicObject> for Kind {
    fn apply(self, own: &mut Own, key: String, object: DynamicObject) {
        let key = Key::of(&key);
        match self {
            Self::Service => drop(own.services.insert(key, object.into())),
            Self::Deployment => drop(own.deployments.insert(key, object.into())),
        }
    }

    fn remove(self, own: &mut Own, key: &str) {
        let key = Key::of(key);
        match self {
            Self::Service => drop(own.services.remove(&key)),
            Self::Deployment => drop(own.deployments.remove(&key)),
        }
    }

    fn keep(self, own: &mut Own, listed: &BTreeSet<String>) {
        let stays = |key: &Key| listed.contains(&key.qualified());
        match self {
            Self::Service => own.services.retain(|key, _| stays(key)),
            Self::Deployment => own.deployments.retain(|key, _| stays(key)),
        }
    }
}

/// Starts to watch them; what of [`Said::Listed`] will be heard.
pub(super) fn all(client: &Client, said: &mpsc::Sender<Said<Own>>) -> BTreeSet<&'static str> {
    let kinds = [
        ("Service", Kind::Service, ApiResource::erase::<Service>(&())),
        (
            "Deployment",
            Kind::Deployment,
            ApiResource::erase::<Deployment>(&()),
        ),
    ];
    let started = kinds.map(|(name, kind, resource)| {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        let labels = format!("app.kubernetes.io/name={APP},{GATEWAY_NAME}");
        let config = watcher::Config::default().labels(&labels);
        let events = anew(name, move || watcher(api.clone(), config.clone()));
        tokio::spawn(pass_on(name, events, kind, said.clone()));
        name
    });
    started.into()
}

/// Watches one Secret or ConfigMap. Not all of a kind: the controller need not know what is none of
/// a gateway's.
pub(super) fn text(
    client: &Client,
    wanted: TextKey,
    said: mpsc::Sender<Said<Own>>,
) -> JoinHandle<()> {
    let client = client.clone();
    if wanted.secret {
        tokio::spawn(one(client, wanted, of_secret, said))
    } else {
        let data = |map: ConfigMap| map.data.unwrap_or_default();
        tokio::spawn(one(client, wanted, data, said))
    }
}

async fn one<K>(
    client: Client,
    wanted: TextKey,
    text: impl Fn(K) -> Text,
    said: mpsc::Sender<Said<Own>>,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let api = Api::<K>::namespaced(client, &wanted.key.namespace);
    let mut events = watch_object(api, &wanted.key.name)
        .default_backoff()
        .boxed();
    while let Some(event) = events.next().await {
        let (wanted, held) = match event {
            Ok(held) => (wanted.clone(), held.map(&text)),
            Err(error) => {
                let kind = wanted.kind();
                tracing::warn!(kind, name = %wanted.key, %error, "the watch is interrupted; what is known stays");
                continue;
            }
        };
        let step = move |own: &mut Own| drop(own.texts.insert(wanted, held));
        if said.send(Said::Step(Box::new(step))).await.is_err() {
            return;
        }
    }
}

/// What is no text can be no certificate.
fn of_secret(secret: Secret) -> Text {
    let data = secret.data.unwrap_or_default().into_iter();
    let texts = data.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)));
    texts.collect()
}
