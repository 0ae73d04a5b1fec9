//! What the leader writes.

use super::objects;
use super::plan::Planned;
use super::status::{self, covers};
use super::view::{Key, View};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Whose fields these are, for the API server.
const MANAGER: &str = "tulle-gateways";

/// Kinds of what a gateway runs as.
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
    /// What was written last for each gateway, and the generation its Deployment had then.
    written: BTreeMap<Key, (Vec<Value>, i64)>,
    /// Troubles that were told already.
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
        plan: &BTreeMap<Key, Planned>,
        now: &str,
    ) -> bool {
        let mut good = self.classes(view, now).await;
        for (key, planned) in plan {
            let made = self.gateway(view, key, planned).await;
            good &= self.tell(format!("Gateway {key}"), made);
        }
        let wanted: BTreeSet<Key> = plan.keys().map(own).collect();
        for left in view.deployments.keys().filter(|key| !wanted.contains(key)) {
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
                        "the cluster is not as it should be; tried again"
                    );
                    self.told.insert(of, text);
                }
                false
            }
        }
    }

    async fn classes(&mut self, view: &View, now: &str) -> bool {
        let mut good = true;
        if !view.classes.contains_key(super::CLASS) {
            let made = self.make_class().await;
            good &= self.tell(format!("GatewayClass {}", super::CLASS), made);
        }
        for (name, class) in &view.classes {
            if class.spec.controller_name != super::CONTROLLER_NAME {
                continue;
            }
            let status = status::class(class, now);
            if !covers(&class.status, &status) {
                let api = self.api("", super::GROUP, "v1", "GatewayClass", "gatewayclasses");
                let done = self.status(&api, "GatewayClass", name, &status).await;
                good &= self.tell(format!("GatewayClass {name}"), done);
            }
        }
        good
    }

    async fn make_class(&self) -> kube::Result<()> {
        let api = self.api("", super::GROUP, "v1", "GatewayClass", "gatewayclasses");
        let class = json!({
            "apiVersion": super::API_VERSION, "kind": "GatewayClass",
            "metadata": {
                "name": super::CLASS,
                "labels": {
                    "app.kubernetes.io/part-of": "tulle",
                    "app.kubernetes.io/managed-by": "tulle",
                },
            },
            "spec": {
                "controllerName": super::CONTROLLER_NAME,
                "description": "Proxies of the Tulle mesh for clients outside it",
            },
        });
        let class = serde_json::from_value(class).map_err(kube::Error::SerdeError)?;
        match api.create(&PostParams::default(), &class).await {
            // Gateway API is not installed, or somebody else was first.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn gateway(&mut self, view: &View, key: &Key, planned: &Planned) -> kube::Result<()> {
        let seen = view.gateways.get(key);
        let own = own(key);
        let deployment = view.deployments.get(&own);
        let is_there = deployment.is_some() && view.services.contains_key(&own);
        let as_written = self.written.get(key).is_some_and(|(objects, generation)| {
            let unchanged = deployment.is_some_and(|d| d.generation <= *generation);
            *objects == planned.objects && is_there && unchanged
        });
        if !as_written && !planned.objects.is_empty() {
            let mut generation = 0;
            for object in &planned.objects {
                let made = self.apply(object, seen.map(|g| g.uid.as_str())).await?;
                if object["kind"] == "Deployment" {
                    generation = made.metadata.generation.unwrap_or_default();
                }
            }
            tracing::info!(gateway = %key, "its Deployment and Service are as they should be");
            let written = (planned.objects.clone(), generation);
            self.written.insert(key.clone(), written);
        }
        if seen.is_some_and(|seen| covers(&seen.status, &planned.status)) {
            return Ok(());
        }
        let api = self.api(&key.namespace, super::GROUP, "v1", "Gateway", "gateways");
        self.status(&api, "Gateway", &key.name, &planned.status)
            .await
    }

    async fn apply(&self, object: &Value, owner: Option<&str>) -> kube::Result<DynamicObject> {
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
        // What somebody else has made under this name is not taken over.
        if let Some(found) = api.get_opt(&name).await? {
            let owners = found.owner_references().iter();
            let mut owners = owners.filter(|o| o.kind == "Gateway");
            let is_ours = owners.any(|o| Some(o.uid.as_str()) == owner);
            let ended = found.metadata.deletion_timestamp.is_some();
            if !is_ours || ended {
                let message = format!(
                    "{kind} {namespace}/{name} exists and is not this Gateway's: rename one of them"
                );
                return Err(kube::Error::Service(message.into()));
            }
        }
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(object)).await
    }

    async fn status(
        &self,
        api: &Api<DynamicObject>,
        kind: &str,
        name: &str,
        status: &Value,
    ) -> kube::Result<()> {
        let body = json!({
            "apiVersion": super::API_VERSION, "kind": kind,
            "metadata": { "name": name }, "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        match api.patch_status(name, &params, &Patch::Apply(&body)).await {
            // It is gone; the watch will say so.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// A Gateway that went over to another class is there still, so nobody else removes what was made
    /// for it.
    async fn remove_left(&self, view: &View, left: &Key) -> kube::Result<()> {
        let gateway = left.name.strip_suffix("-tulle").unwrap_or(&left.name);
        if !view
            .gateways
            .contains_key(&Key::new(&left.namespace, gateway))
        {
            return Ok(()); // the API server removes it
        }
        for (group, version, kind, plural) in KINDS {
            let api = self.api(&left.namespace, group, version, kind, plural);
            let Some(found) = api.get_opt(&left.name).await? else {
                continue;
            };
            let mut owners = found.owner_references().iter();
            if owners.any(|o| o.kind == "Gateway" && o.name == gateway) {
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

fn own(gateway: &Key) -> Key {
    Key::new(&gateway.namespace, &objects::name(gateway))
}
