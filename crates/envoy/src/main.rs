//! `tulle-envoy --config FILE --envoy PROGRAM`: runs one Envoy in the place of a sidecar.
//!
//! `tulle up --data-plane envoy` starts it, one for each workload.

use lexopt::prelude::*;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tulle_envoy::agent::{self, AgentError};
use tulle_proxy::run::StartError;

const HELP: &str = include_str!("help.txt");

enum Task {
    Run { config: PathBuf, envoy: PathBuf },
    Print(&'static str),
}

fn parse() -> Result<Task, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let (mut config, mut envoy) = (None, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("config") => config = Some(parser.value()?.into()),
            Long("envoy") => envoy = Some(parser.value()?.into()),
            Short('h') | Long("help") => return Ok(Task::Print(HELP)),
            Short('V') | Long("version") => {
                let version = concat!("tulle-envoy ", env!("CARGO_PKG_VERSION"), "\n");
                return Ok(Task::Print(version));
            }
            other => return Err(other.unexpected()),
        }
    }
    let missing = |option: &str| lexopt::Error::Custom(format!("{option} is missing").into());
    Ok(Task::Run {
        config: config.ok_or_else(|| missing("--config FILE"))?,
        envoy: envoy.ok_or_else(|| missing("--envoy PROGRAM"))?,
    })
}

fn main() -> ExitCode {
    tulle_net::memory::use_one_arena();
    let (config, envoy) = match parse() {
        Ok(Task::Run { config, envoy }) => (config, envoy),
        Ok(Task::Print(text)) => {
            return match std::io::stdout().write_all(text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Err(why) => return failed(why, 64),
    };
    // Before there is a key in memory or in a file: without root all processes of a mesh belong to one user, and
    // none may look into another, nor may a core dump hold a key.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        return failed(format!("cannot keep its memory to itself: {error}"), 1);
    }
    if let Err(error) = tulle_proxy::telemetry::logging::start() {
        return failed(error, 65);
    }
    match agent::run(&config, &envoy) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let bad_input = matches!(
                error,
                AgentError::NotControlled | AgentError::Start(StartError::Config(_))
            );
            failed(error, if bad_input { 65 } else { 1 })
        }
    }
}

fn failed(why: impl Display, code: u8) -> ExitCode {
    eprintln!("tulle-envoy: {why}");
    ExitCode::from(code)
}
