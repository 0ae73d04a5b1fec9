//! `tulle import` and the meshes that it reads.

use super::output::Output;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `tulle import`
#[derive(Debug, Clone, Args)]
pub(crate) struct Import {
    /// Mesh that the objects are of
    #[arg(value_name = "MESH")]
    pub(crate) mesh: OtherMesh,
    /// Files of YAML or JSON, as `kubectl get -o yaml` prints them; `-` is standard input
    #[arg(
        required_unless_present = "cluster",
        conflicts_with = "cluster",
        value_name = "FILE"
    )]
    pub(crate) files: Vec<PathBuf>,
    /// Read the objects that a cluster has, and change nothing there
    #[arg(long)]
    pub(crate) cluster: bool,
    /// Read only this namespace of the cluster
    #[arg(
        long,
        short,
        value_name = "NAME",
        requires = "cluster",
        conflicts_with = "files"
    )]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// Meshes whose objects `tulle import` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OtherMesh {
    /// Open Service Mesh
    Osm,
    /// osm-edge and FSM, which have OSM's kinds and some more
    Fsm,
    /// Istio
    Istio,
    /// Linkerd
    Linkerd,
}
