//! Why a plugin did not do its work.

use std::fmt;

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// It threw, or returned what a hook may not return.
    Thrown,
    /// It took more time than it may.
    Time,
    /// It needs more memory than it may have.
    Memory,
    /// As many calls as it may have are under way.
    Busy,
}

/// A failed call, or a plugin that cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptFailure {
    /// The cause.
    pub cause: FailureCause,
    /// The error, and where in the source it arose.
    pub text: String,
}

/// The engine's error when a plugin has no more memory.
const NO_MEMORY: &str = "out of memory";
/// The longest text of a failure in bytes: a script throws what it likes, and the last failures are kept.
const LONGEST: usize = 1024;
/// Thrown instead where there is no memory for that error.
pub(crate) const NO_ERROR: &str = "null";

impl ScriptFailure {
    /// Something was thrown: by the plugin, or by the engine that has no more memory for it.
    pub(crate) fn thrown(text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(LONGEST));
        if text == NO_ERROR {
            text = format!("{NO_MEMORY} even for an error, or the plugin threw null");
        }
        let cause = match text.contains(NO_MEMORY) {
            true => FailureCause::Memory,
            false => FailureCause::Thrown,
        };
        Self { cause, text }
    }

    pub(crate) fn new(cause: FailureCause, text: impl Into<String>) -> Self {
        Self {
            cause,
            text: text.into(),
        }
    }
}

impl fmt::Display for ScriptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ScriptFailure {}
