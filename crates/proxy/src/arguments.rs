//! The command line of the program.

use crate::control::file::Source;
use lexopt::prelude::*;
use std::ffi::OsString;
use std::net::IpAddr;

/// Text of `--help`. A release makes a page for `man` of it, too (`crates/man`).
pub const HELP: &str = include_str!("help.txt");

/// One run of the program.
#[derive(Debug, PartialEq, Eq)]
pub enum Task {
    /// Run the proxy of this configuration.
    Run(Source),
    /// Only read the configuration.
    Check(Source),
    /// Wait until the proxy of this pod is ready.
    WaitReady,
    /// Find out whether the traffic of the pod with this address is redirected.
    CheckRedirect(IpAddr),
    /// Run a plugin on one request.
    TryPlugin,
    /// Print [`HELP`].
    Help,
    /// Print the version.
    Version,
}

/// Reads the arguments; the program's name is not among them.
///
/// # Errors
///
/// Describes the first wrong argument, for the user.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Task, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut tasks, mut check) = (Vec::new(), false);
    while let Some(argument) = parser.next().map_err(|e| e.to_string())? {
        match argument {
            Long("config") => {
                let path = parser.value().map_err(|e| e.to_string())?;
                tasks.push(Task::Run(Source::File(path.into())));
            }
            Long("config-env") => {
                let name = parser.value().and_then(|v| v.string());
                let name = name.map_err(|e| e.to_string())?;
                tasks.push(Task::Run(Source::Environment(name)));
            }
            Long("check") => check = true,
            Long("wait-ready") => tasks.push(Task::WaitReady),
            Long("check-redirect") => {
                let address = parser.value().and_then(|v| v.parse());
                tasks.push(Task::CheckRedirect(address.map_err(|e| e.to_string())?));
            }
            Long("try-plugin") => tasks.push(Task::TryPlugin),
            Short('h') | Long("help") => return Ok(Task::Help),
            Short('V') | Long("version") => return Ok(Task::Version),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let task = tasks.pop().ok_or("--config FILE is missing")?;
    if !tasks.is_empty() {
        return Err("two of its options ask for different things".to_owned());
    }
    match task {
        Task::Run(source) if check => Ok(Task::Check(source)),
        task if !check => Ok(task),
        _ => Err("--check goes with --config or --config-env".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<Task, String> {
        parse(arguments.split_whitespace().map(OsString::from))
    }

    #[test]
    fn what_is_asked_is_one_thing() {
        let file = || Source::File("a.yaml".into());
        assert_eq!(parsed("--config a.yaml"), Ok(Task::Run(file())));
        assert_eq!(parsed("--check --config=a.yaml"), Ok(Task::Check(file())));
        let environment = Source::Environment("A".to_owned());
        assert_eq!(
            parsed("--config-env A --check"),
            Ok(Task::Check(environment))
        );
        assert_eq!(parsed("--wait-ready"), Ok(Task::WaitReady));
        let address = "10.0.0.1".parse().unwrap();
        assert_eq!(
            parsed("--check-redirect 10.0.0.1"),
            Ok(Task::CheckRedirect(address))
        );
        assert_eq!(parsed("-h"), Ok(Task::Help));
        assert_eq!(parsed("--version"), Ok(Task::Version));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (arguments, said) in [
            ("", "--config FILE is missing"),
            ("--check", "--config FILE is missing"),
            ("--config", "missing argument for option '--config'"),
            ("--confg a", "invalid option '--confg'"),
            ("a.yaml", "unexpected argument \"a.yaml\""),
            ("--config a --config b", "ask for different things"),
            ("--config a --wait-ready", "ask for different things"),
            ("--check --wait-ready", "--check goes with --config"),
            ("--check-redirect localhost", "localhost"),
        ] {
            let error = parsed(arguments).unwrap_err();
            assert!(error.contains(said), "{arguments}: {error}");
        }
    }
}
