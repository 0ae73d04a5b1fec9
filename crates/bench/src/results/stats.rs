//! Turns samples into a table: medians with their spread, ratios taken run by run.
//!
//! Absolute figures of a shared machine move from minute to minute. A ratio is taken between two
//! peers of the same repeat and then its median: what moves both of them cancels out.

use crate::results::Sample;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The peer whose figures are divided by the others'.
pub const SUBJECT: &str = "tulle";
/// The peer that is no mesh: client and server without sidecars.
pub const NO_MESH: &str = "none";

/// Median and extremes of the repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle value; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many valid values there are.
    pub count: usize,
}

impl Spread {
    /// Returns the spread of some values; none without values. Values that are not finite do not count.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let count = values.len();
        let median = f64::midpoint(values[(count - 1) / 2], values[count / 2]);
        Some(Self {
            median,
            min,
            max,
            count,
        })
    }
}

/// Figures by name.
pub type Figures = BTreeMap<String, Spread>;

/// One scenario: each peer's figures, and the subject's divided by each other peer's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Figures by peer.
    pub peers: BTreeMap<String, Figures>,
    /// [`SUBJECT`] ÷ peer, by peer.
    pub ratios: BTreeMap<String, Figures>,
    /// Samples that do not count, by peer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub invalid: BTreeMap<String, usize>,
}

impl Summary {
    /// Summarises the samples of one scenario.
    pub fn from_samples<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Self {
        let mut valid: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
        let mut summary = Self::default();
        for sample in samples {
            if sample.invalid.is_some() {
                *summary.invalid.entry(sample.peer.clone()).or_default() += 1;
            } else {
                valid.entry(&sample.peer).or_default().push(sample);
            }
        }
        let subject = valid.get(SUBJECT).cloned().unwrap_or_default();
        for (peer, samples) in valid {
            let figures = spreads(samples.iter().map(|s| &s.figures));
            summary.peers.insert(peer.to_owned(), figures);
            if peer == SUBJECT {
                continue;
            }
            let pairs = subject.iter().flat_map(|mine| {
                let same_run = samples.iter().filter(|s| s.repeat == mine.repeat);
                same_run.map(|theirs| ratios(mine, theirs))
            });
            let figures = spreads(pairs.collect::<Vec<_>>().iter());
            if !figures.is_empty() {
                summary.ratios.insert(peer.to_owned(), figures);
            }
        }
        summary
    }

    /// Takes over the figures it does not have from another scenario of the same peers.
    pub fn fill_from(&mut self, other: &Self) {
        let both = [
            (&mut self.peers, &other.peers),
            (&mut self.ratios, &other.ratios),
        ];
        for (mine, theirs) in both {
            for (peer, figures) in theirs {
                let Some(mine) = mine.get_mut(peer) else {
                    continue;
                };
                for (name, spread) in figures {
                    mine.entry(name.clone()).or_insert(*spread);
                }
            }
        }
    }
}

/// A figure of one peer divided by another's, run by run: of valid samples of one scenario.
pub fn ratio<'a>(
    samples: impl Iterator<Item = &'a Sample> + Clone,
    peer: &str,
    other: &str,
    figure: &str,
) -> Option<Spread> {
    let of = |name: &str| {
        let name = name.to_owned();
        let valid = samples.clone().filter(|s| s.invalid.is_none());
        valid.filter(move |s| s.peer == name)
    };
    let same_run = of(peer).flat_map(|mine| {
        of(other)
            .filter(|theirs| theirs.repeat == mine.repeat)
            .map(|theirs| Some(mine.figure(figure)? / theirs.figure(figure)?))
            .collect::<Vec<_>>()
    });
    Spread::from_values(same_run.flatten())
}

fn spreads<'a>(all: impl Iterator<Item = &'a BTreeMap<String, f64>>) -> Figures {
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for figures in all {
        for (name, value) in figures {
            values.entry(name).or_default().push(*value);
        }
    }
    let spread =
        |(name, values): (&str, Vec<f64>)| Some((name.to_owned(), Spread::from_values(values)?));
    values.into_iter().filter_map(spread).collect()
}

/// Each figure that both have; what would divide by nothing is left out.
fn ratios(mine: &Sample, theirs: &Sample) -> BTreeMap<String, f64> {
    let divide = |(name, a): (&String, &f64)| {
        let b = theirs.figures.get(name)?;
        (*b != 0.0).then(|| (name.clone(), a / b))
    };
    mine.figures.iter().filter_map(divide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(peer: &str, repeat: u32, rps: f64) -> Sample {
        Sample {
            peer: peer.into(),
            repeat,
            figures: BTreeMap::from([("rps".into(), rps), ("errors".into(), 0.0)]),
            ..Sample::default()
        }
    }

    #[test]
    fn median_of_odd_and_even_numbers_of_values() {
        let odd = Spread::from_values([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            (odd.median, odd.min, odd.max, odd.count),
            (2.0, 1.0, 3.0, 3)
        );
        assert_eq!(
            Spread::from_values([4.0, 1.0, 2.0, 3.0]).unwrap().median,
            2.5
        );
        assert_eq!(Spread::from_values([7.0]).unwrap().median, 7.0);
        assert_eq!(Spread::from_values([]), None);
        assert_eq!(Spread::from_values([f64::NAN, 1.0]).unwrap().count, 1);
    }

    #[test]
    fn ratios_are_taken_run_by_run() {
        // The machine is twice as fast in the second run: the ratio does not see it, a ratio of
        // medians over unequal runs would.
        let samples = [
            sample("tulle", 0, 100.0),
            sample("envoy", 0, 10.0),
            sample("tulle", 1, 200.0),
            sample("envoy", 1, 20.0),
            sample("tulle", 2, 400.0),
        ];
        let summary = Summary::from_samples(&samples);
        let ratio = summary.ratios["envoy"]["rps"];
        assert_eq!((ratio.median, ratio.min, ratio.max), (10.0, 10.0, 10.0));
        assert_eq!(ratio.count, 2);
        assert_eq!(summary.peers["tulle"]["rps"].median, 200.0);
        // 0 ÷ 0 errors is no ratio.
        assert!(!summary.ratios["envoy"].contains_key("errors"));
    }

    #[test]
    fn any_peer_can_be_divided_by_any_other() {
        let mut lost = sample("nginx", 1, 1e9);
        lost.invalid = Some("lost".into());
        let samples = [
            sample("nginx", 0, 30.0),
            sample("envoy", 0, 10.0),
            lost,
            sample("envoy", 1, 10.0),
            sample("nginx", 2, 40.0),
            sample("envoy", 2, 10.0),
        ];
        let ratio = |figure| super::ratio(samples.iter(), "nginx", "envoy", figure);
        let found = ratio("rps").unwrap();
        assert_eq!((found.min, found.median, found.max), (3.0, 3.5, 4.0));
        // 0 / 0.
        assert_eq!(ratio("errors"), None);
        assert_eq!(ratio("p50_ms"), None);
    }

    #[test]
    fn figures_of_another_scenario_fill_gaps_only() {
        let mut headline =
            Summary::from_samples(&[sample("tulle", 0, 100.0), sample("envoy", 0, 10.0)]);
        let mut idle = sample("tulle", 0, 1.0);
        idle.figures.insert("rss_idle_mib".into(), 3.0);
        headline.fill_from(&Summary::from_samples(&[idle, sample("nginx", 0, 1.0)]));
        assert_eq!(headline.peers["tulle"]["rps"].median, 100.0);
        assert_eq!(headline.peers["tulle"]["rss_idle_mib"].median, 3.0);
        assert!(!headline.peers.contains_key("nginx"));
    }

    #[test]
    fn invalid_samples_are_counted_and_not_averaged() {
        let mut lost = sample("envoy", 1, 1_000_000.0);
        lost.figures.insert("errors".into(), 3.0);
        lost.judge();
        assert_eq!(lost.invalid.as_deref(), Some("3 requests were lost"));
        let samples = [
            sample("tulle", 0, 50.0),
            sample("tulle", 1, 50.0),
            sample("envoy", 0, 10.0),
            lost,
        ];
        let summary = Summary::from_samples(&samples);
        assert_eq!(summary.invalid["envoy"], 1);
        assert_eq!(summary.peers["envoy"]["rps"].max, 10.0);
        assert_eq!(summary.ratios["envoy"]["rps"].count, 1);
    }
}
