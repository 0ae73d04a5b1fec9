//! `--baseline`: whether figures have become worse than those of an earlier run.
//!
//! The rule. Compared are, in every scenario that both runs have, Tulle's ratios to every peer that
//! both runs have; only if they have no peer in common, Tulle's own figures. A figure has become worse
//! if its median is worse than the baseline's by more than
//!
//! 1. the whole spread (largest less least) of the baseline's runs, and
//! 2. the whole spread of this one's, and
//! 3. a twentieth of the baseline's median: three runs that happen to agree have no spread.
//!
//! Figures with fewer than three valid runs on either side are not compared: they have no spread that
//! says anything.

use crate::budgets::number;
use crate::failure::{Failure, FailureKind, Result};
use crate::results::stats::{Figures, SUBJECT, Spread, Summary};
use crate::results::{Results, SCHEMA, figure};
use crate::verdict::{BudgetVerdict, Finding};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Runs that make a spread.
const LEAST: usize = 3;
/// The smallest difference that counts, as a share of the baseline's median.
const FLOOR: f64 = 0.05;

/// Figures that are better when they are smaller.
const SMALLER: [&str; 11] = [
    figure::CPU_US_PER_REQUEST,
    figure::CPU_MS_PER_GIB,
    figure::P50_MS,
    figure::P90_MS,
    figure::P95_MS,
    figure::P99_MS,
    figure::P999_MS,
    figure::RSS_IDLE_MIB,
    figure::RSS_PEAK_MIB,
    figure::START_MS,
    figure::IDLE_CONNECTION_KIB,
];
/// Figures that are better when they are larger.
const LARGER: [&str; 3] = [figure::RPS, figure::MIB_PER_S, figure::BESIDE_MIB_PER_S];

/// Reads the results of an earlier run of the same study.
///
/// # Errors
/// The file cannot be read, or is not what this version writes.
pub fn read(path: &Path, study: &str) -> Result<Results> {
    let input = |why: &dyn std::fmt::Display| {
        let text = format!("the baseline {}: {why}", path.display());
        Failure::new(FailureKind::Input, text)
    };
    let text = fs::read_to_string(path).map_err(|e| input(&e))?;
    let results: Results = serde_json::from_str(&text).map_err(|e| input(&e))?;
    if results.schema != SCHEMA {
        let found = results.schema;
        return Err(input(&format!(
            "its schema is {found}, not {SCHEMA}; measure it again"
        )));
    }
    if results.study != study {
        return Err(input(&format!("it is of the study {}", results.study)));
    }
    Ok(results)
}

/// Compares by the rule above.
pub fn compare(now: &Results, then: &Results) -> BudgetVerdict {
    let mut verdict = BudgetVerdict::default();
    let scenarios: Vec<&String> = now.summaries.keys().collect();
    let both = |name: &&&String| then.summaries.contains_key(**name);
    let pairs = || {
        let common = scenarios.iter().filter(both);
        common.map(|name| (name.as_str(), &now.summaries[*name], &then.summaries[*name]))
    };
    for name in scenarios.iter().filter(|name| !both(name)) {
        verdict.skipped.push(format!("the baseline has no {name}"));
    }
    let peers = |summary: &Summary| summary.ratios.keys().cloned().collect::<BTreeSet<_>>();
    let mut ratios = false;
    for (scenario, now, then) in pairs() {
        for peer in peers(now).intersection(&peers(then)) {
            ratios = true;
            let what = |figure: &str| format!("{scenario}: {figure} ÷ {peer}'s");
            verdict.compare(&now.ratios[peer], &then.ratios[peer], what);
        }
    }
    if !ratios {
        verdict.skipped.push(
            "ratios: this run and the baseline have no peer in common; absolute figures were compared".into(),
        );
        for (scenario, now, then) in pairs() {
            if let (Some(now), Some(then)) = (now.peers.get(SUBJECT), then.peers.get(SUBJECT)) {
                verdict.compare(now, then, |figure| format!("{scenario}: {figure}"));
            }
        }
    }
    if verdict.checked == 0 {
        verdict.skipped.push(format!(
            "anything: no figure has {LEAST} valid runs here and in the baseline"
        ));
    }
    verdict
}

impl BudgetVerdict {
    fn compare(&mut self, now: &Figures, then: &Figures, what: impl Fn(&str) -> String) {
        let names = SMALLER.iter().map(|name| (*name, 1.0));
        for (name, sign) in names.chain(LARGER.iter().map(|name| (*name, -1.0))) {
            let (Some(now), Some(then)) = (now.get(name), then.get(name)) else {
                continue;
            };
            if now.count < LEAST || then.count < LEAST {
                continue;
            }
            self.checked += 1;
            if is_worse(now, then, sign) {
                let words = |s: &Spread| {
                    let [median, min, max] = [s.median, s.min, s.max].map(number);
                    format!("{median} ({min}–{max})")
                };
                self.findings.push(Finding {
                    what: what(name),
                    allowed: words(then),
                    measured: words(now),
                });
            }
        }
    }
}

/// `sign`: 1 if smaller is better, -1 if larger is.
fn is_worse(now: &Spread, then: &Spread, sign: f64) -> bool {
    let by = sign * (now.median - then.median);
    let spread = |s: &Spread| s.max - s.min;
    by > spread(then) && by > spread(now) && by > FLOOR * then.median.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64, min: f64, max: f64) -> Spread {
        Spread {
            median,
            min,
            max,
            count: 5,
        }
    }

    #[test]
    fn worse_is_by_more_than_both_spreads_and_a_twentieth() {
        let then = spread(10.0, 9.5, 10.5);
        // (now, worse if smaller is better, worse if larger is better)
        let cases = [
            (spread(11.1, 11.0, 11.2), true, false),
            // Within the baseline's spread.
            (spread(10.9, 10.9, 10.9), false, false),
            // This run spreads as far as it is worse.
            (spread(12.0, 10.0, 12.5), false, false),
            (spread(8.9, 8.8, 9.0), false, true),
            (spread(9.1, 9.0, 9.2), false, false),
            (spread(10.0, 9.9, 10.1), false, false),
        ];
        for (now, smaller, larger) in cases {
            assert_eq!(is_worse(&now, &then, 1.0), smaller, "{now:?}");
            assert_eq!(is_worse(&now, &then, -1.0), larger, "{now:?}");
        }
        // No spread at all: 5% is the least that counts.
        let then = spread(10.0, 10.0, 10.0);
        assert!(!is_worse(&spread(10.4, 10.4, 10.4), &then, 1.0));
        assert!(is_worse(&spread(10.6, 10.6, 10.6), &then, 1.0));
    }

    fn results(ratio: Option<(&str, f64)>, own: f64, count: usize) -> Results {
        let figures = |value: f64| -> Figures {
            let spread = Spread {
                count,
                ..spread(value, value, value)
            };
            Figures::from([(figure::CPU_US_PER_REQUEST.into(), spread)])
        };
        let mut summary = Summary::default();
        summary.peers.insert(SUBJECT.into(), figures(own));
        if let Some((peer, value)) = ratio {
            summary.ratios.insert(peer.into(), figures(value));
        }
        let mut results = Results::empty("pair");
        results.summaries.insert("saturated-200B".into(), summary);
        results
    }

    #[test]
    fn ratios_are_compared_if_there_is_a_peer_in_common_else_figures() {
        // Twice as slow a machine: the ratio has not moved.
        let then = results(Some(("envoy", 0.1)), 15.0, 5);
        let verdict = compare(&results(Some(("envoy", 0.1)), 30.0, 5), &then);
        assert_eq!((verdict.findings.len(), verdict.checked), (0, 1));
        let verdict = compare(&results(Some(("envoy", 0.2)), 15.0, 5), &then);
        assert_eq!(
            verdict.findings[0].what,
            "saturated-200B: cpu_us_per_request ÷ envoy's"
        );
        assert_eq!(verdict.findings[0].allowed, "0.1 (0.1–0.1)");
        let verdict = compare(&results(Some(("nginx", 0.2)), 30.0, 5), &then);
        assert_eq!(
            verdict.findings[0].what,
            "saturated-200B: cpu_us_per_request"
        );
        assert!(verdict.skipped[0].contains("no peer in common"));
    }

    #[test]
    fn two_runs_are_too_few() {
        let then = results(Some(("envoy", 0.1)), 15.0, 2);
        let verdict = compare(&results(Some(("envoy", 0.9)), 15.0, 5), &then);
        assert_eq!((verdict.findings.len(), verdict.checked), (0, 0));
        assert!(verdict.skipped[0].contains("3 valid runs"), "{verdict:?}");
    }
}
