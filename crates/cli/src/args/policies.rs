//! Command lines of policies: `tulle prove` says what they allow, `tulle learn` which of them suffice.

use super::cluster::Within;
use super::duration::duration;
use super::output::Output;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// `tulle prove`
#[derive(Debug, Clone, Args)]
pub(crate) struct Prove {
    /// Statements, each one word to the shell
    #[arg(value_name = "STATEMENT")]
    pub(crate) statements: Vec<String>,
    /// File with statements, one a line; `#` begins a comment
    #[arg(long = "from", value_name = "FILE")]
    pub(crate) from: Vec<PathBuf>,
    /// Prove them of the mesh that these manifests would make, not of the one that is up
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle learn`
#[derive(Debug, Clone, Args)]
pub(crate) struct Learn {
    /// Watch for this long
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "1m")]
    pub(crate) run_for: Duration,
    /// Print policies that only count and log what they would allow
    #[arg(long, conflicts_with = "diff")]
    pub(crate) audit: bool,
    /// Show what policies allow and nobody used, instead of policies
    #[arg(long)]
    pub(crate) diff: bool,
    #[command(flatten)]
    pub(crate) within: Within,
    #[command(flatten)]
    pub(crate) format: Output,
}
