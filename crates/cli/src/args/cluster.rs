//! Clusters: options that select one, and `tulle inject`, `namespace` and `harden`, which no host has.

use super::output::Output;
use crate::examples;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Options that select the cluster.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Which {
    /// Use the mesh of the cluster of this context
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        help_heading = "Which mesh",
        display_order = 1001
    )]
    pub(crate) context: Option<String>,
    /// Use the mesh of the cluster of this kubeconfig file
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Which mesh",
        display_order = 1001
    )]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// `-n`
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Within {
    /// Look only at this namespace of a cluster, whatever is up on this host
    #[arg(long, short, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
}

/// `tulle inject`
#[derive(Debug, Clone, Args)]
pub(crate) struct Inject {
    /// Manifests; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Add the sidecar itself, as the cluster's webhook would, not only the label that asks for it
    #[arg(long)]
    pub(crate) manual: bool,
    /// Add the label that asks for no sidecar
    #[arg(long, conflicts_with = "manual")]
    pub(crate) disable: bool,
}

/// `tulle namespace`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Namespace {
    /// Give sidecars to the pods of namespaces when they start
    #[command(after_help = examples::NAMESPACE)]
    Add(Namespaces),
    /// Stop giving sidecars to the pods of namespaces
    Remove(Namespaces),
    /// Give no sidecars to the pods of namespaces, whatever an operator or a pod's namespace selector asks for
    Ignore(Namespaces),
    /// List namespaces and their pods
    List {
        #[command(flatten)]
        format: Output,
    },
}

/// Some namespaces.
#[derive(Debug, Clone, Args)]
pub(crate) struct Namespaces {
    /// Namespaces
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Restart the Deployments, StatefulSets and DaemonSets of these namespaces, so that the change
    /// holds at once
    #[arg(long)]
    pub(crate) restart: bool,
}

/// `tulle harden`
#[derive(Debug, Clone, Args)]
pub(crate) struct Harden {
    /// Namespaces to make strict, even if that refuses traffic (default: all where it refuses none)
    #[arg(value_name = "NAMESPACE")]
    pub(crate) names: Vec<String>,
    /// Show which traffic would be refused, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) format: Output,
}
