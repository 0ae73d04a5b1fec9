//! Reports of proxies: `tulle proxy` and `tulle metrics`.

use super::cluster::{Namespaces, Within};
use super::output::Output;
use crate::examples;
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;

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
