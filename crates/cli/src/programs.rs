//! The other programs of the same build, and where they are.

use crate::failure::{Failure, OrFail, Result};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// A program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    name: &'static str,
    /// The variable that names another place.
    variable: Option<&'static str>,
}

impl Program {
    /// The sidecar.
    pub(crate) const PROXY: Self = Self {
        name: "tulle-proxy",
        variable: Some("TULLE_PROXY"),
    };
    /// The agent of an Envoy.
    pub(crate) const AGENT: Self = Self {
        name: "tulle-envoy",
        variable: Some("TULLE_ENVOY_AGENT"),
    };
    /// The lab, which a mesh does not need.
    pub(crate) const LAB: Self = Self {
        name: "tulle-bench",
        variable: None,
    };

    /// Where its variable says, else beside this program, else on the PATH.
    pub(crate) fn find(self) -> Result<PathBuf> {
        let name = self.name;
        let beside = std::env::current_exe()
            .ok()
            .and_then(|exe| Some(exe.parent()?.join(name)));
        let on_path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&on_path).map(|d| d.join(name));
        let named = self.variable.and_then(std::env::var_os).map(PathBuf::from);
        let found = named
            .into_iter()
            .chain(beside)
            .chain(on_path)
            .find(|p| p.is_file())
            .ok_or_else(|| {
                let nor_named = self.variable.map(|v| format!(", nor named by {v}"));
                Failure::new(format!("cannot find the program {name}"))
                    .because(format!(
                        "it is neither beside tulle, nor on the PATH{}",
                        nor_named.unwrap_or_default()
                    ))
                    .fix("`make build` builds all programs; keep them in one directory")
            })?;
        found
            .canonicalize()
            .or_fail(|| format!("cannot use {}", found.display()))
    }

    /// Takes this process over. Returns only if that fails.
    pub(crate) fn take_over(self, words: &[OsString]) -> Failure {
        let program = match self.find() {
            Ok(program) => program,
            Err(failure) => return failure,
        };
        let error = Command::new(&program).args(words).exec();
        Failure::new(format!("cannot start {}", program.display())).because(error)
    }
}
