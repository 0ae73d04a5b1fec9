//! Budgets: what the figures of `pair` must not exceed, from a file such as `bench/budgets.toml`.
//!
//! They are held against medians. What was not measured is skipped, and said; what was measured and
//! is not valid has exceeded its budget.

use crate::failure::{Failure, FailureKind, Result};
use crate::peer;
use crate::results::stats::{Figures, SUBJECT, Summary};
use crate::results::{FIGURES, Results, figure};
use crate::verdict::{BudgetVerdict, Finding};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Figures that only this scenario measures; the headline's table has them, too.
const IDLE: (&str, [&str; 3]) = (
    "idle",
    [
        figure::RSS_IDLE_MIB,
        figure::START_MS,
        figure::IDLE_CONNECTION_KIB,
    ],
);

/// A file of budgets.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budgets {
    ratios: Bounds,
    peers: Bounds,
    scenarios: BTreeMap<String, OfScenario>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OfScenario {
    ratios: Bounds,
    peers: Bounds,
}

/// Bounds by peer, then by figure.
type Bounds = BTreeMap<String, BTreeMap<String, Bound>>;

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    max: Option<f64>,
    min: Option<f64>,
}

impl Budgets {
    /// Reads a file; `no_scenario` says why a name is none.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, or has a key that means nothing: which, and where.
    pub fn read(path: &Path, no_scenario: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let input = |why: &dyn std::fmt::Display| {
            Failure::new(FailureKind::Input, format!("{}: {why}", path.display()))
        };
        let text = fs::read_to_string(path).map_err(|e| input(&e))?;
        let budgets: Self = toml::from_str(&text).map_err(|e| input(&e))?;
        budgets.names(no_scenario).map_err(|e| input(&e))?;
        Ok(budgets)
    }

    /// All names must mean something: a budget of what nobody measures would hold for ever.
    fn names(
        &self,
        no_scenario: &dyn Fn(&str) -> Option<String>,
    ) -> std::result::Result<(), String> {
        let unknown = |key: &str, what: &str, there: &[&str]| {
            Err(format!(
                "{key}: there is no such {what}; there are {}",
                there.join(", ")
            ))
        };
        for (of, ratios, bounds) in self.parts() {
            let key = |peer: &str| {
                let kind = if ratios { "ratios" } else { "peers" };
                let of = of.map_or_else(String::new, |name| format!("scenarios.{name}."));
                format!("{of}{kind}.{peer}")
            };
            if let Some(why) = of.and_then(no_scenario) {
                return Err(format!("scenarios.{why}"));
            }
            for (peer, figures) in bounds {
                let mut peers: Vec<&str> = peer::NAMES.iter().map(|(name, _)| *name).collect();
                if !ratios {
                    peers.insert(0, SUBJECT);
                }
                if !peers.contains(&peer.as_str()) {
                    return unknown(&key(peer), "peer", &peers);
                }
                for (figure, bound) in figures {
                    let key = format!("{}.{figure}", key(peer));
                    if !FIGURES.contains(&figure.as_str()) {
                        return unknown(&key, "figure", &FIGURES);
                    }
                    if bound.max.is_none() && bound.min.is_none() {
                        return Err(format!("{key}: neither max nor min"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Scenario (none: the headline), whether the bounds are of ratios, and the bounds.
    fn parts(&self) -> impl Iterator<Item = (Option<&str>, bool, &Bounds)> {
        let headline = [(None, true, &self.ratios), (None, false, &self.peers)];
        let of_scenarios = self.scenarios.iter().flat_map(|(name, part)| {
            let name = Some(name.as_str());
            [(name, true, &part.ratios), (name, false, &part.peers)]
        });
        headline.into_iter().chain(of_scenarios)
    }

    /// Holds the medians against the budgets; `headline` is what the unnamed ones are about.
    pub fn check(&self, results: &Results, headline: &str) -> BudgetVerdict {
        let mut verdict = BudgetVerdict::default();
        for (of, ratios, bounds) in self.parts() {
            for (peer, figures) in bounds {
                for (figure, bound) in figures {
                    let scenario = match of {
                        Some(name) => name,
                        None if IDLE.1.contains(&figure.as_str()) => IDLE.0,
                        None => headline,
                    };
                    verdict.check(results, scenario, ratios, peer, figure, *bound);
                }
            }
        }
        verdict.no_invalid(results);
        // One line for all figures of a peer that did not take part.
        verdict.skipped.dedup();
        verdict
    }
}

impl BudgetVerdict {
    fn check(
        &mut self,
        results: &Results,
        scenario: &str,
        ratio: bool,
        peer: &str,
        figure: &str,
        bound: Bound,
    ) {
        let whom = if ratio {
            vec![SUBJECT, peer]
        } else {
            vec![peer]
        };
        let there = results.peers(scenario);
        if let Some(missing) = whom.iter().find(|name| !there.contains(name)) {
            let text = format!("{missing} was not measured in {scenario}");
            self.skipped.push(text);
            return;
        }
        let what = if ratio {
            format!("{scenario}: {figure} ÷ {peer}'s")
        } else {
            format!("{scenario}: {figure} of {peer}")
        };
        self.checked += 1;
        let of = |summary: &Summary| -> Option<Figures> {
            let all = if ratio {
                &summary.ratios
            } else {
                &summary.peers
            };
            all.get(peer).cloned()
        };
        let figures = results.summaries.get(scenario).and_then(of);
        let Some(spread) = figures.and_then(|figures| figures.get(figure).copied()) else {
            self.findings.push(Finding {
                what,
                allowed: bound.words(),
                measured: "nothing that is valid".into(),
            });
            return;
        };
        let too_much = bound.max.is_some_and(|max| spread.median > max);
        let too_little = bound.min.is_some_and(|min| spread.median < min);
        if too_much || too_little {
            self.findings.push(Finding {
                what,
                allowed: bound.words(),
                measured: format!(
                    "{} ({}–{})",
                    number(spread.median),
                    number(spread.min),
                    number(spread.max)
                ),
            });
        }
    }

    /// Requests that Tulle lost, or identities it did not prove, are no matter of medians.
    fn no_invalid(&mut self, results: &Results) {
        for (name, summary) in &results.summaries {
            if let Some(count) = summary.invalid.get(SUBJECT) {
                let all = results
                    .for_scenario(name)
                    .filter(|s| s.peer == SUBJECT)
                    .count();
                self.findings.push(Finding {
                    what: format!("{name}: invalid samples of {SUBJECT}"),
                    allowed: "none".into(),
                    measured: format!("{count} of {all}"),
                });
            }
        }
    }
}

impl Bound {
    fn words(self) -> String {
        let max = self.max.map(|max| format!("at most {}", number(max)));
        let min = self.min.map(|min| format!("at least {}", number(min)));
        let both: Vec<String> = min.into_iter().chain(max).collect();
        both.join(", ")
    }
}

/// Three digits that say something.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Sample, Scenario};

    const SCENARIOS: [&str; 3] = ["saturated-200B", "rate-1000", "idle"];

    fn budgets(text: &str) -> Result<Budgets> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("budgets.toml");
        fs::write(&path, text).unwrap();
        let no_scenario = |name: &str| {
            let known = SCENARIOS.contains(&name);
            (!known).then(|| format!("{name}: there is no such scenario"))
        };
        Budgets::read(&path, &no_scenario)
    }

    fn sample(scenario: &str, peer: &str, figures: &[(&str, f64)]) -> Sample {
        let figures = figures.iter().map(|(k, v)| ((*k).to_owned(), *v));
        Sample {
            scenario: scenario.into(),
            peer: peer.into(),
            figures: figures.collect(),
            ..Sample::default()
        }
    }

    fn results(samples: Vec<Sample>) -> Results {
        let mut results = Results::empty("pair");
        results.scenarios = SCENARIOS
            .map(|name| Scenario {
                name: name.into(),
                title: String::new(),
                labels: BTreeMap::new(),
            })
            .into();
        results.samples = samples;
        results.summarise();
        results
    }

    fn measured() -> Results {
        results(vec![
            sample(
                "saturated-200B",
                "tulle",
                &[("cpu_us_per_request", 15.0), ("rps", 60e3)],
            ),
            sample(
                "saturated-200B",
                "envoy",
                &[("cpu_us_per_request", 150.0), ("rps", 6e3)],
            ),
            sample("rate-1000", "tulle", &[("p99_ms", 1.0)]),
            sample("idle", "tulle", &[("rss_idle_mib", 3.0)]),
        ])
    }

    #[test]
    fn what_is_within_its_budget_is_not_found() {
        let budgets = budgets(
            "[ratios.envoy]\ncpu_us_per_request = {max = 0.1}\nrps = {min = 10}\n\
             [peers.tulle]\nrss_idle_mib = {max = 3, min = 3}\n\
             [scenarios.rate-1000.peers.tulle]\np99_ms = {max = 1}\n",
        );
        let verdict = budgets.unwrap().check(&measured(), "saturated-200B");
        assert_eq!(
            (verdict.findings.len(), verdict.checked),
            (0, 4),
            "{verdict:?}"
        );
        assert_eq!(verdict.table("x"), "");
    }

    #[test]
    fn what_is_exceeded_is_said_with_what_is_allowed_and_measured() {
        let budgets = budgets(
            "[ratios.envoy]\ncpu_us_per_request = {max = 0.09}\nrps = {min = 10.5}\n\
             [peers.tulle]\nrss_idle_mib = {max = 2.9}\n\
             [scenarios.rate-1000.peers.tulle]\np99_ms = {max = 0.5}\n",
        );
        let verdict = budgets.unwrap().check(&measured(), "saturated-200B");
        let found: Vec<&str> = verdict.findings.iter().map(|f| f.what.as_str()).collect();
        assert_eq!(
            found,
            [
                "saturated-200B: cpu_us_per_request ÷ envoy's",
                "saturated-200B: rps ÷ envoy's",
                "idle: rss_idle_mib of tulle",
                "rate-1000: p99_ms of tulle",
            ]
        );
        let table = verdict.table("too much");
        let line = "  saturated-200B: cpu_us_per_request ÷ envoy's  at most 0.09   0.1 (0.1–0.1)\n";
        assert!(table.contains(line), "{table}");
    }

    #[test]
    fn what_was_not_measured_is_skipped_and_said() {
        let budgets = budgets(
            "[ratios.nginx]\ncpu_us_per_request = {max = 0.1}\nrps = {min = 1}\n\
             [scenarios.rate-1000.ratios.envoy]\np99_ms = {max = 1}\n",
        );
        let verdict = budgets.unwrap().check(&measured(), "saturated-200B");
        assert_eq!((verdict.findings.len(), verdict.checked), (0, 0));
        let skipped = [
            "nginx was not measured in saturated-200B",
            "envoy was not measured in rate-1000",
        ];
        assert_eq!(verdict.skipped, skipped);
    }

    #[test]
    fn what_is_not_valid_has_exceeded_its_budget() {
        let mut lost = sample("saturated-200B", "tulle", &[("rps", 1e9), ("errors", 1.0)]);
        lost.judge();
        let budgets = budgets("[peers.tulle]\nrps = {min = 1}\n").unwrap();
        let verdict = budgets.check(&results(vec![lost]), "saturated-200B");
        let found: Vec<&str> = verdict
            .findings
            .iter()
            .map(|f| f.measured.as_str())
            .collect();
        assert_eq!(found, ["nothing that is valid", "1 of 1"]);
    }

    #[test]
    fn a_key_that_means_nothing_is_named_with_its_file() {
        let cases = [
            (
                "[ratios.envoi]\nrps = {min = 1}\n",
                "ratios.envoi: there is no such peer",
            ),
            (
                "[ratios.tulle]\nrps = {min = 1}\n",
                "ratios.tulle: there is no such peer",
            ),
            (
                "[peers.tulle]\nrpm = {min = 1}\n",
                "peers.tulle.rpm: there is no such figure",
            ),
            ("[peers.tulle]\nrps = {minimum = 1}\n", "minimum"),
            ("[peers.tulle]\nrps = {}\n", "peers.tulle.rps: neither"),
            ("[peers.tulle]\nrps = 7\n", "rps = 7"),
            ("[peer.tulle]\nrps = {min = 1}\n", "unknown field `peer`"),
            (
                "[scenarios.rate-1.peers.tulle]\nrps = {min = 1}\n",
                "scenarios.rate-1: there is no such scenario",
            ),
            (
                "[scenarios.idle.peers.tulle]\nx = {min = 1}\n",
                "scenarios.idle.peers.tulle.x: there",
            ),
            ("ratios", "ratios"),
        ];
        for (text, part) in cases {
            let failure = budgets(text).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Input, "{text}");
            let said = failure.to_string();
            assert!(
                said.contains("budgets.toml: ") && said.contains(part),
                "{text}: {said}"
            );
        }
    }

    #[test]
    fn the_projects_own_budgets_can_be_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/budgets.toml");
        assert!(Budgets::read(&path, &|_| None).unwrap().parts().count() > 2);
    }
}
