//! Istio: who may call whom (`policy`), with which tokens (`request_authentication`), how strict mutual TLS is
//! (`peer_authentication`), where requests go (`virtual_service`,
//! `gateway`), how services are called (`destination_rule`), what leaves the mesh (`service_entry`), and which pods have
//! sidecars (`labels`).

mod callers;
mod conditions;
mod connections;
mod destination_rule;
mod exported;
mod gateway;
mod gateway_api;
mod hosts;
mod labels;
mod matches;
mod path_templates;
mod peer_authentication;
mod policy;
mod ports;
mod proxies;
mod request_authentication;
mod requests;
mod service_entry;
mod steps;
mod targets;
mod virtual_service;

use super::imported::Imported;
use super::labels::import as import_labels;
use super::services::Service;
use super::source::Source;
use peer_authentication::Strictness;
use proxies::Proxies;
use serde_json::Value;

/// Istio's root namespace: its policies hold for the whole mesh.
const ROOT: &str = "istio-system";

/// Translates all of them.
pub(super) fn import(objects: Vec<Value>) -> Imported {
    let mut imported = Imported::default();
    let services: Vec<Service> = objects.iter().filter_map(Service::read).collect();
    let strictness = Strictness::read(&objects);
    let proxies = Proxies::read(&objects, &services);
    for source in objects.into_iter().map(Source::new) {
        let is_istio = source.group() == "istio.io" || source.group().ends_with(".istio.io");
        match (source.kind.as_str(), is_istio) {
            ("AuthorizationPolicy", true) => {
                policy::import(source, (&services, &proxies), &strictness, &mut imported);
            }
            ("RequestAuthentication", true) => {
                request_authentication::import(source, (&services, &proxies), &mut imported);
            }
            ("PeerAuthentication", true) => {
                peer_authentication::import(source, &strictness, &mut imported);
            }
            ("VirtualService", true) => {
                virtual_service::import(source, &services, &proxies, &mut imported);
            }
            ("DestinationRule", true) => destination_rule::import(source, &services, &mut imported),
            ("Gateway", true) => gateway::import(source, &mut imported),
            ("ServiceEntry", true) => service_entry::import(source, &mut imported),
            (kind, true) => {
                let (why, instead) = other(kind);
                imported.lose(&source.id, "spec", why, instead);
            }
            (_, false) if gateway_api::is_of_istio(&source) => {
                gateway_api::import(source, &mut imported);
            }
            (_, false) => {
                let id = source.id.clone();
                import_labels(id, source.into_whole(), &mut imported, labels::translate);
            }
        }
    }
    imported
}

/// Why a kind is not translated, and what to do.
fn other(kind: &str) -> (&'static str, &'static str) {
    match kind {
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
            "see whether a filter or an expression does the same (docs/features/expressions.md), or a Plugin: docs/features/plugins.md",
        ),
        _ => ("this kind has no counterpart", "see docs/from-istio.md"),
    }
}

#[cfg(test)]
mod tests;
