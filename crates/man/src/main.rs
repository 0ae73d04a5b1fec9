//! `tulle-man DIRECTORY`: writes man pages of `tulle`, its commands, `tulle-proxy` and `tulle-envoy` to `DIRECTORY/man1`, and
//! completions of `tulle` to `DIRECTORY/completions`.
//!
//! A release is also made for architectures whose programs do not run on the machine that makes it, so these files are made of
//! the sources of the command line, not by a program of the release. They are in no program because `tulle` has a budget.

// The sources that it shares have tests, which are the command's and need its libraries: clippy's `--all-targets` would
// compile them here.
#![cfg(not(test))]

#[expect(
    dead_code,
    reason = "what a command does with its arguments is not here"
)]
#[path = "../../cli/src/args/mod.rs"]
mod args;
#[expect(dead_code, reason = "only its names are in the arguments")]
#[path = "../../cli/src/data_plane.rs"]
mod data_plane;
#[path = "../../cli/src/examples.rs"]
mod examples;
#[expect(dead_code, reason = "nothing fails by them here")]
#[path = "../../cli/src/failure.rs"]
mod failure;
mod pages;
#[path = "../../cli/src/port_range.rs"]
mod port_range;

use args::Cli;
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

/// Programs beside `tulle`, and the text of their `--help`.
const OTHERS: [(&str, &str); 2] = [
    ("tulle-proxy", include_str!("../../proxy/src/help.txt")),
    ("tulle-envoy", include_str!("../../envoy/src/help.txt")),
];

fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    let (Some(directory), None) = (words.next(), words.next()) else {
        eprintln!("error: expected one argument\nUsage: tulle-man DIRECTORY");
        return ExitCode::from(64);
    };
    let directory = PathBuf::from(directory);
    match write(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let directory = directory.display();
            eprintln!("error: man pages and completions cannot be written to {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &Path) -> io::Result<()> {
    let (man, completions) = (directory.join("man1"), directory.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    let mut tulle: Command = Cli::command();
    for (shell, name) in [
        (Shell::Bash, "tulle.bash"),
        (Shell::Fish, "tulle.fish"),
        (Shell::Zsh, "_tulle"),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut tulle, "tulle", &mut script);
        fs::write(completions.join(name), script)?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let mut every = pages::of_command(Cli::command(), version)?;
    every.extend(OTHERS.map(|(name, help)| pages::of_help(name, help, version)));
    for page in every {
        fs::write(man.join(format!("{}.1", page.name)), page.text)?;
    }
    Ok(())
}
