//! Linkerd: who may call whom (`policy`), how a service is called (`service_profile`, `order`), routes of HTTP, and which pods
//! have sidecars (`labels`).

mod authentication;
mod labels;
mod order;
mod overlap;
mod policy;
mod service_profile;
mod target;
mod unused;

use super::imported::Imported;
use super::labels::{clean, import as import_labels, take_all};
use super::pods::name_ports;
use super::services::Service;
use super::source::Source;
use policy::Policies;
use serde_json::Value;
use target::is_gateway_route;

/// Translates all of them.
pub(super) fn import(objects: Vec<Value>) -> Imported {
    let mut imported = Imported::default();
    let mut services: Vec<Service> = objects.iter().filter_map(Service::read).collect();
    name_ports(&mut services, &objects);
    let mut policies = Policies::default();
    for source in objects.into_iter().map(Source::new) {
        let is_theirs = source.group() == "linkerd.io" || source.group().ends_with(".linkerd.io");
        match (source.kind.as_str(), is_theirs) {
            ("ServiceProfile", true) => service_profile::import(source, &services, &mut imported),
            ("HTTPRoute", true) if is_of_services(&source) => route(source, &mut imported),
            (
                "Server"
                | "AuthorizationPolicy"
                | "ServerAuthorization"
                | "HTTPLocalRateLimitPolicy"
                | "MeshTLSAuthentication"
                | "NetworkAuthentication"
                | "HTTPRoute",
                true,
            ) => policies.add(source, &mut imported),
            (kind, true) => {
                let (why, instead) = other(kind);
                imported.lose(&source.id, "spec", why, instead);
            }
            (_, false) if is_gateway_route(&source) => policies.add(source, &mut imported),
            (_, false) => {
                let id = source.id.clone();
                import_labels(id, source.into_whole(), &mut imported, labels::translate);
            }
        }
    }
    policies.finish(&services, &mut imported);
    imported
}

/// Whether a route is for callers; one of a Server only says which requests a policy is about.
fn is_of_services(source: &Source) -> bool {
    let parents = source.spec["parentRefs"].as_array().into_iter().flatten();
    let mut kinds = parents.map(|parent| parent["kind"].as_str().unwrap_or("Service"));
    kinds.all(|kind| kind != "Server")
}

/// Linkerd's own copy of Gateway API's kind.
fn route(source: Source, imported: &mut Imported) {
    let id = source.id.clone();
    let mut whole = source.into_whole();
    whole["apiVersion"] = "gateway.networking.k8s.io/v1".into();
    for name in take_all(&mut whole, "annotations", "linkerd.io/") {
        let at = format!("metadata.annotations.{name}");
        let instead = "say `retry` and `timeouts` in its rules: docs/manifests/routes.md";
        imported.lose(&id, &at, "it has no counterpart", instead);
    }
    clean(&mut whole);
    imported.make(&id, whole);
}

/// Why a kind is not translated, and what to do.
fn other(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "EgressNetwork" => (
            "hosts outside the mesh are an Egress's, which also says who may call them",
            "write an Egress with its hosts and ports: docs/features/egress.md",
        ),
        "Link" | "ExternalWorkload" | "ExternalGroup" => (
            "a mesh is one cluster, or hosts",
            "let the other cluster in by a Gateway",
        ),
        _ => ("this kind has no counterpart", "see docs/from-linkerd.md"),
    }
}

#[cfg(test)]
mod tests;
