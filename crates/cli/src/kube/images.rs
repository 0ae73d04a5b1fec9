//! Judges which images of the mesh a node cannot get, by what kubelets write into the status of pods.

use super::workloads::{containers, items, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use tulle_kube::names::{INIT, SIDECAR};

/// Pulling has failed, and the kubelet waits before it tries again.
const BACK_OFF: &str = "ImagePullBackOff";
const NEVER_PULLED: &str = "ErrImageNeverPull";
const INVALID_NAME: &str = "InvalidImageName";
/// Reasons for which a container waits when its image cannot be had, as kubelets give them.
const REASONS: [&str; 6] = [
    "ErrImagePull",
    BACK_OFF,
    NEVER_PULLED,
    INVALID_NAME,
    "ImageInspectError",
    "RegistryUnavailable",
];

/// An image that a node cannot get, and the pods of the mesh that wait for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MissingImage {
    pub(super) image: String,
    node: String,
    /// The kubelet's reason, and its message on one line.
    reason: String,
    message: String,
    /// `namespace/name` of each pod.
    pods: Vec<String>,
}

/// Returns the images of the mesh that pods wait for in vain. A node that cannot get an image cannot get it for any of
/// its pods, so there is one entry for each image and node. Other containers of applications' pods do not count.
pub(super) fn missing<'a>(pods: impl IntoIterator<Item = &'a Value>) -> Vec<MissingImage> {
    let mut found: BTreeMap<(String, &str), MissingImage> = BTreeMap::new();
    for pod in pods.into_iter().filter(|pod| is_awaited(pod)) {
        let own = text(pod, "/metadata/labels/app.kubernetes.io~1part-of") == "tulle";
        let namespace = text(pod, "/metadata/namespace");
        let name = format!("{namespace}/{}", text(pod, "/metadata/name"));
        let statuses = items(pod, "/status/initContainerStatuses")
            .chain(items(pod, "/status/containerStatuses"));
        for status in statuses {
            let (container, node) = (text(status, "/name"), text(pod, "/spec/nodeName"));
            let reason = text(status, "/state/waiting/reason");
            if !(own || [INIT, SIDECAR].contains(&container)) || !REASONS.contains(&reason) {
                continue;
            }
            let image = image_of(pod, status);
            let entry = found.entry((image.to_owned(), node));
            let entry = entry.or_insert_with(|| MissingImage {
                image: image.to_owned(),
                node: node.to_owned(),
                reason: String::new(),
                message: String::new(),
                pods: Vec::new(),
            });
            // Older kubelets give the cause with the failure alone, and not while they wait for the next try.
            if entry.reason.is_empty() || entry.reason == BACK_OFF {
                reason.clone_into(&mut entry.reason);
                entry.message = on_one_line(text(status, "/state/waiting/message"));
            }
            if !entry.pods.contains(&name) {
                entry.pods.push(name.clone());
            }
        }
    }
    found.into_values().collect()
}

/// Whether anybody still waits for a pod's containers.
fn is_awaited(pod: &Value) -> bool {
    pod.pointer("/metadata/deletionTimestamp").is_none()
        && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Returns the image as the pod's specification names it. Runtimes may write another name of it into the status.
fn image_of<'a>(pod: &'a Value, status: &'a Value) -> &'a str {
    let name = text(status, "/name");
    let named = containers(pod).find(|c| text(c, "/name") == name);
    named.map_or(text(status, "/image"), |c| text(c, "/image"))
}

/// Registries have a say in these messages, and they go to a terminal.
fn on_one_line(message: &str) -> String {
    let plain = message.replace(char::is_control, " ");
    plain.trim().to_owned()
}

impl fmt::Display for MissingImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on node {}: {}", self.image, self.node, self.reason)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        match self.pods.as_slice() {
            [one] => write!(f, " (pod {one})"),
            [first, ..] => write!(f, " ({} pods, such as {first})", self.pods.len()),
            [] => Ok(()),
        }
    }
}

impl MissingImage {
    /// Says what makes the image available.
    pub(super) fn fix(&self) -> &'static str {
        let message = self.message.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
        if self.reason == INVALID_NAME {
            return "correct the name: --registry, --tag and the values `images`";
        }
        if says(&["no match for platform", "no matching manifest"]) {
            return "push images for the architectures of all nodes: `make images ARCH=\"amd64 arm64\"`";
        }
        if says(&[
            "unauthorized",
            "authorization failed",
            "forbidden",
            "denied",
        ]) {
            return "let the nodes into the registry: the value `images.pullSecrets`, and for a sidecar the secrets of its pod";
        }
        if self.reason == NEVER_PULLED || self.image.starts_with("localhost/") {
            return "load it on the node (`ctr -n k8s.io images import build/images/NAME.tar`), or push it to a registry \
                    and name that with --registry";
        }
        "push it to the registry, or correct --registry and --tag"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A pod as the API server shows it while its container waits.
    fn pod(name: &str, labels: Value, statuses: Value) -> Value {
        let (namespace, name) = name.split_once('/').unwrap();
        let mut status = json!({
            "phase": "Pending", "qosClass": "Burstable", "startTime": "2026-11-25T07:00:00Z",
            "hostIP": "10.200.0.2", "podIP": "10.244.0.9",
            "conditions": [
                { "type": "PodScheduled", "status": "True" },
                { "type": "Ready", "status": "False", "reason": "ContainersNotReady" },
            ],
        });
        for (kind, list) in statuses.as_object().unwrap() {
            status[kind] = list.clone();
        }
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": namespace, "name": name, "labels": labels },
            "spec": { "nodeName": "node1", "containers": [] },
            "status": status,
        })
    }

    fn waiting(container: &str, image: &str, reason: &str, message: &str) -> Value {
        json!({
            "name": container, "image": image, "imageID": "", "ready": false, "restartCount": 0,
            "started": false, "lastState": {},
            "state": { "waiting": { "reason": reason, "message": message } },
        })
    }

    fn own() -> Value {
        json!({ "app.kubernetes.io/name": "tulle-controller", "app.kubernetes.io/part-of": "tulle" })
    }

    fn said(pods: &[Value]) -> Vec<String> {
        missing(pods).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_reason_of_a_kubelet_names_image_node_and_cause() {
        for (image, reason, message, fix) in [
            (
                "localhost/tulle:none",
                "ErrImagePull",
                r#"failed to pull and unpack image "localhost/tulle:none": failed to resolve reference "localhost/tulle:none": failed to do request: Head "https://localhost/v2/tulle/manifests/none": dial tcp [::1]:443: connect: connection refused"#,
                "images import",
            ),
            (
                "r.example/tulle:none",
                "ErrImagePull",
                r#"rpc error: code = NotFound desc = failed to pull and unpack image "r.example/tulle:none": failed to resolve reference "r.example/tulle:none": r.example/tulle:none: not found"#,
                "push it to the registry, or correct --registry and --tag",
            ),
            (
                "r.example/tulle:1",
                "ImagePullBackOff",
                r#"Back-off pulling image "r.example/tulle:1": ErrImagePull: failed to pull and unpack image "r.example/tulle:1": failed to resolve reference "r.example/tulle:1": failed to authorize: failed to fetch anonymous token: unexpected status from GET request to https://r.example/token: 401 Unauthorized"#,
                "images.pullSecrets",
            ),
            (
                "r.example/tulle:1",
                "ErrImagePull",
                r#"failed to pull and unpack image "r.example/tulle:1": no match for platform in manifest: not found"#,
                "amd64 arm64",
            ),
            (
                "r.example/tulle:1",
                "ErrImageNeverPull",
                r#"Container image "r.example/tulle:1" is not present with pull policy of Never"#,
                "images import",
            ),
            (
                "r.example//tulle:1",
                "InvalidImageName",
                r#"Failed to apply default image tag "r.example//tulle:1": couldn't parse image name "r.example//tulle:1": invalid reference format"#,
                "correct the name",
            ),
        ] {
            let status = waiting("controller", image, reason, message);
            let pod = pod(
                "tulle-system/c",
                own(),
                json!({ "containerStatuses": [status] }),
            );
            let found = missing([&pod]);
            assert_eq!(
                found[0].to_string(),
                format!("{image} on node node1: {reason}: {message} (pod tulle-system/c)")
            );
            assert!(found[0].fix().contains(fix), "{reason}: {}", found[0].fix());
        }
    }

    #[test]
    fn only_the_mesh_and_only_images_count() {
        let sidecar = waiting(SIDECAR, "r/tulle-proxy:1", BACK_OFF, "");
        let init = waiting(INIT, "r/tulle-init:1", BACK_OFF, "");
        let app = waiting("app", "r/app:1", "ErrImagePull", "not found");
        let creating = waiting("app", "r/app:1", "PodInitializing", "");
        let injected = |name: &str, init: &Value| {
            let statuses =
                json!({ "initContainerStatuses": [init], "containerStatuses": [creating, app] });
            pod(name, json!({ "app": "web" }), statuses)
        };
        assert_eq!(
            said(&[injected("shop/a", &sidecar), injected("shop/b", &sidecar)]),
            ["r/tulle-proxy:1 on node node1: ImagePullBackOff (2 pods, such as shop/a)"]
        );
        assert_eq!(
            said(&[injected("shop/a", &init)]),
            ["r/tulle-init:1 on node node1: ImagePullBackOff (pod shop/a)"]
        );
        // Kubelets may still pull it, and it may have started and ended.
        for state in [
            json!({ "waiting": { "reason": "ContainerCreating" } }),
            json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } }),
            json!({ "running": { "startedAt": "2026-11-25T07:00:00Z" } }),
            json!({}),
        ] {
            let mut status = waiting("controller", "r/tulle:1", "", "");
            status["state"] = state;
            let statuses = json!({ "containerStatuses": [status] });
            assert_eq!(said(&[pod("m/c", own(), statuses)]), [""; 0]);
        }
        assert_eq!(said(&[pod("m/c", own(), json!({}))]), [""; 0]);
    }

    #[test]
    fn nobody_waits_for_a_pod_that_ends() {
        let status = waiting("controller", "r/tulle:1", BACK_OFF, "");
        let mut ending = pod("m/c", own(), json!({ "containerStatuses": [status] }));
        assert_eq!(said(std::slice::from_ref(&ending)).len(), 1);
        let mut failed = ending.clone();
        failed["status"]["phase"] = "Failed".into();
        ending["metadata"]["deletionTimestamp"] = "2026-11-25T07:00:00Z".into();
        assert_eq!(said(&[ending, failed]), [""; 0]);
    }

    #[test]
    fn the_cause_is_taken_from_the_pod_that_has_it_and_has_no_line_ends() {
        let with = |name: &str, reason: &str, message: &str| {
            let status = waiting("gateway", "docker.io/r/tulle-proxy:1", reason, message);
            let mut pod = pod(name, own(), json!({ "containerStatuses": [status] }));
            // The name in the specification counts, which is the one that was installed.
            pod["spec"]["containers"] = json!([{ "name": "gateway", "image": "r/tulle-proxy:1" }]);
            pod
        };
        let told = said(&[
            with("shop/a", BACK_OFF, "Back-off pulling image"),
            with("shop/b", "ErrImagePull", "no such host\n\u{1b}[31m"),
            with("shop/c", BACK_OFF, "Back-off pulling image"),
        ]);
        assert_eq!(
            told,
            [
                "r/tulle-proxy:1 on node node1: ErrImagePull: no such host  [31m (3 pods, such as shop/a)"
            ]
        );
    }
}
