//! The CNI plugin on every node: a DaemonSet that puts it there and keeps it there.
//!
//! It is in a namespace of its own, because it writes into directories of the node, which a namespace of
//! restricted pods does not allow. It is on the node's network, so that it starts when pods' networks
//! cannot be made. It asks nobody, and has no token.

use super::controller::image;
use super::metadata;
use super::template::{set, value, when};
use crate::names::CNI;
use serde_json::{Value, json};

/// Returns the arguments of a node's pod, and the probe that shows that it has done its work.
fn step(command: &str, done: &str) -> (Value, Value) {
    let arguments = |command: &str| json!([command, "/host/configurations", "/host/programs"]);
    let mut probe = vec![json!("/usr/local/bin/tulle-cni")];
    probe.extend(arguments(done).as_array().cloned().unwrap_or_default());
    (
        arguments(command),
        json!({ "exec": { "command": probe }, "periodSeconds": 2, "timeoutSeconds": 5 }),
    )
}

/// The change (a merge patch) that makes each node's pod take the plugin away again.
pub fn take_away(daemon_set: &Value) -> Option<Value> {
    let (arguments, ready) = step("remove", "removed");
    let mut container = daemon_set
        .pointer("/spec/template/spec/containers/0")?
        .clone();
    container["args"] = arguments;
    container["readinessProbe"] = ready;
    Some(json!({ "spec": {
        "updateStrategy": { "rollingUpdate": { "maxUnavailable": "100%" } },
        "template": { "spec": { "containers": [container] } },
    } }))
}

pub(super) fn templates() -> [Value; 2] {
    let (arguments, ready) = step("keep", "kept");
    let labels = json!({ "app.kubernetes.io/name": CNI, "app.kubernetes.io/part-of": "tulle" });
    // Before Helm deletes them a Job has to take the plugin off the nodes, and that Job deletes them.
    let kept = json!({ "helm.sh/resource-policy": "keep" });
    let mut at_home = metadata(CNI);
    at_home["namespace"] = CNI.into();
    at_home["annotations"] = kept.clone();
    let directory = |name: &str| {
        let path = value(&format!("cni.{name}"));
        json!({ "name": name, "hostPath": { "path": path, "type": "Directory" } })
    };
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/host/{name}") });
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": CNI,
            "annotations": kept,
            "labels": {
                "app.kubernetes.io/part-of": "tulle",
                "pod-security.kubernetes.io/enforce": "privileged",
            },
        },
    });
    let daemon_set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": at_home,
        "spec": {
            "selector": { "matchLabels": { "app.kubernetes.io/name": CNI } },
            // The plugin goes on without its pod.
            "updateStrategy": { "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "automountServiceAccountToken": false,
                    "hostNetwork": true,
                    "nodeSelector": { "kubernetes.io/os": "linux" },
                    "imagePullSecrets": when(set("images.pullSecrets"), value("images.pullSecrets")),
                    "priorityClassName": "system-node-critical",
                    "terminationGracePeriodSeconds": 5,
                    // New nodes and nodes that are not ready get it, too.
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [{
                        "name": CNI,
                        "image": image("cni", CNI),
                        "imagePullPolicy": value("images.pullPolicy"),
                        "args": arguments,
                        "readinessProbe": ready,
                        "resources": {
                            "requests": { "cpu": "5m", "memory": "8Mi" },
                            "limits": { "memory": "32Mi" },
                        },
                        // The node's directories belong to root.
                        "securityContext": {
                            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                            "runAsUser": 0, "runAsGroup": 0,
                            "capabilities": { "drop": ["ALL"] },
                            "seccompProfile": { "type": "RuntimeDefault" },
                        },
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "volumeMounts": [mount("configurations"), mount("programs")],
                    }],
                    "volumes": [
                        directory("configurations"),
                        directory("programs"),
                    ],
                },
            },
        },
    });
    [namespace, daemon_set].map(|object| when(set("cni.enabled"), object))
}

#[cfg(test)]
mod tests {
    use super::super::choice::Choice;
    use super::super::objects;
    use super::*;

    fn installed(values: Value) -> Vec<Value> {
        objects("home", &Choice::from_layers(&[values]).unwrap())
    }

    #[test]
    fn nothing_of_it_unless_it_is_wanted() {
        let text = json!(installed(json!({}))).to_string();
        assert!(!text.contains(CNI) && !text.contains("tulle-repair"));
        let objects = installed(json!({
            "cni": { "enabled": true, "programs": "/x/bin" },
            "images": { "pullSecrets": [{ "name": "registry" }] },
        }));
        let daemon_set = objects.iter().find(|o| o["kind"] == "DaemonSet").unwrap();
        let pod = &daemon_set["spec"]["template"]["spec"];
        assert_eq!(pod["volumes"][0]["hostPath"]["path"], "/etc/cni/net.d");
        assert_eq!(pod["volumes"][1]["hostPath"]["path"], "/x/bin");
        assert_eq!(pod["imagePullSecrets"][0]["name"], "registry");
        // Pods then have no init container with a privilege.
        let text = json!(objects).to_string();
        assert!(text.contains("tulle-repair") && !text.contains("tulle-init:"));
        // Its end changes nothing else.
        let change = take_away(daemon_set).unwrap();
        let container = &change["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"][0], "remove");
        assert_eq!(container["image"], pod["containers"][0]["image"]);
    }
}
