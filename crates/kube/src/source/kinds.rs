//! The kinds that are read as objects of the mesh, and when they are watched: as long as the API
//! server has their CustomResourceDefinition. Kinds of Kubernetes itself are always there.

use super::Known;
use super::watch::{Taker, WatchEvent, pass_on};
use crate::ingress::GROUP as NETWORKING;
use crate::restarting_watch::restarting_watch;
use futures_util::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
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

/// Only the metadata is read: definitions are long.
type Definition = PartialObjectMeta<CustomResourceDefinition>;

/// A kind of the API server.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// API group.
    pub group: &'static str,
    /// Versions that are understood, the best first.
    pub versions: &'static [&'static str],
    /// The plural, as in URLs.
    pub plural: &'static str,
    /// The kind, as in objects.
    pub kind: &'static str,
}

pub(super) const GATEWAY: &str = "gateway.networking.k8s.io";
const TULLE: &str = "tulle.dev";
const V1: &[&str] = &["v1"];
const ALPHA: &[&str] = &["v1alpha1"];

const fn kind(
    group: &'static str,
    versions: &'static [&'static str],
    plural: &'static str,
    kind: &'static str,
) -> Kind {
    Kind {
        group,
        versions,
        plural,
        kind,
    }
}

/// All kinds that are watched when their definitions exist.
pub static KINDS: [Kind; 22] = [
    kind(GATEWAY, V1, "gatewayclasses", "GatewayClass"),
    kind(GATEWAY, V1, "gateways", "Gateway"),
    kind(GATEWAY, V1, "httproutes", "HTTPRoute"),
    kind(GATEWAY, V1, "grpcroutes", "GRPCRoute"),
    kind(
        GATEWAY,
        &["v1", "v1alpha3", "v1alpha2"],
        "tlsroutes",
        "TLSRoute",
    ),
    kind(
        GATEWAY,
        &["v1", "v1alpha3", "v1alpha2"],
        "tcproutes",
        "TCPRoute",
    ),
    kind(
        GATEWAY,
        &["v1", "v1beta1"],
        "referencegrants",
        "ReferenceGrant",
    ),
    kind(
        "access.smi-spec.io",
        &["v1alpha3"],
        "traffictargets",
        "TrafficTarget",
    ),
    kind(
        "specs.smi-spec.io",
        &["v1alpha4"],
        "httproutegroups",
        "HTTPRouteGroup",
    ),
    kind("specs.smi-spec.io", &["v1alpha4"], "tcproutes", "TCPRoute"),
    kind(
        "split.smi-spec.io",
        &["v1alpha4", "v1alpha2"],
        "trafficsplits",
        "TrafficSplit",
    ),
    kind(TULLE, ALPHA, "meshes", "Mesh"),
    kind(TULLE, ALPHA, "trafficpolicies", "TrafficPolicy"),
    kind(TULLE, ALPHA, "ratelimits", "RateLimit"),
    kind(TULLE, ALPHA, "httpfilters", "HTTPFilter"),
    kind(TULLE, ALPHA, "authorizationpolicies", "AuthorizationPolicy"),
    kind(TULLE, ALPHA, "authentications", "Authentication"),
    kind(TULLE, ALPHA, "ingressbackends", "IngressBackend"),
    kind(TULLE, ALPHA, "accesscontrols", "AccessControl"),
    kind(TULLE, ALPHA, "egresses", "Egress"),
    kind(NETWORKING, V1, "ingresses", "Ingress"),
    kind(NETWORKING, V1, "ingressclasses", "IngressClass"),
];

impl Kind {
    /// Name of its definition.
    pub fn definition(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Whether the API server has it without a definition.
    fn is_built_in(&self) -> bool {
        self.group == NETWORKING
    }

    /// How it is asked for.
    pub fn resource(&self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.into(),
            version: version.into(),
            api_version: format!("{}/{version}", self.group),
            kind: self.kind.into(),
            plural: self.plural.into(),
        }
    }

    /// The kind of an object.
    pub fn find(group: &str, kind: &str) -> Option<&'static Self> {
        KINDS.iter().find(|k| k.group == group && k.kind == kind)
    }
}

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
    let api: Api<Definition> = Api::all(client.clone());
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
        tokio::spawn(watch_kind(kind, client, said));
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
    async fn start(&mut self, definition: &Definition, expected: bool) {
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
        let watch = tokio::spawn(watch_kind(kind, self.client.clone(), self.said.clone()));
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
