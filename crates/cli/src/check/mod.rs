//! `tulle check`: what is wrong or will go wrong, each with its cause and what to do.
//!
//! Works before `up` (can a mesh run here?) and while one is up (does every part do its work?).
//! It changes nothing.

mod host;
mod mesh;

use crate::args::Check;
use crate::failure::Result;
use crate::findings;
use crate::output::{self, Mark, line, paint};
use crate::paths::Paths;
use serde::Serialize;
use std::process::ExitCode;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The check found no problem.
    Ok,
    /// Works, but look at it.
    Warning,
    /// Does not work.
    Error,
}

impl Outcome {
    /// Returns the sign before a finding.
    pub(crate) fn sign(self) -> String {
        let (sign, mark) = match self {
            Self::Ok => ("√", Mark::Good),
            Self::Warning => ("‼", Mark::Doubtful),
            Self::Error => ("×", Mark::Bad),
        };
        paint(sign, mark)
    }
}

/// One check and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    number: usize,
    outcome: Outcome,
    /// The subject of the check.
    check: String,
    /// The result; for a warning or an error, the cause.
    finding: String,
    /// The advice; empty when there is nothing to do.
    fix: String,
}

/// Findings in the order of the checks.
#[derive(Debug, Default)]
struct Findings {
    all: Vec<Finding>,
    /// Something is wrong between objects.
    objects: bool,
}

impl Findings {
    fn add(&mut self, outcome: Outcome, check: impl Into<String>, finding: String, fix: &str) {
        self.all.push(Finding {
            number: self.all.len() + 1,
            outcome,
            check: check.into(),
            finding,
            fix: fix.to_owned(),
        });
    }

    fn ok(&mut self, check: impl Into<String>, finding: impl Into<String>) {
        self.add(Outcome::Ok, check, finding.into(), "");
    }

    fn warning(&mut self, check: impl Into<String>, cause: impl Into<String>, fix: &str) {
        self.add(Outcome::Warning, check, cause.into(), fix);
    }

    fn error(&mut self, check: impl Into<String>, cause: impl Into<String>, fix: &str) {
        self.add(Outcome::Error, check, cause.into(), fix);
    }

    fn failed(&self) -> bool {
        self.objects || self.all.iter().any(|f| f.outcome == Outcome::Error)
    }
}

/// Runs every check; the exit code is 79 if one failed or something is wrong between objects.
pub(crate) async fn check(paths: &Paths, args: &Check) -> Result<ExitCode> {
    let mut findings = Findings::default();
    host::check(paths, &mut findings);
    mesh::check(paths, &mut findings).await;
    if !output::structured(&findings.all, args.format.output)? {
        for finding in &findings.all {
            line(&show(finding));
        }
        line(&summary(&findings));
    }
    Ok(findings::exit(findings.failed()))
}

fn show(finding: &Finding) -> String {
    let sign = finding.outcome.sign();
    let mut text = format!(
        "{sign} {:>2} {}: {}",
        finding.number, finding.check, finding.finding
    );
    if !finding.fix.is_empty() {
        text.push_str(&format!("\n     what to do: {}", finding.fix));
    }
    text
}

fn summary(findings: &Findings) -> String {
    let count = |o| findings.all.iter().filter(|f| f.outcome == o).count();
    let (errors, warnings) = (count(Outcome::Error), count(Outcome::Warning));
    let all = findings.all.len();
    match (errors, warnings) {
        (0, 0) => paint(&format!("√ all {all} checks passed"), Mark::Good),
        (0, _) => paint(
            &format!("√ {all} checks, {warnings} to look at"),
            Mark::Doubtful,
        ),
        _ => paint(
            &format!("× {all} checks, {errors} failed, {warnings} to look at"),
            Mark::Bad,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_numbered_and_one_error_fails() {
        let mut findings = Findings::default();
        findings.ok("a", "fine");
        findings.warning("b", "so so", "look");
        assert!(!findings.failed());
        findings.error("c", "broken", "mend it");
        assert!(findings.failed());
        let text = show(&findings.all[2]);
        assert_eq!(text, "×  3 c: broken\n     what to do: mend it");
        assert!(summary(&findings).contains("1 failed, 1 to look at"));
    }
}
