//! The schema of `status`: conditions as Kubernetes has them.

use serde_json::{Value, json};

/// The schema of `status`.
pub(super) fn schema() -> Value {
    json!({
        "type": "object",
        "description": "Written by the controller.",
        "properties": { "conditions": conditions() },
    })
}

/// `metav1.Condition`.
fn conditions() -> Value {
    let text = |description: &str, most: u32| json!({ "type": "string", "description": description, "maxLength": most });
    json!({
        "type": "array",
        "description": "Whether it is in force, and why not.",
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": text("The type of the condition, such as `Accepted`.", 316),
                "status": { "type": "string", "description": "Whether it holds.", "enum": ["True", "False", "Unknown"] },
                "reason": text("The reason, in one word.", 1024),
                "message": text("The reason, for people.", 32768),
                "lastTransitionTime": { "type": "string", "format": "date-time", "description": "When `status` last changed." },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The `metadata.generation` that this condition is about.",
                },
            },
        },
    })
}
