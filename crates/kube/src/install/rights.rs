//! What the controller may do.

use super::template::{set, when};
use super::{metadata, namespaced, subjects};
use crate::names::{CONTROLLER, LEASE, VALIDATOR, WEBHOOK};
use crate::root;
use serde_json::{Value, json};

/// The role for what Gateways take.
const GATEWAYS: &str = "tulle-gateways";

/// API groups whose objects say something of the mesh.
const GROUPS: [&str; 5] = [
    "tulle.dev",
    "gateway.networking.k8s.io",
    "access.smi-spec.io",
    "specs.smi-spec.io",
    "split.smi-spec.io",
];

/// See where things are, say whose a token is, publish its root.
pub(super) fn of_controller() -> Vec<Value> {
    let reference = |kind: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": CONTROLLER });
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(CONTROLLER),
            "rules": [
                { "apiGroups": [""], "resources": ["services", "pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] },
                // Server-side apply is a patch, and a create where there is nothing yet.
                { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] },
                { "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [crate::names::TRUST_BUNDLE], "verbs": ["get", "patch"] },
                { "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": GROUPS, "resources": ["*"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": GROUPS, "resources": ["*/status"], "verbs": ["patch"] },
                { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"], "resourceNames": [WEBHOOK], "verbs": ["get", "update"] },
                { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"], "resourceNames": [VALIDATOR], "verbs": ["get", "update"] },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(CONTROLLER),
            "roleRef": reference("ClusterRole"), "subjects": subjects(),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": namespaced(CONTROLLER),
            "rules": [
                { "apiGroups": [""], "resources": ["secrets"], "verbs": ["create"] },
                { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
                { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE], "verbs": ["get", "list", "watch", "patch", "update"] },
                { "apiGroups": [""], "resources": ["secrets"], "resourceNames": [root::SECRET], "verbs": ["get", "list", "watch", "update"] },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": namespaced(CONTROLLER),
            "roleRef": reference("Role"), "subjects": subjects(),
        }),
    ]
}

/// Apart, so that who has no Gateways can leave it out, or bind it in some namespaces only.
pub(super) fn for_gateways() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(GATEWAYS),
            "rules": crate::gateway::rights(),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(GATEWAYS),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": GATEWAYS },
            "subjects": subjects(),
        }),
    ]
}

/// To delete pods whose node could not redirect their traffic when it made them.
pub(super) fn to_repair() -> [Value; 2] {
    let name = "tulle-repair";
    let rights = [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(name),
            "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["delete"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(name),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": subjects(),
        }),
    ];
    rights.map(|right| when(set("cni.enabled"), right))
}

/// To ask cert-manager.
pub(super) fn to_request() -> [Value; 2] {
    let name = "tulle-issuer";
    let rights = [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": namespaced(name),
            "rules": [{
                "apiGroups": ["cert-manager.io"], "resources": ["certificaterequests"],
                "verbs": ["create", "get", "list", "delete"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": namespaced(name),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": subjects(),
        }),
    ];
    rights.map(|right| when(set("issuer.certManager.name"), right))
}
