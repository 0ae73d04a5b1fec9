//! Which pods of the mesh wait for an image that their node cannot get?

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::{items, text};
use serde_json::Value;
use std::collections::BTreeMap;
use tulle_kube::names::{INIT, SIDECAR};

/// Reasons for which a container waits when its image cannot be had, as kubelets give them.
const REASONS: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
];

pub(super) fn check(facts: &Facts, report: &mut Report) {
    // A node that cannot get an image cannot get it for any of its pods.
    let mut waiting: BTreeMap<(&str, &str), (Vec<String>, &Value)> = BTreeMap::new();
    for pod in facts.pods.iter().chain(&facts.own_pods) {
        let own = text(pod, "/metadata/labels/app.kubernetes.io~1part-of") == "tulle";
        let statuses = items(pod, "/status/initContainerStatuses")
            .chain(items(pod, "/status/containerStatuses"));
        for status in statuses {
            let of_mesh = own || [INIT, SIDECAR].contains(&text(status, "/name"));
            if of_mesh && REASONS.contains(&text(status, "/state/waiting/reason")) {
                let key = (text(status, "/image"), text(pod, "/spec/nodeName"));
                let name = text(pod, "/metadata/name");
                let name = format!("{}/{name}", text(pod, "/metadata/namespace"));
                let (pods, _) = waiting.entry(key).or_insert((Vec::new(), status));
                pods.push(name);
            }
        }
    }
    let told = waiting.into_iter().map(|((image, node), (pods, status))| {
        let reason = text(status, "/state/waiting/reason");
        let why = match text(status, "/state/waiting/message") {
            "" => String::new(),
            message => format!(": {message}"),
        };
        let which = match pods.as_slice() {
            [one] => format!("pod {one}"),
            [first, ..] => format!("{} pods, such as {first}", pods.len()),
            [] => String::new(),
        };
        format!("{image} on node {node}: {reason}{why} ({which})")
    });
    let well = "no pod of the mesh waits for one";
    report.each("TK047", Outcome::Error, told.collect(), well);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn image_node_and_reason_are_named_for_every_part_of_the_mesh() {
        let pod = |namespace: &str, name: &str, node: &str, part: &str, container: Value| {
            json!({
                "metadata": {
                    "namespace": namespace, "name": name,
                    "labels": { "app.kubernetes.io/part-of": part },
                },
                "spec": { "nodeName": node },
                "status": { "containerStatuses": [container] },
            })
        };
        let waits = |name: &str, image: &str, reason: &str, message: &str| {
            let waiting = json!({ "reason": reason, "message": message });
            json!({ "name": name, "image": image, "state": { "waiting": waiting } })
        };
        let proxy = || waits(SIDECAR, "r/tulle-proxy:1", "ImagePullBackOff", "");
        let controller = waits("controller", "r/tulle:1", "ErrImagePull", "no such host");
        let facts = Facts {
            pods: vec![
                pod("shop", "a", "one", "", proxy()),
                pod("shop", "b", "one", "", proxy()),
                pod("shop", "edge", "two", "tulle", proxy()),
                // The application's own image is not the mesh's matter.
                pod(
                    "shop",
                    "c",
                    "one",
                    "",
                    waits("app", "r/app:1", "ErrImagePull", ""),
                ),
                pod(
                    "shop",
                    "d",
                    "one",
                    "",
                    waits(SIDECAR, "r/tulle-proxy:1", "PodInitializing", ""),
                ),
            ],
            own_pods: vec![pod(
                "tulle-system",
                "controller-1",
                "two",
                "tulle",
                controller,
            )],
            ..Facts::default()
        };
        let wrong = Report::wrong(|report| check(&facts, report));
        let found: Vec<_> = wrong.iter().map(|f| (f.id, f.finding.as_str())).collect();
        assert_eq!(
            found,
            [
                (
                    "TK047",
                    "r/tulle-proxy:1 on node one: ImagePullBackOff (2 pods, such as shop/a)"
                ),
                (
                    "TK047",
                    "r/tulle-proxy:1 on node two: ImagePullBackOff (pod shop/edge)"
                ),
                (
                    "TK047",
                    "r/tulle:1 on node two: ErrImagePull: no such host (pod tulle-system/controller-1)"
                ),
            ]
        );
    }
}
