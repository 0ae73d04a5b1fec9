//! Command lines of what is done with a cluster.

use crate::args::{Output, duration};
use crate::examples;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Which cluster is meant.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Which {
    /// The mesh of a cluster, by its context
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        help_heading = "Which mesh",
        display_order = 1001
    )]
    pub(crate) context: Option<String>,
    /// The mesh of the cluster of this file
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
    /// Only of this namespace of a cluster
    #[arg(long, short, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
}

/// What is chosen at installation.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Chosen {
    /// Values as for the Helm chart; a later file wins, and `-` is standard input
    #[arg(long, short = 'f', value_name = "FILE")]
    pub(crate) values: Vec<PathBuf>,
    /// One value, such as controller.replicas=2; wins over files and other options
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// What a mesh begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Callers without a sidecar are let in, and workloads reach what is outside the mesh
    Permissive,
    /// Neither
    Strict,
}

/// Which images.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Images {
    /// Where the images are (default: where they are now, at first localhost)
    #[arg(long, value_name = "HOST/PATH")]
    pub(crate) registry: Option<String>,
    /// Which of them (default: those of this version)
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
}

/// `tulle uninstall`
#[derive(Debug, Clone, Args)]
pub(crate) struct Uninstall {
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Also while pods have sidecars: they keep working until their certificates expire
    #[arg(long)]
    pub(crate) force: bool,
    /// Also remove the kinds of objects of the mesh, and with them every object of these kinds
    #[arg(long)]
    pub(crate) crds: bool,
    /// Change nothing; print what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `tulle upgrade`
#[derive(Debug, Clone, Args)]
pub(crate) struct Upgrade {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) images: Images,
    /// Print what would change, and no objects
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) format: Output,
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
    /// Ask for no sidecar
    #[arg(long, conflicts_with = "manual")]
    pub(crate) disable: bool,
}

/// `tulle namespace`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Namespace {
    /// Pods of these namespaces get sidecars when they start
    #[command(after_help = examples::NAMESPACE)]
    Add(Namespaces),
    /// They get none any more
    Remove(Namespaces),
    /// They get none, whatever an operator or a pod's namespace selector asks for
    Ignore(Namespaces),
    /// Namespaces and their pods
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
    /// Start their Deployments, StatefulSets and DaemonSets again, so that it holds at once
    #[arg(long)]
    pub(crate) restart: bool,
}

/// What a proxy can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Query {
    /// What is in force
    Config,
    /// Its certificate and what it trusts
    Certificates,
    /// Where it sends requests, and how these fare
    Endpoints,
    /// What failed last
    Errors,
    /// Counters
    Metrics,
    /// Whether it is ready
    Ready,
}

/// `tulle proxy`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Proxy {
    /// What the proxies of pods say of themselves
    #[command(after_help = examples::PROXY)]
    Get {
        /// What to ask
        #[arg(value_enum)]
        query: Query,
        /// Pod, `pod/NAME` or such as `deploy/NAME`, `svc/NAME`; then the first that is ready
        #[arg(value_name = "POD")]
        target: String,
        #[command(flatten)]
        within: Within,
    },
    /// Proxies, their versions and certificates
    List {
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        format: Output,
    },
}

/// By what traffic is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum By {
    /// Deployments and the like
    #[default]
    Workload,
    /// Pods
    Pod,
    /// Services
    Service,
}

/// `tulle stat`
#[derive(Debug, Clone, Args)]
pub(crate) struct Stat {
    /// Only this: `deploy/NAME`, `pod/NAME`, `svc/NAME`, or a name
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// What a row is
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: By,
    /// How long to look
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) window: Duration,
    #[command(flatten)]
    pub(crate) within: Within,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle tap` and `tulle top`
#[derive(Debug, Clone, Args)]
pub(crate) struct Tap {
    /// Whose requests: `deploy/NAME`, `pod/NAME`, `svc/NAME`, or a pod's name
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Only requests with this method
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Option<String>,
    /// Only requests whose path begins so
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// End after this long
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) run_for: Option<Duration>,
    /// End after so many requests
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<usize>,
    #[command(flatten)]
    pub(crate) within: Within,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle edges`
#[derive(Debug, Clone, Args)]
pub(crate) struct Edges {
    #[command(flatten)]
    pub(crate) within: Within,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle harden`
#[derive(Debug, Clone, Args)]
pub(crate) struct Harden {
    /// Namespaces that become strict, whatever is refused then (default: all where nothing is)
    #[arg(value_name = "NAMESPACE")]
    pub(crate) names: Vec<String>,
    /// Only show what would be refused
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle dashboard`
#[derive(Debug, Clone, Args)]
pub(crate) struct Dashboard {
    /// Port on 127.0.0.1 (default: one that is free)
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) port: u16,
    /// What to show: the Service `grafana` or `prometheus` of any namespace, or NAMESPACE/SERVICE:PORT
    #[arg(value_name = "WHAT", default_value = "grafana")]
    pub(crate) what: String,
}

/// `tulle metrics`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Metrics {
    /// Sidecars of these namespaces are scraped by Prometheus
    #[command(after_help = examples::METRICS)]
    Enable(Namespaces),
    /// They are not
    Disable(Namespaces),
}

/// `tulle support`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Support {
    /// An archive of what helps to find out what is wrong; no secrets and no keys
    #[command(after_help = examples::SUPPORT)]
    BugReport {
        /// The archive
        #[arg(long, value_name = "FILE", default_value = "tulle-bug-report.tar.gz")]
        file: PathBuf,
        /// Last lines of each log
        #[arg(long, value_name = "N", default_value_t = 1000)]
        lines: usize,
        /// Most pods whose proxies and logs are in it
        #[arg(long, value_name = "N", default_value_t = 100)]
        pods: usize,
    },
}
