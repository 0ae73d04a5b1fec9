//! An object of the API server as one of the mesh.

use serde_json::{Value, json};
use tulle_model::manifest::Object;

/// A name that no backend has. Requests for it are answered with an error.
pub(crate) const NO_BACKEND: &str = "unresolved-backend";
/// A name that no Secret or ConfigMap has. A reference to it is as one to what does not exist.
pub(crate) const NO_TEXT: &str = "unresolved-reference";

/// Reads an object without the fields that Kubernetes itself writes (status, most of its metadata).
/// Its names are as they were written, see [`Object::qualify`].
///
/// # Errors
/// The object is invalid; the text says why, for people.
pub(crate) fn read(object: &Value) -> Result<Object, String> {
    let mut metadata = json!({});
    for field in ["name", "namespace"] {
        if let Some(text) = object["metadata"].get(field) {
            metadata[field] = text.clone();
        }
    }
    let mut bare = json!({ "metadata": metadata });
    for field in ["apiVersion", "kind", "spec", "data", "stringData", "type"] {
        if let Some(value) = object.get(field) {
            bare[field] = value.clone();
        }
    }
    let mut read = Object::from_json(&bare.to_string()).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(|e| reason(&e.to_string())).collect();
        errors.join("; ")
    })?;
    if let Some(created) = object["metadata"]["creationTimestamp"].as_str() {
        read.metadata_mut().created = created.to_owned();
    }
    Ok(read)
}

/// Reads an object and gives it the names that the index uses.
pub(crate) fn qualified(object: &Value) -> Result<Object, String> {
    let mut read = read(object)?;
    read.qualify();
    Ok(read)
}

/// A field of an object; empty, if it is no text or not there.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// There is no file that the error could be in.
fn reason(error: &str) -> String {
    one_line(error.strip_prefix("object: ").unwrap_or(error))
}

/// Returns a reason as one line. It may quote what somebody wrote, and a terminal would obey its control characters.
pub(crate) fn one_line(reason: &str) -> String {
    reason.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_writes_is_passed_over() {
        let object = json!({
            "apiVersion": "split.smi-spec.io/v1alpha4", "kind": "TrafficSplit",
            "metadata": {
                "name": "s", "namespace": "shop", "uid": "1", "resourceVersion": "7",
                "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [],
                "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}" },
            },
            "spec": { "service": "a", "backends": [{ "service": "b", "weight": 1 }] },
            "status": {},
        });
        let read = read(&object).unwrap();
        assert_eq!(read.id(), "TrafficSplit/s");
        assert_eq!(read.metadata().namespace.as_deref(), Some("shop"));
        assert_eq!(read.metadata().created, "2026-01-01T00:00:00Z");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let object = json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": "mesh" },
            "spec": { "permissive": true },
        });
        let why = read(&object).unwrap_err();
        assert!(why.contains("permissive") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn a_reason_has_no_control_characters() {
        let said = reason("object: `\u{1b}[2J\r\n\u{9b}2J`: no\n");
        assert_eq!(said, "` [2J   2J`: no ");
    }
}
