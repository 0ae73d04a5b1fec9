//! The command line of `tulle bench`.

use clap::{Args, Subcommand};

/// `tulle bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// Which
    #[command(subcommand)]
    pub study: Study,
}

/// The studies.
#[derive(Debug, Subcommand)]
pub enum Study {
    /// Measure the data plane alone: client, two sidecars, server; the regression gate
    Pair(crate::pair::Options),
    /// Measure study 1: two paths through bookinfo, sidecars limited to a share of a core
    Seeds(crate::seeds::Options),
    /// Measure study 2: Fortio client and server, 2 to 64 connections
    Sweep(crate::sweep::Options),
    /// Write a study's report again from its results, and its tables into documents
    Report(crate::report::command::Options),
}
