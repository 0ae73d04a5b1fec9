//! `tulle check`: what is wrong or will go wrong, each with its cause and what to do.
//!
//! Works before `up` (can a mesh run here?) and while one is up (does every part do its work?).
//! It changes nothing, unless `--fix` asks it to fix what can be fixed safely.

mod fix;
mod host;
mod mesh;

pub(crate) use fix::{Fix, FixOutcome};

use crate::args::diagnosis::Check;
use crate::failure::{OrFail, Result};
use crate::findings;
use crate::output::{self, Mark, line, paint};
use crate::paths::Paths;
use serde::Serialize;
use serde_json::Value;
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

/// Runs every check, after the fixes of `--fix`; the exit code is 79 if one failed or something is wrong between
/// objects.
pub(crate) async fn check(paths: &Paths, args: &Check) -> Result<ExitCode> {
    let fixes = args.fix.then(|| fix::fix(paths, args.dry_run));
    let fixes = fixes.transpose()?;
    let findings = all(paths).await;
    if !structured(fixes.as_deref(), &findings.all, args)? {
        show_fixes(fixes.as_deref());
        for finding in &findings.all {
            line(&show(finding));
        }
        line(&summary(&findings));
    }
    Ok(findings::exit(
        findings.failed() || is_anything_left(&fixes),
    ))
}

async fn all(paths: &Paths) -> Findings {
    let mut findings = Findings::default();
    host::check(paths, &mut findings);
    mesh::check(paths, &mut findings).await;
    findings
}

/// Everything that is found, for a report.
pub(crate) async fn found(paths: &Paths) -> Result<Value> {
    let found = serde_json::to_value(all(paths).await.all);
    found.or_fail(|| "cannot print what was found".to_owned())
}

/// Findings for programs, with the fixes if these were asked for. False if a table was asked for.
pub(crate) fn structured<T: Serialize>(
    fixes: Option<&[Fix]>,
    findings: &[T],
    args: &Check,
) -> Result<bool> {
    #[derive(Serialize)]
    struct Both<'a, T> {
        fixes: &'a [Fix],
        findings: &'a [T],
    }
    match fixes {
        None => output::structured(&findings, args.format.output),
        Some(fixes) => output::structured(&Both { fixes, findings }, args.format.output),
    }
}

/// Whether something was not fixed.
pub(crate) fn is_anything_left(fixes: &Option<Vec<Fix>>) -> bool {
    let mut fixes = fixes.iter().flatten();
    fixes.any(|fix| fix.outcome != FixOutcome::Done)
}

/// Says what `--fix` did.
pub(crate) fn show_fixes(fixes: Option<&[Fix]>) {
    let Some(fixes) = fixes else {
        return;
    };
    if fixes.is_empty() {
        line("there is nothing that can be fixed safely");
    }
    for one in fixes {
        line(&one.line());
    }
    line("");
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
