//! The state of gateways as it is known: from the one watch of Gateway API's kinds, and what only gateways need.

use crate::gateway_fields::{Class, Gateway, Key, TextKey};
use crate::grants::Grants;
use crate::ingress::Served;
use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tulle_control::index::Attachment;

/// Secrets and ConfigMaps that are read for the Gateways of a namespace, and for its other objects. Each is a watch of
/// its own.
pub(crate) const MOST_TEXTS: usize = 1000;

/// The content of a Secret or ConfigMap, by key.
pub(crate) type Text = BTreeMap<String, String>;

/// The state of gateways, as the one watch of Gateway API's kinds ([`crate::source`]) shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    pub(crate) classes: BTreeMap<String, Arc<Class>>,
    /// How often classes were listed. The first time the API server has their kind, and ours can be made.
    pub(crate) classes_listed: u64,
    pub(crate) gateways: BTreeMap<Key, Arc<Gateway>>,
    pub(crate) grants: Grants,
    /// The routes that each gateway's listeners take.
    pub(crate) attached: BTreeMap<Key, BTreeSet<Attachment>>,
    /// Secrets and ConfigMaps that policies refer to.
    pub(crate) texts: BTreeSet<TextKey>,
    /// The gateways that serve Ingresses.
    pub(crate) ingresses: BTreeMap<Key, Arc<Served>>,
}

impl View {
    /// The class of a gateway, if it is one of ours.
    pub(crate) fn class(&self, gateway: &Gateway) -> Option<&Class> {
        let class = self.classes.get(&gateway.spec.gateway_class_name)?;
        (class.spec.controller_name == super::CONTROLLER_NAME).then_some(class)
    }

    /// Whether a Gateway may refer to this.
    pub(super) fn is_granted(&self, gateway: &Key, text: &TextKey) -> bool {
        let from = (super::GROUP, "Gateway", gateway.namespace.as_str());
        let TextKey { key, .. } = text;
        self.grants
            .permits(from, text.kind(), &key.namespace, &key.name)
    }
}

/// The Secrets and ConfigMaps that are read for the Gateways of a namespace, as far as these were looked at.
#[derive(Debug, Default)]
pub(super) struct TextRoom(BTreeSet<TextKey>);

impl TextRoom {
    /// Takes room for a Secret or ConfigMap; returns whether there is some.
    pub(super) fn take(&mut self, text: &TextKey) -> bool {
        let Self(taken) = self;
        taken.contains(text) || (taken.len() < MOST_TEXTS && taken.insert(text.clone()))
    }
}

/// A Secret or ConfigMap, once the API server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TextState {
    Held(Text),
    Absent,
    /// The controller has no right to read it.
    Forbidden,
}

/// Whether a Secret or ConfigMap is there, as the API server has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Held,
    Absent,
    /// The controller has no right to read it.
    Forbidden,
}

/// The Secrets and ConfigMaps of [`View`] that the API server has answered about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Texts(pub(crate) BTreeMap<TextKey, Presence>);

/// Whether the controller may keep Deployments in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    Granted,
    Denied,
}

/// The state that only gateways need.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) services: BTreeMap<Key, Service>,
    pub(super) deployments: BTreeMap<Key, Deployment>,
    /// Secrets and ConfigMaps; absent until they are read for the first time.
    pub(super) texts: BTreeMap<TextKey, TextState>,
    /// Access by namespace; absent where nobody has asked for Deployments yet.
    pub(super) access: BTreeMap<String, Access>,
    /// Gateways whose objects the API server refused to write, and why.
    pub(super) refused: BTreeMap<Key, String>,
}

impl Own {
    /// The Deployments of a namespace were listed.
    pub(super) fn list(&mut self, namespace: String, all: BTreeMap<Key, Deployment>) {
        self.deployments.retain(|key, _| key.namespace != namespace);
        self.deployments.extend(all);
        self.access.insert(namespace, Access::Granted);
    }

    /// Records that the API server refuses to list the Deployments of a namespace.
    pub(super) fn deny(&mut self, namespace: String) {
        self.access.insert(namespace, Access::Denied);
    }

    /// Drops a namespace that is no longer watched.
    pub(super) fn forget(&mut self, namespace: &str) {
        self.deployments.retain(|key, _| key.namespace != namespace);
        self.access.remove(namespace);
    }

    /// Returns which of these are there. Those without an answer are left out.
    pub(super) fn presence(&self, wanted: &BTreeSet<TextKey>) -> Texts {
        let answered = wanted.iter().filter_map(|key| {
            let presence = match self.texts.get(key)? {
                TextState::Held(_) => Presence::Held,
                TextState::Absent => Presence::Absent,
                TextState::Forbidden => Presence::Forbidden,
            };
            Some((key.clone(), presence))
        });
        Texts(answered.collect())
    }

    /// Notes that the API server refused to show a Secret or ConfigMap. Its known content stays.
    pub(super) fn hide(&mut self, text: TextKey) {
        self.texts.entry(text).or_insert(TextState::Forbidden);
    }
}

/// A Service of a gateway.
#[derive(Debug, Clone, Default)]
pub(super) struct Service {
    pub(super) kind: String,
    pub(super) cluster_ips: Vec<String>,
    /// The addresses that a load balancer has given it.
    pub(super) ingress: Vec<Ingress>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Ingress {
    pub(super) ip: Option<String>,
    pub(super) hostname: Option<String>,
}

impl From<DynamicObject> for Service {
    fn from(mut object: DynamicObject) -> Self {
        let ingress = object.data["status"]["loadBalancer"]["ingress"].take();
        let spec = &object.data["spec"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let ips = spec["clusterIPs"].as_array();
        Self {
            kind: text(&spec["type"]).unwrap_or_default(),
            cluster_ips: ips.into_iter().flatten().filter_map(text).collect(),
            ingress: Vec::deserialize(&ingress).unwrap_or_default(),
        }
    }
}

/// A Deployment of a gateway.
#[derive(Debug, Clone, Default)]
pub(super) struct Deployment {
    pub(super) generation: i64,
    pub(super) available: i64,
}

impl From<DynamicObject> for Deployment {
    fn from(object: DynamicObject) -> Self {
        let available = &object.data["status"]["availableReplicas"];
        Self {
            generation: object.metadata.generation.unwrap_or_default(),
            available: available.as_i64().unwrap_or_default(),
        }
    }
}
