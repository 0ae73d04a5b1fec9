//! Objects, what they act on, and what is wrong with them.

use super::Observer;
use super::findings::object_name;
use super::pages::{AboutObject, ActsOn, FindingRow, ObjectPage, ObjectRow};
use crate::state::Actor;
use std::collections::HashMap;
use tulle_model::manifest::{Object, Severity};

/// Kinds of which only names are shown.
const HIDDEN: &str = "Secret";

/// Findings by object: each object of a list looks at its own alone.
type ByObject<'a> = HashMap<&'a AboutObject, Vec<&'a FindingRow>>;

impl Observer {
    /// Objects of a kind, or all.
    pub fn objects(&self, kind: Option<&str>) -> Vec<ObjectRow> {
        let names = self.state.with_index(|index| index.inputs().names());
        let wanted = names
            .into_iter()
            .filter(|(of, _)| kind.is_none_or(|kind| kind == *of));
        let (found, changed) = (self.found(), self.changed());
        let findings = by_object(&found.all);
        let all = wanted.map(|(kind, name)| self.reference(kind, &name, &findings, &changed));
        all.collect()
    }

    /// All about an object.
    pub fn object(&self, kind: &str, name: &str, namespace: Option<&str>) -> Option<ObjectPage> {
        let whole = match namespace.filter(|namespace| !namespace.is_empty()) {
            Some(namespace) => format!("{name}.{namespace}"),
            None => name.to_owned(),
        };
        let (known, acts) = self.state.with_index(|index| {
            (
                index.inputs().object(kind, &whole),
                index.acts_on(kind, &whole),
            )
        });
        let known = known?;
        let found = self.found();
        let findings = by_object(&found.all);
        let about = findings.get(&object_name(kind, &whole, self.in_cluster()));
        Some(ObjectPage {
            reference: self.reference(known.kind(), &whole, &findings, &self.changed()),
            yaml: self.yaml(&known),
            acts: acts.into_iter().map(|on| ActsOn { on }).collect(),
            findings: about.into_iter().flatten().copied().cloned().collect(),
        })
    }

    /// An object as it is kept; in a cluster what the index knows of it.
    fn yaml(&self, known: &Object) -> String {
        if known.kind() == HIDDEN {
            let name = known.name();
            return format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n");
        }
        let stored = match self.in_cluster() {
            true => None,
            false => self
                .state
                .list(&Actor::Operator, known.kind(), known.name())
                .ok(),
        };
        let stored = stored.and_then(|objects| crate::objects::read(&objects.first()?.json).ok());
        stored.as_ref().unwrap_or(known).to_yaml()
    }

    /// When objects changed, within the history.
    fn changed(&self) -> HashMap<String, i64> {
        let marks = self.marks(0.0, f64::MAX).into_iter();
        #[allow(clippy::cast_possible_truncation)] // seconds of this century
        let changed = marks.map(|mark| (mark.what, mark.at as i64));
        changed.collect()
    }

    fn reference(
        &self,
        kind: &str,
        name: &str,
        findings: &ByObject<'_>,
        changed: &HashMap<String, i64>,
    ) -> ObjectRow {
        let split = object_name(kind, name, self.in_cluster());
        let mut about = findings.get(&split).into_iter().flatten();
        let worst = about
            .clone()
            .find(|f| f.severity == severity(Severity::Error));
        let first = worst.or_else(|| about.next());
        ObjectRow {
            kind: split.kind,
            name: split.name,
            namespace: split.namespace,
            status: match worst {
                Some(_) => "refused",
                None => "accepted",
            },
            message: first.map(|f| f.message.clone()).unwrap_or_default(),
            changed_at: changed.get(&format!("{kind} {name}")).copied(),
        }
    }

    /// Objects that act on a node.
    pub(super) fn acting_on(&self, node: &str) -> Vec<ObjectRow> {
        let names = self.state.with_index(|index| {
            let names = index.inputs().names().into_iter();
            // The Mesh acts on everything.
            let acting = names.filter(|(kind, name)| {
                *kind != "Mesh" && index.acts_on(kind, name).iter().any(|on| on == node)
            });
            acting.collect::<Vec<_>>()
        });
        let (found, changed) = (self.found(), self.changed());
        let findings = by_object(&found.all);
        let all = names.into_iter();
        let all = all.map(|(kind, name)| self.reference(kind, &name, &findings, &changed));
        all.collect()
    }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn by_object(findings: &[FindingRow]) -> ByObject<'_> {
    let mut all: ByObject<'_> = HashMap::new();
    for finding in findings {
        if let Some(object) = &finding.object {
            all.entry(object).or_default().push(finding);
        }
    }
    all
}
