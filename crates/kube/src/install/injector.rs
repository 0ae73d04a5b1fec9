//! The webhook configuration that makes the API server ask the controller about pods.

use super::{asked_at, metadata, template};
use crate::names::{INJECT, WEBHOOK};
use serde_json::{Value, json};

/// Namespaces of the cluster itself. A webhook that fails there would keep it from healing.
const NEVER: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// Two webhooks, so that no review is asked for a pod that neither itself nor its namespace wants
/// injected: while the controller is away, such pods must still start.
pub(super) fn template() -> Value {
    let never = NEVER.into_iter().map(Value::from);
    let never: Vec<Value> = never.chain([template::namespace()]).collect();
    let not_ours = json!({
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": never,
    });
    let is = |value: &str| json!({ "key": INJECT, "operator": "In", "values": [value] });
    let is_not = |values: &[&str]| json!({ "key": INJECT, "operator": "NotIn", "values": values });
    let one = |name: &str, namespaces: Vec<Value>, pods: Vec<Value>| {
        json!({
            "name": format!("{name}.tulle.dev"),
            "admissionReviewVersions": ["v1"],
            "clientConfig": asked_at("/inject"),
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "rules": [{
                "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods"], "scope": "Namespaced",
            }],
            "namespaceSelector": { "matchExpressions": namespaces },
            "objectSelector": { "matchExpressions": pods },
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": metadata(WEBHOOK),
        "webhooks": [
            one("namespace", vec![not_ours.clone(), is("enabled")], vec![is_not(&["disabled"])]),
            one("pod", vec![not_ours, is_not(&["enabled"])], vec![is("enabled")]),
        ],
    })
}
