//! Objects of another mesh in a cluster, for `tulle import --cluster`: lists are all that is asked for, and nothing is
//! changed. Which API groups are the mesh's and what its objects mean is `import`'s.

use super::cluster::Cluster;
use super::workloads::{items, text};
use crate::args::import::{Import, OtherMesh};
use crate::failure::{Failure, Result};
use crate::import;
use crate::output::progress;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// A kind of the API server.
#[derive(Clone, Copy)]
struct Kind<'a> {
    kind: &'a str,
    /// Group and version.
    version: &'a str,
    plural: &'a str,
}

impl<'a> Kind<'a> {
    const fn new(kind: &'a str, version: &'a str, plural: &'a str) -> Self {
        Self {
            kind,
            version,
            plural,
        }
    }

    fn group(&self) -> &'a str {
        self.version.split_once('/').map_or("", |(group, _)| group)
    }
}

const NAMESPACE: Kind<'_> = Kind::new("Namespace", "v1", "namespaces");
/// Kinds of Kubernetes in namespaces that say something to a mesh.
const PLAIN: [Kind<'_>; 5] = [
    Kind::new("Service", "v1", "services"),
    Kind::new("DaemonSet", "apps/v1", "daemonsets"),
    Kind::new("Deployment", "apps/v1", "deployments"),
    Kind::new("StatefulSet", "apps/v1", "statefulsets"),
    Kind::new("CronJob", "batch/v1", "cronjobs"),
];

/// Translates what there is of the mesh.
pub(super) async fn import(cluster: &Cluster, args: &Import) -> Result<ExitCode> {
    let (mesh, namespace) = (args.mesh, args.namespace.as_deref());
    let served = served(cluster, mesh, namespace.is_some()).await?;
    let known = import::kinds(mesh);
    let mut missing = known.to_vec();
    let is_served = |kind: &str| {
        let mut own = served.values().filter(|one| one["isOwn"] == true);
        own.any(|one| one["kind"] == kind)
    };
    missing.retain(|kind| !is_served(kind));
    let missing_names = missing.join(", ");
    if missing.len() == known.len() {
        let what = format!("the cluster at {} has no kind of that mesh", cluster.server);
        return Err(Failure::new(what)
            .because(format!("none of these is served: {missing_names}"))
            .fix("name another cluster by --context or --kubeconfig, or give files"));
    }
    if !missing.is_empty() {
        progress(&format!(
            "not served by this cluster, so left out: {missing_names}"
        ));
    }
    let mut objects = match namespace {
        None => list(cluster, NAMESPACE, None).await?,
        Some(name) => {
            let found = cluster.get(&format!("/api/v1/namespaces/{name}")).await?;
            let missing = || Failure::new(format!("there is no namespace {name}"));
            vec![plain(found.ok_or_else(missing)?, NAMESPACE)]
        }
    };
    let others = served.values().map(|one| {
        Kind::new(
            text(one, "/kind"),
            text(one, "/version"),
            text(one, "/plural"),
        )
    });
    for kind in PLAIN.into_iter().chain(others) {
        objects.extend(list(cluster, kind, namespace).await?);
    }
    objects.retain(|o| !import::is_part(mesh, text(o, "/kind"), text(o, "/metadata/namespace")));
    import::translate(args, objects)
}

/// The mesh's kinds, and others that it obeys, in their order, each in the first version that the API server prefers.
/// `within`: only those of namespaces.
async fn served(cluster: &Cluster, mesh: OtherMesh, within: bool) -> Result<Map<String, Value>> {
    let mut kinds = Map::new();
    let groups = cluster.get("/apis").await?.unwrap_or_default();
    for group in items(&groups, "/groups") {
        let name = text(group, "/name");
        let is_own = import::is_of(mesh, name);
        let foreign = import::foreign_kinds(mesh, name);
        if !is_own && foreign.is_empty() {
            continue;
        }
        for version in items(group, "/versions") {
            let version = text(version, "/groupVersion");
            let all = cluster.get(&format!("/apis/{version}")).await?;
            let all = all.unwrap_or_default();
            for one in items(&all, "/resources") {
                let (plural, kind) = (text(one, "/name"), text(one, "/kind"));
                let may_list = items(one, "/verbs").any(|verb| verb == "list");
                let is_read = is_own || foreign.contains(&kind);
                let is_meant = is_read && (!within || one["namespaced"] == true);
                // A slash: a part of an object, such as its status.
                if may_list && is_meant && !plural.contains('/') {
                    let known = kinds.entry(format!("{kind} {name} {plural}"));
                    known.or_insert_with(|| {
                        json!({ "kind": kind, "version": version, "plural": plural, "isOwn": is_own })
                    });
                }
            }
        }
    }
    kinds.sort_keys();
    Ok(kinds)
}

/// The objects of a kind by namespace and name, without what the API server writes.
async fn list(cluster: &Cluster, kind: Kind<'_>, namespace: Option<&str>) -> Result<Vec<Value>> {
    let Kind {
        version, plural, ..
    } = kind;
    let root = if version == "v1" { "api" } else { "apis" };
    let (within, scope) = match namespace {
        Some(name) => (
            format!("namespaces/{name}/"),
            format!("in the namespace {name}"),
        ),
        None => (String::new(), "of all namespaces".to_owned()),
    };
    let found = cluster
        .list(&format!("/{root}/{version}/{within}{plural}"))
        .await;
    let found = found.map_err(|failure| {
        let group = kind.group();
        let dot = if group.is_empty() { "" } else { "." };
        failure.about(&format!("listing {plural}{dot}{group} {scope}"))
    })?;
    let mut sorted = Map::new();
    for object in found {
        let object = plain(object, kind);
        let name = ["/metadata/namespace", "/metadata/name"].map(|field| text(&object, field));
        sorted.insert(name.join(" "), object);
    }
    sorted.sort_keys();
    Ok(sorted.into_iter().map(|(_, object)| object).collect())
}

/// An object as it could be applied. Those of a list do not say of which kind they are.
fn plain(mut object: Value, kind: Kind<'_>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("apiVersion".into(), kind.version.into());
        fields.insert("kind".into(), kind.kind.into());
    }
    import::clean(&mut object);
    object
}
