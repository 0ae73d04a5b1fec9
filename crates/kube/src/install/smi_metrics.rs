//! SMI's metrics API: makes the API server ask the controller, and lets the controller read the objects
//! it needs.

use super::template::{Condition, namespace, set, when};
use super::{metadata, subjects};
use crate::names::{CONTROLLER, METRICS_API_PORT};
use crate::smi::{API_SERVICE, GROUP, VERSION};
use serde_json::{Value, json};

const NAME: &str = "tulle-smi-metrics";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Whether the metrics API is wanted.
pub(super) fn is_on() -> Condition {
    set("monitoring.smiMetrics")
}

pub(super) fn templates() -> [Value; 4] {
    let rights = format!("{RBAC}/v1");
    let read = |group: &str, resources: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": ["get", "list"] });
    let role = json!({
        "apiVersion": rights, "kind": "ClusterRole", "metadata": metadata(NAME),
        "rules": [
            read("", &["namespaces", "nodes", "pods", "services", "replicationcontrollers"]),
            read("apps", &["daemonsets", "deployments", "replicasets", "statefulsets"]),
            read("batch", &["jobs"]),
            {
                "apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"],
                "resourceNames": [API_SERVICE], "verbs": ["get", "update"],
            },
        ],
    });
    let binding = json!({
        "apiVersion": rights, "kind": "ClusterRoleBinding", "metadata": metadata(NAME),
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": NAME },
        "subjects": subjects(),
    });
    // This binding lets the controller read who the API server's front proxy is.
    let mut front_proxy = json!({
        "apiVersion": rights, "kind": "RoleBinding", "metadata": metadata(NAME),
        "roleRef": {
            "apiGroup": RBAC, "kind": "Role", "name": "extension-apiserver-authentication-reader",
        },
        "subjects": subjects(),
    });
    front_proxy["metadata"]["namespace"] = "kube-system".into();
    let api_service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": metadata(API_SERVICE),
        "spec": {
            "group": GROUP, "version": VERSION,
            // `kubectl get pods` stays what it is.
            "groupPriorityMinimum": 100, "versionPriority": 10,
            "service": { "namespace": namespace(), "name": CONTROLLER, "port": METRICS_API_PORT },
        },
    });
    [role, binding, front_proxy, api_service].map(|object| when(is_on(), object))
}
