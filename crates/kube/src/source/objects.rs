//! Turns objects about services into edits of the index, and into their `status`. Pure.
//!
//! An object that cannot be read has no effect; if it was readable before, its last readable form
//! stays in force, unless it was deleted since: then the new one has no other form. One that restricts who may call and was never readable lets nobody call: nothing
//! is open that its author wanted closed. The reason is in its status and in the log.

mod last_valid;
mod referrers;
mod refusals;

use super::attach::{Parent, gateway_of, parent};
use super::closed::closed;
use super::ingresses::Ingresses;
use super::named::{References, text_keys};
use super::refs::{self, list};
use super::state::State;
use crate::gateway::view::{Texts, View};
use crate::gateway_fields::{Key, TextKey};
use crate::kinds::Kind;
use crate::names::CONTROLLER_NAME;
use crate::object::{one_line, text};
use crate::root::other_trust_domain;
use crate::status::{ChangedStatus, Condition, StatusUpdate, StatusUpdates, conditions, parents};
use kube::api::DynamicObject;
use referrers::ChosenTexts;
use refusals::instead;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tulle_control::index::{Attachment, Edit, ObjectProblem};
use tulle_model::manifest::Object;
use tulle_model::namespaced::ObjectName;

/// The name of the Mesh that counts. There is one mesh in a cluster.
const MESH: &str = "mesh";

type Id = (&'static Kind, ObjectName);

pub(super) struct Objects {
    /// The settings in force as long as there is no Mesh object.
    base: Object,
    seen: BTreeMap<Id, Seen>,
    view: View,
    /// The Secrets and ConfigMaps that objects refer to.
    texts: Texts,
    chosen: ChosenTexts,
    changed: BTreeSet<Id>,
    /// References may mean something else than before.
    all_changed: bool,
    revision: u64,
    /// The index has `base`, or a Mesh in its place.
    started: bool,
    /// The objects that the index has.
    fed: BTreeMap<Id, Object>,
    /// The refused objects that the index was told of.
    told_refused: Vec<ObjectProblem>,
    ingresses: Ingresses,
}

/// An object as it was last seen.
struct Seen {
    object: Arc<Value>,
    /// Differs where the object was deleted and made again.
    uid: Option<String>,
    resource_version: String,
    generation: Option<i64>,
    status: Value,
    /// The Secrets and ConfigMaps that it refers to.
    texts: BTreeSet<TextKey>,
    /// The Secrets and ConfigMaps of the form in force, which of a refused object is its last valid one.
    texts_in_force: BTreeSet<TextKey>,
    /// The listeners that take it.
    attached: BTreeSet<(Key, String)>,
    /// Why it has no effect; said once.
    refused: Option<String>,
    /// Its last valid form, as it was written. It is in force while the object is refused.
    valid: Option<Arc<Value>>,
}

/// The verdict on an object.
#[derive(Default)]
struct Judged {
    /// `None`: it is not ours.
    object: Option<Result<Object, String>>,
    /// Its status as it should be; `None`: the status is somebody else's. A kind may have none
    /// (SMI's own definitions); then writing it fails and is forgotten.
    status: Option<Value>,
    attached: BTreeSet<(Key, String)>,
}

/// The settings of a mesh: what the `spec` of its Mesh does not say stays as it was `chosen` at the
/// installation. A Mesh that revokes an identity does not make a permissive mesh strict.
pub fn settings_of_mesh(spec: &mut Value, chosen: Value) {
    if spec.is_null() {
        *spec = json!({});
    }
    if let (Value::Object(said), Value::Object(chosen)) = (spec, chosen) {
        for (field, value) in chosen {
            said.entry(field).or_insert(value);
        }
    }
}

impl Objects {
    /// `base` is the Mesh that holds as long as the cluster has none.
    pub(super) fn new(base: Object) -> Self {
        Self {
            base,
            seen: BTreeMap::new(),
            view: View::default(),
            texts: Texts::default(),
            chosen: ChosenTexts::default(),
            changed: BTreeSet::new(),
            all_changed: true,
            revision: 0,
            started: false,
            fed: BTreeMap::new(),
            told_refused: Vec::new(),
            ingresses: Ingresses::default(),
        }
    }

    pub(super) fn apply(&mut self, kind: &'static Kind, key: ObjectName, object: DynamicObject) {
        match kind.kind {
            "Ingress" | "IngressClass" => return self.ingresses.apply(kind.kind, key, object),
            "ReferenceGrant" => {
                let spec = &object.data["spec"];
                self.view.grants.put(key, spec);
            }
            "GatewayClass" => {
                let class = Arc::new(object.into());
                self.view.classes.insert(key.to_string(), class);
            }
            // `crate::gateway` decides what the Gateway means for the mesh.
            "Gateway" => {
                let gateway = Arc::new(object.into());
                self.view.gateways.insert(Key::from(&key), gateway);
            }
            _ => return self.put((kind, key), object),
        }
        self.all_changed = true;
    }

    fn put(&mut self, id: Id, object: DynamicObject) {
        let (name, namespace) = (id.1.name(), id.1.namespace());
        let (meta, types) = (object.metadata, object.types.unwrap_or_default());
        let mut data = object.data;
        let mut metadata = json!({ "name": name });
        if !namespace.is_empty() {
            metadata["namespace"] = namespace.into();
        }
        if let Some(created) = meta.creation_timestamp {
            metadata["creationTimestamp"] = json!(created);
        }
        let spec = data["spec"].take();
        let old = self.seen.remove(&id);
        if old.as_ref().is_none_or(|old| old.object["spec"] != spec) {
            self.changed_for_referrers(&id);
        }
        let same = old.filter(|old| old.uid == meta.uid);
        let kept = same.map(|old| (old.refused, old.valid, old.texts_in_force));
        let (refused, valid, texts_in_force) = kept.unwrap_or_default();
        let seen = Seen {
            texts: text_keys(&spec, namespace),
            texts_in_force,
            object: Arc::new(json!({
                "apiVersion": types.api_version, "kind": id.0.kind,
                "metadata": metadata, "spec": spec,
            })),
            uid: meta.uid,
            resource_version: meta.resource_version.unwrap_or_default(),
            generation: meta.generation,
            status: data["status"].take(),
            attached: BTreeSet::new(),
            refused,
            valid,
        };
        self.seen.insert(id.clone(), seen);
        self.changed.insert(id);
    }

    pub(super) fn remove(&mut self, kind: &'static Kind, key: &ObjectName) {
        match kind.kind {
            "Ingress" | "IngressClass" => return self.ingresses.remove(kind.kind, key),
            "ReferenceGrant" => self.view.grants.remove(key),
            "GatewayClass" => drop(self.view.classes.remove(key.as_str())),
            "Gateway" => drop(self.view.gateways.remove(&Key::from(key))),
            _ => {
                let id = (kind, key.clone());
                self.seen.remove(&id);
                self.changed_for_referrers(&id);
                self.changed.insert(id);
                return;
            }
        }
        self.all_changed = true;
    }

    pub(super) fn keep(&mut self, kind: &'static Kind, listed: &BTreeSet<ObjectName>) {
        match kind.kind {
            "Ingress" | "IngressClass" => return self.ingresses.keep(kind.kind, listed),
            "ReferenceGrant" => self.view.grants.keep(listed),
            "GatewayClass" => {
                let classes = &mut self.view.classes;
                classes.retain(|name, _| listed.contains(name.as_str()));
                self.view.classes_listed += 1;
            }
            "Gateway" => {
                let gateways = &mut self.view.gateways;
                gateways.retain(|key, _| listed.contains(&key.object_name()));
            }
            _ => {
                let of_kind = self.seen.keys().filter(|(k, _)| *k == kind);
                let gone: Vec<ObjectName> = of_kind
                    .filter(|(_, key)| !listed.contains(key))
                    .map(|(_, key)| key.clone())
                    .collect();
                gone.iter().for_each(|key| self.remove(kind, key));
                return;
            }
        }
        self.all_changed = true;
    }

    /// Collects the changes since the last time, and the statuses they call for. Returns whether
    /// anything had to be looked at.
    pub(super) fn edits(
        &mut self,
        state: &State,
        edits: &mut Vec<Edit>,
        wishes: &StatusUpdates,
    ) -> bool {
        if !std::mem::replace(&mut self.started, true) {
            edits.push(Edit::Put(Box::new(self.base.clone())));
        }
        let mut ids = std::mem::take(&mut self.changed);
        let references_changed = std::mem::replace(&mut self.revision, state.revision());
        let all_changed = std::mem::take(&mut self.all_changed);
        if all_changed || references_changed != state.revision() {
            ids.extend(self.seen.keys().cloned());
        }
        let any = all_changed || !ids.is_empty();
        for id in ids {
            self.edit(id, state, edits, wishes);
        }
        if any {
            for id in self.choose_texts() {
                self.edit(id, state, edits, wishes);
            }
        }
        self.ingresses.edits(state, edits) || any
    }

    /// Returns the view that gateways are made from, as of the last look.
    pub(super) fn view(&self) -> View {
        let mut view = View {
            texts: self.chosen.read.clone(),
            ingresses: self.ingresses.served().clone(),
            ..self.view.clone()
        };
        for ((kind, key), seen) in &self.seen {
            for (gateway, listener) in &seen.attached {
                let attached = view.attached.entry(gateway.clone()).or_default();
                attached.insert(Attachment {
                    route: format!("{}/{key}", kind.kind),
                    listener: listener.clone(),
                });
            }
        }
        view
    }

    fn edit(&mut self, id: Id, state: &State, edits: &mut Vec<Edit>, wishes: &StatusUpdates) {
        let Some(seen) = self.seen.get(&id) else {
            wishes.forget(&id);
            self.unfeed(&id, edits);
            return;
        };
        let judged = self.judge(id.0, &seen.object, seen, state);
        if let Some(status) = judged.status {
            match ChangedStatus::if_changed(&seen.status, status) {
                Some(status) => wishes.want(
                    id.clone(),
                    StatusUpdate {
                        api_version: text(&seen.object, "apiVersion").to_owned(),
                        namespace: text(&seen.object["metadata"], "namespace").to_owned(),
                        name: text(&seen.object["metadata"], "name").to_owned(),
                        resource_version: seen.resource_version.clone(),
                        status,
                    },
                ),
                None => wishes.forget(&id),
            }
        }
        let was_valid = seen.valid.is_some();
        let is_valid = matches!(judged.object, Some(Ok(_)));
        let (refused, in_force) = match judged.object {
            None => (None, None),
            Some(Ok(object)) => (None, Some(object)),
            Some(Err(why)) => {
                let in_place = match &seen.valid {
                    Some(valid) => self.last_valid(&id, valid, seen, state),
                    None => closed(id.0, &seen.object),
                };
                if seen.refused.as_ref() != Some(&why) {
                    let instead = instead(&id, was_valid, in_place.is_some());
                    let object = format!("{}/{}", id.0.kind, id.1);
                    tracing::error!(object, "without effect: {why}; {instead}");
                }
                (Some(why), in_place)
            }
        };
        match in_force {
            Some(object) => {
                if self.fed.get(&id) != Some(&object) {
                    // The policy that denied in its place has another name.
                    if self.fed.get(&id).is_some_and(|old| old.id() != object.id()) {
                        self.unfeed(&id, edits);
                    }
                    edits.push(Edit::Put(Box::new(object.clone())));
                    self.fed.insert(id.clone(), object);
                }
            }
            // A Deny in its place is no longer asked for, no parent takes its last valid form any more, or the index has
            // one of its name that was deleted.
            None => self.unfeed(&id, edits),
        }
        if let Some(seen) = self.seen.get_mut(&id) {
            if refused.is_none() {
                seen.texts_in_force.clone_from(&seen.texts);
            } else if !was_valid {
                seen.texts_in_force.clear();
            }
            seen.attached = judged.attached;
            if is_valid {
                seen.valid = Some(seen.object.clone());
            } else if refused.is_none() {
                seen.valid = None;
            }
            seen.refused = refused;
        }
    }

    /// Takes an object out of the index.
    fn unfeed(&mut self, id: &Id, edits: &mut Vec<Edit>) {
        let Some(old) = self.fed.remove(id) else {
            return;
        };
        edits.push(match old {
            Object::Mesh(_) => Edit::Put(Box::new(self.base.clone())),
            old => Edit::Delete {
                kind: old.kind().to_owned(),
                name: old.name().to_owned(),
            },
        });
    }

    /// Judges a form of an object: the present one, or its last valid one.
    fn judge(&self, kind: &'static Kind, form: &Value, seen: &Seen, state: &State) -> Judged {
        match kind.kind {
            "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" if kind.group != SMI_SPECS => {
                self.route(kind, form, seen, state)
            }
            _ => self.policy(kind, form, seen, state),
        }
    }

    /// Tulle's own kinds and SMI's.
    fn policy(&self, kind: &'static Kind, form: &Value, seen: &Seen, state: &State) -> Judged {
        let mut object = form.clone();
        let namespace = text(&form["metadata"], "namespace");
        let mut references = References::default();
        let read = if kind.kind == "Mesh" {
            self.mesh(&mut object)
        } else {
            let from = (kind.group, kind.kind, namespace);
            let (spec, grants) = (&mut object["spec"], &self.view.grants);
            references.extend(refs::targets(spec, namespace, state));
            if kind.kind == "Egress" {
                references.extend(refs::egress_gateway(spec, namespace, state, &self.view));
                let group = |name: &str| self.find(SMI_SPECS, "HTTPRouteGroup", name, namespace);
                references.groups(spec, namespace, group);
            }
            references.extend(refs::backends(spec, from, grants, state));
            references.texts(spec, from, grants, &self.texts, &self.chosen.unread);
            refs::own(kind, namespace, spec, grants)
                .and_then(|()| crate::object::qualified(&object))
        };
        let read = read.map_err(|why| one_line(&why));
        let status = (kind.group == "tulle.dev").then(|| {
            let accepted = match &read {
                Ok(_) => Condition::new("Accepted", true, "Accepted", "it is in force"),
                Err(why) => Condition::new("Accepted", false, "Invalid", why),
            };
            let both = references.conditions(accepted);
            conditions(&seen.status, &both, seen.generation)
        });
        Judged {
            object: Some(read),
            status,
            ..Judged::default()
        }
    }

    /// An object, in force or not.
    fn find(&self, group: &str, kind: &str, name: &str, namespace: &str) -> Option<&Value> {
        let key = ObjectName::in_namespace(name, namespace);
        let seen = self.seen.get(&(Kind::find(group, kind)?, key))?;
        Some(&seen.object)
    }

    fn mesh(&self, object: &mut Value) -> Result<Object, String> {
        if text(&object["metadata"], "name") != MESH {
            return Err(format!("only the Mesh named `{MESH}` has an effect"));
        }
        let Object::Mesh(base) = &self.base else {
            return Err("there is no mesh".into());
        };
        let trust_domain = base.spec.trust_domain.as_str();
        match object["spec"].get("trustDomain").and_then(Value::as_str) {
            Some(other) if other != trust_domain => {
                return Err(other_trust_domain(trust_domain, other));
            }
            _ => object["spec"]["trustDomain"] = trust_domain.into(),
        }
        let chosen = serde_json::to_value(&base.spec).map_err(|e| e.to_string())?;
        settings_of_mesh(&mut object["spec"], chosen);
        crate::object::read(object)
    }

    fn route(&self, kind: &'static Kind, form: &Value, seen: &Seen, state: &State) -> Judged {
        let mut object = form.clone();
        let namespace = text(&form["metadata"], "namespace");
        let from = (kind.group, kind.kind, namespace);
        let mut references = References::default();
        references.filters(&object["spec"], namespace, |kind, name| {
            self.find("tulle.dev", kind, name, namespace).is_some()
        });
        let backends = refs::backends(&mut object["spec"], from, &self.view.grants, state);
        references.extend(backends);
        let given = list(&form["spec"]["parentRefs"]);
        let ours: Vec<(&Value, Parent)> = given
            .into_iter()
            .filter_map(|reference| {
                let judged = parent(&self.view, kind, form, reference, state)?;
                Some((reference, judged))
            })
            .collect();
        if ours.is_empty() {
            // The status may hold an entry of ours from before.
            return Judged {
                status: Some(parents(&seen.status, &[])),
                ..Judged::default()
            };
        }
        let accepted = ours.iter().filter_map(|(_, judged)| judged.as_ref().ok());
        object["spec"]["parentRefs"] = accepted.flatten().cloned().collect();
        let effective = list(&object["spec"]["parentRefs"]);
        // The route is one of theirs whether it can be read or not (Gateway API, `attachedRoutes`).
        let attached = effective.iter().filter_map(|parent| {
            let gateway = gateway_of(parent, namespace)?;
            Some((gateway, text(parent, "sectionName").to_owned()))
        });
        let attached = attached.collect();
        let read = (!effective.is_empty()).then(|| crate::object::qualified(&object));
        let entries: Vec<Value> = ours
            .iter()
            .map(|(reference, judged)| {
                let accepted = match (judged, &read) {
                    (Err((reason, why)), _) => Condition::new("Accepted", false, reason, why),
                    (_, Some(Err(why))) => {
                        Condition::new("Accepted", false, "UnsupportedValue", why)
                    }
                    _ => Condition::new("Accepted", true, "Accepted", "it is in force"),
                };
                let entry = json!({ "parentRef": reference, "controllerName": CONTROLLER_NAME });
                let before = list(&seen.status["parents"]).into_iter().find(|old| {
                    old["parentRef"] == entry["parentRef"]
                        && old["controllerName"] == entry["controllerName"]
                });
                let both = references.conditions(accepted);
                let mut made = conditions(before.unwrap_or(&Value::Null), &both, seen.generation);
                made["parentRef"] = entry["parentRef"].clone();
                made["controllerName"] = entry["controllerName"].clone();
                made
            })
            .collect();
        Judged {
            object: read,
            status: Some(parents(&seen.status, &entries)),
            attached,
        }
    }
}

const SMI_SPECS: &str = "specs.smi-spec.io";

#[cfg(test)]
mod tests;
