//! Finds what does not fit together, and which nodes that is about. Looked at once for each change of the mesh.

use super::Observer;
use super::guide;
use super::pages::{AboutObject, FindingRow};
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
        let (objects, problems, mut found) = self.state.with_index(|index| {
            let inputs = index.inputs();
            let certificates = index.certificate_problems(SystemTime::now());
            // In a cluster an object's own status says what the API server's objects lack.
            match in_cluster {
                true => (Vec::new(), index.problems(), certificates),
                false => {
                    let names = inputs.names().into_iter();
                    let objects = names.filter_map(|(kind, name)| inputs.object(kind, &name));
                    (objects.collect(), Vec::new(), certificates)
                }
            }
        });
        found.extend(validate_set(objects.iter()));
        let problems = problems.into_iter().map(|problem| Problem {
            code: "".into(),
            severity: Severity::Warning,
            object: problem.object,
            field: String::new(),
            message: problem.text,
        });
        found.extend(problems);
        found.into_iter().map(|p| finding(p, in_cluster)).collect()
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
