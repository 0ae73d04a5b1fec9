//! What a cluster needs for Tulle, as objects for `kubectl apply`.

mod controller;
mod injector;
mod rights;

use crate::inject::Settings;
use crate::issuer::IssuerSettings;
use crate::names::CONTROLLER;
use crate::validate;
use serde_json::{Value, json};

/// Where the settings are in the controller's file system.
pub const SETTINGS_FILE: &str = "/etc/tulle/settings.json";
/// Where it keeps its socket.
pub const RUN_DIRECTORY: &str = "/run/tulle";
/// Where it finds the authorities that another issuer needs.
pub const ISSUER_DIRECTORY: &str = "/etc/tulle-issuer";
/// The volume that has them.
pub const ISSUER_VOLUME: &str = "issuer";

/// What is chosen at installation.
#[derive(Debug, Clone)]
pub struct Installation {
    /// Where the controller runs.
    pub namespace: String,
    /// Its image.
    pub controller_image: String,
    /// How many of it.
    pub replicas: u32,
    /// The `spec` of the Mesh.
    pub mesh: serde_json::Map<String, Value>,
    /// What sidecars are made with.
    pub sidecars: Settings,
    /// Who signs workloads' certificates, if the mesh's own root does not.
    pub issuer: Option<IssuerSettings>,
    /// ConfigMap in the controller's namespace with the authorities (`ca.crt`) that it needs.
    pub issuer_ca: Option<String>,
}

/// All objects, in the order in which they can be made.
pub fn objects(installation: &Installation) -> Vec<Value> {
    let namespace = &installation.namespace;
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {
                    "app.kubernetes.io/part-of": "tulle",
                    "pod-security.kubernetes.io/enforce": "restricted",
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": metadata(CONTROLLER, Some(namespace)),
        }),
    ];
    objects.extend(rights::of_controller(namespace));
    objects.extend(rights::for_gateways(namespace));
    if let Some(IssuerSettings::CertManager(_)) = &installation.issuer {
        objects.extend(rights::to_request(namespace));
    }
    objects.extend(controller::objects(installation));
    objects.push(injector::configuration(namespace));
    objects.push(validate::configuration(namespace));
    objects
}

pub(crate) fn metadata(name: &str, namespace: Option<&str>) -> Value {
    let mut metadata = json!({
        "name": name,
        "labels": {
            "app.kubernetes.io/name": name,
            "app.kubernetes.io/part-of": "tulle",
            "app.kubernetes.io/managed-by": "tulle",
        },
    });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    metadata
}
