//! Istio: who may call whom (`policy`), how strict mutual TLS is (`peer_authentication`), where requests go (`virtual_service`,
//! `gateway`), how services are called (`destination_rule`), what leaves the mesh (`service_entry`), and which namespaces
//! have sidecars.

mod destination_rule;
mod gateway;
mod matches;
mod peer_authentication;
mod policy;
mod service_entry;
mod steps;
mod virtual_service;

use super::imported::Imported;
use super::services::Service;
use super::source::Source;
use serde_json::{Value, json};

/// Translates all of them.
pub(super) fn import(objects: Vec<Value>) -> Imported {
    let mut imported = Imported::default();
    let services: Vec<Service> = objects.iter().filter_map(Service::read).collect();
    for source in objects.into_iter().map(Source::new) {
        let is_istio = source.group() == "istio.io" || source.group().ends_with(".istio.io");
        match (source.kind.as_str(), is_istio) {
            ("AuthorizationPolicy", true) => policy::import(source, &services, &mut imported),
            ("PeerAuthentication", true) => peer_authentication::import(source, &mut imported),
            ("VirtualService", true) => virtual_service::import(source, &services, &mut imported),
            ("DestinationRule", true) => destination_rule::import(source, &services, &mut imported),
            ("Gateway", true) => gateway::import(source, &mut imported),
            ("ServiceEntry", true) => service_entry::import(source, &mut imported),
            (kind, true) => {
                let (why, instead) = other(kind);
                imported.lose(&source.id, "spec", why, instead);
            }
            ("Namespace", false) => namespace(source, &mut imported),
            (_, false) => imported.untouched.push(source.id),
        }
    }
    imported
}

/// Why a kind is not translated, and what to do.
fn other(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "RequestAuthentication" => (
            "tokens are demanded by an Authentication",
            "write one with `jwt`: docs/features/jwt.md",
        ),
        "Sidecar" => (
            "a sidecar learns what its application calls by itself",
            "leave it out",
        ),
        "Telemetry" => (
            "the access log, traces and metrics are settings of the Mesh",
            "see docs/access-log.md and docs/features/tracing.md",
        ),
        "EnvoyFilter" | "WasmPlugin" => (
            "there is no Envoy here",
            "see whether an expression or a filter does the same: docs/features/expressions.md",
        ),
        _ => ("this kind has no counterpart", "see docs/from-istio.md"),
    }
}

/// `istio-injection: enabled` of a namespace.
fn namespace(source: Source, imported: &mut Imported) {
    let id = source.id.clone();
    let whole = source.into_whole();
    let label = whole["metadata"]["labels"]["istio-injection"].as_str();
    let revision = whole["metadata"]["labels"].get("istio.io/rev").is_some();
    let inject = match (label, revision) {
        (Some("enabled"), _) | (None, true) => "enabled",
        (Some(_), _) => "disabled",
        (None, false) => return imported.untouched.push(id),
    };
    let made = imported.make(
        &id,
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": whole["metadata"]["name"], "labels": { "tulle.dev/inject": inject } },
        }),
    );
    made.notes
        .push("pods get sidecars when they start: `tulle namespace add NAME --restart`".into());
}

#[cfg(test)]
mod tests;
