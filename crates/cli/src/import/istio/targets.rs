//! Services that a policy of Istio is about.

use super::ROOT;
use super::proxies::Proxies;
use crate::import::POLICY;
use crate::import::fields::{list, lose_rest, take, text, text_map};
use crate::import::imported::Imported;
use crate::import::services::Service;
use crate::import::source::Source;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Names of Services that a loss says; of more it says how many.
const NAMED: usize = 5;
const GATEWAY: &str =
    "write one that names the Gateway in its place: docs/features/gateway-policies.md";

/// Services that a policy is about.
pub(super) struct Targets<'s> {
    /// The Services by their namespaces. An entry without any has the rules read once, so that all their losses are named.
    pub(super) services: BTreeMap<Option<&'s str>, Vec<&'s Service>>,
    /// Whether the policy may be made for them.
    pub(super) are_known: bool,
}

/// Finds the Services all of whose pods a policy's selector chooses, or that it names, by their namespaces. A policy of the
/// root namespace is about those of all namespaces. It names those that it passes over.
pub(super) fn targets<'s>(
    spec: &mut Value,
    source: &Source,
    (services, proxies): (&'s [Service], &Proxies<'_>),
    imported: &mut Imported,
) -> Targets<'s> {
    let id = &source.id;
    let before = imported.lost.len();
    let mut named = list(spec, "targetRefs");
    named.extend(take(spec, "targetRef"));
    // A reference is to a Service of the policy's own namespace, also in the root namespace.
    let chooses = named.is_empty();
    let whole_mesh = is_of_root(source) && chooses;
    let at = match chooses {
        true => "spec.selector",
        false => "spec.targetRefs",
    };
    let mut names: Vec<(String, String)> = Vec::new();
    for (number, mut reference) in named.into_iter().enumerate() {
        let at = format!("spec.targetRefs[{number}]");
        if text(&mut reference, "kind").as_deref() != Some("Service") {
            let why = "only one about Services is translated";
            imported.lose(id, &at, why, GATEWAY);
            continue;
        }
        take(&mut reference, "group");
        let name = text(&mut reference, "name").unwrap_or_default();
        lose_rest(imported, id, &at, &reference, POLICY);
        names.push((at, name));
    }
    let labels = text_map(spec, "selector/matchLabels");
    // Without a part of its selector the policy would be about more Services.
    match take(spec, "selector") {
        None => {}
        Some(left @ Value::Object(_)) => lose_rest(imported, id, "spec.selector", &left, POLICY),
        Some(_) => {
            let why = "it is no mapping, so nobody can say which pods are meant";
            imported.lose(id, "spec.selector", why, POLICY);
        }
    }
    let mut are_known = imported.lost.len() == before;
    let mut meant: BTreeMap<Option<&str>, Vec<&Service>> = BTreeMap::new();
    let (mut of_gateways, mut in_part) = (Vec::new(), Vec::new());
    for service in services {
        let theirs = service.namespace.as_deref();
        let is_here = whole_mesh || theirs == source.namespace();
        let is_named = chooses || names.iter().any(|(_, name)| *name == service.name);
        if !is_here || !is_named {
            continue;
        }
        match service.selects(&labels) {
            true if proxies.are_behind(service) => of_gateways.push(service),
            true => meant.entry(theirs).or_default().push(service),
            false if service.may_select(&labels) => in_part.push(service),
            false => {}
        }
    }
    let found = meant.values().flatten().chain(&of_gateways).chain(&in_part);
    lose_missing(id, &names, found, imported);
    if !of_gateways.is_empty() && are_known {
        let why = format!(
            "pods of {} are a gateway's of Istio, which ends with it",
            listed(&of_gateways)
        );
        imported.lose(id, at, &why, GATEWAY);
    }
    if meant.is_empty() {
        if of_gateways.is_empty() && are_known {
            let why = "no Service among the objects has only pods that it is about, and a policy is about Services";
            let instead = "give the Services, too: kubectl get services -A -o yaml";
            imported.lose(id, at, why, instead);
        }
        are_known = false;
        meant.insert(None, Vec::new());
    } else if !in_part.is_empty() {
        let why = format!(
            "it may be about some pods of {} and not about others, and a policy is about all pods of a Service",
            listed(&in_part)
        );
        let instead = "write one about the whole Service, or give those pods a Service of their own that is called instead";
        imported.lose(id, at, &why, instead);
    }
    Targets {
        services: meant,
        are_known,
    }
}

/// Names the references to Services that were not found beside those that were.
fn lose_missing<'s>(
    id: &str,
    names: &[(String, String)],
    found: impl Iterator<Item = &'s &'s Service>,
    imported: &mut Imported,
) {
    let found: BTreeSet<&str> = found.map(|service| service.name.as_str()).collect();
    // Without any the whole policy is lost.
    if found.is_empty() {
        return;
    }
    for (at, name) in names {
        if !found.contains(name.as_str()) {
            let why = format!("there is no Service `{name}` with a selector among the objects");
            imported.lose(id, at, &why, "give it, too");
        }
    }
}

/// Names the first Services with their namespaces.
fn listed(services: &[&Service]) -> String {
    let name = |service: &&Service| match &service.namespace {
        Some(namespace) => format!("{namespace}/{}", service.name),
        None => service.name.clone(),
    };
    let mut names: Vec<String> = services.iter().take(NAMED).map(name).collect();
    if services.len() > NAMED {
        names.push(format!("{} others", services.len() - NAMED));
    }
    names.join(", ")
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
