//! Callers and gateways that see an object by its `exportTo`. A route here is for all callers of a Service of its own namespace, and
//! for the callers of the route's namespace where the Service is in another; at a gateway it is for all clients.

use super::proxies::Proxies;
use crate::import::imported::Imported;
use crate::import::source::Source;
use crate::import::texts;
use serde_json::Value;
use std::collections::BTreeSet;

const SEEN: &str = "leave `exportTo` out, and translate it again, if all may have the route";

/// Namespaces that see an object.
pub(super) struct Exported<'s> {
    id: &'s str,
    /// The object's own namespace.
    own: &'s str,
    /// None: all of them.
    namespaces: Option<BTreeSet<String>>,
}

impl<'s> Exported<'s> {
    /// Takes `exportTo`.
    pub(super) fn read(spec: &mut Value, source: &'s Source) -> Self {
        let own = source.namespace().unwrap_or_default();
        let exported = texts(spec, "exportTo");
        let is_for_all = exported.is_empty() || exported.iter().any(|to| to == "*");
        let named = exported.iter().filter(|to| *to != "~");
        let named = named.map(|to| if to == "." { own } else { to.as_str() });
        Self {
            id: &source.id,
            own,
            namespaces: (!is_for_all).then(|| named.map(str::to_owned).collect()),
        }
    }

    pub(super) fn is_for_all(&self) -> bool {
        self.namespaces.is_none()
    }

    /// Keeps the Services, as parents of a route, at which the route is for nobody who did not see it.
    pub(super) fn services(&self, mut parents: Vec<Value>, imported: &mut Imported) -> Vec<Value> {
        let Some(namespaces) = &self.namespaces else {
            return parents;
        };
        let before = parents.len();
        parents.retain(|parent| namespaces.contains(self.own) && is_elsewhere(parent));
        if parents.len() < before {
            let why = format!(
                "it was for callers of {} alone, and a route for a Service of its own namespace is for all callers",
                named(namespaces)
            );
            imported.lose(self.id, "spec.exportTo", &why, SEEN);
        } else if namespaces.len() > 1 && !parents.is_empty() {
            let why = format!(
                "it was for callers of {}, and a route for a Service of another namespace is for callers of its own",
                named(namespaces)
            );
            imported.lose(self.id, "spec.exportTo", &why, "copy it to the others");
        }
        parents
    }

    /// Names that a route for all callers is for those of its own namespace at Services of others.
    pub(super) fn lose_callers(&self, parents: &[Value], imported: &mut Imported) {
        let there = namespaces_elsewhere(parents);
        if !self.is_for_all() || there.is_empty() {
            return;
        }
        let there = named(&there);
        let own = match self.own {
            "" => "its own namespace",
            own => own,
        };
        let why = format!(
            "it was for all callers; here it is for those of {own} where the Services are of another namespace ({there})"
        );
        let instead = format!("put it into {there}");
        imported.lose(self.id, "spec.hosts", &why, &instead);
    }

    /// Keeps the gateways whose proxies saw it.
    pub(super) fn gateways<'g>(
        &self,
        mut gateways: Vec<&'g String>,
        proxies: &Proxies<'_>,
        imported: &mut Imported,
    ) -> Vec<&'g String> {
        let Some(namespaces) = &self.namespaces else {
            return gateways;
        };
        gateways.retain(|gateway| {
            let (namespace, name) = gateway.split_once('/').unwrap_or((self.own, gateway.as_str()));
            let theirs = proxies.namespaces(namespace, name);
            let saw_it = !theirs.is_empty() && theirs.iter().all(|one| namespaces.contains(*one));
            if !saw_it {
                let why = match theirs.is_empty() {
                    true => format!(
                        "it was for {} alone, and no Service among the objects says where the proxies of the Gateway {namespace}/{name} are",
                        named(namespaces)
                    ),
                    false => format!(
                        "it was for {} alone, and proxies of the Gateway {namespace}/{name} are elsewhere",
                        named(namespaces)
                    ),
                };
                imported.lose(self.id, "spec.exportTo", &why, SEEN);
            }
            saw_it
        });
        gateways
    }
}

/// Whether a parent is a Service of another namespace, which is named with it.
pub(super) fn is_elsewhere(parent: &Value) -> bool {
    parent["kind"] == "Service" && parent.get("namespace").is_some()
}

/// Returns the other namespaces that have Services among the parents.
pub(super) fn namespaces_elsewhere(parents: &[Value]) -> BTreeSet<String> {
    let there = parents.iter().filter(|parent| is_elsewhere(parent));
    let names = there.filter_map(|parent| parent["namespace"].as_str());
    names.map(str::to_owned).collect()
}

pub(super) fn named(namespaces: &BTreeSet<String>) -> String {
    let names: Vec<&str> = namespaces.iter().map(String::as_str).collect();
    match names.as_slice() {
        [] => "no namespace".to_owned(),
        names => names.join(", "),
    }
}
