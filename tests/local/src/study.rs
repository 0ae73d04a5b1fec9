//! A study of `tulle bench` that would take long.

use crate::signal;
use rustix::process::Signal;
use std::process::{Child, Command, Stdio};

/// A running one; ended with the test.
pub struct Study(Child);

impl Study {
    /// Starts it.
    pub fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal; the process's id and exit code.
    pub fn end(&mut self, by: Signal) -> (u32, Option<i32>) {
        signal(self.id().cast_signed(), by);
        (self.id(), self.0.wait().unwrap().code())
    }
}

impl Drop for Study {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end(Signal::TERM);
        }
    }
}
