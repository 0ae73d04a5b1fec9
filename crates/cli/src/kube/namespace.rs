//! `tulle namespace`: which namespaces' pods get sidecars.

use super::cluster::Cluster;
use super::workloads::{self, text};
use crate::args::cluster::{Namespace, Namespaces};
use crate::args::output::Output;
use crate::failure::{Failure, Result};
use crate::output::{self, Columns, line};
use crate::proxies::Meshed;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tulle_kube::names::INJECT;

/// Namespaces whose pods never get one.
const NEVER: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// Does it.
pub(crate) async fn namespace(cluster: &Cluster, command: &Namespace) -> Result<()> {
    match command {
        Namespace::Add(named) => {
            let home = cluster.home().await?;
            let never = named
                .names
                .iter()
                .find(|n| **n == home || NEVER.contains(&n.as_str()));
            if let Some(name) = never {
                return Err(Failure::usage(format!("pods of {name} never get sidecars"))
                    .because("they start before the mesh, or are of it"));
            }
            label(cluster, named, Some("enabled")).await
        }
        Namespace::Remove(named) => label(cluster, named, None).await,
        Namespace::Ignore(named) => label(cluster, named, Some("disabled")).await,
        Namespace::List { format } => list(cluster, *format).await,
    }
}

async fn label(cluster: &Cluster, named: &Namespaces, value: Option<&str>) -> Result<()> {
    // All are there, or nothing is changed.
    for name in &named.names {
        exists(cluster, name).await?;
    }
    for name in &named.names {
        // An annotation of this name would hold where the label is not.
        let annotations = json!({ INJECT: null });
        let change =
            json!({ "metadata": { "labels": { INJECT: value }, "annotations": annotations } });
        cluster
            .patch(&format!("/api/v1/namespaces/{name}"), &change)
            .await?;
        let said = match value {
            Some("enabled") => "pods that start from now on get sidecars",
            Some(_) => "pods that start from now on get no sidecars",
            None => "pods that start from now on get no sidecars unless they ask themselves",
        };
        line(&format!("{name}: {said}"));
    }
    restart_or_say(cluster, named).await
}

/// Fails for a namespace that is not there.
pub(crate) async fn exists(cluster: &Cluster, name: &str) -> Result<Value> {
    let found = cluster.get(&format!("/api/v1/namespaces/{name}")).await?;
    found.ok_or_else(|| {
        Failure::new(format!("there is no namespace {name}"))
            .fix(format!("`kubectl create namespace {name}`"))
    })
}

/// Starts what is named again, or says that somebody has to.
pub(crate) async fn restart_or_say(cluster: &Cluster, named: &Namespaces) -> Result<()> {
    for name in &named.names {
        if named.restart {
            restart(cluster, name).await?;
        }
    }
    if !named.restart {
        line("running pods stay as they are; --restart restarts them");
    }
    Ok(())
}

/// Restarts a namespace's workloads as `kubectl rollout restart` does: it changes the template, and
/// Kubernetes replaces the pods.
async fn restart(cluster: &Cluster, namespace: &str) -> Result<()> {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let stamp = json!({ "kubectl.kubernetes.io/restartedAt": now });
    let change = json!({ "spec": { "template": { "metadata": { "annotations": stamp } } } });
    for kind in ["deployments", "statefulsets", "daemonsets"] {
        let all = format!("/apis/apps/v1/namespaces/{namespace}/{kind}");
        for object in cluster.list(&all).await? {
            let name = text(&object, "/metadata/name");
            cluster.patch(&format!("{all}/{name}"), &change).await?;
            line(&format!(
                "{namespace}: {} {name} restarts",
                kind.trim_end_matches('s')
            ));
        }
    }
    let pods = workloads::pods(cluster, Some(namespace)).await?;
    for pod in pods.iter().filter(|pod| stays(pod)) {
        let made_by = match workloads::workload(pod) {
            own if own.starts_with("pod/") => "nothing would create it again".to_owned(),
            other => format!("{other} owns it and cannot restart it"),
        };
        let name = text(pod, "/metadata/name");
        line(&format!(
            "{namespace}: pod {name} stays as it is: {made_by}"
        ));
    }
    Ok(())
}

/// Whether a pod that runs is of nothing that can be told to start its pods again.
fn stays(pod: &Value) -> bool {
    let made_by = workloads::workload(pod);
    let kind = made_by.split('/').next().unwrap_or_default();
    let ends = pod.pointer("/metadata/deletionTimestamp").is_some()
        || matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    !ends && !matches!(kind, "deployment" | "statefulset" | "daemonset")
}

#[derive(Serialize)]
struct Row {
    namespace: String,
    injection: String,
    pods: usize,
    with_sidecar: usize,
    not_ready: usize,
}

async fn list(cluster: &Cluster, format: Output) -> Result<()> {
    let namespaces = cluster.list("/api/v1/namespaces").await?;
    let pods = workloads::pods(cluster, None).await?;
    let mut of: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for pod in &pods {
        of.entry(text(pod, "/metadata/namespace"))
            .or_default()
            .push(pod);
    }
    let rows: Vec<Row> = namespaces.iter().map(|n| row(n, &of)).collect();
    if output::structured(&rows, format.output)? {
        return Ok(());
    }
    let mut columns = Columns::new(&["NAMESPACE", "INJECTION", "PODS", "SIDECARS", "NOT READY"]);
    for row in rows {
        columns.row(vec![
            row.namespace,
            row.injection,
            row.pods.to_string(),
            row.with_sidecar.to_string(),
            row.not_ready.to_string(),
        ]);
    }
    line(&columns.render());
    Ok(())
}

fn row(namespace: &Value, of: &BTreeMap<&str, Vec<&Value>>) -> Row {
    let name = text(namespace, "/metadata/name");
    let pods = of.get(name).into_iter().flatten();
    let (mut count, mut with, mut not_ready) = (0, 0, 0);
    for pod in pods {
        count += 1;
        if let Some(meshed) = Meshed::from_pod(pod).filter(|m| !m.gateway) {
            with += 1;
            not_ready += usize::from(!meshed.sidecar_ready);
        }
    }
    Row {
        namespace: name.to_owned(),
        injection: wish(namespace).to_owned(),
        pods: count,
        with_sidecar: with,
        not_ready,
    }
}

/// Returns what an object's label or annotation says about injection. The label wins; without either the
/// result is empty.
pub(crate) fn wish(object: &Value) -> &str {
    let of = |place| {
        object
            .pointer("/metadata")?
            .get(place)?
            .get(INJECT)?
            .as_str()
    };
    of("labels")
        .or_else(|| of("annotations"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_nobody_starts_again_are_found() {
        let pod = |owner: Value, phase: &str| {
            json!({
                "metadata": {
                    "name": "p", "ownerReferences": [owner], "labels": { "pod-template-hash": "5d9" },
                },
                "status": { "phase": phase },
            })
        };
        let of = |kind: &str, name: &str| json!({ "kind": kind, "name": name, "controller": true });
        assert!(!stays(&pod(of("ReplicaSet", "web-5d9"), "Running")));
        assert!(!stays(&pod(of("StatefulSet", "db"), "Running")));
        assert!(stays(&pod(of("Job", "nightly"), "Running")));
        assert!(!stays(&pod(of("Job", "nightly"), "Succeeded")));
        assert!(stays(&pod(Value::Null, "Running")));
        assert!(stays(&pod(of("ReplicaSet", "alone"), "Running")));
    }
}
