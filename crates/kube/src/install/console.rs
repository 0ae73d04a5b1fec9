//! The service account whose tokens open the console. Whoever may make one, and looks at Meshes with it, gets a session:
//! so a user without a bearer token, who has a client certificate say, can show who they are.

use super::template::{set, when};
use super::{metadata, namespaced};
use crate::names::CONSOLE;
use serde_json::{Value, json};

pub(super) fn templates() -> [Value; 3] {
    let templates = [
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": namespaced(CONSOLE),
            // No pod runs as it.
            "automountServiceAccountToken": false,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(CONSOLE),
            "rules": [{ "apiGroups": ["tulle.dev"], "resources": ["meshes"], "verbs": ["get", "list"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(CONSOLE),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CONSOLE },
            "subjects": [{
                "kind": "ServiceAccount", "name": CONSOLE, "namespace": super::template::namespace(),
            }],
        }),
    ];
    templates.map(|template| when(set("console.enabled"), template))
}
