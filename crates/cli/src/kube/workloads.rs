//! Pods as the API server shows them, and those of them that have a sidecar.

use super::cluster::Cluster;
use crate::args::cluster::Within;
use crate::failure::Result;
use crate::proxies::{Meshed, Target};
use serde_json::Value;
use tulle_kube::names::{EGRESS_GATEWAY, SIDECAR};

/// Where there is nothing to show.
pub(crate) const NO_SIDECARS: &str =
    "no pod has a sidecar; `tulle namespace add NAME --restart` changes that";
/// The containers of gateways' proxies.
const GATEWAYS: [&str; 2] = ["gateway", EGRESS_GATEWAY];

impl Meshed {
    /// Reads a pod; none if it has no proxy of the mesh, or has ended.
    pub(crate) fn from_pod(pod: &Value) -> Option<Self> {
        if matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
            return None;
        }
        let part = text(pod, "/metadata/labels/app.kubernetes.io~1part-of");
        let named = |name: &str| containers(pod).find(|c| text(c, "/name") == name);
        let of_gateway = || GATEWAYS.into_iter().find_map(named);
        let of_gateway = || of_gateway().filter(|_| part == "tulle");
        let sidecar = named(SIDECAR).or_else(of_gateway)?;
        let container = text(sidecar, "/name");
        let state = status(pod, container);
        let labels = pod.pointer("/metadata/labels").and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        Some(Self {
            namespace: text(pod, "/metadata/namespace").to_owned(),
            name: text(pod, "/metadata/name").to_owned(),
            workload: workload(pod),
            account: match text(pod, "/spec/serviceAccountName") {
                "" => "default".to_owned(),
                name => name.to_owned(),
            },
            labels: labels
                .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
                .collect(),
            ready: is_ready(pod),
            sidecar_ready: flag(state, "/ready"),
            sidecar_runs: state.is_some_and(|s| s.pointer("/state/running").is_some()),
            version: tag(text(sidecar, "/image")).to_owned(),
            restarts: state
                .and_then(|s| s.pointer("/restartCount")?.as_u64())
                .unwrap_or_default(),
            gateway: container != SIDECAR,
        })
    }
}

/// A member's text; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer);
    found.and_then(Value::as_str).unwrap_or_default()
}

fn flag(value: Option<&Value>, pointer: &str) -> bool {
    value.and_then(|v| v.pointer(pointer)) == Some(&Value::Bool(true))
}

/// A member's items.
pub(crate) fn items<'a>(
    value: &'a Value,
    pointer: &str,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.into_iter().flatten()
}

/// All containers of a pod, or of the template of one.
pub(crate) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    items(pod, "/spec/initContainers").chain(items(pod, "/spec/containers"))
}

/// Returns the status of a container.
fn status<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    let mut all =
        items(pod, "/status/initContainerStatuses").chain(items(pod, "/status/containerStatuses"));
    all.find(|s| text(s, "/name") == container)
}

/// Whether a pod serves.
pub(crate) fn is_ready(pod: &Value) -> bool {
    let mut conditions = items(pod, "/status/conditions");
    conditions.any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True")
        && pod.pointer("/metadata/deletionTimestamp").is_none()
}

/// Returns the owner of a pod. A ReplicaSet stands for its Deployment, whose name it has with a hash.
pub(crate) fn workload(pod: &Value) -> String {
    let owner = items(pod, "/metadata/ownerReferences").find(|o| flag(Some(o), "/controller"));
    let Some(owner) = owner else {
        return format!("pod/{}", text(pod, "/metadata/name"));
    };
    let (kind, name) = (text(owner, "/kind"), text(owner, "/name"));
    let hash = text(pod, "/metadata/labels/pod-template-hash");
    let deployment = name.strip_suffix(hash).and_then(|n| n.strip_suffix('-'));
    match deployment.filter(|_| kind == "ReplicaSet" && !hash.is_empty()) {
        Some(name) => format!("deployment/{name}"),
        None => format!("{}/{name}", kind.to_lowercase()),
    }
}

/// `v1` of `registry:5000/name:v1@sha256:…`.
pub(crate) fn tag(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':').map_or("latest", |(_, tag)| tag)
}

/// Pods, of a namespace or all.
pub(crate) async fn pods(cluster: &Cluster, namespace: Option<&str>) -> Result<Vec<Value>> {
    match namespace {
        Some(name) => {
            cluster
                .list(&format!("/api/v1/namespaces/{name}/pods"))
                .await
        }
        None => cluster.list("/api/v1/pods").await,
    }
}

/// Pods with a sidecar, of a namespace or all.
pub(crate) async fn meshed(cluster: &Cluster, within: &Within) -> Result<Vec<Meshed>> {
    let pods = pods(cluster, within.namespace.as_deref()).await?;
    Ok(pods.iter().filter_map(Meshed::from_pod).collect())
}

impl Target<'_> {
    /// Whether a pod without a sidecar is meant.
    pub(super) fn takes_plain(&self, pod: &Value) -> bool {
        let own = workload(pod);
        let (kind, name) = own.split_once('/').unwrap_or_default();
        let pod_name = text(pod, "/metadata/name");
        match self {
            Self::Pod(wanted) => pod_name == *wanted,
            Self::Account(wanted) => text(pod, "/spec/serviceAccountName") == *wanted,
            Self::Workload(of_kind, wanted) => kind == *of_kind && name == *wanted,
            Self::Any(wanted) => pod_name == *wanted || name == *wanted,
            Self::Service(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Value {
        json!({
            "metadata": {
                "namespace": "shop", "name": "web-5d9-abc", "labels": { "pod-template-hash": "5d9", "app": "web" },
                "ownerReferences": [{ "kind": "ReplicaSet", "name": "web-5d9", "controller": true }],
            },
            "spec": { "initContainers": [{ "name": "tulle-proxy", "image": "r:5000/tulle-proxy:0.1.0@sha256:00" }] },
            "status": {
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": "True" }],
                "initContainerStatuses": [{ "name": "tulle-proxy", "ready": true, "restartCount": 2, "state": { "running": {} } }],
            },
        })
    }

    #[test]
    fn a_pod_with_a_sidecar_is_read() {
        let read = Meshed::from_pod(&pod()).unwrap();
        assert_eq!(read.workload, "deployment/web");
        assert_eq!(read.account, "default");
        assert_eq!((read.version.as_str(), read.restarts), ("0.1.0", 2));
        assert!(read.ready && read.sidecar_ready && read.sidecar_runs);
        for (target, taken) in [
            ("web", true),
            ("web-5d9-abc", true),
            ("deploy/web", true),
            ("sts/web", false),
            ("pod/web", false),
            ("sa/default", true),
        ] {
            assert_eq!(
                Target::parse(target).unwrap().takes(&read),
                taken,
                "{target}"
            );
        }
        assert!(Target::parse("node/a").is_err());
    }

    #[test]
    fn others_are_not() {
        let mut none = pod();
        none["spec"] = json!({ "containers": [{ "name": "app" }] });
        assert_eq!(Meshed::from_pod(&none), None);
        let mut ended = pod();
        ended["status"]["phase"] = "Succeeded".into();
        assert_eq!(Meshed::from_pod(&ended), None);
        let mut gateway = none;
        gateway["metadata"]["labels"]["app.kubernetes.io/part-of"] = "tulle".into();
        for container in ["gateway", "egress-gateway"] {
            gateway["spec"]["containers"][0]["name"] = container.into();
            assert!(Meshed::from_pod(&gateway).unwrap().gateway);
        }
        assert!(Target::Workload("deployment", "web").takes_plain(&pod()));
        assert!(!Target::Workload("deployment", "db").takes_plain(&pod()));
        let mut alone = pod();
        alone["metadata"]["ownerReferences"] = Value::Null;
        assert_eq!(
            Meshed::from_pod(&alone).unwrap().workload,
            "pod/web-5d9-abc"
        );
        assert_eq!((tag("a/b"), tag("a:1/b:2")), ("latest", "2"));
    }
}
