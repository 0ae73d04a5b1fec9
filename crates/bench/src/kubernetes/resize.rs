//! The CPU limit of a sidecar whose mesh has one limit for all pods, as Open Service Mesh does: the pod is resized in place.

use super::place::{App, MEMORY_LIMIT, Pod, ReadyNamespace, cores, millis, read};
use crate::failure::{Failure, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The limit of a sidecar that is not to be limited: more than any node has.
const UNLIMITED: u32 = 64_000;
/// How long a kubelet may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl ReadyNamespace {
    /// Returns the pod with the limit that its application's sidecar is to have, in force.
    ///
    /// # Errors
    /// The cluster does not resize pods in place (Kubernetes before 1.33), or not in time.
    pub(super) fn limited(&self, app: &App, pod: Pod) -> Result<Pod> {
        let is = pod.limit.as_deref().and_then(cores);
        let (wanted, sidecar) = match (app.share.map(millis), &pod.sidecar) {
            (None, _) if is.is_none() => return Ok(pod),
            (_, None) => return Ok(pod),
            (wanted, _) if wanted.is_some() && wanted == is => return Ok(pod),
            (wanted, Some(sidecar)) => (wanted.unwrap_or(UNLIMITED), sidecar),
        };
        let cpu = format!("{wanted}m");
        let mut resources = json!({ "limits": { "cpu": cpu }, "requests": { "cpu": "10m" } });
        if app.share.is_some() {
            resources["limits"]["memory"] = MEMORY_LIMIT.into();
        }
        let list = match pod.native {
            true => "initContainers",
            false => "containers",
        };
        let patch = json!({ "spec": { list: [{ "name": sidecar, "resources": resources }] } });
        let patch = patch.to_string();
        let of_pod = ["-n", &self.namespace, "patch", "pod", &pod.name];
        let resize = ["--subresource", "resize", "--patch", &patch];
        let failed = |why: String| {
            Failure::failed(format!(
                "the sidecar of {}/{} is limited to {} and cannot be limited to {cpu}: {why}",
                self.namespace,
                pod.name,
                pod.limit.as_deref().unwrap_or("nothing")
            ))
        };
        let resized = self.kubectl.text(&[&of_pod[..], &resize].concat());
        resized.map_err(|f| failed(f.to_string()))?;
        let until = Instant::now() + PATIENCE;
        loop {
            let get = ["-n", &self.namespace, "get", "pod", &pod.name, "-o", "json"];
            let now = self.kubectl.json(&get)?;
            if in_force(&now, sidecar) == Some(wanted) {
                return read(&now).ok_or_else(|| failed("the pod is gone".into()));
            }
            if Instant::now() > until {
                return Err(failed("its kubelet has not done it in time".into()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The limit that a container runs with, in thousandths of a core.
fn in_force(pod: &Value, container: &str) -> Option<u32> {
    let lists = ["/status/containerStatuses", "/status/initContainerStatuses"];
    let mut statuses = lists
        .iter()
        .filter_map(|list| pod.pointer(list)?.as_array())
        .flatten();
    let status = statuses.find(|s| s["name"] == container)?;
    cores(status.pointer("/resources/limits/cpu")?.as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_in_force_is_the_kubelets() {
        let pod = json!({
            "spec": { "containers": [{ "name": "envoy", "resources": { "limits": { "cpu": "250m" } } }] },
            "status": { "containerStatuses": [
                { "name": "app" },
                { "name": "envoy", "resources": { "limits": { "cpu": "1" } } },
            ], "initContainerStatuses": [
                { "name": "native", "resources": { "limits": { "cpu": "100m" } } },
            ] },
        });
        assert_eq!(in_force(&pod, "native"), Some(100));
        assert_eq!(in_force(&pod, "envoy"), Some(1000));
        assert_eq!(in_force(&pod, "app"), None);
    }
}
