//! `tulle uninstall`: removes what `tulle install` and the controller have made, in an order in which
//! nothing is made again and nothing else of the cluster is held up.

use super::cluster::Cluster;
use super::gateway_classes;
use super::workloads::{self, text};
use crate::args::install::Uninstall;
use crate::failure::{Failure, OrFail, Result};
use crate::output::line;
use crate::proxies::Meshed;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tulle_kube::names::{CNI, CONTROLLER, LEASE, TRUST_BUNDLE};
use tulle_kube::root::SECRET;

/// How long objects may take to go.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long controllers may take to be updated.
const UPDATE: Duration = Duration::from_secs(90);
const OURS: &str = "?labelSelector=app.kubernetes.io%2Fpart-of%3Dtulle";
/// Kinds in which there may be something of the mesh, in the order of removal. Webhooks first: from
/// then on nothing waits for the controller. Then what makes other objects.
const KINDS: [&str; 21] = [
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/apiregistration.k8s.io/v1/apiservices",
    "/apis/autoscaling/v2/horizontalpodautoscalers",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/daemonsets",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/monitoring.coreos.com/v1/podmonitors",
    "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
    "/apis/networking.k8s.io/v1/ingressclasses",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/serviceaccounts",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/storage.k8s.io/v1/csidrivers",
];
/// Number of leading kinds that make other objects. These are deleted first.
const MAKERS: usize = 6;

/// Removes the mesh.
pub(crate) async fn uninstall(cluster: &Cluster, args: &Uninstall) -> Result<()> {
    let home = cluster.home().await?;
    if !args.force && !args.dry_run {
        nobody_depends(cluster).await?;
    }
    let path = format!("/apis/apps/v1/namespaces/{home}/deployments/{CONTROLLER}");
    let controller = cluster.get(&path).await?.unwrap_or_default();
    if text(
        &controller,
        "/metadata/labels/app.kubernetes.io~1managed-by",
    ) == "Helm"
    {
        return Err(Failure::new("this mesh was installed by Helm").fix(format!(
            "`helm uninstall` of its release in the namespace {home}"
        )));
    }
    let mut found = Vec::new();
    for kind in KINDS {
        found.push(of_kind(cluster, kind).await?);
    }
    let crds = if args.crds {
        crds(cluster).await?
    } else {
        Vec::new()
    };
    let mut own_namespaces = own_namespace(cluster, &home).await?;
    own_namespaces.extend(own_namespace(cluster, CNI).await?);
    let all: Vec<&String> = found
        .iter()
        .flatten()
        .chain(&crds)
        .chain(&own_namespaces)
        .collect();
    if all.is_empty() {
        line("nothing of a mesh is installed");
        return Ok(());
    }
    if args.dry_run {
        for path in all {
            line(&shown(path));
        }
        return Ok(());
    }
    if !args.yes {
        agreed(cluster, all.len())?;
    }
    match super::nodes::take_plugin_away(cluster, PATIENCE).await {
        Err(why) if args.force => line(&why.to_string()),
        other => other?,
    }
    for path in found.iter().take(MAKERS).flatten() {
        remove(cluster, path).await?;
    }
    controller_is_gone(cluster, &home).await?;
    // Asked again: it may have made something in its last moments.
    for kind in KINDS {
        for path in of_kind(cluster, kind).await? {
            remove(cluster, &path).await?;
        }
    }
    for path in crds.iter().chain(&own_namespaces) {
        remove(cluster, path).await?;
    }
    for path in &own_namespaces {
        gone(cluster, path).await?;
    }
    unserved(cluster).await?;
    if crds.is_empty() && !self::crds(cluster).await?.is_empty() {
        line(
            "the kinds of objects stay, with their objects; --crds removes them, too. Helm's chart of them \
             cannot be installed as long as they are there",
        );
    }
    left(cluster).await
}

/// Takes the CNI plugin off the nodes, and then deletes what could do so: Helm's hook runs this in a pod. After an
/// upgrade that leaves the plugin out it waits for the controllers of `home`: earlier ones make pods that need it.
pub(crate) async fn remove_cni(home: Option<&str>) -> Result<()> {
    let cluster = Cluster::of_pod()?;
    if let Some(home) = home {
        let path = format!("/apis/apps/v1/namespaces/{home}/deployments/{CONTROLLER}");
        let end = Instant::now() + UPDATE;
        while !is_updated(&cluster.get(&path).await?.unwrap_or_default()) {
            if Instant::now() > end {
                let seconds = UPDATE.as_secs();
                return Err(Failure::new(format!(
                    "the CNI plugin stays on the nodes: the controllers were not updated within {seconds} s, and pods \
                     of earlier ones need it"
                ))
                .fix(format!(
                    "`kubectl -n {home} rollout status deployment/{CONTROLLER}` says what holds them; then upgrade again"
                )));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    super::nodes::take_plugin_away(&cluster, PATIENCE).await?;
    let daemon_set = format!("/apis/apps/v1/namespaces/{CNI}/daemonsets/{CNI}");
    remove(&cluster, &daemon_set).await?;
    for path in own_namespace(&cluster, CNI).await? {
        remove(&cluster, &path).await?;
    }
    Ok(())
}

/// Whether all pods of a Deployment are of its present template, and none of an earlier one is left.
fn is_updated(deployment: &Value) -> bool {
    let number = |pointer: &str| {
        let number = deployment.pointer(pointer);
        number.and_then(Value::as_u64).unwrap_or(0)
    };
    let wanted = number("/spec/replicas");
    let status = ["updatedReplicas", "availableReplicas", "replicas"];
    deployment.get("spec").is_some()
        && number("/status/observedGeneration") >= number("/metadata/generation")
        && status
            .iter()
            .all(|name| number(&format!("/status/{name}")) == wanted)
}

/// Removes what the controller has made itself, when Helm has removed the rest: Helm's hook runs this in a
/// pod, with no more rights than it takes.
pub(crate) async fn after_helm(home: &str) -> Result<()> {
    let cluster = Cluster::of_pod()?;
    controller_is_gone(&cluster, home).await?;
    for kind in [
        "/apis/apps/v1/deployments",
        "/apis/policy/v1/poddisruptionbudgets",
        "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
        "/api/v1/services",
        "/api/v1/serviceaccounts",
    ] {
        for path in paths(kind, &cluster.list(&format!("{kind}{OURS}")).await?) {
            remove(&cluster, &path).await?;
        }
    }
    let mut own = bundles(&cluster).await?;
    own.push(format!("/api/v1/namespaces/{home}/secrets/{SECRET}"));
    own.push(format!(
        "/apis/coordination.k8s.io/v1/namespaces/{home}/leases/{LEASE}"
    ));
    for path in own {
        remove(&cluster, &path).await?;
    }
    Ok(())
}

/// Gateways and Ingresses stay, and say again what the API server writes into new ones: nobody serves them.
async fn unserved(cluster: &Cluster) -> Result<()> {
    let kind = "/apis/gateway.networking.k8s.io/v1/gateways";
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "Unknown", "reason": "Pending",
            "message": "Waiting for controller", "lastTransitionTime": now,
        })
    };
    let status = json!({ "status": {
        "conditions": [condition("Accepted"), condition("Programmed")], "listeners": [], "addresses": [],
    } });
    let mut gateways = cluster.list(kind).await?;
    let classes = "/apis/gateway.networking.k8s.io/v1/gatewayclasses";
    let classes = cluster.list(classes).await?;
    gateways.retain(|gateway| gateway_classes::was_served(gateway, &classes));
    for path in paths(kind, &gateways) {
        cluster.patch(&format!("{path}/status"), &status).await?;
        line(&format!(
            "{} has no gateway that serves it now",
            shown(&path)
        ));
    }
    let kind = "/apis/networking.k8s.io/v1/ingresses";
    let mut ingresses = cluster.list(kind).await?;
    ingresses.retain(|ingress| {
        text(ingress, "/spec/ingressClassName") == tulle_kube::ingress::CLASS
            && ingress.pointer("/status/loadBalancer/ingress").is_some()
    });
    let status = json!({ "status": { "loadBalancer": { "ingress": null } } });
    for path in paths(kind, &ingresses) {
        cluster.patch(&format!("{path}/status"), &status).await?;
        line(&format!(
            "{} has no gateway that serves it now",
            shown(&path)
        ));
    }
    Ok(())
}

/// Tells the operator which objects remain that the mesh did not create.
async fn left(cluster: &Cluster) -> Result<()> {
    let namespaces = cluster.list("/api/v1/namespaces").await?;
    let labelled = namespaces
        .iter()
        .filter(|n| !super::namespace::wish(n).is_empty());
    let names: Vec<&str> = labelled.map(|n| text(n, "/metadata/name")).collect();
    if !names.is_empty() {
        line(&format!(
            "namespaces that keep the label tulle.dev/inject, which has no effect now: {}",
            names.join(" ")
        ));
    }
    Ok(())
}

async fn nobody_depends(cluster: &Cluster) -> Result<()> {
    let mut pods = workloads::pods(cluster, None).await?;
    // One that ends needs no certificate after the one it has.
    pods.retain(|pod| pod.pointer("/metadata/deletionTimestamp").is_none());
    let mut meshed: Vec<_> = pods.iter().filter_map(Meshed::from_pod).collect();
    // Gateways go with the mesh.
    meshed.retain(|pod| !pod.gateway);
    if meshed.is_empty() {
        return Ok(());
    }
    let some: Vec<String> = meshed.iter().take(5).map(Meshed::shown).collect();
    let more = match meshed.len() - some.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let why = format!("{}{more}", some.join(" "));
    Err(Failure::new(format!("{} pods have sidecars", meshed.len()))
        .because(why)
        .fix("`tulle namespace remove NAME --restart` first; --force leaves them as they are"))
}

/// Paths of the mesh's objects of a kind.
async fn of_kind(cluster: &Cluster, kind: &str) -> Result<Vec<String>> {
    if kind == "/api/v1/configmaps" {
        let mut all = paths(kind, &cluster.list(&format!("{kind}{OURS}")).await?);
        all.extend(bundles(cluster).await?);
        all.sort_unstable();
        all.dedup();
        return Ok(all);
    }
    let mut all = paths(kind, &cluster.list(&format!("{kind}{OURS}")).await?);
    if kind == "/api/v1/secrets" {
        let root = format!(
            "/api/v1/namespaces/{}/secrets/{SECRET}",
            cluster.home().await?
        );
        if cluster.get(&root).await?.is_some() && !all.contains(&root) {
            all.push(root);
        }
    }
    Ok(all)
}

async fn bundles(cluster: &Cluster) -> Result<Vec<String>> {
    let query = format!("/api/v1/configmaps?fieldSelector=metadata.name%3D{TRUST_BUNDLE}");
    Ok(paths("/api/v1/configmaps", &cluster.list(&query).await?))
}

/// Where listed objects of a kind are.
fn paths(kind: &str, objects: &[Value]) -> Vec<String> {
    let (api, plural) = kind.rsplit_once('/').unwrap_or(("", kind));
    let path = |object: &Value| {
        let name = text(object, "/metadata/name");
        match text(object, "/metadata/namespace") {
            "" => format!("{kind}/{name}"),
            namespace => format!("{api}/namespaces/{namespace}/{plural}/{name}"),
        }
    };
    objects.iter().map(path).collect()
}

async fn crds(cluster: &Cluster) -> Result<Vec<String>> {
    let kind = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut all = cluster.list(kind).await?;
    all.retain(is_ours);
    Ok(paths(kind, &all))
}

/// Whether an installation made a definition. SMI's may be another mesh's, or of a chart of its own.
fn is_ours(crd: &Value) -> bool {
    let label = |name: &str| text(crd, &format!("/metadata/labels/app.kubernetes.io~1{name}"));
    let group = text(crd, "/spec/group");
    let smi = group.ends_with(".smi-spec.io");
    group.ends_with("tulle.dev")
        || smi && label("part-of") == "tulle" && label("managed-by") != "Helm"
}

/// A namespace, if the installation made it and nobody else uses it.
async fn own_namespace(cluster: &Cluster, home: &str) -> Result<Vec<String>> {
    let path = format!("/api/v1/namespaces/{home}");
    let Some(namespace) = cluster.get(&path).await? else {
        return Ok(Vec::new());
    };
    let made = text(&namespace, "/metadata/labels/app.kubernetes.io~1part-of") == "tulle";
    let pods = workloads::pods(cluster, Some(home)).await?;
    let others = pods
        .iter()
        .any(|pod| text(pod, "/metadata/labels/app.kubernetes.io~1part-of") != "tulle");
    Ok(if made && !others {
        vec![path]
    } else {
        Vec::new()
    })
}

async fn remove(cluster: &Cluster, path: &str) -> Result<()> {
    if cluster.delete(path).await? {
        line(&format!("removed {}", shown(path)));
    }
    Ok(())
}

/// `deployments tulle-system/tulle-controller`
fn shown(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [.., "namespaces", namespace, kind, name] => format!("{kind} {namespace}/{name}"),
        [.., kind, name] => format!("{kind} {name}"),
        _ => path.to_owned(),
    }
}

/// It would make bundles again.
async fn controller_is_gone(cluster: &Cluster, home: &str) -> Result<()> {
    let query = format!(
        "/api/v1/namespaces/{home}/pods?labelSelector=app.kubernetes.io%2Fname%3D{CONTROLLER}"
    );
    let end = Instant::now() + PATIENCE;
    while !cluster.list(&query).await?.is_empty() {
        late(end, "the controller's pods")?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

async fn gone(cluster: &Cluster, path: &str) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while cluster.get(path).await?.is_some() {
        late(end, &shown(path))?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

fn late(end: Instant, what: &str) -> Result<()> {
    if Instant::now() < end {
        return Ok(());
    }
    let seconds = PATIENCE.as_secs();
    Err(
        Failure::new(format!("{what} did not end within {seconds} s"))
            .fix("run `tulle uninstall` again; `kubectl describe` says what holds it"),
    )
}

fn agreed(cluster: &Cluster, count: usize) -> Result<()> {
    let what = format!("remove {count} objects from {}", cluster.context);
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "cannot ask whether to {what}: standard input is no terminal"
        ))
        .fix("pass --yes to agree, or --dry-run to list them"));
    }
    anstream::eprint!("{what}? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .or_fail(|| "cannot read the answer".to_owned())?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new("nothing was removed, as answered")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn definitions_of_smi_go_if_an_installation_made_them() {
        let crd = |group: &str, part: &str, by: &str| {
            let labels = json!({
                "app.kubernetes.io/part-of": part, "app.kubernetes.io/managed-by": by,
            });
            json!({ "metadata": { "labels": labels }, "spec": { "group": group } })
        };
        assert!(is_ours(&crd("tulle.dev", "", "")));
        assert!(is_ours(&crd("policy.tulle.dev", "", "")));
        assert!(is_ours(&crd("split.smi-spec.io", "tulle", "tulle")));
        for (group, part, by) in [
            ("split.smi-spec.io", "", ""),
            ("split.smi-spec.io", "other", "Helm"),
            ("split.smi-spec.io", "tulle", "Helm"),
            ("gateway.networking.k8s.io", "tulle", "tulle"),
        ] {
            assert!(!is_ours(&crd(group, part, by)), "{group} {part} {by}");
        }
    }

    #[test]
    fn controllers_are_updated_once_no_earlier_one_is_left() {
        let with = |observed: u64, [updated, available, all]: [u64; 3]| {
            json!({
                "metadata": { "generation": 2 }, "spec": { "replicas": 2 },
                "status": {
                    "observedGeneration": observed, "updatedReplicas": updated,
                    "availableReplicas": available, "replicas": all,
                },
            })
        };
        assert!(is_updated(&with(2, [2, 2, 2])));
        for not in [
            with(1, [2, 2, 2]),
            with(2, [1, 2, 2]),
            with(2, [2, 1, 2]),
            with(2, [2, 2, 3]),
            json!({}),
        ] {
            assert!(!is_updated(&not), "{not}");
        }
    }

    #[test]
    fn objects_are_found_where_they_are() {
        let objects = [
            json!({ "metadata": { "name": "a", "namespace": "n" } }),
            json!({ "metadata": { "name": "b" } }),
        ];
        let found = paths("/apis/apps/v1/deployments", &objects);
        assert_eq!(
            found,
            [
                "/apis/apps/v1/namespaces/n/deployments/a",
                "/apis/apps/v1/deployments/b"
            ]
        );
        assert_eq!(shown(&found[0]), "deployments n/a");
        assert_eq!(
            shown("/api/v1/namespaces/tulle-system"),
            "namespaces tulle-system"
        );
        assert!(KINDS[MAKERS..].iter().all(|k| !k.contains("/apps/")));
    }
}
