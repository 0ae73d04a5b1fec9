//! The class of Ingresses that Tulle serves.

use super::metadata;
use crate::ingress::{CLASS, CONTROLLER_NAME};
use serde_json::{Value, json};

pub(super) fn template() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
        "metadata": metadata(CLASS),
        "spec": { "controller": CONTROLLER_NAME },
    })
}
