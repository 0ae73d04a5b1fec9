//! What the controller says of an object: conditions as Kubernetes has them, and for policies one
//! list for each object that they are about, as Gateway API has it.

use serde_json::{Value, json};

/// The schema of `status`.
pub(super) fn schema(policy: bool) -> Value {
    let mut status = json!({
        "type": "object",
        "description": "Written by the controller.",
        "properties": { "conditions": conditions() },
    });
    if policy {
        status["properties"]["ancestors"] = ancestors();
    }
    status
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
                "type": text("What the condition is about, such as `Accepted`.", 316),
                "status": { "type": "string", "description": "Whether it holds.", "enum": ["True", "False", "Unknown"] },
                "reason": text("Why, in one word.", 1024),
                "message": text("Why, for people.", 32768),
                "lastTransitionTime": { "type": "string", "format": "date-time", "description": "When `status` last changed." },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The `metadata.generation` that was looked at.",
                },
            },
        },
    })
}

fn ancestors() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    json!({
        "type": "array",
        "description": "The objects it is about, and whether it is in force there.",
        "maxItems": 16,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["ancestorRef", "controllerName"],
            "properties": {
                "ancestorRef": {
                    "type": "object",
                    "description": "One of `targetRefs`.",
                    "required": ["name"],
                    "properties": {
                        "group": text("API group; empty for a Service."),
                        "kind": text("Kind."),
                        "namespace": text("Namespace."),
                        "name": text("Name."),
                        "sectionName": text("A part of it."),
                        "port": { "type": "integer", "format": "int32", "minimum": 1, "maximum": 65535, "description": "A port of it." },
                    },
                },
                "controllerName": text("Who wrote this."),
                "conditions": conditions(),
            },
        },
    })
}
