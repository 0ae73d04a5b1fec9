//! Jobs that Helm runs before and after it removes a release. The first takes the CNI plugin off the
//! nodes, as long as a DaemonSet is there to do it. The second deletes the controller's own objects (its
//! root, trust bundles, gateways' objects), which are not Helm's and would stay. `tulle uninstall` needs
//! neither.

use super::super::controller;
use super::super::template::{namespace, set, value, when};
use crate::gateway::CLASSES;
use crate::names::{CNI, LEASE, TRUST_BUNDLE};
use crate::root;
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";

/// When Helm makes an object. None has the label by which objects of the mesh are found: a Job must not
/// remove itself.
#[derive(Clone, Copy)]
struct Hook {
    event: &'static str,
    /// The name of its objects.
    name: &'static str,
}

const BEFORE: Hook = Hook {
    event: "pre-delete",
    name: "tulle-before-uninstall",
};
const AFTER: Hook = Hook {
    event: "post-delete",
    name: "tulle-after-uninstall",
};

pub(in crate::install) fn templates() -> Vec<Value> {
    let before = before().map(|object| when(set("cni.enabled"), object));
    before.into_iter().chain(after()).collect()
}

fn before() -> [Value; 4] {
    let place = Some(CNI.into());
    let rules = json!([
        rule("apps", &["daemonsets"], &[CNI], &["get", "patch"]),
        rule("", &["pods"], &[], &["list"]),
    ]);
    [
        BEFORE.account(),
        BEFORE.role("Role", place.clone(), rules),
        BEFORE.binding("Role", place),
        // One try takes three minutes if a node does not answer, and Helm waits for five.
        BEFORE.job(0, json!(["before-helm"])),
    ]
}

fn after() -> [Value; 6] {
    let everywhere = json!([
        rule("", &["configmaps"], &[TRUST_BUNDLE], &["list", "delete"]),
        rule(
            "",
            &["services", "serviceaccounts"],
            &[],
            &["list", "delete"]
        ),
        rule("apps", &["deployments"], &[], &["list", "delete"]),
        rule(
            "policy",
            &["poddisruptionbudgets"],
            &[],
            &["list", "delete"]
        ),
        rule(
            "gateway.networking.k8s.io",
            &["gatewayclasses"],
            &[],
            &["list"]
        ),
        rule(
            "gateway.networking.k8s.io",
            &["gatewayclasses"],
            &CLASSES,
            &["delete"]
        ),
    ]);
    let here = json!([
        rule("", &["pods"], &[], &["list"]),
        rule("", &["secrets"], &[root::SECRET], &["delete"]),
        rule("coordination.k8s.io", &["leases"], &[LEASE], &["delete"]),
    ]);
    [
        AFTER.account(),
        AFTER.role("ClusterRole", None, everywhere),
        AFTER.binding("ClusterRole", None),
        AFTER.role("Role", Some(namespace()), here),
        AFTER.binding("Role", Some(namespace())),
        AFTER.job(3, json!(["after-helm", "--namespace", namespace()])),
    ]
}

fn rule(group: &str, kinds: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    let mut rule = json!({ "apiGroups": [group], "resources": kinds, "verbs": verbs });
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

impl Hook {
    fn metadata(self, weight: &str, place: Option<Value>) -> Value {
        let mut metadata = json!({
            "name": self.name,
            "annotations": {
                "helm.sh/hook": self.event,
                "helm.sh/hook-weight": weight,
                "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
            },
        });
        if let Some(place) = place {
            metadata["namespace"] = place;
        }
        metadata
    }

    fn account(self) -> Value {
        let metadata = self.metadata("0", Some(namespace()));
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata })
    }

    /// `place`: the namespace of a Role.
    fn role(self, kind: &str, place: Option<Value>, rules: Value) -> Value {
        let metadata = self.metadata("0", place);
        json!({ "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata, "rules": rules })
    }

    fn binding(self, role: &str, place: Option<Value>) -> Value {
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": format!("{role}Binding"),
            "metadata": self.metadata("0", place),
            "roleRef": { "apiGroup": RBAC, "kind": role, "name": self.name },
            "subjects": [{ "kind": "ServiceAccount", "name": self.name, "namespace": namespace() }],
        })
    }

    fn job(self, again: u32, arguments: Value) -> Value {
        let if_set = |path: &str| when(set(path), value(path));
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": self.metadata("1", Some(namespace())),
            "spec": {
                "backoffLimit": again,
                "template": { "spec": {
                    "serviceAccountName": self.name,
                    "restartPolicy": "Never",
                    "imagePullSecrets": if_set("images.pullSecrets"),
                    "nodeSelector": if_set("controller.nodeSelector"),
                    "tolerations": if_set("controller.tolerations"),
                    "securityContext": controller::pod_security(),
                    "containers": [{
                        "name": "uninstall",
                        "image": controller::image("controller", "tulle"),
                        "imagePullPolicy": value("images.pullPolicy"),
                        "args": arguments,
                        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "128Mi" } },
                        "securityContext": controller::container_security(),
                    }],
                } },
            },
        })
    }
}
