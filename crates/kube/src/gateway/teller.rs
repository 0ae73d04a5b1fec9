//! Tells the index of gateways, and of the Secrets and ConfigMaps that they refer to. No I/O.

use super::plan::Planned;
#[cfg(test)]
use super::plan::plan;
use super::view::{Own, Text, TextState, View};
use crate::gateway_fields::{Key, TextKey};
use std::collections::{BTreeMap, BTreeSet};
use tulle_control::index::{ClusterGateway, Edit, ObjectProblem};
use tulle_model::manifest::{ConfigMap, ListenerSpec, Metadata, Object, ObjectRef, Secret};
use tulle_model::namespaced::Namespaced;

/// The gateways and texts that the index knows already.
#[derive(Default)]
pub(super) struct Teller {
    gateways: BTreeMap<Key, Known>,
    texts: BTreeMap<TextKey, Text>,
    problems: Vec<ObjectProblem>,
}

/// A gateway that the index knows.
struct Known {
    /// Its last valid form.
    valid: ClusterGateway,
    /// Names of listeners that the index does not have, because what they refer to is no longer permitted. A gateway
    /// whose object is refused now keeps its last valid form, and permissions of others end nevertheless.
    withheld: BTreeSet<String>,
}

impl Known {
    /// Returns what the index may know of it.
    fn permitted(&self) -> ClusterGateway {
        let mut told = self.valid.clone();
        let listeners = &mut told.spec.listeners;
        listeners.retain(|listener| !self.withheld.contains(&listener.name));
        told
    }
}

impl Teller {
    /// Tells what of Ingresses is not served, which no status of theirs can say.
    pub(super) fn problems(&mut self, plan: &BTreeMap<Key, Planned>) -> Option<Edit> {
        let all = plan.values().flat_map(|planned| &planned.problems);
        let all: Vec<ObjectProblem> = all.cloned().collect();
        (all != self.problems).then(|| {
            self.problems.clone_from(&all);
            Edit::Problems(all)
        })
    }

    /// Tells what has changed since the last time.
    pub(super) fn edits(
        &mut self,
        view: &View,
        own: &Own,
        plan: &BTreeMap<Key, Planned>,
        wanted: &BTreeSet<TextKey>,
    ) -> Vec<Edit> {
        let mut edits = Vec::new();
        // The objects that are referred to come first.
        let held = wanted.iter().filter_map(|key| match own.texts.get(key)? {
            TextState::Held(text) => Some((key.clone(), text.clone())),
            TextState::Absent | TextState::Forbidden => None,
        });
        let held: BTreeMap<TextKey, Text> = held.collect();
        for (key, text) in &held {
            if self.texts.get(key) != Some(text) {
                edits.push(Edit::Put(Box::new(object(key, text))));
            }
        }
        for (key, planned) in plan {
            edits.extend(self.gateway(view, key, planned.told.as_ref()));
        }
        self.gateways.retain(|key, known| {
            let stays = plan.get(key).is_some_and(|planned| !planned.egress);
            if !stays {
                edits.push(Edit::RemoveGateway(known.valid.name.clone()));
            }
            stays
        });
        for key in self.texts.keys().filter(|key| !held.contains_key(key)) {
            edits.push(Edit::Delete {
                kind: key.kind().into(),
                name: key.key.object_name().to_string(),
            });
        }
        self.texts = held;
        edits
    }

    /// Tells of a gateway, if the index has another form of it. Without a new form the last valid one is looked at
    /// again: its author cannot keep by a mistake what its owner takes back.
    fn gateway(&mut self, view: &View, key: &Key, told: Option<&ClusterGateway>) -> Option<Edit> {
        let before = self.gateways.get(key);
        let valid = told.or(before.map(|known| &known.valid))?;
        let denied = valid.spec.listeners.iter();
        let denied = denied.filter(|listener| !is_permitted(view, key, listener));
        let withheld: BTreeSet<String> = denied.map(|listener| listener.name.clone()).collect();
        if before.is_some_and(|known| known.valid == *valid && known.withheld == withheld) {
            return None;
        }
        if !withheld.is_empty() {
            let gateway = key.to_string();
            tracing::warn!(
                gateway,
                listeners = ?withheld,
                "they are no longer served: no ReferenceGrant permits what they refer to"
            );
        }
        let known = Known {
            valid: valid.clone(),
            withheld,
        };
        let edit = Edit::Gateway(Box::new(known.permitted()));
        self.gateways.insert(key.clone(), known);
        Some(edit)
    }
}

/// Whether a gateway may refer to all that one of its listeners refers to.
fn is_permitted(view: &View, gateway: &Key, listener: &ListenerSpec) -> bool {
    let Some(tls) = &listener.tls else {
        return true;
    };
    let validation = tls.frontend_validation.iter();
    let roots = validation.flat_map(|validation| &validation.ca_certificate_refs);
    let mut all = tls.certificate_refs.iter().chain(roots);
    all.all(|reference| text_key(reference).is_some_and(|text| view.is_granted(gateway, &text)))
}

/// Reads which Secret or ConfigMap a reference means, as the index has it: with its kind, and a name with a namespace.
fn text_key(reference: &ObjectRef) -> Option<TextKey> {
    let (name, namespace) = Namespaced::split(&reference.name)?;
    Some(TextKey {
        secret: reference.kind.as_deref() == Some("Secret"),
        key: Key::new(namespace, name),
    })
}

fn object(key: &TextKey, text: &Text) -> Object {
    let metadata = Metadata {
        name: key.key.object_name().to_string(),
        ..Metadata::default()
    };
    if key.secret {
        return Object::Secret(Secret {
            api_version: "v1".into(),
            kind: "Secret".into(),
            metadata,
            string_data: text.clone(),
            ..Secret::default()
        });
    }
    Object::ConfigMap(ConfigMap {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        metadata,
        data: text.clone(),
        ..ConfigMap::default()
    })
}

/// Tells an index of gateways, with Secrets and ConfigMaps that are read at once.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Told(Teller);

#[cfg(test)]
impl Told {
    /// Returns the edits, and what each gateway refers to.
    pub(crate) fn edits(
        &mut self,
        view: &View,
        read: impl Fn(&TextKey) -> Option<Text>,
    ) -> (Vec<Edit>, BTreeMap<Key, BTreeSet<TextKey>>) {
        let settings = r#"{"image":"tulle-proxy","controller":"c:15010","trustDomain":"td"}"#;
        let settings = serde_json::from_str(settings).expect("settings");
        let mut own = Own::default();
        let first = plan(view, &own, &settings, true, std::time::SystemTime::now());
        let mut wanted = view.texts.clone();
        wanted.extend(first.values().flat_map(|p| p.texts.clone()));
        for key in &wanted {
            let state = read(key).map_or(TextState::Absent, TextState::Held);
            own.texts.insert(key.clone(), state);
        }
        let plan = plan(view, &own, &settings, true, std::time::SystemTime::now());
        let edits = self.0.edits(view, &own, &plan, &wanted);
        let texts = plan.into_iter().map(|(key, planned)| (key, planned.texts));
        (edits, texts.collect())
    }
}

#[cfg(test)]
mod tests;
