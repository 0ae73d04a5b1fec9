//! Jobs that Helm runs when it removes a release, or the CNI plugin of one. The first takes the plugin off the
//! nodes, as long as its DaemonSet is there to do it, and then deletes the DaemonSet, which Helm leaves to it.
//! Where an upgrade leaves the plugin out that is the last step: the controllers make no pods any more that
//! need it. The second deletes the controller's own objects (its root, trust bundles, gateways' objects), which are
//! not Helm's and would stay. `tulle uninstall` needs neither.

use super::super::controller;
use super::super::template::{Condition, ObjectPlace, either, namespace, not, set, value, when};
use crate::gateway::CLASSES;
use crate::names::{CNI, CONTROLLER, LEASE, TRUST_BUNDLE};
use crate::root;
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";

/// When Helm makes an object. None has the label by which objects of the mesh are found: a Job must not
/// remove itself.
#[derive(Clone, Copy)]
enum Hook {
    /// Before the release is removed, or after an upgrade that leaves the plugin out.
    WithoutCni,
    /// After the release is removed.
    AfterUninstall,
}

const WITHOUT_CNI: Hook = Hook::WithoutCni;
const AFTER: Hook = Hook::AfterUninstall;

pub(in crate::install) fn templates() -> Vec<Value> {
    let present = Condition::Present(ObjectPlace {
        api_version: "apps/v1".into(),
        kind: "DaemonSet".into(),
        namespace: CNI.into(),
        name: CNI.into(),
    });
    let wanted = Condition::Any(vec![set("cni.enabled"), present]);
    let without_cni = without_cni().map(|object| when(wanted.clone(), object));
    without_cni.into_iter().chain(after()).collect()
}

fn without_cni() -> [Value; 6] {
    let there = Some(CNI.into());
    let of_plugin = json!([
        rule("apps", &["daemonsets"], &[CNI], &["get", "patch", "delete"]),
        rule("", &["pods"], &[], &["list"]),
    ]);
    let everywhere = json!([
        rule("", &["namespaces"], &[CNI], &["get", "delete"]),
        rule("apps", &["deployments"], &[CONTROLLER], &["get"]),
    ]);
    let upgraded = |argument: Value| when(not(set("cni.enabled")), argument);
    let arguments = json!([
        "remove-cni",
        upgraded("--once-updated".into()),
        upgraded(namespace())
    ]);
    [
        WITHOUT_CNI.account(),
        WITHOUT_CNI.role("Role", there.clone(), of_plugin),
        WITHOUT_CNI.binding("Role", there),
        WITHOUT_CNI.role("ClusterRole", None, everywhere),
        WITHOUT_CNI.binding("ClusterRole", None),
        // One try takes up to four and a half minutes if a node does not answer, and Helm waits for five.
        WITHOUT_CNI.job(0, arguments),
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
    /// The name of its objects.
    fn name(self) -> &'static str {
        match self {
            Self::WithoutCni => "tulle-without-cni",
            Self::AfterUninstall => "tulle-after-uninstall",
        }
    }

    fn event(self) -> Value {
        match self {
            Self::WithoutCni => either(
                set("cni.enabled"),
                "pre-delete".into(),
                "post-upgrade,post-rollback".into(),
            ),
            Self::AfterUninstall => "post-delete".into(),
        }
    }

    fn metadata(self, weight: &str, place: Option<Value>) -> Value {
        let mut metadata = json!({
            "name": self.name(),
            "annotations": {
                "helm.sh/hook": self.event(),
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
            "roleRef": { "apiGroup": RBAC, "kind": role, "name": self.name() },
            "subjects": [{ "kind": "ServiceAccount", "name": self.name(), "namespace": namespace() }],
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
                    "serviceAccountName": self.name(),
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
