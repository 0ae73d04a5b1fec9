//! Everything that makes a write impossible, looked at before anything is written.

use super::list::HIDDEN;
use super::{Actor, MAX_OBJECTS, MeshState, Refused, TRUST_DOMAIN};
use crate::index::{self, Index};
use crate::store::Space;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::{NODE_LABEL, Object, Problem, Severity, WorkloadSpec};

/// Most bytes of manifests that a joined host may bring. A large host with a thousand Workloads needs 2 MiB: a manifest with
/// some ports, arguments and variables has 1 to 2 KiB. The controller keeps them all in memory and on its disk.
const MAX_NODE_BYTES: usize = 8 << 20;

impl MeshState {
    /// Everything that makes a batch impossible, before anything is written. Returns the problems that do
    /// not.
    pub(super) fn check(
        &self,
        index: &Index,
        actor: &Actor,
        batch: &[Object],
        replaces_mesh: &str,
    ) -> Result<Vec<Problem>, Refused> {
        let inputs = index.inputs();
        if batch.len() > MAX_OBJECTS || self.store_is_full(index, batch) {
            return Err(Refused::TooMany(format!(
                "a mesh has at most {MAX_OBJECTS} objects"
            )));
        }
        let mut seen = BTreeSet::new();
        let mut workloads: BTreeMap<&str, &WorkloadSpec> = BTreeMap::new();
        for object in batch {
            let id = object.id();
            if !seen.insert((object.kind(), object.name())) {
                return Err(Refused::Invalid(format!("{id} is given twice")));
            }
            if let Actor::Node(node) = actor {
                self.check_node(node, object)?;
            }
            match object {
                Object::Mesh(mesh) => {
                    self.check_trust_domain(&id, &mesh.spec.trust_domain)?;
                }
                Object::Secret(secret) if secret.string_data.values().any(|v| v == HIDDEN) => {
                    return Err(Refused::Invalid(format!(
                        "{id}: `{HIDDEN}` stands for hidden content: apply it from the file it came \
                         from, not as `tulle get` shows it"
                    )));
                }
                Object::Workload(workload) => {
                    workloads.insert(&workload.metadata.name, &workload.spec);
                }
                _ => {}
            }
        }
        if let Actor::Node(node) = actor {
            self.check_node_bytes(node, batch)?;
        }
        self.check_single_mesh(batch, replaces_mesh)?;
        let found = index::certificates_of_batch(inputs, batch, SystemTime::now());
        let (wrong, found): (Vec<_>, Vec<_>) = found
            .into_iter()
            .partition(|p| p.severity == Severity::Error);
        if !wrong.is_empty() {
            let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            return Err(Refused::Invalid(wrong.join("\n")));
        }
        let touched: BTreeSet<&str> = workloads
            .iter()
            .map(|(name, spec)| index::service_of(name, spec))
            .collect();
        for service in touched {
            let kept = inputs.workloads_of(service);
            let kept = kept.filter(|(name, _)| !workloads.contains_key(name));
            let new = workloads.iter().map(|(name, spec)| (*name, *spec));
            let new = new.filter(|(name, spec)| index::service_of(name, spec) == service);
            if let Some(conflict) = index::port_conflict(service, kept.chain(new)) {
                return Err(Refused::Conflict(conflict));
            }
        }
        Ok(found)
    }

    fn store_is_full(&self, index: &Index, batch: &[Object]) -> bool {
        // Only workloads come in numbers; the exact count does not matter for a limit.
        index.inputs().workloads.len() + batch.len() > MAX_OBJECTS
    }

    fn check_single_mesh(&self, batch: &[Object], replaced: &str) -> Result<(), Refused> {
        let mut names = BTreeSet::new();
        for object in batch {
            if matches!(object, Object::Mesh(_)) {
                names.insert(object.name().to_owned());
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        let stored = self.store.objects()?;
        let stored = stored.into_iter();
        let stored = stored.filter(|o| o.kind == "Mesh" && o.name != replaced);
        names.extend(stored.map(|o| o.name));
        if names.len() > 1 {
            let names: Vec<String> = names.into_iter().map(|n| format!("Mesh/{n}")).collect();
            return Err(Refused::Conflict(format!(
                "there is at most one Mesh, not {}: delete the other first",
                names.join(" and ")
            )));
        }
        Ok(())
    }

    fn check_trust_domain(&self, object: &str, wanted: &TrustDomain) -> Result<(), Refused> {
        let recorded = self.store.value(Space::Settings, TRUST_DOMAIN)?;
        match recorded {
            Some(is) if is != wanted.as_str().as_bytes() => Err(Refused::Conflict(format!(
                "{object}: spec.trustDomain cannot change from {} to {wanted}: identities of it \
                 have been issued. Keep it, or start a new mesh in another state directory",
                String::from_utf8_lossy(&is)
            ))),
            _ => Ok(()),
        }
    }

    /// A node may only touch workloads that are its own and stay so. Without the label the
    /// controller's host would run the command, with another node's label that node.
    fn check_node(&self, node: &str, object: &Object) -> Result<(), Refused> {
        let Object::Workload(workload) = object else {
            return Err(Refused::NotAllowed(format!(
                "node {node} may apply Workloads only, not {}: apply it on the controller's host",
                object.id()
            )));
        };
        let runs_on = workload.metadata.labels.get(NODE_LABEL);
        if runs_on.map(String::as_str) != Some(node) {
            return Err(Refused::NotAllowed(format!(
                "node {node} may apply its own Workloads only: give {} the label {NODE_LABEL}: \
                 {node}",
                object.id()
            )));
        }
        // A workload that cannot be read is not in the index, and has an owner all the same.
        let stored = self.store.object_bytes(object.kind(), object.name())?;
        if stored.is_some() {
            self.check_owner(node, object.name())?;
        }
        Ok(())
    }

    /// A node has bounded room, so that it cannot fill the controller's. If it has more already, which an operator or an
    /// earlier version has let in, it may change that as long as it does not grow.
    fn check_node_bytes(&self, node: &str, batch: &[Object]) -> Result<(), Refused> {
        let mut each = BTreeMap::new();
        for (workload, owner) in self.store.values(Space::Owners)? {
            if owner == node.as_bytes() {
                let bytes = self.store.object_bytes("Workload", &workload)?;
                each.insert(workload, bytes.unwrap_or_default());
            }
        }
        let before: usize = each.values().sum();
        for object in batch {
            each.insert(object.name().to_owned(), object.to_json().len());
        }
        let after: usize = each.values().sum();
        if after <= MAX_NODE_BYTES || after <= before {
            return Ok(());
        }
        Err(Refused::TooMany(format!(
            "the Workloads of node {node} would have {after} bytes, and the controller keeps at most {MAX_NODE_BYTES} of \
             one host: shorten them (long variables and arguments can be in files of the host), delete some with `tulle \
             delete workload NAME`, or apply them on the controller's host"
        )))
    }

    pub(super) fn check_owner(&self, node: &str, workload: &str) -> Result<(), Refused> {
        let owner = self.store.value(Space::Owners, workload)?;
        if owner.as_deref() == Some(node.as_bytes()) {
            return Ok(());
        }
        Err(Refused::NotAllowed(format!(
            "Workload/{workload} does not belong to node {node}: it may not change it"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tulle_api::v1;

    fn mesh(name: &str, trust_domain: &str, replaces_mesh: &str) -> v1::ApplyRequest {
        let json = json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": name },
            "spec": { "trustDomain": trust_domain, "mtls": { "mode": "permissive" } },
        });
        let object = v1::Object {
            kind: "Mesh".into(),
            name: name.into(),
            json: json.to_string(),
        };
        v1::ApplyRequest {
            objects: vec![object],
            replaces_mesh: replaces_mesh.into(),
            ..Default::default()
        }
    }

    fn stored(state: &MeshState) -> Vec<String> {
        let stored = state.list(&Actor::Operator, "Mesh", "").unwrap();
        stored.into_iter().map(|o| o.name).collect()
    }

    #[test]
    fn a_mesh_takes_the_place_of_the_one_that_it_names_or_changes_nothing() {
        let state = MeshState::in_memory().unwrap();
        let apply = |asked: &v1::ApplyRequest| state.apply(&Actor::Operator, asked);
        apply(&mesh("one", "a.example", "")).unwrap();
        for (why, refused) in [
            ("it names none", mesh("two", "a.example", "")),
            ("it names another", mesh("two", "a.example", "three")),
            ("it is wrong", mesh("two", "b.example", "one")),
        ] {
            assert!(apply(&refused).is_err(), "{why}");
            assert_eq!(stored(&state), ["one"], "{why}");
        }
        let dry = v1::ApplyRequest {
            dry_run: true,
            ..mesh("two", "a.example", "one")
        };
        apply(&dry).unwrap();
        assert_eq!(stored(&state), ["one"], "of a dry run");

        let is_known = || state.with_index(|index| index.inputs().mesh.is_some());
        apply(&mesh("two", "a.example", "one")).unwrap();
        assert_eq!(stored(&state), ["two"]);
        assert!(is_known());
        // Once more, after an answer that was lost, and of one that keeps its name.
        for replaced in ["one", "two"] {
            apply(&mesh("two", "a.example", replaced)).unwrap();
            assert_eq!(stored(&state), ["two"], "{replaced}");
            assert!(is_known());
        }
        // Without another Mesh it stays.
        let nothing = v1::ApplyRequest {
            objects: Vec::new(),
            ..mesh("two", "a.example", "two")
        };
        apply(&nothing).unwrap();
        assert_eq!(stored(&state), ["two"]);
    }
}
