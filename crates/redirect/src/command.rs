//! Runs `ip` and `nft`. Their command lines and JSON are stable, and an operator can repeat them by
//! hand, unlike private netlink messages.

use serde_json::Value;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Why a program did not run or failed.
#[derive(Debug)]
pub enum CommandError {
    /// The program is not installed.
    Missing {
        /// Its name.
        program: &'static str,
    },
    /// The program could not be started or written to.
    Start {
        /// The whole command line.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// The program ran and failed.
    Failed {
        /// The whole command line.
        command: String,
        /// Its standard error (or exit status, if that is empty).
        said: String,
    },
    /// Neither packet filter of the kernel is usable.
    Neither {
        /// Error of nf_tables.
        nft: Box<CommandError>,
        /// Error of the older one.
        iptables: Box<CommandError>,
    },
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { program } => {
                let package = debian_package(program);
                write!(
                    f,
                    "the program `{program}` is not installed; install the package {package} (Debian: apt install {package})"
                )
            }
            Self::Start { command, source } => write!(f, "cannot run `{command}`: {source}"),
            Self::Failed { command, said } => write!(f, "`{command}` failed: {said}"),
            Self::Neither { nft, iptables } => write!(f, "{nft}; iptables failed, too: {iptables}"),
        }
    }
}

impl std::error::Error for CommandError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Start { source, .. } => Some(source),
            _ => None,
        }
    }
}

pub(crate) fn debian_package(program: &str) -> &str {
    match program {
        "ip" => "iproute2",
        "nft" => "nftables",
        tables if tables.contains("tables") => "iptables",
        other => other,
    }
}

/// Finds a program. An ordinary user's PATH often lacks the `sbin` directories, and `sudo` may keep
/// that PATH.
pub(crate) fn find(program: &'static str) -> Result<PathBuf, CommandError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(program))
        .find(|candidate| is_executable(candidate))
        .ok_or(CommandError::Missing { program })
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Runs a program with `input` on its standard input; returns its standard output.
pub(crate) fn run<A: AsRef<OsStr>>(
    program: &'static str,
    args: &[A],
    input: &str,
) -> Result<String, CommandError> {
    let path = find(program)?;
    let line = || {
        std::iter::once(program.to_owned())
            .chain(
                args.iter()
                    .map(|a| a.as_ref().to_string_lossy().into_owned()),
            )
            .collect::<Vec<_>>()
            .join(" ")
    };
    let start = |source| CommandError::Start {
        command: line(),
        source,
    };
    let output = talk(&path, args, input).map_err(start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let said = if said.is_empty() {
        output.status.to_string()
    } else {
        said
    };
    Err(CommandError::Failed {
        command: line(),
        said,
    })
}

fn talk<A: AsRef<OsStr>>(path: &Path, args: &[A], input: &str) -> io::Result<Output> {
    let mut child = Command::new(path)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Both programs read all of their input before they write, so this cannot block on a full
        // pipe. If one dies early, its standard error says why, and the broken pipe adds nothing.
        match stdin.write_all(input.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    child.wait_with_output()
}

/// Runs `ip ARGS`.
pub(crate) fn ip(args: &[&str]) -> Result<String, CommandError> {
    run("ip", args, "")
}

/// Runs `ip -json ARGS` and returns the list of objects it prints.
pub(crate) fn ip_json(args: &[&str]) -> Result<Vec<Value>, CommandError> {
    let full: Vec<&str> = std::iter::once("-json")
        .chain(args.iter().copied())
        .collect();
    let text = run("ip", &full, "")?;
    // `ip` prints an empty list as no text at all.
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&text).map_err(|error| CommandError::Failed {
        command: format!("ip {}", full.join(" ")),
        said: format!("answered in JSON that cannot be read: {error}"),
    })
}

/// Runs `ip [-netns NS] -batch -` with one command per line.
pub(crate) fn ip_batch(namespace: Option<&str>, lines: &[String]) -> Result<(), CommandError> {
    let mut args = Vec::new();
    if let Some(namespace) = namespace {
        args.extend(["-netns", namespace]);
    }
    args.extend(["-batch", "-"]);
    run("ip", &args, &(lines.join("\n") + "\n")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let error = run("nft-that-is-not-there", &["x"], "").unwrap_err();
        assert!(matches!(error, CommandError::Missing { .. }));
        let text = CommandError::Missing { program: "nft" }.to_string();
        assert!(text.contains("apt install nftables"), "{text}");
    }

    #[test]
    fn a_failure_carries_the_command_and_what_it_said() {
        let error = run("ls", &["/nowhere-at-all"], "").unwrap_err().to_string();
        assert!(error.contains("`ls /nowhere-at-all`"), "{error}");
        assert!(error.contains("No such file"), "{error}");
    }
}
