//! The study `seeds`.

use crate::args::Common;
use crate::failure::{Failure, Result};
use clap::Args;

/// `tulle bench seeds`
#[derive(Debug, Clone, Args, serde::Serialize)]
pub struct Options {
    /// Of every study
    #[command(flatten)]
    pub common: Common,
}

/// Runs it.
///
/// # Errors
/// As [`crate::run`].
pub fn run(_options: &Options) -> Result<()> {
    Err(Failure::failed("not built yet"))
}
