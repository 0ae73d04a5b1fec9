//! What the API server says of what gateways are made of.

use super::objects::{APP, GATEWAY_NAME};
use super::view::{Key, Kind, RouteKind, Text, TextKey};
use crate::anew::anew;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watch_object, watcher};
use kube::{Api, Client, ResourceExt};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How often it is looked whether the API server has come to know a kind.
const LOOK: Duration = Duration::from_secs(10);

/// A message to the one who knows.
pub(super) enum Said {
    Put(Kind, Key, Box<DynamicObject>),
    Gone(Kind, Key),
    /// Everything of a kind was listed, or it does not exist.
    Listed(Kind),
    Text(TextKey, Option<Text>),
}

/// A kind, and where the API server has it: of several versions the first that it knows.
struct Place {
    kind: Kind,
    versions: &'static [&'static str],
    group: &'static str,
    name: &'static str,
    plural: &'static str,
    labels: Option<String>,
}

fn places() -> Vec<Place> {
    let of = |kind, group, versions, name, plural| Place {
        kind,
        versions,
        group,
        name,
        plural,
        labels: None,
    };
    let own = || Some(format!("app.kubernetes.io/name={APP},{GATEWAY_NAME}"));
    let gateway = super::GROUP;
    vec![
        of(
            Kind::GatewayClass,
            gateway,
            &["v1"],
            "GatewayClass",
            "gatewayclasses",
        ),
        of(Kind::Gateway, gateway, &["v1"], "Gateway", "gateways"),
        of(
            Kind::Route(RouteKind::Http),
            gateway,
            &["v1"],
            "HTTPRoute",
            "httproutes",
        ),
        of(
            Kind::Route(RouteKind::Grpc),
            gateway,
            &["v1"],
            "GRPCRoute",
            "grpcroutes",
        ),
        of(
            Kind::Route(RouteKind::Tls),
            gateway,
            &["v1", "v1alpha3", "v1alpha2"],
            "TLSRoute",
            "tlsroutes",
        ),
        of(
            Kind::Route(RouteKind::Tcp),
            gateway,
            &["v1", "v1alpha2"],
            "TCPRoute",
            "tcproutes",
        ),
        of(
            Kind::ReferenceGrant,
            gateway,
            &["v1", "v1beta1"],
            "ReferenceGrant",
            "referencegrants",
        ),
        of(Kind::Namespace, "", &["v1"], "Namespace", "namespaces"),
        Place {
            labels: own(),
            ..of(Kind::Service, "", &["v1"], "Service", "services")
        },
        Place {
            labels: own(),
            ..of(
                Kind::Deployment,
                "apps",
                &["v1"],
                "Deployment",
                "deployments",
            )
        },
    ]
}

/// Starts to watch everything; the kinds of which [`Said::Listed`] will be heard.
pub(super) fn all(client: &Client, said: &mpsc::Sender<Said>) -> Vec<Kind> {
    let started = places().into_iter().map(|place| {
        let kind = place.kind;
        tokio::spawn(follow(client.clone(), place, said.clone()));
        kind
    });
    started.collect()
}

async fn follow(client: Client, place: Place, said: mpsc::Sender<Said>) {
    let mut known = BTreeSet::new();
    loop {
        match served(&client, &place).await {
            Ok(Some(resource)) => {
                let api = Api::all_with(client.clone(), &resource);
                if listen(api, &place, &mut known, &said).await.is_none() {
                    return;
                }
            }
            Ok(None) => {
                for key in std::mem::take(&mut known) {
                    let _ = said.send(Said::Gone(place.kind, key)).await;
                }
                if said.send(Said::Listed(place.kind)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(kind = place.name, %error, "it is not known whether the API server has this kind");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn served(client: &Client, place: &Place) -> kube::Result<Option<ApiResource>> {
    // What every cluster has need not be asked for.
    let mut known: BTreeSet<String> = BTreeSet::new();
    if place.group == super::GROUP {
        let groups = client.list_api_groups().await?.groups.into_iter();
        let own = groups.filter(|g| g.name == place.group);
        known.extend(own.flat_map(|g| g.versions).map(|v| v.group_version));
    }
    for version in place.versions {
        let api_version = match place.group {
            "" => (*version).to_owned(),
            group => format!("{group}/{version}"),
        };
        if place.group == super::GROUP {
            if !known.contains(&api_version) {
                continue;
            }
            let found = client.list_api_group_resources(&api_version).await?;
            if !found.resources.iter().any(|r| r.name == place.plural) {
                continue;
            }
        }
        return Ok(Some(ApiResource {
            group: place.group.into(),
            version: (*version).into(),
            api_version,
            kind: place.name.into(),
            plural: place.plural.into(),
        }));
    }
    Ok(None)
}

/// Until the kind is gone; `None`: nobody listens any longer.
async fn listen(
    api: Api<DynamicObject>,
    place: &Place,
    known: &mut BTreeSet<Key>,
    said: &mpsc::Sender<Said>,
) -> Option<()> {
    let mut config = watcher::Config::default();
    config.label_selector.clone_from(&place.labels);
    let mut events = anew(place.name, move || watcher(api.clone(), config.clone())).boxed();
    let kind = place.kind;
    let mut listing = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => {
                listing.insert(key(&object));
                said.send(Said::Put(kind, key(&object), Box::new(object)))
                    .await
                    .ok()?;
            }
            Ok(Event::InitDone) => {
                let gone = std::mem::replace(known, std::mem::take(&mut listing));
                for key in gone.difference(known) {
                    said.send(Said::Gone(kind, key.clone())).await.ok()?;
                }
                said.send(Said::Listed(kind)).await.ok()?;
            }
            Ok(Event::Apply(object)) => {
                known.insert(key(&object));
                said.send(Said::Put(kind, key(&object), Box::new(object)))
                    .await
                    .ok()?;
            }
            Ok(Event::Delete(object)) => {
                known.remove(&key(&object));
                said.send(Said::Gone(kind, key(&object))).await.ok()?;
            }
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status)))
                if status.code == 404 =>
            {
                return Some(());
            }
            Err(error) => {
                tracing::warn!(kind = place.name, %error, "the watch is interrupted; what is known stays");
            }
        }
    }
    Some(())
}

fn key(object: &DynamicObject) -> Key {
    Key::new(&object.namespace().unwrap_or_default(), &object.name_any())
}

/// Watches one Secret or ConfigMap. Not all of a kind: the controller need not know what is none of
/// a gateway's.
pub(super) fn text(client: &Client, wanted: TextKey, said: mpsc::Sender<Said>) -> JoinHandle<()> {
    let namespace = wanted.key.namespace.clone();
    let name = wanted.key.name.clone();
    let client = client.clone();
    tokio::spawn(async move {
        let secrets = async || {
            let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
            let mut events = watch_object(api, &name).default_backoff().boxed();
            while let Some(event) = events.next().await {
                let held = event.map(|secret| secret.map(of_secret));
                pass_on(&wanted, held, &said).await;
            }
        };
        let maps = async || {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
            let mut events = watch_object(api, &name).default_backoff().boxed();
            while let Some(event) = events.next().await {
                let held = event.map(|map| map.map(|m| m.data.unwrap_or_default()));
                pass_on(&wanted, held, &said).await;
            }
        };
        if wanted.secret {
            secrets().await;
        } else {
            maps().await;
        }
    })
}

/// What is no text can be no certificate.
fn of_secret(secret: Secret) -> Text {
    let data = secret.data.unwrap_or_default().into_iter();
    let texts = data.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)));
    texts.collect()
}

async fn pass_on(wanted: &TextKey, held: watcher::Result<Option<Text>>, said: &mpsc::Sender<Said>) {
    match held {
        Ok(held) => {
            let _ = said.send(Said::Text(wanted.clone(), held)).await;
        }
        Err(error) => {
            let kind = wanted.kind();
            tracing::warn!(kind, name = %wanted.key, %error, "the watch is interrupted; what is known stays");
        }
    }
}
