//! The sidecars that a host has.

use crate::failure::{Failure, OrFail, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The program of the sidecars on this host. Gateways are always Tulle's own proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DataPlane {
    /// Sidecars are `tulle-proxy`.
    #[default]
    Tulle,
    /// Sidecars are Envoy, each with an agent of ours.
    Envoy,
    /// There are no sidecars: plaintext, and nobody decides who may call.
    None,
}

impl DataPlane {
    /// Whether workloads have sidecars.
    pub(crate) fn has_sidecars(self) -> bool {
        self != Self::None
    }
}

/// The programs that replace `tulle-proxy` where sidecars are Envoy.
#[derive(Debug, Clone)]
pub(crate) struct EnvoyPrograms {
    /// `tulle-envoy`.
    pub(crate) agent: PathBuf,
    /// Envoy.
    pub(crate) envoy: PathBuf,
}

/// Where `TULLE_PROXY` says, else beside this program, else on the PATH.
pub(crate) fn find_proxy() -> Result<PathBuf> {
    find("tulle-proxy", "TULLE_PROXY")
}

/// Where `TULLE_ENVOY_AGENT` says, else beside this program, else on the PATH.
pub(crate) fn find_agent() -> Result<PathBuf> {
    find("tulle-envoy", "TULLE_ENVOY_AGENT")
}

/// Becomes the agent. Returns only if that fails.
pub(crate) fn become_the_agent(words: &[OsString]) -> Failure {
    let program = match find_agent() {
        Ok(program) => program,
        Err(failure) => return failure,
    };
    let error = Command::new(&program).args(words).exec();
    Failure::new(format!("cannot start {}", program.display())).because(error)
}

fn find(program: &str, variable: &str) -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join(program)));
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&on_path).map(|d| d.join(program));
    let named = std::env::var_os(variable).map(PathBuf::from);
    let found = named
        .into_iter()
        .chain(beside)
        .chain(on_path)
        .find(|p| p.is_file())
        .ok_or_else(|| {
            Failure::new(format!("cannot find the program {program}"))
                .because(format!(
                    "it is neither beside tulle, nor on the PATH, nor named by {variable}"
                ))
                .fix("`make build` builds all programs; keep them in one directory")
        })?;
    found
        .canonicalize()
        .or_fail(|| format!("cannot use {}", found.display()))
}
