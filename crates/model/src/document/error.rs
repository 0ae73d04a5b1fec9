//! An error in a file: what is wrong, where, and what to do.

use super::node::{Node, Position};
use std::fmt;

/// Findings reported for one document; more are rarely read and cost memory.
const MAX_FINDINGS: usize = 64;

/// One thing wrong in a file.
///
/// Shown as `mesh.yaml:12:5: Workload/ratings: spec.ports[0].port: expected …, found …; hint`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The file's name as given by the caller.
    pub file: String,
    /// Which document of the file, from 0.
    pub document: usize,
    /// Line from 1; 0 if it is not known (stored JSON).
    pub line: u32,
    /// Column from 1.
    pub column: Option<u32>,
    /// `Kind/name`, as far as known.
    pub object: Option<String>,
    /// Dotted path of the field; empty: the whole document.
    pub field: String,
    /// The fault.
    pub problem: String,
    /// The remedy; may be empty.
    pub hint: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
            if let Some(column) = self.column {
                write!(f, ":{column}")?;
            }
        }
        f.write_str(": ")?;
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for ManifestError {}

/// Where a field is in its document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

impl Path {
    pub(crate) fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether the value is a port number, which deserves a better message than "a number".
    pub(super) fn is_port(&self) -> bool {
        matches!(self.0.last(), Some(Step::Key(key)) if key == "port" || key.ends_with("Port"))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
                    if !key.chars().all(plain) {
                        write!(f, "[{:?}]", shorten(key))?;
                    } else if i == 0 {
                        f.write_str(&shorten(key))?;
                    } else {
                        write!(f, ".{}", shorten(key))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Text from a file for use in a message: one line, not endless.
pub(crate) fn shorten(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(100).map(clean).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// A problem in one document, before the file and the object's name are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: Path,
    /// The position, if it is known while reading; otherwise it is looked up by the path.
    pub(crate) at: Option<Position>,
    pub(crate) problem: String,
    pub(crate) hint: String,
}

impl Finding {
    /// About the whole document.
    pub(crate) fn new(problem: String) -> Self {
        Self {
            path: Path::default(),
            at: None,
            problem,
            hint: String::new(),
        }
    }

    /// The error for the reader, with the position of the field or of the node around it.
    pub(crate) fn into_error(
        self,
        file: &str,
        document: usize,
        root: &Node,
        object: Option<String>,
    ) -> ManifestError {
        let at = self.at.unwrap_or_else(|| root.locate(self.path.steps()));
        ManifestError {
            file: file.to_owned(),
            document,
            line: at.line,
            column: (at.column > 0).then_some(at.column),
            object,
            field: self.path.to_string(),
            problem: self.problem,
            hint: self.hint,
        }
    }
}

/// The problems of one document.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn add(&mut self, path: &Path, problem: impl Into<String>, hint: impl Into<String>) {
        self.push(Finding {
            path: path.clone(),
            at: None,
            problem: problem.into(),
            hint: hint.into(),
        });
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        if !self.is_full() {
            self.findings.push(finding);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.findings.len() >= MAX_FINDINGS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }
}
