//! Command lines that show how a mesh is and why: `tulle status`, `check`, `why` and `support`.

use super::at;
use super::cluster::Within;
use super::output::Output;
use crate::examples;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `tulle status`
#[derive(Debug, Clone, Args)]
pub(crate) struct Status {
    /// Show only these services, workloads or gateways and their traffic (default: all)
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Show only problems: not ready, restarted, refused, denied, failed, plaintext
    #[arg(long)]
    pub(crate) problems: bool,
    #[command(flatten)]
    pub(crate) format: Output,
    /// Repeat every second until Ctrl-C
    #[arg(long, short)]
    pub(crate) watch: bool,
}

/// `tulle check`
#[derive(Debug, Clone, Args)]
pub(crate) struct Check {
    /// Check before installation whether a cluster can have a mesh
    #[arg(long, conflicts_with_all = ["proxy", "fix"])]
    pub(crate) pre: bool,
    /// Check only the sidecars of a cluster and their pods
    #[arg(long, conflicts_with = "fix")]
    pub(crate) proxy: bool,
    /// Fix what can be fixed safely: nothing that serves traffic is touched
    #[arg(long)]
    pub(crate) fix: bool,
    /// With --fix: change nothing, and show what would be fixed
    #[arg(long, requires = "fix")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) within: Within,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle why`
#[derive(Debug, Clone, Args)]
pub(crate) struct Why {
    /// Calling service or gateway
    pub(crate) from: String,
    /// Called service, or host outside the mesh
    pub(crate) to: String,
    /// Method and path of the request, or one of them (default: GET /)
    #[arg(value_name = "METHOD PATH", num_args = 0..=2)]
    request: Vec<String>,
    /// Method of the request
    #[arg(long = "method", value_name = "METHOD")]
    method: Option<String>,
    /// Port of the called service (default: its first)
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Judge by the objects of then: a time of the day in UTC (14:02), or how long ago (5m)
    #[arg(long, value_name = "TIME", value_parser = at::parse)]
    pub(crate) at: Option<i64>,
    #[command(flatten)]
    pub(crate) within: Within,
    #[command(flatten)]
    pub(crate) format: Output,
}

impl Why {
    /// The method asked about: what is no path, or `--method`.
    pub(crate) fn method(&self) -> &str {
        let word = self.request.iter().find(|word| !word.starts_with('/'));
        self.method.as_ref().or(word).map_or("GET", String::as_str)
    }

    /// The path asked about; empty: `/`.
    pub(crate) fn path(&self) -> &str {
        let mut words = self.request.iter();
        words
            .find(|word| word.starts_with('/'))
            .map_or("", String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn new(from: &str, to: &str, request: &[&str]) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            request: request.iter().map(ToString::to_string).collect(),
            method: None,
            port: 0,
            at: None,
            within: Within::default(),
            format: Output {
                output: super::output::Format::Table,
            },
        }
    }
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
