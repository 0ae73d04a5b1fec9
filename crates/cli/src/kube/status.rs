//! `tulle status` and `tulle version` in a cluster.

use super::cluster::Cluster;
use super::workloads::{NO_SIDECARS, text};
use crate::args::about::Version;
use crate::args::cluster::Within;
use crate::args::diagnosis::Status;
use crate::failure::{Failure, Result};
use crate::metrics::Edge;
use crate::output::{self, line};
use crate::proxies::{self, MeshName, ProxySource};
use crate::traffic::{self, Outside};
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;
use tulle_api::v1::StatusRequest;
use tulle_kube::names::CONTROLLER;

/// How long the controller may take to say its version.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Report {
    context: String,
    namespace: String,
    controller: Controller,
    proxies: Vec<proxies::Row>,
    edges: Vec<Edge>,
    /// Peers outside the mesh.
    outside: Outside,
}

#[derive(Serialize)]
struct Controller {
    /// Pods that are ready, of those that are wanted.
    ready: u64,
    replicas: u64,
    /// Absent if it does not answer.
    version: Option<String>,
    trust_domain: Option<String>,
    objects: Option<u32>,
}

/// Shows it once, or again every second.
pub(crate) async fn status(cluster: &Cluster, args: &Status) -> Result<()> {
    if args.problems || !args.names.is_empty() {
        return Err(
            Failure::usage("NAME and --problems are for a mesh on this host").fix(
                "in a cluster `tulle check -n NAMESPACE` shows what is wrong, `tulle edges` who talks",
            ),
        );
    }
    loop {
        let report = collect(cluster).await?;
        if !output::structured(&report, args.format.output)? {
            show(report);
        }
        if !args.watch {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => line(""),
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

async fn collect(cluster: &Cluster) -> Result<Report> {
    let home = cluster.home().await?;
    let path = format!("/apis/apps/v1/namespaces/{home}/deployments/{CONTROLLER}");
    let deployment = cluster.get(&path).await?.unwrap_or_default();
    let number = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_u64);
    let said = ask(cluster).await;
    let everywhere = Within::default();
    Ok(Report {
        context: cluster.context.clone(),
        controller: Controller {
            ready: number("/status/readyReplicas").unwrap_or_default(),
            replicas: number("/spec/replicas").unwrap_or_default(),
            version: said.as_ref().map(|s| s.version.clone()),
            trust_domain: said.as_ref().map(|s| s.trust_domain.clone()),
            objects: said.as_ref().map(|s| s.objects),
        },
        namespace: home,
        proxies: proxies::rows(cluster, &everywhere).await?,
        edges: traffic::seen_edges(cluster, &everywhere).await?,
        outside: traffic::seen_outside(cluster, &everywhere).await?,
    })
}

async fn ask(cluster: &Cluster) -> Option<tulle_api::v1::ControllerStatus> {
    let asked = async {
        let mut objects = cluster.objects().await.ok()?;
        let status = objects.status(StatusRequest::default()).await.ok()?;
        Some(status.into_inner())
    };
    tokio::time::timeout(PATIENCE, asked).await.ok()?
}

fn show(report: Report) {
    let controller = report.controller;
    let said = match (
        controller.version,
        controller.trust_domain,
        controller.objects,
    ) {
        (Some(version), Some(domain), Some(objects)) => {
            format!("{version}, trust domain {domain}, {objects} objects")
        }
        _ => "it does not answer; `tulle check` says why".to_owned(),
    };
    line(&format!(
        "mesh in {} of {}: {} of {} controllers ready; {said}",
        report.namespace, report.context, controller.ready, controller.replicas
    ));
    let proxies = proxies::table(report.proxies).unwrap_or_else(|| NO_SIDECARS.to_owned());
    line(&format!("\n{proxies}"));
    line(&format!("\n{}", traffic::edges_table(report.edges)));
    let outside = traffic::outside_tables(&report.outside);
    if !outside.is_empty() {
        line(&format!("\n{outside}"));
    }
}

#[derive(Serialize)]
struct Versions {
    #[serde(flatten)]
    mesh: MeshName,
    tulle: &'static str,
    controller: Option<String>,
    kubernetes: Option<String>,
}

/// Prints the versions of this command, the controller and the cluster. A missing answer is no failure.
pub(crate) async fn version(cluster: &Cluster, args: &Version) -> Result<()> {
    let server = tokio::time::timeout(PATIENCE, cluster.get("/version")).await;
    let server = server.ok().and_then(Result::ok).flatten();
    let controller = match server.is_some() {
        true => ask(cluster).await.map(|s| s.version),
        false => None,
    };
    let versions = Versions {
        mesh: cluster.mesh(),
        tulle: env!("CARGO_PKG_VERSION"),
        controller,
        kubernetes: server.map(|s| text(&s, "/gitVersion").to_owned()),
    };
    if output::structured(&versions, args.format.output)? {
        return Ok(());
    }
    line(&format!("tulle {}", versions.tulle));
    let or = |version: &Option<String>| version.as_deref().unwrap_or("does not answer").to_owned();
    line(&format!("controller {}", or(&versions.controller)));
    line(&format!("Kubernetes {}", or(&versions.kubernetes)));
    Ok(())
}
