//! Why a study ended without a result, in words for the person who started it.

use std::fmt;

/// The kind of failure, which decides the exit code of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Something was tried and failed.
    Failed,
    /// The command line asks for what does not exist.
    Usage,
    /// A file that was given cannot be used.
    Input,
    /// Everything ran, and a budget is exceeded or a figure got worse.
    Findings,
    /// Ctrl-C; what was done is kept.
    Interrupted,
}

/// A failure in words.
#[derive(Debug)]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    text: String,
}

/// Result of everything in the bench.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Makes a failure of a kind, in words: what, why, and what to do next.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    /// Something was tried and failed.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::new(FailureKind::Failed, text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Turns a library's error into a [`Failure`] that says what was being done.
pub trait OrFail<T> {
    /// `what` names the action and its object: "cannot read bench/budgets.toml".
    ///
    /// # Errors
    /// `self` was one.
    fn or_fail(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> OrFail<T> for std::result::Result<T, E> {
    fn or_fail(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Failure::failed(format!("{}: {e}", what())))
    }
}
