//! `tulle bench`: the lab is the program `tulle-bench`, which a mesh does not need.

use crate::failure::Failure;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "tulle-bench";

/// Becomes the lab. Returns only if that fails.
pub(crate) fn become_the_lab(words: &[OsString]) -> Failure {
    let program = beside().unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(words).exec();
    let what = format!("cannot start {}", program.display());
    if error.kind() == ErrorKind::NotFound {
        return Failure::new(what)
            .because("it is neither beside `tulle` nor in PATH")
            .fix("install it, or build it with `make build`");
    }
    Failure::new(what).because(error.to_string())
}

/// The lab of the same build.
fn beside() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.with_file_name(PROGRAM);
    program.is_file().then_some(program)
}
