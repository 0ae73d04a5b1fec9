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
use std::time::Duration;
use tokio::time::Instant;
use tulle_model::namespaced::ObjectName;

/// The name under which the API server records these fields as ours.
const MANAGER: &str = "tulle-gateways";

/// Time until something that could not be written is tried again; it doubles with each further failure.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest time between two tries. Other gateways wait while one is tried.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

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
    /// Everything that could not be written, by kind and name.
    troubles: BTreeMap<String, Trouble>,
}

/// The last failure to write something.
struct Trouble {
    why: String,
    /// The objects of a gateway that were tried.
    objects: Vec<Value>,
    wait: Duration,
    /// When the same objects are tried again.
    until: Instant,
}

impl Writer {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            written: BTreeMap::new(),
            troubles: BTreeMap::new(),
        }
    }

    /// Writes what differs. Returns when to try again, if something could not be written.
    pub(super) async fn write(
        &mut self,
        view: &View,
        own: &mut Own,
        plan: &BTreeMap<Key, Planned>,
    ) -> Option<Instant> {
        let mut named = BTreeSet::new();
        own.refused.retain(|key, _| plan.contains_key(key));
        for class in super::CLASSES {
            if view.classes.contains_key(class) {
                continue;
            }
            let of = format!("GatewayClass {class}");
            if !self.waits(&of, &[]) {
                let made = self.make_class(class).await;
                self.tell(&of, &[], made);
            }
            named.insert(of);
        }
        for (key, planned) in plan {
            let of = format!("Gateway {key}");
            if !self.waits(&of, &planned.objects) {
                let made = self.gateway(own, key, planned).await;
                match &made {
                    Err(kube::Error::Api(status)) if lacks_rights(status) => {
                        let why = format!("{}; {}", no_rights(&key.namespace), status.message);
                        own.refused.insert(key.clone(), why);
                    }
                    _ => drop(own.refused.remove(key)),
                }
                self.tell(&of, &planned.objects, made);
            }
            named.insert(of);
        }
        let wanted: BTreeSet<Key> = plan.keys().map(objects::place).collect();
        for left in own.deployments.keys().filter(|key| !wanted.contains(key)) {
            let of = format!("Deployment {left}");
            if !self.waits(&of, &[]) {
                let gone = self.remove_left(view, left).await;
                self.tell(&of, &[], gone);
            }
            named.insert(of);
        }
        self.written.retain(|key, _| plan.contains_key(key));
        self.troubles.retain(|of, _| named.contains(of));
        self.troubles.values().map(|trouble| trouble.until).min()
    }

    /// Whether something failed too recently to be tried again. A gateway whose objects have changed is
    /// tried at once.
    fn waits(&self, of: &str, objects: &[Value]) -> bool {
        let trouble = self.troubles.get(of);
        trouble.is_some_and(|t| t.objects == objects && Instant::now() < t.until)
    }

    /// Notes how a try ended, and logs a trouble that is new.
    fn tell(&mut self, of: &str, objects: &[Value], done: kube::Result<()>) {
        let Err(error) = done else {
            self.troubles.remove(of);
            return;
        };
        let why = error.to_string();
        let last = self.troubles.get(of);
        if last.is_none_or(|last| last.why != why) {
            tracing::warn!(
                of,
                error = why,
                "an object could not be written; trying again"
            );
        }
        let wait = last.map_or(FIRST_WAIT, |last| (last.wait * 2).min(LONGEST_WAIT));
        let trouble = Trouble {
            why,
            objects: objects.to_vec(),
            wait,
            until: Instant::now() + wait,
        };
        self.troubles.insert(of.to_owned(), trouble);
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

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Config;
    use std::sync::Arc;
    use tokio::net::TcpSocket;

    fn planned(namespace: &str, replicas: u32) -> (Key, Planned) {
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "edge", "namespace": namespace },
            "spec": { "replicas": replicas },
        });
        let planned = Planned {
            told: None,
            egress: false,
            objects: vec![deployment],
            status: Value::Null,
            texts: BTreeSet::new(),
            until: None,
            problems: Vec::new(),
        };
        (Key::new(namespace, "edge"), planned)
    }

    #[tokio::test]
    async fn a_gateway_that_cannot_be_written_is_tried_ever_less_often() {
        // Connections to a port that is taken and not listened on are refused, so each try fails at once.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = format!("http://{}", socket.local_addr().unwrap());
        let config = Config::new(address.parse().unwrap());
        let mut writer = Writer::new(Client::try_from(config).unwrap());
        let (mut view, mut own) = (View::default(), Own::default());
        for class in crate::gateway::CLASSES {
            view.classes.insert(class.to_owned(), Arc::default());
        }
        let waits = |writer: &Writer| ["a", "b"].map(|n| writer.troubles[&named(n)].wait);

        let mut plan = BTreeMap::from([planned("a", 1), planned("b", 1)]);
        writer.write(&view, &mut own, &plan).await;
        assert_eq!(waits(&writer), [FIRST_WAIT; 2]);
        // One of them has time, whatever this machine does; the time of the other has come.
        let later = Instant::now() + LONGEST_WAIT;
        let until = |writer: &mut Writer, n: &str, until| {
            writer.troubles.get_mut(&named(n)).unwrap().until = until;
        };
        for factor in [2, 4, 8] {
            until(&mut writer, "a", later);
            until(&mut writer, "b", Instant::now());
            let again = writer.write(&view, &mut own, &plan).await;
            assert_eq!(waits(&writer), [FIRST_WAIT, FIRST_WAIT * factor]);
            assert_eq!(again, Some(writer.troubles[&named("b")].until));
        }
        // A gateway that has changed is tried at once.
        until(&mut writer, "b", later);
        plan.extend([planned("a", 2)]);
        writer.write(&view, &mut own, &plan).await;
        assert_eq!(waits(&writer), [FIRST_WAIT * 2, FIRST_WAIT * 8]);
        // Nothing is tried again for gateways that are gone.
        let again = writer.write(&view, &mut own, &BTreeMap::new()).await;
        assert_eq!(again, None);
    }

    fn named(namespace: &str) -> String {
        format!("Gateway {namespace}/edge")
    }
}
