//! The mesh as it was: edits are taken back from a copy of what is there now.

use super::nodes::{self, EndpointFacts, Nodes};
use super::{Edit, Index, Unit, certificates, dependents};
use std::collections::BTreeSet;
use tulle_model::manifest::Object;

/// Bytes that something small takes, at a guess.
const SMALL: usize = 512;

/// An edit that takes another back, and what that did to an object, if it did.
#[derive(Debug, Clone)]
pub(crate) struct Undo {
    pub(crate) edit: Edit,
    /// Kind, name, and `created`, `changed` or `deleted`.
    pub(crate) done: Option<(&'static str, String, &'static str)>,
    /// How much memory it takes, at a guess.
    pub(crate) bytes: usize,
}

impl Index {
    /// Grows with each change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Lists who there is.
    pub(crate) fn nodes(&self) -> Nodes {
        nodes::nodes(&self.inputs)
    }

    /// Lists where a service is served.
    pub(crate) fn endpoints(&self, service: &str) -> Vec<EndpointFacts> {
        nodes::endpoints(&self.inputs, service)
    }

    /// Lists the certificates that listeners of gateways present: gateway, Secret and when it ends, in Unix seconds.
    pub(crate) fn listener_certificates(&self) -> Vec<(String, String, i64)> {
        certificates::of_listeners(&self.inputs)
    }

    /// Returns ids of the nodes that an object has a part in.
    pub(crate) fn acts_on(&self, kind: &str, name: &str) -> Vec<String> {
        let mut units = BTreeSet::new();
        dependents::object(&self.inputs, kind, name, &mut units);
        let nodes = units.into_iter().filter_map(|unit| match unit {
            Unit::Service(name) => Some(format!("service/{name}")),
            Unit::Gateway(name) => Some(format!("gateway/{name}")),
            Unit::Egress if kind == "Egress" => Some(format!("egress/{name}")),
            _ => None,
        });
        nodes.collect()
    }

    /// Returns what takes an edit back that is about to be made; `None`: it changes nothing that matters to calls.
    pub(crate) fn undo(&self, edit: &Edit) -> Option<Undo> {
        let inputs = &self.inputs;
        let cluster = inputs.cluster.as_ref();
        let small = |edit| {
            Some(Undo {
                edit,
                done: None,
                bytes: SMALL,
            })
        };
        match edit {
            Edit::Put(object) => self.undo_put(object),
            Edit::Delete { kind, name } => {
                let old = inputs.object(kind, name)?;
                Some(put(old, "deleted"))
            }
            Edit::Place(new) => match inputs.placements.get(&new.workload) {
                Some(old) if old == new => None,
                Some(old) => small(Edit::Place(old.clone())),
                None => small(Edit::Unplace {
                    workload: new.workload.clone(),
                }),
            },
            Edit::Unplace { workload } => {
                let old = inputs.placements.get(workload)?;
                small(Edit::Place(old.clone()))
            }
            Edit::Service(new) => match inputs.cluster_service(new.name.as_str()) {
                Some(old) if *old == **new => None,
                Some(old) => small(Edit::Service(Box::new(old.clone()))),
                None => small(Edit::RemoveService(new.name.clone())),
            },
            Edit::RemoveService(name) => {
                let old = inputs.cluster_service(name.as_str())?;
                small(Edit::Service(Box::new(old.clone())))
            }
            Edit::Pod(new) => match cluster.and_then(|c| c.pod(&new.name)) {
                Some(old) if *old == **new => None,
                Some(old) => small(Edit::Pod(Box::new(old.clone()))),
                None => small(Edit::RemovePod(new.name.clone())),
            },
            Edit::RemovePod(name) => {
                let old = cluster?.pod(name)?;
                small(Edit::Pod(Box::new(old.clone())))
            }
            Edit::Gateway(new) => {
                let (edit, verb) = match inputs.cluster_gateway(new.name.as_str()) {
                    Some(old) if *old == **new => return None,
                    Some(old) => (Edit::Gateway(Box::new(old.clone())), "changed"),
                    None => (Edit::RemoveGateway(new.name.clone()), "created"),
                };
                Some(Undo {
                    edit,
                    done: Some(("Gateway", new.name.to_string(), verb)),
                    bytes: 4 * SMALL,
                })
            }
            Edit::RemoveGateway(name) => {
                let old = inputs.cluster_gateway(name.as_str())?;
                Some(Undo {
                    edit: Edit::Gateway(Box::new(old.clone())),
                    done: Some(("Gateway", name.to_string(), "deleted")),
                    bytes: 4 * SMALL,
                })
            }
            Edit::StrictNamespaces(new) => (*new != inputs.strict_namespaces)
                .then(|| Edit::StrictNamespaces(inputs.strict_namespaces.clone()))
                .and_then(small),
            Edit::Revoked(new) => (**new != inputs.revoked)
                .then(|| Edit::Revoked(Box::new(inputs.revoked.clone())))
                .and_then(small),
            // A question about a call names no certificate, so nobody asks for hosts. Keys are as in `undo_put`.
            Edit::RemovedHosts(_)
            | Edit::RevokedHosts(_)
            | Edit::Problems(_)
            | Edit::Refused(_)
            | Edit::Keys { .. }
            | Edit::ForgetKeys(_)
            | Edit::WaitForKeys(_) => None,
        }
    }

    fn undo_put(&self, new: &Object) -> Option<Undo> {
        let (kind, name) = (new.kind(), new.name());
        let mut undo = match self.inputs.object(kind, name) {
            Some(old) if old.to_json() == bare(new).to_json() => return None,
            Some(old) => put(old, "changed"),
            None => Undo {
                edit: Edit::Delete {
                    kind: kind.to_owned(),
                    name: name.to_owned(),
                },
                done: Some((kind, name.to_owned(), "created")),
                bytes: SMALL,
            },
        };
        // Their content of then is not kept, nor are keys that were fetched. It decides about a call only where it is so long
        // that a port has no room for its rules: that is judged by the content of now.
        if let Object::Secret(_) | Object::ConfigMap(_) = new {
            undo.edit = Edit::Put(Box::new(new.clone()));
        }
        Some(undo)
    }

    /// Returns the mesh of before these edits, the newest first. It can be asked to explain a call, and nothing else.
    pub(crate) fn before<'a>(&self, undone: impl Iterator<Item = &'a Edit>) -> Self {
        let mut past = Self::new(self.inputs.trust_domain.clone());
        past.inputs = self.inputs.clone();
        past.changed_by(undone.cloned());
        past
    }

    /// Returns the mesh of after these edits, to explain a call.
    pub(crate) fn after(&self, objects: &[Object]) -> Self {
        let edits = objects.iter().cloned();
        let edits: Vec<Edit> = edits.map(|object| Edit::Put(Box::new(object))).collect();
        self.before(edits.iter())
    }

    fn changed_by(&mut self, edits: impl Iterator<Item = Edit>) {
        for edit in edits {
            self.edit(edit, &mut BTreeSet::new());
        }
        self.recompute(BTreeSet::from([Unit::Mesh, Unit::Egress]));
    }
}

fn put(old: Object, verb: &'static str) -> Undo {
    let done = Some((old.kind(), old.name().to_owned(), verb));
    Undo {
        bytes: SMALL + 2 * old.to_json().len(),
        edit: Edit::Put(Box::new(old)),
        done,
    }
}

/// An object without what the index does not keep of it.
fn bare(object: &Object) -> Object {
    let mut object = object.clone();
    if !matches!(object, Object::Secret(_) | Object::ConfigMap(_)) {
        let metadata = object.metadata_mut();
        metadata.namespace = None;
        metadata.labels.clear();
        metadata.annotations.clear();
        metadata.created.clear();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_api::v1;
    use tulle_model::identity::TrustDomain;

    fn put(index: &mut Index, json: &serde_json::Value) -> Undo {
        let object = Object::from_json(&json.to_string()).unwrap();
        let edit = Edit::Put(Box::new(object));
        let undo = index.undo(&edit).unwrap();
        index.apply([edit]);
        undo
    }

    fn workload(name: &str) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "Workload", "metadata": { "name": name },
            "spec": { "command": ["/bin/true"], "ports": [{ "port": 80, "appProtocol": "http" }] },
        })
    }

    fn target(from: &str) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "access.smi-spec.io/v1alpha3", "kind": "TrafficTarget",
            "metadata": { "name": "t" },
            "spec": {
                "destination": { "kind": "ServiceAccount", "name": "b" },
                "sources": [{ "kind": "ServiceAccount", "name": from }],
            },
        })
    }

    #[test]
    fn a_call_is_judged_as_it_was() {
        let mut index = Index::new(TrustDomain::default());
        for name in ["a", "b", "c"] {
            put(&mut index, &workload(name));
        }
        let asked = v1::ExplainRequest {
            from: "a".into(),
            to: "b".into(),
            ..Default::default()
        };
        let created = put(&mut index, &target("a"));
        assert_eq!(created.done, Some(("TrafficTarget", "t".into(), "created")));
        let changed = put(&mut index, &target("c"));
        assert_eq!(changed.done.as_ref().unwrap().2, "changed");
        let allowed = |index: &Index| index.explain(&asked).unwrap().allowed;
        assert!(!allowed(&index));
        assert!(allowed(&index.before([&changed.edit].into_iter())));
        let both = [&changed.edit, &created.edit];
        assert!(!allowed(&index.before(both.into_iter())));
        // The same object again is no change.
        let again = Object::from_json(&target("c").to_string()).unwrap();
        assert!(index.undo(&Edit::Put(Box::new(again.clone()))).is_none());
        assert!(!allowed(&index.after(&[again])));
        assert_eq!(index.acts_on("TrafficTarget", "t"), ["service/b"]);
    }

    #[test]
    fn nodes_know_whose_an_identity_is() {
        let mut index = Index::new(TrustDomain::default());
        let mut replica = workload("b-2");
        replica["spec"]["service"] = "b".into();
        for json in [workload("a"), workload("b"), replica] {
            put(&mut index, &json);
        }
        let nodes = index.nodes();
        let b = "spiffe://tulle.local/svc/b";
        assert_eq!(&**nodes.of_identity(b), "service/b");
        assert_eq!(&**nodes.of_proxy(b, "b-2"), "service/b");
        // The name of another workload helps nobody.
        assert_eq!(
            &**nodes.of_proxy("spiffe://tulle.local/svc/a", "b-2"),
            "service/a"
        );
        assert_eq!(&**nodes.of_identity("spiffe://other/svc/b"), "outside");
        assert_eq!(&**nodes.of_destination("b"), "service/b");
        assert_eq!(&**nodes.of_destination("Egress/none"), "egress/unknown");
        assert!(nodes.serves(b, "service/b") && !nodes.serves(b, "service/a"));
        assert_eq!(nodes.find("b").unwrap().ports[&80], "http");
    }
}
