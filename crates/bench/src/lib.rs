//! `tulle bench`: the two published studies and the data plane alone, beside real peers.
//!
//! A study is a list of cells ([`run::Cell`]): one scenario for one peer. [`run::interleaved`]
//! measures each cell once per repeat, peers in turn, and hands every sample to the
//! [`report::Recorder`], which keeps what is done whatever happens next. [`results`] says what a
//! sample is, [`stats`] how samples become a table; [`report`] writes the files a person reads.
//!
//! Files in the order of a measurement: `args`, `pair` | `seeds` | `sweep` (the studies), `run`,
//! `peer` (configurations, proofs), `payload`, `kubernetes` (the studies between pods), `process`, `load`, `results`, `stats`, `budgets`, `report`.

pub mod args;
pub mod baseline;
pub mod budgets;
pub mod command;
mod cpus;
mod environment;
pub mod failure;
mod fortio;
pub mod interrupt;
pub mod janitor;
pub mod kubernetes;
pub mod load;
pub mod pair;
pub mod payload;
pub mod peer;
pub mod process;
pub mod report;
pub mod results;
pub mod run;
pub mod seeds;
pub mod sweep;
pub mod tools;
pub mod verdict;

pub use command::Bench;
pub use failure::{Failure, FailureKind, OrFail, Result};

/// Runs one study.
///
/// # Errors
/// The study could not be run, was interrupted, or found what it must report ([`FailureKind::Findings`]).
pub fn run(bench: &Bench) -> Result<()> {
    if !matches!(bench.study, command::Study::Report(_)) {
        janitor::start()?;
    }
    match &bench.study {
        command::Study::Pair(options) => pair::run(options),
        command::Study::Seeds(options) => seeds::run(options),
        command::Study::Sweep(options) => sweep::run(options),
        command::Study::Report(options) => report::command::run(options),
    }
}
