//! Options that every study has.

use clap::Args;
use std::path::PathBuf;

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
