//! Command lines of what is done with a cluster.

use crate::args::{Output, duration};
use crate::examples;
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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

/// Values that the user chooses at installation.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Chosen {
    /// File with values as for the Helm chart; a later file wins, and `-` is standard input
    #[arg(long, short = 'f', value_name = "FILE")]
    pub(crate) values: Vec<PathBuf>,
    /// One value, such as controller.replicas=2; wins over files and other options
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// The initial settings of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Callers without a sidecar are let in, and workloads reach what is outside the mesh
    Permissive,
    /// Callers without a sidecar are refused, and destinations outside the mesh need an Egress
    Strict,
}

/// Options that select the images.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Images {
    /// Registry of the images (default: localhost; for an upgrade that of the installed mesh)
    #[arg(long, value_name = "HOST/PATH")]
    pub(crate) registry: Option<String>,
    /// Tag of the images (default: this version)
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
}

/// Options that apply the objects instead of printing them.
#[derive(Debug, Clone, Args)]
pub(crate) struct Applying {
    /// Apply the objects with kubectl instead of printing them, and wait until the controller and the CNI plugin run;
    /// end at once if a node cannot get an image
    #[arg(long)]
    pub(crate) apply: bool,
    /// Longest wait of --apply
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5m", requires = "apply")]
    pub(crate) timeout: Duration,
}

/// `tulle uninstall`
#[derive(Debug, Clone, Args)]
pub(crate) struct Uninstall {
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Uninstall even while pods have sidecars, which keep working until their certificates expire
    #[arg(long)]
    pub(crate) force: bool,
    /// Also remove the CustomResourceDefinitions of the mesh, and with them every object of these
    /// kinds
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
    /// Print the changes instead of the objects
    #[arg(long, conflicts_with = "apply")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) applying: Applying,
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

/// Subjects that a proxy can be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Query {
    /// Configuration in force
    Config,
    /// Certificate and trusted roots
    Certificates,
    /// Endpoints it sends requests to, with their state
    Endpoints,
    /// Last failures
    Errors,
    /// Counters
    Metrics,
    /// Readiness
    Ready,
}

/// `tulle proxy`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Proxy {
    /// Print the report of a proxy: of a pod, or of a workload or gateway of this host
    #[command(after_help = examples::PROXY)]
    Get {
        /// Subject of the report
        #[arg(value_enum)]
        query: Query,
        /// Pod as NAME or `pod/NAME`; for `deploy/NAME`, `svc/NAME` and the like the first pod that
        /// is ready. On a host a workload, gateway or service, as NAME, `workload/NAME`, `gateway/NAME` or `svc/NAME`
        #[arg(value_name = "POD")]
        target: String,
        #[command(flatten)]
        within: Within,
    },
    /// List proxies, their versions and certificates
    List {
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        format: Output,
    },
}

/// The unit by which traffic is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum By {
    /// Deployments and other owners of pods; on a host workloads and gateways
    #[default]
    Workload,
    /// Pods; on a host the same as workloads
    Pod,
    /// Services
    Service,
}

/// `tulle stat`
#[derive(Debug, Clone, Args)]
pub(crate) struct Stat {
    /// Show only this: `deploy/NAME`, `pod/NAME`, `svc/NAME`, on a host `workload/NAME` or `gateway/NAME`, or a name
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// Unit of a row
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: By,
    /// Time to measure
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
    /// Workload to watch: `deploy/NAME`, `pod/NAME`, `svc/NAME`, on a host `workload/NAME` or `gateway/NAME`, or a name
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Show only requests with this method
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Option<String>,
    /// Show only requests whose path begins with this
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// End after this long
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) run_for: Option<Duration>,
    /// End after this many requests
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
    /// Namespaces to make strict, even if that refuses traffic (default: all where it refuses none)
    #[arg(value_name = "NAMESPACE")]
    pub(crate) names: Vec<String>,
    /// Show which traffic would be refused, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle dashboard`
#[derive(Debug, Clone, Args)]
pub(crate) struct Dashboard {
    /// Local port on 127.0.0.1 (default: a free one)
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) port: u16,
    /// Another dashboard of a cluster: the Service `grafana` or `prometheus` of any namespace, or
    /// NAMESPACE/SERVICE:PORT (default: the mesh's own)
    #[arg(value_name = "WHAT")]
    pub(crate) what: Option<String>,
    /// Print the URL and open no browser
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Print nothing but the URL, for a program; it opens one session, within a minute
    #[arg(long, conflicts_with = "what")]
    pub(crate) print_url: bool,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle metrics`
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Metrics {
    #[command(subcommand)]
    pub(crate) change: Option<Scraping>,
    #[command(flatten)]
    pub(crate) within: Within,
    /// Serve the page at http://ADDRESS/metrics until Ctrl-C: one target to scrape for the whole mesh
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) serve: Option<SocketAddr>,
}

/// Changes to what Prometheus scrapes in a cluster.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Scraping {
    /// Let Prometheus scrape the sidecars of namespaces
    Enable(Namespaces),
    /// Stop Prometheus from scraping the sidecars of namespaces
    Disable(Namespaces),
}

/// `tulle support`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Support {
    /// Write an archive of diagnostics, without secrets and keys
    #[command(after_help = examples::SUPPORT)]
    BugReport {
        /// Archive to write
        #[arg(long, value_name = "FILE", default_value = "tulle-bug-report.tar.gz")]
        file: PathBuf,
        /// Number of last lines of each log
        #[arg(long, value_name = "N", default_value_t = 1000)]
        lines: usize,
        /// Maximum number of pods, or of a host's workloads and gateways, whose proxies and logs are included
        #[arg(long, value_name = "N", default_value_t = 100)]
        pods: usize,
    },
}
