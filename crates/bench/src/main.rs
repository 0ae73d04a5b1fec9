//! `tulle-bench`: the lab's program, which `tulle bench` becomes.
//!
//! It is a program of its own because a mesh needs none of it: sidecars, the controller and `tulle` stay small.

use clap::Parser;
use std::ffi::OsStr;
use std::process::ExitCode;
use tulle_bench::{Bench, FailureKind, Result, janitor, load};

/// Measure the data plane beside its peers.
#[derive(Debug, Parser)]
#[command(name = "tulle bench", bin_name = "tulle bench", version, after_help = EXAMPLES)]
struct Command {
    #[command(flatten)]
    bench: Bench,
}

const EXAMPLES: &str = "\
Examples:
  tulle bench pair --quick         the data plane alone; exit code 79 if a budget is exceeded
  tulle bench seeds --quick        two paths through bookinfo, sidecars limited
  tulle bench sweep --quick        Fortio, 2 to 64 connections
  tulle bench report DIR           a study's report again, from its results.json";

/// The processes that a study starts of this program. Not part of [`Command`], so that help does not show them.
#[derive(Debug, Parser)]
#[command(name = "tulle-bench")]
enum Internal {
    /// Generates load
    Load {
        /// The load to generate, as JSON
        load: String,
    },
    /// Answers the load
    Server(load::Serve),
    /// Clears up after a study, however it ended
    Janitor,
}

/// The first word of an [`Internal`] command line.
const INTERNAL: &str = "internal";

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = if words
        .get(1)
        .is_some_and(|word| word == OsStr::new(INTERNAL))
    {
        Internal::try_parse_from(&words[1..]).map(|internal| run_internal(&internal))
    } else {
        Command::try_parse_from(&words).map(|command| tulle_bench::run(&command.bench))
    };
    match parsed {
        Ok(done) => ExitCode::from(code(done)),
        Err(error) => {
            let _ = error.print();
            // Help and version are no errors.
            ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
        }
    }
}

fn run_internal(internal: &Internal) -> Result<()> {
    match internal {
        Internal::Load { load } => load::main(load),
        Internal::Server(options) => load::serve(options),
        Internal::Janitor => {
            janitor::main();
            Ok(())
        }
    }
}

const USAGE: u8 = 64;

/// Says why a study ended without a result, and returns the exit code for it.
fn code(done: Result<()>) -> u8 {
    let Err(failure) = done else {
        return 0;
    };
    let code = match failure.kind {
        FailureKind::Failed => 1,
        FailureKind::Usage => USAGE,
        FailureKind::Input => 65,
        FailureKind::Findings => 79,
        // Shells report this status for a program that SIGINT ended.
        FailureKind::Interrupted => 130,
    };
    match failure.kind {
        FailureKind::Findings | FailureKind::Interrupted => anstream::eprintln!("{failure}"),
        _ => anstream::eprintln!("error: {failure}"),
    }
    code
}
