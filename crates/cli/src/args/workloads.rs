//! Command lines of one workload or some: `tulle restart`, `exec` and `logs`.

use super::duration::duration;
use clap::Args;
use std::ffi::OsString;
use std::time::Duration;

/// `tulle restart`
#[derive(Debug, Clone, Args)]
pub(crate) struct Restart {
    /// Workloads, gateways, or services with all their workloads, one after another
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Time until each must answer again
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "120s")]
    pub(crate) timeout: Duration,
}

/// `tulle exec`
#[derive(Debug, Clone, Args)]
pub(crate) struct Exec {
    /// Workload whose application to imitate
    pub(crate) workload: String,
    /// Program to run, and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// `tulle logs`
#[derive(Debug, Clone, Args)]
pub(crate) struct Logs {
    /// Workload or gateway to read, or `controller` or `supervisor`
    #[arg(value_name = "NAME")]
    pub(crate) workload: String,
    /// Print the sidecar's output
    #[arg(long)]
    pub(crate) sidecar: bool,
    /// Wait for more output
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print only this many last lines
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<usize>,
}
