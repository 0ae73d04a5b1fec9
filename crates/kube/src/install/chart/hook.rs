//! What Helm runs when it has removed a release: the controller's own objects (its root, trust bundles,
//! what gateways run as) are not Helm's and would stay. `tulle uninstall` needs none of this.

use super::super::controller;
use super::super::template::{namespace, set, value, when};
use crate::gateway::CLASS;
use crate::names::{LEASE, TRUST_BUNDLE};
use crate::root;
use serde_json::{Value, json};

/// Without the label by which objects of the mesh are found: it must not remove itself.
const NAME: &str = "tulle-after-uninstall";

pub(super) fn templates() -> Vec<Value> {
    let subjects = json!([{ "kind": "ServiceAccount", "name": NAME, "namespace": namespace() }]);
    let reference =
        |kind: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": NAME });
    let rbac = "rbac.authorization.k8s.io/v1";
    let here = || metadata("0", true);
    vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": here() }),
        json!({
            "apiVersion": rbac, "kind": "ClusterRole", "metadata": metadata("0", false),
            "rules": [
                rule("", &["configmaps"], &[TRUST_BUNDLE], &["list", "delete"]),
                rule("", &["services", "serviceaccounts"], &[], &["list", "delete"]),
                rule("apps", &["deployments"], &[], &["list", "delete"]),
                rule("policy", &["poddisruptionbudgets"], &[], &["list", "delete"]),
                rule("gateway.networking.k8s.io", &["gatewayclasses"], &[], &["list"]),
                rule("gateway.networking.k8s.io", &["gatewayclasses"], &[CLASS], &["delete"]),
            ],
        }),
        json!({
            "apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": metadata("0", false),
            "roleRef": reference("ClusterRole"), "subjects": subjects,
        }),
        json!({
            "apiVersion": rbac, "kind": "Role", "metadata": here(),
            "rules": [
                rule("", &["pods"], &[], &["list"]),
                rule("", &["secrets"], &[root::SECRET], &["delete"]),
                rule("coordination.k8s.io", &["leases"], &[LEASE], &["delete"]),
            ],
        }),
        json!({
            "apiVersion": rbac, "kind": "RoleBinding", "metadata": here(),
            "roleRef": reference("Role"), "subjects": subjects,
        }),
        job(),
    ]
}

fn rule(group: &str, kinds: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    let mut rule = json!({ "apiGroups": [group], "resources": kinds, "verbs": verbs });
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

fn metadata(weight: &str, namespaced: bool) -> Value {
    let mut metadata = json!({
        "name": NAME,
        "annotations": {
            "helm.sh/hook": "post-delete",
            "helm.sh/hook-weight": weight,
            "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
        },
    });
    if namespaced {
        metadata["namespace"] = namespace();
    }
    metadata
}

fn job() -> Value {
    let if_set = |path: &str| when(set(path), value(path));
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata("1", true),
        "spec": {
            "backoffLimit": 3,
            "template": { "spec": {
                "serviceAccountName": NAME,
                "restartPolicy": "Never",
                "imagePullSecrets": if_set("images.pullSecrets"),
                "nodeSelector": if_set("controller.nodeSelector"),
                "tolerations": if_set("controller.tolerations"),
                "securityContext": controller::pod_security(),
                "containers": [{
                    "name": "uninstall",
                    "image": controller::image("controller", "tulle"),
                    "imagePullPolicy": value("images.pullPolicy"),
                    "args": ["after-helm", "--namespace", namespace()],
                    "resources": { "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "128Mi" } },
                    "securityContext": controller::container_security(),
                }],
            } },
        },
    })
}
