//! Command lines that show traffic: `tulle stat`, `tap`, `top` and `edges`.

use super::cluster::Within;
use super::duration::duration;
use super::output::Output;
use clap::{Args, ValueEnum};
use std::time::Duration;

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
