//! Finds what does not fit together, and which nodes that is about. Looked at once for each change of the mesh.

use super::Observer;
use super::guide;
use super::pages::{AboutObject, FindingRow};
use crate::index::ObjectProblem;
use crate::reports::now;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;
use tulle_model::manifest::{Problem, Severity, validate_set};
use tulle_model::namespaced::Namespaced;

/// Certificates expire without a change: findings are at most so many seconds old.
const OLD: f64 = 30.0;

/// Findings as of a revision of the mesh and a time.
#[derive(Clone, Default)]
pub(super) struct Found {
    revision: u64,
    at: f64,
    pub(super) all: Arc<Vec<FindingRow>>,
    /// How many there are about objects that act on a node.
    pub(super) of_node: Arc<HashMap<String, usize>>,
}

impl Observer {
    /// Lists what does not fit together.
    pub fn findings(&self) -> Vec<FindingRow> {
        Vec::clone(&self.found().all)
    }

    /// Returns what does not fit together, as far as it is known or can be found out.
    pub(super) fn found(&self) -> Found {
        let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let revision = self.state.with_index(|index| index.revision());
        let at = now();
        // The clock may have been set back.
        let fresh =
            |found: &&Found| found.revision == revision && (0.0..OLD).contains(&(at - found.at));
        if let Some(found) = known.as_ref().filter(fresh) {
            return found.clone();
        }
        let all = self.find();
        let mut of_node: HashMap<String, usize> = HashMap::new();
        self.state.with_index(|index| {
            for object in all.iter().filter_map(|finding| finding.object.as_ref()) {
                for node in index.acts_on(&object.kind, &whole_name(object)) {
                    *of_node.entry(node).or_default() += 1;
                }
            }
        });
        let found = Found {
            revision,
            at,
            all: Arc::new(all),
            of_node: Arc::new(of_node),
        };
        *known = Some(found.clone());
        found
    }

    fn find(&self) -> Vec<FindingRow> {
        let in_cluster = self.in_cluster();
        let (objects, problems, refused, mut found) = self.state.with_index(|index| {
            let inputs = index.inputs();
            let certificates = index.certificate_problems(SystemTime::now());
            let refused = index.refused_objects().to_vec();
            // In a cluster an object's own status says what the API server's objects lack.
            match in_cluster {
                true => (Vec::new(), index.problems(), refused, certificates),
                false => {
                    let names = inputs.names().into_iter();
                    let objects = names.filter_map(|(kind, name)| inputs.object(kind, &name));
                    (objects.collect(), Vec::new(), refused, certificates)
                }
            }
        });
        // In a cluster nothing is stored, and on a host nothing that is refused.
        let refused = self.state.unread().into_iter().chain(refused);
        found.extend(refused.map(|problem| told(problem, Severity::Error)));
        found.extend(validate_set(objects.iter()));
        let problems = problems.into_iter();
        found.extend(problems.map(|problem| told(problem, Severity::Warning)));
        found.into_iter().map(|p| finding(p, in_cluster)).collect()
    }
}

/// A problem that has no code.
fn told(problem: ObjectProblem, severity: Severity) -> Problem {
    Problem {
        code: "".into(),
        severity,
        object: problem.object,
        field: String::new(),
        message: problem.text,
    }
}

/// A finding as it is shown.
pub(super) fn finding(problem: Problem, in_cluster: bool) -> FindingRow {
    let object = problem.object.split_once('/');
    let object = object.map(|(kind, name)| object_name(kind, name, in_cluster));
    FindingRow {
        fix: guide::finding(&problem.code).fix.to_owned(),
        doc: match problem.code.is_empty() {
            true => String::new(),
            false => "docs/findings.md".into(),
        },
        code: problem.code.into_owned(),
        severity: match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        object,
        field: problem.field,
        message: problem.message,
    }
}

/// Takes a name and its namespace apart.
pub(super) fn object_name(kind: &str, name: &str, in_cluster: bool) -> AboutObject {
    let whole = Namespaced::parse(name).filter(|_| in_cluster);
    AboutObject {
        kind: kind.to_owned(),
        name: whole.as_ref().map_or(name, Namespaced::name).to_owned(),
        namespace: whole.map(|whole| whole.namespace().to_owned()),
    }
}

/// A name as the index has it.
fn whole_name(object: &AboutObject) -> String {
    match &object.namespace {
        Some(namespace) => format!("{}.{namespace}", object.name),
        None => object.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::Authority;
    use crate::state::{Actor, MeshState};
    use crate::store::{Memory, Store, Write};
    use serde_json::{Value, json};

    /// A mesh in whose store another version has left these objects, by kind and name.
    fn observed(left: &[(&str, &str, Value)]) -> (Arc<MeshState>, Observer) {
        let writes = left.iter().map(|(kind, name, left)| Write::Put {
            kind: (*kind).to_owned(),
            name: (*name).to_owned(),
            json: left.to_string(),
        });
        let store = Arc::new(Memory::new());
        store.commit(&writes.collect::<Vec<_>>()).unwrap();
        let authority = Authority::open(&*store).unwrap();
        let state = Arc::new(MeshState::load(store, authority).unwrap());
        let observer = Observer::new(state.clone());
        (state, observer)
    }

    /// Findings about stored objects that cannot be read, with the objects that they lead to.
    fn unread(observer: &Observer) -> Vec<(Option<String>, String)> {
        let all = observer.findings().into_iter();
        let unread = all.filter(|f| f.message.contains("this version cannot read it"));
        let shown = unread.map(|finding| {
            assert_eq!(finding.severity, "error");
            let object = finding.object.map(|o| format!("{}/{}", o.kind, o.name));
            (object, finding.message)
        });
        shown.collect()
    }

    #[test]
    fn what_denies_in_the_place_of_an_unread_object_is_refused_with_the_reason() {
        let kinds = ["Authentication", "AuthorizationPolicy", "RateLimit"];
        let left = kinds.map(|kind| {
            let left = json!({
                "apiVersion": "tulle.dev/v9", "kind": kind, "metadata": { "name": "p" },
                "spec": { "targetRefs": [{ "name": "b" }] },
            });
            (kind, "p", left)
        });
        let (state, observer) = observed(&left);

        let found = unread(&observer);
        let places = found.iter().map(|(object, _)| object.as_deref());
        let places: Vec<Option<&str>> = places.collect();
        let expected = [
            Some("AuthorizationPolicy/authentication/p"),
            Some("AuthorizationPolicy/p"),
            // Nothing stands in its place.
            None,
        ];
        assert_eq!(places, expected);
        for (kind, (_, message)) in kinds.iter().zip(&found) {
            assert!(message.starts_with(&format!("{kind}/p: ")), "{message}");
        }
        let policies = observer.objects(Some("AuthorizationPolicy"));
        assert_eq!(policies.len(), 2);
        for policy in policies {
            assert_eq!(policy.status, "refused", "{policy:?}");
            let reason = "this version cannot read it";
            assert!(policy.message.contains(reason), "{policy:?}");
        }
        for kind in kinds {
            assert!(state.delete(&Actor::Operator, kind, "p").unwrap());
        }
        assert!(unread(&observer).is_empty());
    }

    #[test]
    fn a_mesh_in_the_place_of_an_unread_one_is_refused_with_the_reason() {
        let left = json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": "m" },
            "spec": { "newer": 1, "revoked": [{ "newer": 1 }] },
        });
        let (state, observer) = observed(&[("Mesh", "m", left)]);

        let found = unread(&observer);
        let places = found.iter().map(|(object, _)| object.as_deref());
        let places: Vec<Option<&str>> = places.collect();
        let expected = [Some("AuthorizationPolicy/mesh/m"), Some("Mesh/mesh")];
        assert_eq!(places, expected);
        for object in observer.objects(None) {
            assert_eq!(object.status, "refused", "{object:?}");
            assert!(object.message.starts_with("Mesh/m: "), "{object:?}");
        }
        assert!(state.delete(&Actor::Operator, "Mesh", "m").unwrap());
        assert!(unread(&observer).is_empty());
        assert!(observer.objects(None).is_empty());
    }
}
