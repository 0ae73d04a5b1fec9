//! Describes why a command failed: what happened, why, and what to do next.
//!
//! One type for the whole command because its only reader is a person. Code that must tell errors
//! apart matches on the library's error before it becomes a `Failure`.

use std::fmt;

/// How the process ends. 0 is success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It was tried and failed, or the answer is "no".
    Failed = 1,
    /// The command line is wrong (`EX_USAGE`).
    Usage = 64,
    /// A manifest or other input is wrong (`EX_DATAERR`).
    Input = 65,
}

/// A failure in words.
#[derive(Debug)]
pub(crate) struct Failure {
    /// How the process ends.
    pub(crate) exit: Exit,
    what: String,
    why: Option<String>,
    fix: Option<String>,
}

/// Result of everything that can end the command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Something was tried and failed.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            exit: Exit::Failed,
            what: what.into(),
            why: None,
            fix: None,
        }
    }

    /// An input is wrong.
    pub(crate) fn input(what: impl Into<String>) -> Self {
        Self {
            exit: Exit::Input,
            ..Self::new(what)
        }
    }

    /// The command line is wrong.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            ..Self::new(what)
        }
    }

    /// Names the object it is about, first.
    #[must_use]
    pub(crate) fn about(mut self, object: &str) -> Self {
        self.what = format!("{object}: {}", self.what);
        self
    }

    /// Adds the cause.
    #[must_use]
    pub(crate) fn because(mut self, why: impl fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
    }

    /// Adds what to do next.
    #[must_use]
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(why) = &self.why {
            write!(f, ": {why}")?;
        }
        if let Some(fix) = &self.fix {
            write!(f, "\n  what to do: {fix}")?;
        }
        Ok(())
    }
}

/// Turns a library's error into a [`Failure`] that says what was being done.
pub(crate) trait OrFail<T> {
    /// `what` names the action and its object: "cannot read /etc/mesh.yaml".
    fn or_fail(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> OrFail<T> for std::result::Result<T, E> {
    fn or_fail(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Failure::new(what()).because(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_why_and_what_to_do() {
        let failure = Failure::new("cannot open x")
            .because("no such file")
            .fix("make x");
        assert_eq!(
            failure.to_string(),
            "cannot open x: no such file\n  what to do: make x"
        );
    }
}
