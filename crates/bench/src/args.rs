//! Options that every study has.

use clap::Args;
use std::path::PathBuf;

/// Options of every study.
#[derive(Debug, Clone, Args, serde::Serialize)]
pub struct Common {
    /// Minutes instead of hours: fewer scenarios, shorter runs
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
    /// Where the results go [default: bench-out/<study>-<date>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// An Envoy program [default: the one in build/, else in PATH]
    #[arg(long, value_name = "FILE", env = "TULLE_ENVOY", hide_env_values = true)]
    pub envoy: Option<PathBuf>,
    /// A Pipy program, for the peer `pipy`
    #[arg(long, value_name = "FILE")]
    pub pipy_binary: Option<PathBuf>,
}

/// Options as a command line gives them.
#[cfg(test)]
pub(crate) fn parse<O: Args>(words: &[&str]) -> O {
    try_parse(words).unwrap()
}

/// The same of one that may be wrong.
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
    /// Interleaved runs.
    pub fn repeats(&self) -> u32 {
        self.repeats.unwrap_or(5)
    }
}
