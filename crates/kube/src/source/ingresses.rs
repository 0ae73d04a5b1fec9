//! The cluster's Ingresses, as edits of the index and as gateways. Pure.

use super::state::State;
use crate::gateway_fields::Key;
use crate::ingress::{Class, Ingress, Served, key, translate};
use kube::api::DynamicObject;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tulle_control::index::Edit;
use tulle_model::manifest::Object;
use tulle_model::namespaced::ObjectName;

/// The Ingresses of the API server, and the routes and gateways made of them.
#[derive(Default)]
pub(super) struct Ingresses {
    classes: BTreeMap<String, Class>,
    seen: BTreeMap<Key, Ingress>,
    served: BTreeMap<Key, Arc<Served>>,
    /// Routes that the index has.
    fed: BTreeMap<String, Object>,
    changed: bool,
    /// The revision of the known Services at the last look.
    revision: u64,
}

impl Ingresses {
    pub(super) fn apply(&mut self, kind: &str, name: ObjectName, object: DynamicObject) {
        if kind == "IngressClass" {
            self.classes.insert(name.to_string(), object.into());
        } else {
            let key = Key::from(&name);
            let read = Ingress::read(object, self.seen.remove(&key));
            self.seen.insert(key, read);
        }
        self.changed = true;
    }

    pub(super) fn remove(&mut self, kind: &str, name: &ObjectName) {
        match kind {
            "IngressClass" => drop(self.classes.remove(name.as_str())),
            _ => drop(self.seen.remove(&Key::from(name))),
        }
        self.changed = true;
    }

    pub(super) fn keep(&mut self, kind: &str, listed: &BTreeSet<ObjectName>) {
        match kind {
            "IngressClass" => self
                .classes
                .retain(|name, _| listed.contains(name.as_str())),
            _ => self
                .seen
                .retain(|key, _| listed.contains(&key.object_name())),
        }
        self.changed = true;
    }

    /// Adds what changed since the last time; returns whether anything had to be looked at.
    pub(super) fn edits(&mut self, state: &State, edits: &mut Vec<Edit>) -> bool {
        let references_changed = std::mem::replace(&mut self.revision, state.revision());
        let changed = std::mem::take(&mut self.changed);
        if !changed && (references_changed == state.revision() || self.seen.is_empty()) {
            return false;
        }
        let (served, routes) = self.translate(state);
        for (name, route) in &routes {
            if self.fed.get(name) != Some(route) {
                edits.push(Edit::Put(Box::new(route.clone())));
            }
        }
        let gone = self.fed.keys().filter(|name| !routes.contains_key(*name));
        edits.extend(gone.map(|name| Edit::Delete {
            kind: "HTTPRoute".into(),
            name: name.clone(),
        }));
        self.fed = routes;
        self.served = served;
        true
    }

    fn translate(&self, state: &State) -> (BTreeMap<Key, Arc<Served>>, BTreeMap<String, Object>) {
        let mut groups: BTreeMap<(&str, String), Vec<(&str, &Ingress)>> = BTreeMap::new();
        for (key, ingress) in &self.seen {
            if let Some(class) = ingress.class_among(&self.classes) {
                let group = groups.entry((&key.namespace, class)).or_default();
                group.push((&key.name, ingress));
            }
        }
        let (mut served, mut routes) = (BTreeMap::new(), BTreeMap::new());
        for ((namespace, class_name), ingresses) in groups {
            let Some(class) = self.classes.get(&class_name) else {
                continue;
            };
            let ports = |service: &str| {
                let ports = state.ports(service, namespace)?;
                Some(ports.map(|(name, port)| (name.to_owned(), port)).collect())
            };
            let made = translate(namespace, (&class_name, class), &ingresses, &ports);
            served.insert(key(namespace, &class_name), Arc::new(made.served));
            routes.extend(made.routes);
        }
        (served, routes)
    }

    /// Returns the gateways that serve Ingresses.
    pub(super) fn served(&self) -> &BTreeMap<Key, Arc<Served>> {
        &self.served
    }

    /// Counts the Ingresses of ours that are not in force as they are written.
    pub(super) fn refused(&self) -> Option<(&'static str, usize)> {
        let members = self.served.values().flat_map(|s| &s.members);
        let ours = members.count();
        let refused = self.seen.values().filter(|i| i.refused.is_some());
        let refused = refused.filter(|i| i.class_among(&self.classes).is_some());
        (ours > 0).then(|| ("Ingress", refused.count()))
    }
}

/// Ingresses for tests of the objects that are made of them.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use serde_json::{Value, json};
    use tulle_model::namespaced::Namespaced;

    #[derive(Default)]
    pub(crate) struct World {
        ingresses: Ingresses,
        state: State,
        uids: usize,
    }

    impl World {
        /// Sees an IngressClass of this controller.
        pub(crate) fn class(&mut self, name: &str, controller: &str, annotations: &Value) {
            let object = json!({
                "metadata": { "name": name, "annotations": annotations },
                "spec": { "controller": controller },
            });
            let object = serde_json::from_value(object).unwrap();
            let name = ObjectName::Plain(name.into());
            self.ingresses.apply("IngressClass", name, object);
        }

        /// Sees an Ingress that was made in the given second.
        pub(crate) fn ingress(&mut self, key: &str, second: u32, mut object: Value) {
            let key = Namespaced::parse(key).unwrap();
            let metadata = &mut object["metadata"];
            metadata["name"] = key.name().into();
            metadata["namespace"] = key.namespace().into();
            metadata["creationTimestamp"] = format!("2026-01-01T00:00:{second:02}Z").into();
            if metadata["uid"].is_null() {
                self.uids += 1;
                metadata["uid"] = format!("uid-{}", self.uids).into();
            }
            let object = serde_json::from_value(object).unwrap();
            self.ingresses.apply("Ingress", key.into(), object);
        }

        pub(crate) fn remove(&mut self, key: &str) {
            let key = Namespaced::parse(key).unwrap();
            self.ingresses.remove("Ingress", &key.into());
        }

        pub(crate) fn service(&mut self, key: &str, ports: &Value) {
            let service = json!({ "spec": { "ports": ports } });
            let service = serde_json::from_value(service).unwrap();
            let key = Namespaced::parse(key).unwrap();
            self.state.service(key, &service);
        }

        /// Returns the edits that the index receives.
        pub(crate) fn edits(&mut self) -> Vec<Edit> {
            let mut edits = Vec::new();
            self.ingresses.edits(&self.state, &mut edits);
            edits
        }

        pub(crate) fn served(&self) -> &BTreeMap<Key, Arc<Served>> {
            self.ingresses.served()
        }

        pub(crate) fn refused(&self) -> Option<(&'static str, usize)> {
            self.ingresses.refused()
        }
    }
}
