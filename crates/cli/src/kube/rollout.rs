//! Applies the objects of an installation with `kubectl`, and waits until what they start runs.
//!
//! `kubectl` does it because people also pipe the objects into it: two ways of applying would leave fields behind that
//! the other one set.

use super::cluster::Cluster;
use super::images::{self, MissingImage};
use super::workloads::{containers, text};
use crate::args::cluster::Which;
use crate::args::install::Applying;
use crate::failure::{Failure, OrFail, Result};
use crate::output::{line, progress};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time between two looks at the cluster.
const PAUSE: Duration = Duration::from_millis(500);
/// Pods that wait for a container, of the whole cluster: sidecars and gateways are anywhere.
const PENDING: &str = "/api/v1/pods?fieldSelector=status.phase%3DPending";

/// A Deployment or DaemonSet that an installation starts.
#[derive(Debug, PartialEq, Eq)]
struct Started {
    /// As in `deployment tulle-system/tulle-controller`.
    shown: String,
    path: String,
}

/// Applies the objects, which `text` has as `kubectl` reads them, and waits until their pods run.
///
/// # Errors
/// `kubectl` fails, a node cannot get an image, or the pods do not run in time.
pub(super) async fn apply(
    cluster: &Cluster,
    which: &Which,
    (objects, text): (&[Value], &str),
    how: &Applying,
) -> Result<()> {
    kubectl(which, text)?;
    let (started, images) = (started(objects), images_of(objects));
    for each in &started {
        progress(&format!("waiting for {}", each.shown));
    }
    let end = Instant::now() + how.timeout;
    loop {
        let mut missing = images::missing(&cluster.list(PENDING).await?);
        missing.retain(|each| images.contains(&each.image));
        if !missing.is_empty() {
            return Err(unavailable(&missing));
        }
        let mut unready = Vec::new();
        for each in &started {
            let found = cluster.get(&each.path).await?.unwrap_or_default();
            if !is_rolled_out(&found) {
                unready.push(each.shown.as_str());
            }
        }
        if unready.is_empty() {
            for each in &started {
                line(&format!("{} is ready", each.shown));
            }
            return Ok(());
        }
        if Instant::now() > end {
            let (unready, seconds) = (unready.join(" and "), how.timeout.as_secs());
            return Err(
                Failure::new(format!("{unready}: not ready within {seconds} s")).fix(
                    "`kubectl describe pods` in that namespace and `tulle check` say why not; Kubernetes goes on \
                     trying",
                ),
            );
        }
        sleep(PAUSE).await;
    }
}

fn kubectl(which: &Which, text: &str) -> Result<()> {
    let mut command = Command::new("kubectl");
    if let Some(context) = &which.context {
        command.arg("--context").arg(context);
    }
    if let Some(file) = &which.kubeconfig {
        command.arg("--kubeconfig").arg(file);
    }
    command.args(["apply", "--filename", "-"]);
    let mut running = command.stdin(Stdio::piped()).spawn().map_err(|e| {
        Failure::new("cannot start kubectl, which applies the objects")
            .because(e)
            .fix("install kubectl in the PATH; or apply what this command prints without --apply")
    })?;
    let written = match running.stdin.take() {
        Some(mut stdin) => stdin.write_all(text.as_bytes()),
        None => Ok(()),
    };
    let done = running
        .wait()
        .or_fail(|| "cannot wait for kubectl".into())?;
    if !done.success() {
        return Err(
            Failure::new(format!("kubectl did not apply the objects: {done}"))
                .fix("see what it printed above; the same command may be run again"),
        );
    }
    // It has read everything if it succeeded.
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(e).or_fail(|| "cannot pass the objects to kubectl".into())
        }
        _ => Ok(()),
    }
}

/// Returns what the objects start, in their order.
fn started(objects: &[Value]) -> Vec<Started> {
    let found = objects.iter().filter_map(|object| {
        let (kind, plural) = match text(object, "/kind") {
            "Deployment" => ("deployment", "deployments"),
            "DaemonSet" => ("daemonset", "daemonsets"),
            _ => return None,
        };
        let (namespace, name) = (
            text(object, "/metadata/namespace"),
            text(object, "/metadata/name"),
        );
        Some(Started {
            shown: format!("{kind} {namespace}/{name}"),
            path: format!("/apis/apps/v1/namespaces/{namespace}/{plural}/{name}"),
        })
    });
    found.collect()
}

/// Returns the images that the objects name: those of the pods they start, and of the sidecars in their settings. Pods
/// of an older version may go on waiting for another image.
fn images_of(objects: &[Value]) -> BTreeSet<String> {
    let mut images = BTreeSet::new();
    for object in objects {
        let pods = object.pointer("/spec/template").into_iter();
        images.extend(
            pods.flat_map(containers)
                .map(|c| text(c, "/image").to_owned()),
        );
        let settings = serde_json::from_str(text(object, "/data/settings.json"));
        let settings: Value = settings.unwrap_or_default();
        for place in ["/sidecars/image", "/sidecars/initImage"] {
            images.insert(text(&settings, place).to_owned());
        }
    }
    images.remove("");
    images
}

/// Whether all pods of a Deployment or DaemonSet are of its latest template and available.
fn is_rolled_out(object: &Value) -> bool {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_u64);
    let count = |name: &str| number(&format!("/status/{name}")).unwrap_or(0);
    let Some(generation) = number("/metadata/generation") else {
        return false; // nothing is there
    };
    let (wanted, all, updated, available) = match number("/status/desiredNumberScheduled") {
        Some(wanted) => {
            let all = count("currentNumberScheduled");
            (
                wanted,
                all,
                count("updatedNumberScheduled"),
                count("numberAvailable"),
            )
        }
        None => {
            let wanted = number("/spec/replicas").unwrap_or(1);
            (
                wanted,
                count("replicas"),
                count("updatedReplicas"),
                count("availableReplicas"),
            )
        }
    };
    count("observedGeneration") >= generation
        && updated == wanted
        && all == wanted
        && available == wanted
}

/// Says which images are missing where, and what to do about each.
fn unavailable(missing: &[MissingImage]) -> Failure {
    let all: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let fixes: BTreeSet<&str> = missing.iter().map(MissingImage::fix).collect();
    let fixes: Vec<&str> = fixes.into_iter().collect();
    Failure::new("a node cannot get an image of the mesh")
        .because(all.join("; "))
        .fix(format!(
            "{}; then run this command again. The objects are applied, and Kubernetes goes on trying: `tulle check` \
             (TK047) shows whether it still fails",
            fixes.join("; ")
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::values;
    use serde_json::json;
    use tulle_kube::install;

    #[test]
    fn an_installation_waits_for_what_it_starts_and_knows_its_images() {
        let objects = |values: Value| {
            let choice = values::choice(&[values]).unwrap();
            install::objects("mesh", &choice)
        };
        let shown = |objects: &[Value]| -> Vec<String> {
            started(objects).into_iter().map(|s| s.shown).collect()
        };
        let usual = objects(json!({ "images": { "registry": "r", "tag": "1" } }));
        assert_eq!(shown(&usual), ["deployment mesh/tulle-controller"]);
        let images = ["r/tulle-init:1", "r/tulle-proxy:1", "r/tulle:1"];
        assert_eq!(images_of(&usual), BTreeSet::from(images.map(String::from)));
        let cni = objects(
            json!({ "images": { "registry": "r", "tag": "1" }, "cni": { "enabled": true } }),
        );
        assert_eq!(
            shown(&cni),
            [
                "daemonset tulle-cni/tulle-cni",
                "deployment mesh/tulle-controller"
            ]
        );
        let images = ["r/tulle-cni:1", "r/tulle-proxy:1", "r/tulle:1"];
        assert_eq!(images_of(&cni), BTreeSet::from(images.map(String::from)));
    }

    #[test]
    fn a_rollout_is_done_when_every_pod_is_new_and_available() {
        let deployment = |observed: u64, replicas: u64, updated: u64, available: u64| {
            json!({
                "metadata": { "generation": 2 }, "spec": { "replicas": 2 },
                "status": {
                    "observedGeneration": observed, "replicas": replicas,
                    "updatedReplicas": updated, "availableReplicas": available,
                },
            })
        };
        assert!(is_rolled_out(&deployment(2, 2, 2, 2)));
        for not in [
            deployment(1, 2, 2, 2),
            deployment(2, 3, 2, 3),
            deployment(2, 2, 1, 2),
            deployment(2, 2, 2, 1),
            json!({}),
        ] {
            assert!(!is_rolled_out(&not), "{not}");
        }
        let daemon_set = |available: u64| {
            json!({
                "metadata": { "generation": 1 }, "spec": {},
                "status": {
                    "observedGeneration": 1, "desiredNumberScheduled": 3, "currentNumberScheduled": 3,
                    "updatedNumberScheduled": 3, "numberAvailable": available,
                },
            })
        };
        assert!(is_rolled_out(&daemon_set(3)));
        assert!(!is_rolled_out(&daemon_set(2)));
    }
}
