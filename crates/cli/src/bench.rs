//! `tulle bench`: the lab is a crate of its own; here its end becomes the command's.

use crate::failure::{Failure, Result};
use std::process::ExitCode;
use tulle_bench::{Bench, Kind};

/// Everything ran, and a budget is exceeded.
const FINDINGS: u8 = 79;
/// As shells say that SIGINT ended a program.
const INTERRUPTED: u8 = 130;

/// Runs a study.
pub(crate) fn bench(args: &Bench) -> Result<ExitCode> {
    end(tulle_bench::run(args))
}

/// How something of the lab ended, as the command says it.
pub(crate) fn end(done: tulle_bench::Result<()>) -> Result<ExitCode> {
    let Err(failure) = done else {
        return Ok(ExitCode::SUCCESS);
    };
    let code = match failure.kind {
        Kind::Findings => FINDINGS,
        Kind::Interrupted => INTERRUPTED,
        Kind::Failed => return Err(Failure::new(failure.to_string())),
        Kind::Usage => return Err(Failure::usage(failure.to_string())),
        Kind::Input => return Err(Failure::input(failure.to_string())),
    };
    anstream::eprintln!("{failure}");
    Ok(ExitCode::from(code))
}
