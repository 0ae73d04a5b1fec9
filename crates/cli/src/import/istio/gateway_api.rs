//! Gateways of Gateway API whose proxies Istio runs, as their class says.

use crate::import::imported::Imported;
use crate::import::labels::{clean, take_all};
use crate::import::source::Source;

/// Classes that Istio serves.
const CLASSES: [&str; 4] = ["istio", "istio-waypoint", "istio-east-west", "istio-remote"];

fn class(source: &Source) -> &str {
    source.spec["gatewayClassName"].as_str().unwrap_or_default()
}

/// Whether it is a Gateway with one of Istio's classes.
pub(super) fn is_of_istio(source: &Source) -> bool {
    source.kind == "Gateway"
        && source.group() == "gateway.networking.k8s.io"
        && CLASSES.contains(&class(source))
}

pub(super) fn import(source: Source, imported: &mut Imported) {
    let (why, instead) = match class(&source) {
        "istio" => return way_in(source, imported),
        "istio-waypoint" => (
            "there are no waypoints: each pod has a sidecar",
            "leave it out, and write its policies about the Services",
        ),
        _ => (
            "a mesh is one cluster, or hosts",
            "let the other cluster in by a Gateway of the class `tulle`",
        ),
    };
    imported.lose(&source.id, "spec.gatewayClassName", why, instead);
}

/// Makes one of ours; its routes stay as they are.
fn way_in(source: Source, imported: &mut Imported) {
    let id = source.id.clone();
    let mut whole = source.into_whole();
    whole["apiVersion"] = "gateway.networking.k8s.io/v1".into();
    whole["spec"]["gatewayClassName"] = "tulle".into();
    clean(&mut whole);
    for field in ["labels", "annotations"] {
        for name in take_all(&mut whole, field, "istio.io/") {
            // It only says which of several Istios the object is for.
            if name != "istio.io/rev" {
                let at = format!("metadata.{field}.{name}");
                let instead = "see the settings of gateways in docs/kubernetes.md";
                imported.lose(&id, &at, "it has no counterpart", instead);
            }
        }
    }
    let made = imported.make(&id, whole);
    made.notes.push(
        "it gets proxies and a Service of its own; routes that name it stay as they are".into(),
    );
}
