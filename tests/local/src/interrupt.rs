//! Commands that can be interrupted, wherever tests run.

use std::ffi::OsStr;
use std::process::Command;

/// A command that SIGINT ends, also where this process ignores it, as behind `nohup` or in the background of a
/// shell: children inherit that. `env` becomes the program, so the process id is the program's.
pub fn interruptible(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(program);
    command
}
