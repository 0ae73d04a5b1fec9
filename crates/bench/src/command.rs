//! The command line of `tulle bench`.

use clap::{Args, Subcommand};

/// `tulle bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// Which
    #[command(subcommand)]
    pub study: Study,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Study {
    /// The data plane alone: client, two sidecars, server; the regression gate
    Pair(crate::pair::Options),
    /// Study 1: two paths through bookinfo, sidecars limited to a share of a core
    Seeds(crate::seeds::Options),
    /// Study 2: Fortio client and server, 2 to 64 connections
    Sweep(crate::sweep::Options),
    /// A study's report again from its results, and its tables in documents
    Report(crate::report::command::Options),
}
