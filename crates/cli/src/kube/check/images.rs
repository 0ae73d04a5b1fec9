//! Which pods of the mesh wait for an image that their node cannot get?

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::images::missing;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let found = missing(facts.pods.iter().chain(&facts.own_pods));
    let told = found.iter().map(ToString::to_string).collect();
    let well = "no pod of the mesh waits for one";
    report.each("TK047", Outcome::Error, told, well);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tulle_kube::names::SIDECAR;

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
