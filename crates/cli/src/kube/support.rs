//! `tulle support bug-report` of a cluster.

use super::check;
use super::cluster::Cluster;
use super::workloads::{self, text};
use crate::args::diagnosis::Support;
use crate::bug_report::{self, Archive};
use crate::failure::Result;
use crate::proxies::Meshed;
use serde_json::Value;
use tulle_kube::names::{CONTROLLER, INIT, SIDECAR};

/// Kinds that are in it as the API server has them, scrubbed.
const KINDS: [&str; 9] = [
    "/api/v1/nodes",
    "/api/v1/namespaces",
    "/api/v1/services",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/apps/v1/deployments",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
    "/api/v1/events",
];

/// Makes it.
pub(crate) async fn support(cluster: &Cluster, command: &Support) -> Result<()> {
    let Support::BugReport { file, lines, pods } = command;
    let mut archive = Archive::create(file)?;
    archive.add("version.txt", &versions(cluster).await)?;
    match check::findings(cluster).await {
        Ok(found) => archive.json("check.json", found)?,
        Err(failure) => archive.add("check.json", &failure.to_string())?,
    }
    for kind in KINDS {
        let name = kind.rsplit('/').next().unwrap_or(kind);
        archive.list(&format!("objects/{name}.json"), cluster.list(kind).await)?;
    }
    let mesh = async { bug_report::mesh(cluster.objects().await?).await };
    archive.list("objects/mesh.json", mesh.await)?;
    let home = cluster.home().await?;
    let settings = format!("/api/v1/namespaces/{home}/configmaps/tulle-settings");
    archive.list(
        "objects/settings.json",
        cluster
            .get(&settings)
            .await
            .map(|s| s.into_iter().collect()),
    )?;
    let all = workloads::pods(cluster, None).await?;
    let ours = |pod: &&Value| {
        Meshed::from_pod(pod).is_some()
            || (text(pod, "/metadata/namespace") == home
                && text(pod, "/metadata/labels/app.kubernetes.io~1part-of") == "tulle")
    };
    let of_mesh: Vec<Value> = all.iter().filter(ours).take(*pods).cloned().collect();
    for pod in &of_mesh {
        logs(cluster, &mut archive, pod, *lines).await?;
    }
    bug_report::proxies(cluster, &mut archive, *pods).await?;
    archive.list("objects/pods.json", Ok(of_mesh))?;
    archive.finish()
}

async fn versions(cluster: &Cluster) -> String {
    let server = cluster
        .get("/version")
        .await
        .ok()
        .flatten()
        .unwrap_or_default();
    format!(
        "tulle {}\nKubernetes {}\ncontext {}\n",
        env!("CARGO_PKG_VERSION"),
        text(&server, "/gitVersion"),
        cluster.context
    )
}

async fn logs(cluster: &Cluster, archive: &mut Archive, pod: &Value, lines: usize) -> Result<()> {
    let (namespace, name) = (
        text(pod, "/metadata/namespace"),
        text(pod, "/metadata/name"),
    );
    let is_controller = text(pod, "/metadata/labels/app.kubernetes.io~1name") == CONTROLLER;
    let is_gateway = Meshed::from_pod(pod).is_some_and(|pod| pod.gateway);
    for container in workloads::containers(pod).map(|c| text(c, "/name")) {
        if !is_controller && !is_gateway && !matches!(container, SIDECAR | INIT) {
            continue;
        }
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}&tailLines={lines}"
        );
        let log = cluster
            .text(&path)
            .await
            .unwrap_or_else(|failure| failure.to_string());
        archive.log(&format!("logs/{namespace}/{name}/{container}.log"), &log)?;
    }
    Ok(())
}
