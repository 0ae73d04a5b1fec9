//! The border of a cluster's mesh: where it is strict.

use super::cluster::Cluster;
use super::present;
use super::workloads::text;
use crate::failure::Result;
use serde_json::Value;
use std::collections::BTreeSet;
use tulle_kube::names::PROFILE;
use tulle_kube::source::settings_of_mesh;

/// The parts of a cluster that are strict.
#[derive(Debug, Default)]
pub(super) struct Strictness {
    /// The mesh takes no plaintext.
    pub(super) mtls: bool,
    /// Nothing leaves the mesh without an Egress.
    pub(super) egress: bool,
    /// These are strict by themselves.
    pub(super) namespaces: BTreeSet<String>,
}

/// The `spec` of the Mesh in force: what its object says, else what was chosen at the installation.
pub(super) async fn mesh_in_force(cluster: &Cluster) -> Result<Value> {
    let mesh = cluster.get("/apis/tulle.dev/v1alpha1/meshes/mesh").await?;
    let mut mesh = mesh.map_or(Value::Null, |mut mesh| mesh["spec"].take());
    let installed = present::find(cluster).await?.unwrap_or_default();
    settings_of_mesh(&mut mesh, installed.into_mesh());
    Ok(mesh)
}

impl Strictness {
    /// Asks the API server.
    pub(super) async fn from_cluster(cluster: &Cluster, namespaces: &[Value]) -> Result<Self> {
        let mesh = mesh_in_force(cluster).await?;
        let strict = namespaces.iter().filter(|n| is_strict(n));
        Ok(Self {
            mtls: text(&mesh, "/mtls/mode") != "permissive",
            egress: mesh["allowEgress"] != true,
            namespaces: strict
                .map(|n| text(n, "/metadata/name").to_owned())
                .collect(),
        })
    }

    /// Whether workloads of a namespace refuse plaintext.
    pub(super) fn refuses_plaintext(&self, namespace: &str) -> bool {
        self.mtls || self.namespaces.contains(namespace)
    }

    /// Whether workloads of a namespace leave the mesh by an Egress alone.
    pub(super) fn refuses_egress(&self, namespace: &str) -> bool {
        self.egress || self.namespaces.contains(namespace)
    }
}

/// The profile that a namespace's label says; empty: none.
pub(super) fn profile(namespace: &Value) -> &str {
    let labels = namespace.pointer("/metadata/labels");
    let profile = labels.and_then(|labels| labels.get(PROFILE)?.as_str());
    profile.unwrap_or_default()
}

fn is_strict(namespace: &Value) -> bool {
    let labels = namespace.pointer("/metadata/labels");
    let is_there = labels.is_some_and(|labels| labels.get(PROFILE).is_some());
    is_there && profile(namespace) != "permissive"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_namespace_s_profile_is_strict_unless_it_is_permissive() {
        let of = |labels: Value| is_strict(&json!({ "metadata": { "labels": labels } }));
        assert!(of(json!({ PROFILE: "strict" })) && of(json!({ PROFILE: "Strict" })));
        assert!(!of(json!({ PROFILE: "permissive" })) && !of(json!({})));
    }
}
