//! Both studies in a cluster (`--kubernetes`): the same scenarios between pods.
//!
//! A cell has a namespace of its own with the applications and a client, which Fortio's load is
//! started in. What a mesh is, is a label of the namespace, so that any mesh that is installed can be
//! measured. CPU and memory are the kubelet's figures, because they are the same for every mesh.
//!
//! Files in the order of a measurement: `kubectl`, `nodes` (what runs where), `place` (a namespace and its pods), `resize` (limits
//! of sidecars), `load`, `usage` (CPU and memory), `proof`.

mod kubectl;
mod load;
mod nodes;
mod place;
mod proof;
mod resize;
mod usage;

pub use kubectl::Kubectl;
pub use load::{Asked, Finished, Loaded, SidecarUsage};
pub use nodes::Nodes;
pub use place::{App, ReadyNamespace, namespace};
pub use proof::{Proof, StrangerRequest};
pub use usage::Used;

use crate::failure::{Failure, FailureKind, Result};
use clap::Args;
use std::path::PathBuf;

/// ClusterOptions of a study in a cluster.
#[derive(Debug, Clone, Default, Args, serde::Serialize)]
pub struct ClusterOptions {
    /// Measure in the cluster of the current context, between pods
    #[arg(long, conflicts_with = "vs")]
    pub kubernetes: bool,
    /// Another mesh of the cluster to compare with Tulle, and the label by which a namespace joins it
    #[arg(
        long,
        value_name = "NAME=KEY=VALUE",
        requires = "kubernetes",
        value_parser = mesh
    )]
    pub mesh: Vec<Mesh>,
    /// Program to access the cluster with
    #[arg(
        long,
        value_name = "FILE",
        requires = "kubernetes",
        default_value = "kubectl"
    )]
    pub kubectl: PathBuf,
    /// Image of Fortio, for client and server
    #[arg(
        long,
        value_name = "IMAGE",
        requires = "kubernetes",
        default_value = "fortio/fortio:1.68.2"
    )]
    pub fortio_image: String,
    /// Image of bookinfo, for study 1
    #[arg(
        long,
        value_name = "IMAGE",
        requires = "kubernetes",
        default_value = concat!("localhost/bookinfo:", env!("CARGO_PKG_VERSION"))
    )]
    pub bookinfo_image: String,
}

/// A mesh that injects sidecars.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Mesh {
    /// The peer's name in results.
    pub name: String,
    /// The label of namespaces; none without a mesh.
    pub label: Option<(String, String)>,
}

impl Mesh {
    /// The one that is compared with the others.
    pub fn tulle() -> Self {
        Self {
            name: crate::results::stats::SUBJECT.into(),
            label: Some(("tulle.dev/inject".into(), "enabled".into())),
        }
    }

    /// No sidecars.
    pub fn none() -> Self {
        Self {
            name: crate::results::stats::NO_MESH.into(),
            label: None,
        }
    }

    /// Whether it is the one whose counters are known.
    pub fn is_tulle(&self) -> bool {
        self.name == crate::results::stats::SUBJECT
    }
}

impl ClusterOptions {
    /// Tulle, then the others.
    ///
    /// # Errors
    /// Two have one name.
    pub fn meshes(&self) -> Result<Vec<Mesh>> {
        let mut all = vec![Mesh::tulle()];
        for mesh in &self.mesh {
            if all.iter().any(|known| known.name == mesh.name) || mesh.name == Mesh::none().name {
                let text = format!("--mesh {}: this name is taken", mesh.name);
                return Err(Failure::new(FailureKind::Usage, text));
            }
            all.push(mesh.clone());
        }
        Ok(all)
    }
}

/// Parses a mesh of the command line.
fn mesh(text: &str) -> std::result::Result<Mesh, String> {
    let mut parts = text.splitn(3, '=');
    let mut part = || parts.next().filter(|part| !part.is_empty());
    match (part(), part(), part()) {
        (Some(name), Some(key), Some(value)) if place::is_label(name) => Ok(Mesh {
            name: name.into(),
            label: Some((key.into(), value.into())),
        }),
        _ => Err("expected NAME=KEY=VALUE, such as istio=istio-injection=enabled".into()),
    }
}

/// Note on Fortio's load.
pub const FORTIO_NOTE: &str = "Fortio runs in the client's container (`kubectl exec`). Percentiles are Fortio's, and it counts latency from the moment it sends.";

/// Notes that readers of both studies' figures need.
pub fn notes() -> Vec<String> {
    vec![
        "Measured between pods. Each mesh has a namespace of its own; the pods of all of them are there all the time, and only one is asked at a time.".to_owned(),
        "CPU and memory are the kubelet's, of the sidecar's container: the CPU between the first and the last time within the load that the kubelet has looked, memory the working set. Nothing is pinned.".to_owned(),
        format!("Every sidecar that is limited also has a memory limit of {}, whatever its mesh.", place::MEMORY_LIMIT),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_are_labels_of_namespaces() {
        let istio = mesh("istio=istio-injection=enabled").unwrap();
        assert_eq!(istio.name, "istio");
        let label = istio.label.clone().unwrap();
        assert_eq!(label, ("istio-injection".into(), "enabled".into()));
        for text in ["istio", "istio=x", "=a=b", "a==b", "Big=a=b", "a b=c=d"] {
            assert!(mesh(text).is_err(), "{text}");
        }
        let options = |mesh: Vec<Mesh>| ClusterOptions {
            mesh,
            ..ClusterOptions::default()
        };
        assert_eq!(options(vec![istio.clone()]).meshes().unwrap().len(), 2);
        assert!(options(vec![istio.clone(), istio]).meshes().is_err());
        assert!(options(vec![Mesh::none()]).meshes().is_err());
    }
}
