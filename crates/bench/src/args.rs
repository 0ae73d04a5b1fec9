//! The command line of `tulle bench`. Options that every study has are in [`Common`].

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `tulle bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// The study to run
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

/// Options of every study.
#[derive(Debug, Clone, Args, serde::Serialize)]
pub struct Common {
    /// Take minutes instead of hours: fewer scenarios, shorter runs
    #[arg(long)]
    pub quick: bool,
    /// Interleaved runs of every peer [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: Option<u32>,
    /// Seconds of load before each measurement
    #[arg(long, value_name = "SECONDS")]
    pub warmup: Option<u64>,
    /// Seconds of each measurement
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// Directory of the results [default: bench-out/<study>-<date>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Envoy program [default: the one in build/, else in PATH]
    #[arg(long, value_name = "FILE", env = "TULLE_ENVOY", hide_env_values = true)]
    pub envoy: Option<PathBuf>,
    /// Pipy program, for the peer `pipy`
    #[arg(long, value_name = "FILE")]
    pub pipy_binary: Option<PathBuf>,
}

/// Parses the options of a command line.
#[cfg(test)]
pub(crate) fn parse<O: Args>(words: &[&str]) -> O {
    try_parse(words).unwrap()
}

/// Parses a command line that may be wrong.
#[cfg(test)]
pub(crate) fn try_parse<O: Args>(words: &[&str]) -> std::result::Result<O, clap::Error> {
    #[derive(clap::Parser)]
    struct Command<O: Args> {
        #[command(flatten)]
        options: O,
    }
    let words = ["study"].iter().chain(words);
    <Command<O> as clap::Parser>::try_parse_from(words).map(|c| c.options)
}

impl Common {
    /// Returns the number of interleaved runs.
    pub fn repeats(&self) -> u32 {
        self.repeats.unwrap_or(5)
    }
}
