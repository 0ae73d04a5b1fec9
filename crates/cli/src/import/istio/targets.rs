//! Services that a policy of Istio is about.

use super::ROOT;
use crate::import::POLICY;
use crate::import::fields::{list, lose_rest, take, text};
use crate::import::imported::Imported;
use crate::import::services::{Service, labels};
use crate::import::source::Source;
use serde_json::Value;
use std::collections::BTreeMap;

/// Finds the Services all of whose pods a policy's selector chooses, or that it names, by their namespaces. A policy of the
/// root namespace is about those of all namespaces.
pub(super) fn targets<'s>(
    spec: &mut Value,
    source: &Source,
    services: &'s [Service],
    imported: &mut Imported,
) -> BTreeMap<Option<&'s str>, Vec<&'s Service>> {
    let mut named = list(spec, "targetRefs");
    named.extend(take(spec, "targetRef"));
    // A reference is to a Service of the policy's own namespace, also in the root namespace.
    let whole_mesh = is_of_root(source) && named.is_empty();
    let mut names = Vec::new();
    for (number, mut reference) in named.into_iter().enumerate() {
        let at = format!("spec.targetRefs[{number}]");
        if text(&mut reference, "kind").as_deref() != Some("Service") {
            let why = "only one about Services is translated";
            let instead = "write one that names the Gateway: docs/features/gateway-policies.md";
            imported.lose(&source.id, &at, why, instead);
            continue;
        }
        take(&mut reference, "group");
        names.extend(text(&mut reference, "name"));
        lose_rest(imported, &source.id, &at, &reference, POLICY);
    }
    let labels = labels(&take(spec, "selector/matchLabels").unwrap_or_default());
    take(spec, "selector");
    let mut meant: BTreeMap<Option<&str>, Vec<&Service>> = BTreeMap::new();
    for service in services {
        let theirs = service.namespace.as_deref();
        let namespace = if whole_mesh {
            theirs
        } else {
            source.namespace()
        };
        let is_named = names.is_empty() || names.contains(&service.name);
        if is_named && service.is_of(namespace, &labels) {
            meant.entry(theirs).or_default().push(service);
        }
    }
    if meant.is_empty() {
        let why = "no Service among the objects has only pods that it is about, and a policy is about Services";
        imported.lose(
            &source.id,
            "spec.selector",
            why,
            "give the Services, too: kubectl get services -A -o yaml",
        );
        // Nothing is made for this entry. It has the rules read once, so that all their losses are named.
        meant.insert(None, Vec::new());
    }
    meant
}

fn is_of_root(source: &Source) -> bool {
    source.namespace() == Some(ROOT)
}

/// Names what a policy becomes in a namespace. The namespace may have a policy of the same name itself.
pub(super) fn name_in(source: &Source, namespace: Option<&str>) -> String {
    match source.namespace() {
        Some(own) if namespace != Some(own) => format!("{own}-{}", source.name),
        _ => source.name.clone(),
    }
}

/// Returns a note about a policy that held for the whole mesh.
pub(super) fn mesh_wide(source: &Source) -> Option<String> {
    is_of_root(source).then(|| {
        format!(
            "those of {ROOT} held for all namespaces: one that gets Services later needs its own"
        )
    })
}
