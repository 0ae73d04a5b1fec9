//! Writes, as the leader, the objects that gateways run as, and the class. Statuses go to
//! [`crate::status`], which writes them.

use super::plan::Planned;
use super::view::{Own, View};
use super::{no_rights, objects, status};
use crate::gateway_fields::Key;
use crate::status::{ChangedStatus, StatusUpdate, StatusUpdates};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tulle_model::namespaced::ObjectName;

/// The name under which the API server records these fields as ours.
const MANAGER: &str = "tulle-gateways";

/// Kinds of the objects that a gateway runs as.
const KINDS: [(&str, &str, &str, &str); 4] = [
    ("", "v1", "ServiceAccount", "serviceaccounts"),
    ("", "v1", "Service", "services"),
    ("apps", "v1", "Deployment", "deployments"),
    (
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
    ),
];

pub(super) struct Writer {
    client: Client,
    /// The objects written last for each gateway, and the generation its Deployment had then.
    written: BTreeMap<Key, (Vec<Value>, i64)>,
    /// Troubles that were logged already.
    told: BTreeMap<String, String>,
}

impl Writer {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            written: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Writes what differs; whether all of it could be written.
    pub(super) async fn write(
        &mut self,
        view: &View,
        own: &mut Own,
        plan: &BTreeMap<Key, Planned>,
    ) -> bool {
        let mut good = true;
        own.refused.retain(|key, _| plan.contains_key(key));
        for class in super::CLASSES {
            if !view.classes.contains_key(class) {
                let made = self.make_class(class).await;
                good &= self.tell(format!("GatewayClass {class}"), made);
            }
        }
        for (key, planned) in plan {
            let made = self.gateway(own, key, planned).await;
            match &made {
                Err(kube::Error::Api(status)) if lacks_rights(status) => {
                    let why = format!("{}; {}", no_rights(&key.namespace), status.message);
                    own.refused.insert(key.clone(), why);
                }
                _ => drop(own.refused.remove(key)),
            }
            good &= self.tell(format!("Gateway {key}"), made);
        }
        let wanted: BTreeSet<Key> = plan.keys().map(objects::place).collect();
        for left in own.deployments.keys().filter(|key| !wanted.contains(key)) {
            let gone = self.remove_left(view, left).await;
            good &= self.tell(format!("Deployment {left}"), gone);
        }
        self.written.retain(|key, _| plan.contains_key(key));
        good
    }

    fn tell(&mut self, of: String, done: kube::Result<()>) -> bool {
        match done {
            Ok(()) => {
                self.told.remove(&of);
                true
            }
            Err(error) => {
                let text = error.to_string();
                if self.told.get(&of) != Some(&text) {
                    tracing::warn!(
                        of,
                        error = text,
                        "an object could not be written; trying again"
                    );
                    self.told.insert(of, text);
                }
                false
            }
        }
    }

    async fn make_class(&self, name: &str) -> kube::Result<()> {
        // The groups are asked for first: the client logs every 404 of a path that the API server does not
        // know.
        let groups = self.client.list_api_groups().await?.groups;
        if !groups.iter().any(|group| group.name == super::GROUP) {
            return Ok(());
        }
        let api = self.api("", super::GROUP, "v1", "GatewayClass", "gatewayclasses");
        let description = match name {
            super::EGRESS_CLASS => "Proxies by which calls of workloads leave the Tulle mesh",
            _ => "Proxies of the Tulle mesh for clients outside it",
        };
        let class = json!({
            "apiVersion": super::API_VERSION, "kind": "GatewayClass",
            "metadata": {
                "name": name,
                "labels": {
                    "app.kubernetes.io/part-of": "tulle",
                    "app.kubernetes.io/managed-by": "tulle",
                },
            },
            "spec": {
                "controllerName": super::CONTROLLER_NAME,
                "description": description,
            },
        });
        let class = serde_json::from_value(class).map_err(kube::Error::SerdeError)?;
        match api.create(&PostParams::default(), &class).await {
            // The class's definition is just being installed, or somebody else was first.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn gateway(&mut self, own: &Own, key: &Key, planned: &Planned) -> kube::Result<()> {
        let place = objects::place(key);
        let deployment = own.deployments.get(&place);
        let is_there = deployment.is_some() && own.services.contains_key(&place);
        let as_written = self.written.get(key).is_some_and(|(objects, generation)| {
            let unchanged = deployment.is_some_and(|d| d.generation <= *generation);
            *objects == planned.objects && is_there && unchanged
        });
        if as_written || planned.objects.is_empty() {
            return Ok(());
        }
        let mut generation = 0;
        for object in &planned.objects {
            let made = self.apply(object).await?;
            if object["kind"] == "Deployment" {
                generation = made.metadata.generation.unwrap_or_default();
            }
        }
        tracing::info!(gateway = %key, "its Deployment and Service are up to date");
        let written = (planned.objects.clone(), generation);
        self.written.insert(key.clone(), written);
        Ok(())
    }

    async fn apply(&self, object: &Value) -> kube::Result<DynamicObject> {
        let text = |path: &str| {
            let found = object.pointer(path).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let (kind, name, namespace) = (
            text("/kind"),
            text("/metadata/name"),
            text("/metadata/namespace"),
        );
        let place = KINDS.iter().find(|(_, _, known, _)| *known == kind);
        let (group, version, kind, plural) = place.copied().unwrap_or_default();
        let api = self.api(&namespace, group, version, kind, plural);
        // An object that somebody else has made under this name is not taken over.
        if let Some(found) = api.get_opt(&name).await? {
            let wanted = object["metadata"]["ownerReferences"].as_array();
            let wanted = || wanted.into_iter().flatten();
            let mut owners = found.owner_references().iter();
            let is_ours =
                owners.any(|o| wanted().any(|w| w["uid"] == *o.uid && w["kind"] == *o.kind));
            let ended = found.metadata.deletion_timestamp.is_some();
            if !is_ours || ended {
                let message =
                    format!("{kind} {namespace}/{name} exists and is somebody else's: rename it");
                return Err(kube::Error::Service(message.into()));
            }
        }
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(object)).await
    }

    /// A Gateway or Ingress that went over to another class still exists, so nobody else removes the
    /// objects that were made for it.
    async fn remove_left(&self, view: &View, left: &Key) -> kube::Result<()> {
        let mut gateways = view.gateways.keys();
        let gateway = gateways.find(|key| objects::place(key) == *left);
        let is_owner = |kind: &str, name: &str| match gateway {
            Some(gateway) => kind == "Gateway" && name == gateway.name,
            // Ingresses of another class now, or of one that is gone.
            None => kind == "Ingress",
        };
        for (group, version, kind, plural) in KINDS {
            let api = self.api(&left.namespace, group, version, kind, plural);
            let Some(found) = api.get_opt(&left.name).await? else {
                continue;
            };
            let mut owners = found.owner_references().iter();
            if owners.any(|o| is_owner(&o.kind, &o.name)) {
                match api.delete(&left.name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => drop(other?),
                }
            }
        }
        Ok(())
    }

    fn api(
        &self,
        namespace: &str,
        group: &str,
        version: &str,
        kind: &str,
        plural: &str,
    ) -> Api<DynamicObject> {
        let api_version = match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        };
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version,
            kind: kind.into(),
            plural: plural.into(),
        };
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }
}

/// Whether the API server refused because rights are missing. A quota or a namespace that ends gives a 403,
/// too.
fn lacks_rights(status: &kube::core::Status) -> bool {
    status.code == 403 && status.message.contains(" cannot ")
}

/// Wishes for the statuses of our Gateways and classes, where they differ from the present ones.
pub(super) fn wish_statuses(view: &View, plan: &BTreeMap<Key, Planned>, wishes: &StatusUpdates) {
    let wish = |name: &str, namespace: &str, version: &str, before: &Value, status: Value| {
        Some(StatusUpdate {
            api_version: super::API_VERSION.into(),
            namespace: namespace.into(),
            name: name.into(),
            resource_version: version.into(),
            status: ChangedStatus::if_changed(before, status)?,
        })
    };
    let gateways = plan.iter().filter_map(|(key, planned)| {
        let seen = view.gateways.get(key)?;
        let (version, status) = (&seen.resource_version, planned.status.clone());
        let wish = wish(&key.name, &key.namespace, version, &seen.status, status)?;
        Some((key.object_name(), wish))
    });
    wishes.want_all(super::GROUP, "Gateway", gateways);
    let ours = view.classes.iter();
    let ours = ours.filter(|(_, class)| class.spec.controller_name == super::CONTROLLER_NAME);
    let classes = ours.filter_map(|(name, class)| {
        let status = status::class(name, class);
        let wish = wish(name, "", &class.resource_version, &class.status, status)?;
        Some((ObjectName::Plain(name.as_str().into()), wish))
    });
    wishes.want_all(super::GROUP, "GatewayClass", classes);
}
