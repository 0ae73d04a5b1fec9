//! `tulle check` of a cluster: before installation (`--pre`), after it, or only the data plane
//! (`--proxy`). It changes nothing without `--fix`: the one pod it asks for is a dry run.
//!
//! What is looked at is gathered first; the checks are pure.

mod border;
mod cluster;
mod cni;
mod conflicts;
mod controller;
mod denials;
mod endpoints;
mod gateways;
mod gather;
mod images;
mod ingresses;
mod injection;
mod issuer;
mod known;
mod network;
mod policies;
mod proxies;
mod services;
mod statuses;
#[cfg(test)]
mod testing;

use super::cluster::Cluster;
use super::fix::fix;
use crate::args::diagnosis::Check;
use crate::check::{Fix, FixOutcome, Outcome, is_anything_left, show_fixes, structured};
use crate::failure::{Failure, OrFail, Result};
use crate::findings;
use crate::output::{Mark, line, paint};
use gather::Facts;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// How often is looked again, a second apart, after a fix, until the cluster is well.
const SETTLING: usize = 15;

/// The result of one check on one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    id: &'static str,
    outcome: Outcome,
    /// The subject of the check.
    check: &'static str,
    /// The result; for a warning or an error, with its object.
    finding: String,
    /// The advice; empty when there is nothing to do.
    fix: String,
}

/// A text without control characters: tenants choose names and what their pods answer, and a terminal would obey them.
fn plain(text: &str) -> String {
    let obeyed = |c: char| c.is_control() && c != '\n';
    text.replace(obeyed, " ")
}

/// All that was found, in the order of the checks.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    /// The findings of one check that are not `ok`.
    #[cfg(test)]
    fn wrong(check: impl FnOnce(&mut Self)) -> Vec<Finding> {
        let mut report = Self::default();
        check(&mut report);
        let wrong = |finding: &Finding| finding.outcome != Outcome::Ok;
        report.0.into_iter().filter(wrong).collect()
    }

    fn add(&mut self, id: &'static str, outcome: Outcome, finding: impl Into<String>) {
        let known = known::by_id(id);
        let fix = known.filter(|_| outcome != Outcome::Ok);
        self.0.push(Finding {
            id,
            outcome,
            check: known.map_or("", |k| k.check),
            finding: plain(&finding.into()),
            fix: fix.map(|k| k.fix.to_owned()).unwrap_or_default(),
        });
    }

    fn ok(&mut self, id: &'static str, finding: impl Into<String>) {
        self.add(id, Outcome::Ok, finding);
    }

    fn warning(&mut self, id: &'static str, finding: impl Into<String>) {
        self.add(id, Outcome::Warning, finding);
    }

    fn error(&mut self, id: &'static str, finding: impl Into<String>) {
        self.add(id, Outcome::Error, finding);
    }

    /// Each thing that is wrong, or one line that all is well.
    fn each(&mut self, id: &'static str, outcome: Outcome, wrong: Vec<String>, well: &str) {
        if wrong.is_empty() {
            self.ok(id, well);
        }
        // A cluster where everything is wrong in the same way needs no thousand lines.
        const MOST: usize = 20;
        let more = wrong.len().saturating_sub(MOST);
        for one in wrong.into_iter().take(MOST) {
            self.add(id, outcome, one);
        }
        if more > 0 {
            self.add(id, outcome, format!("and {more} more"));
        }
    }

    fn failed(&self) -> bool {
        self.0.iter().any(|f| f.outcome == Outcome::Error)
    }
}

/// Everything that is found, for programs.
pub(super) async fn findings(cluster: &Cluster) -> Result<serde_json::Value> {
    let facts = Facts::gather(cluster, None, false).await?;
    let report = report(&facts, false, false);
    serde_json::to_value(report.0).or_fail(|| "cannot print what was found".to_owned())
}

/// All checks, or those of `--pre` or `--proxy`.
fn report(facts: &Facts, pre: bool, proxy: bool) -> Report {
    let mut report = Report::default();
    if !proxy {
        cluster::check(facts, pre, &mut report);
    }
    if !proxy && !pre {
        controller::check(facts, &mut report);
        cni::check(facts, &mut report);
        images::check(facts, &mut report);
        issuer::check(facts, &mut report);
        gateways::check(facts, &mut report);
        ingresses::check(facts, &mut report);
    }
    if !pre {
        injection::check(facts, &mut report);
        proxies::check(facts, &mut report);
        border::check(facts, &mut report);
        denials::check(facts, &mut report);
    }
    if !proxy && !pre {
        services::check(facts, &mut report);
        endpoints::check(facts, &mut report);
        policies::check(facts, &mut report);
        statuses::check(facts, &mut report);
        conflicts::check(facts, &mut report);
        network::check(facts, &mut report);
    }
    report
}

/// Runs the checks that are asked for; the exit code is 79 if one failed.
pub(crate) async fn check(cluster: &Cluster, args: &Check) -> Result<ExitCode> {
    let fixes = match args.fix {
        true => Some(fix(cluster, args.dry_run).await?),
        false => None,
    };
    let namespace = args.within.namespace.as_deref();
    let look = async || {
        let facts = Facts::gather(cluster, namespace, args.pre).await?;
        Ok::<_, Failure>(report(&facts, args.pre, args.proxy))
    };
    let mut report: Report = look().await?;
    let is_done = |one: &Fix| one.outcome == FixOutcome::Done;
    if fixes.iter().flatten().any(is_done) {
        // The cluster needs a moment to follow.
        for _ in 0..SETTLING {
            if !report.failed() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            report = look().await?;
        }
    }
    if !structured(fixes.as_deref(), &report.0, args)? {
        show_fixes(fixes.as_deref());
        for finding in &report.0 {
            line(&show(finding));
        }
        line(&summary(&report));
    }
    Ok(findings::exit(report.failed() || is_anything_left(&fixes)))
}

fn show(finding: &Finding) -> String {
    let Finding {
        id,
        outcome,
        check,
        finding: found,
        fix,
    } = finding;
    let mut text = format!("{} {id} {check}: {found}", outcome.sign());
    if !fix.is_empty() {
        text.push_str(&format!("\n        what to do: {fix}"));
    }
    text
}

fn summary(report: &Report) -> String {
    let count = |o| report.0.iter().filter(|f| f.outcome == o).count();
    let (errors, warnings, all) = (
        count(Outcome::Error),
        count(Outcome::Warning),
        report.0.len(),
    );
    let text = format!("{all} answers, {errors} failed, {warnings} to look at");
    match (errors, warnings) {
        (0, 0) => paint(&format!("√ {text}"), Mark::Good),
        (0, _) => paint(&format!("√ {text}"), Mark::Doubtful),
        _ => paint(&format!("× {text}"), Mark::Bad),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sidecars_and_their_pods_are_looked_at_with_proxy() {
        let ids = |proxy: bool| -> Vec<&'static str> {
            let report = report(&Facts::default(), false, proxy);
            report.0.into_iter().map(|found| found.id).collect()
        };
        let (all, of_proxies) = (ids(false), ids(true));
        for id in ["TK051", "TK060"] {
            assert!(all.contains(&id) && of_proxies.contains(&id), "{id}");
        }
        for id in ["TK020", "TK110"] {
            assert!(all.contains(&id) && !of_proxies.contains(&id), "{id}");
        }
    }

    #[test]
    fn what_is_wrong_says_what_to_do() {
        let mut report = Report::default();
        report.ok("TK001", "answers");
        assert!(!report.failed());
        report.each(
            "TK007",
            Outcome::Error,
            vec!["node a: no".into()],
            "all are",
        );
        assert!(report.failed());
        let text = show(&report.0[1]);
        assert!(
            text.starts_with("× TK007 nodes are ready: node a: no\n"),
            "{text}"
        );
        assert!(
            text.contains("what to do: `kubectl describe node`"),
            "{text}"
        );
        assert!(summary(&report).contains("2 answers, 1 failed, 0 to look at"));
        let many = (0..100).map(|n| n.to_string()).collect();
        let mut report = Report::default();
        report.each("TK007", Outcome::Warning, many, "");
        assert_eq!(report.0.len(), 21);
        report.warning("TK066", "x\n\u{1b}[2Jy");
        assert_eq!(report.0[21].finding, "x\n [2Jy");
        assert!(!report.failed());
    }
}
