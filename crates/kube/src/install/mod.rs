//! The objects that a cluster needs for Tulle, for `kubectl apply` and as a Helm chart.
//!
//! Each file has templates ([`template`]) of one part; [`templates`] is all of them. The chart in
//! `deploy/charts` is made of them by a test ([`chart`]). The options of an installation are in
//! [`values`].

mod availability;
#[cfg(test)]
mod chart;
pub mod choice;
mod cni;
mod console;
mod controller;
mod ingress_class;
mod injector;
mod monitors;
mod network;
mod rights;
mod smi_metrics;
mod template;
mod validator;
pub mod values;

use crate::names::CONTROLLER;
use crate::names::metadata;
use choice::Choice;
use serde_json::{Value, json};
use template::Filler;

pub use cni::take_away;
pub(crate) use template::namespace;

/// Where the settings are in the controller's file system.
pub const SETTINGS_FILE: &str = "/etc/tulle/settings.json";
/// Where it keeps its socket.
pub const RUN_DIRECTORY: &str = "/run/tulle";
/// Where it finds the authorities that another issuer needs.
pub const ISSUER_DIRECTORY: &str = "/etc/tulle-issuer";
/// The volume that has them.
pub const ISSUER_VOLUME: &str = "issuer";
/// The ConfigMap with the given values, for `tulle upgrade`. Helm keeps them itself.
pub const VALUES: &str = "tulle-values";

/// All objects, in the order in which they can be made.
pub fn objects(namespace: &str, choice: &Choice) -> Vec<Value> {
    let filler = Filler {
        namespace,
        values: &choice.values,
        item: "",
    };
    let templates = [own(choice), templates()].concat();
    let filled = templates
        .iter()
        .flat_map(|template| filler.objects(template));
    filled.collect()
}

/// Returns the objects that `tulle install` adds; Helm makes and keeps such objects itself.
fn own(choice: &Choice) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": template::namespace(),
                "labels": {
                    "app.kubernetes.io/part-of": "tulle",
                    "pod-security.kubernetes.io/enforce": "restricted",
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": namespaced(VALUES),
            "data": { "values.json": choice.given.to_string() },
        }),
    ]
}

/// Returns the templates that `tulle install` and the chart have in common, in the order in which
/// they can be created.
fn templates() -> Vec<Value> {
    let mut templates = vec![json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": namespaced(CONTROLLER),
    })];
    templates.extend(rights::of_controller());
    templates.extend(rights::for_gateways());
    templates.extend(console::templates());
    templates.extend(rights::to_request());
    templates.extend(rights::to_repair());
    templates.extend(cni::templates());
    templates.extend(controller::templates());
    templates.push(network::template());
    templates.extend(availability::templates());
    templates.extend(smi_metrics::templates());
    templates.extend(monitors::templates());
    templates.push(ingress_class::template());
    templates.push(injector::template());
    templates.push(validator::configuration());
    templates
}

/// Builds the metadata of an object in the controller's namespace.
fn namespaced(name: &str) -> Value {
    let mut metadata = metadata(name);
    metadata["namespace"] = template::namespace();
    metadata
}

/// Returns the labels that select the controller's pods.
fn selector() -> Value {
    json!({ "app.kubernetes.io/name": CONTROLLER })
}

/// Returns the controller's service account, as a binding names it.
fn subjects() -> Value {
    json!([{ "kind": "ServiceAccount", "name": CONTROLLER, "namespace": template::namespace() }])
}

/// Where a webhook is.
pub(crate) fn asked_at(path: &str) -> Value {
    json!({ "service": {
        "namespace": template::namespace(), "name": CONTROLLER, "path": path, "port": 443,
    } })
}
