//! Cells that every study's tables have: who, how many runs counted, errors, identities.

use super::look;
use super::number;
use super::page::Cell;
use crate::results::stats::{NO_MESH, SUBJECT, Spread, Summary};
use crate::results::{NOT_LOOKED_AT, Results, Sample, figure};
use std::collections::BTreeSet;

/// Samples of one peer in one scenario, and their figures.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) results: &'a Results,
    pub(super) scenario: &'a str,
    pub(super) peer: &'a str,
    /// The summary whose figures are shown: the scenario's or the headline's.
    pub(super) summary: Option<&'a Summary>,
}

impl<'a> Row<'a> {
    /// Makes a row of a scenario and a peer.
    pub(super) fn new(results: &'a Results, scenario: &'a str, peer: &'a str) -> Self {
        let first = results.scenarios.first();
        let summary = if first.is_some_and(|s| s.name == scenario) {
            Some(&results.headline)
        } else {
            results.summaries.get(scenario)
        };
        Self {
            results,
            scenario,
            peer,
            summary,
        }
    }

    /// A figure's median and range.
    pub(super) fn spread(&self, figure: &str) -> Option<Spread> {
        self.summary?.peers.get(self.peer)?.get(figure).copied()
    }

    /// Returns a figure as a cell.
    pub(super) fn figure(&self, figure: &str) -> Cell {
        Cell::spread(self.spread(figure), 1.0)
    }

    /// This peer's figure divided by another's, run by run.
    pub(super) fn ratio(&self, other: &str, figure: &str) -> Cell {
        let samples = self.results.for_scenario(self.scenario);
        let ratio = crate::results::stats::ratio(samples, self.peer, other, figure);
        if self.peer == other && ratio.is_some() {
            return Cell::figure("1");
        }
        Cell::spread(ratio, 1.0)
    }

    fn samples(&self) -> impl Iterator<Item = &'a Sample> + Clone {
        let peer = self.peer;
        self.results
            .for_scenario(self.scenario)
            .filter(move |sample| sample.peer == peer)
    }

    /// Its name.
    pub(super) fn name(&self) -> Cell {
        Cell::peer(self.peer, &name(self.results, self.peer))
    }

    /// How many runs counted.
    pub(super) fn runs(&self) -> Cell {
        let all = self.samples().count();
        let valid = self.samples().filter(|s| s.invalid.is_none()).count();
        Cell::figure(if valid == all {
            all.to_string()
        } else {
            format!("{valid} of {all}")
        })
    }

    /// Lost requests of all runs, also of those that therefore do not count.
    pub(super) fn errors(&self) -> Cell {
        let errors = self.samples().filter_map(|s| s.figure(figure::ERRORS));
        let Some(errors) = errors.reduce(|a, b| a + b) else {
            return Cell::none();
        };
        Cell::figure(number::fixed(errors, 0))
    }

    /// Which kind of identity was proven, and in how many runs.
    pub(super) fn identities(&self) -> Cell {
        if self.peer == NO_MESH {
            return Cell::words("– (plaintext)");
        }
        let kinds = self
            .samples()
            .map(|sample| Identity::from_evidence(&sample.evidence));
        let proven = kinds.clone().filter(|kind| *kind != Identity::None).count();
        let kind = match kinds.clone().max() {
            None | Some(Identity::None) => return Cell::words("not proven"),
            Some(Identity::NoTls) => return Cell::words("– (one sidecar)"),
            Some(Identity::Refusal) => "strangers refused",
            Some(Identity::Certificate) => "certificates",
            Some(Identity::Account) => "service accounts",
            Some(Identity::Spiffe) => "SPIFFE ids",
        };
        Cell::words(format!("{kind}, {proven} of {}", kinds.count()))
    }
}

/// The proven identities of callers and called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// There is no evidence.
    None,
    /// There was no mutual TLS to prove.
    NoTls,
    /// Callers without a sidecar were refused; nobody looked at who was let in.
    Refusal,
    /// Certificates of the authority, and names in them.
    Certificate,
    /// Service accounts of a cluster, in the trust domain that it has.
    Account,
    /// SPIFFE ids.
    Spiffe,
}

impl Identity {
    fn from_evidence(evidence: &[String]) -> Self {
        // Evidence of a refusal says nothing about the identities that a sidecar accepts.
        let mut positive = evidence.iter().filter(|text| !text.starts_with("refused "));
        let Some(first) = positive.next() else {
            return Self::None;
        };
        let mut all = std::iter::once(first).chain(positive);
        if first.contains("no mutual TLS") {
            Self::NoTls
        } else if first.starts_with(NOT_LOOKED_AT) {
            Self::Refusal
        } else if all.clone().any(|text| text.contains("spiffe://")) {
            Self::Spiffe
        } else if all.any(|text| text.contains("/sa/")) {
            Self::Account
        } else {
            Self::Certificate
        }
    }
}

/// A peer's name in a study: what has no sidecars is a mesh that is not there, or a pair.
pub(super) fn name(results: &Results, peer: &str) -> String {
    if peer == NO_MESH && results.study == "seeds" {
        return "no mesh".to_owned();
    }
    look::label(peer).to_owned()
}

/// Returns the same figure of the other peers, to end a sentence about Tulle's: "; Envoy 141 (0.11 ×)." On
/// request the brackets hold Tulle's figure divided by theirs, run by run.
pub(super) fn beside(results: &Results, scenario: &str, figure: &str, with_ratio: bool) -> String {
    let one = |peer: &str| {
        let row = Row::new(results, scenario, peer);
        let theirs = row.spread(figure)?;
        let mut text = format!("{} {}", name(results, peer), number::median(&theirs));
        let ours = row.summary?.ratios.get(peer);
        let ours = ours.and_then(|of| of.get(figure)).filter(|_| with_ratio);
        if let Some(ratio) = ours {
            let digits = if ratio.median < 3.0 { 2 } else { 1 };
            text += &format!(" ({}{RATIO}", number::fixed(ratio.median, digits));
        }
        Some(text)
    };
    let mut others = results.peers(scenario);
    others.retain(|peer| *peer != SUBJECT);
    // A sentence with all of them is none; they are in the charts.
    if others.len() > 3 {
        others.retain(|peer| ["envoy", "nginx", NO_MESH].contains(peer));
    }
    let others = others.into_iter();
    let all: Vec<String> = others.filter_map(one).collect();
    if all.is_empty() {
        return ".".to_owned();
    }
    format!("; {}.", all.join(", "))
}

/// Ends each bracket of [`beside`].
pub(super) const RATIO: &str = " ×)";
/// Explains these brackets.
pub(super) const IN_BRACKETS: &str = "In brackets: Tulle’s figure divided by theirs, run by run.";

/// One thing remarked on runs of one peer.
struct Remark<'a> {
    peer: &'a str,
    /// The remark without its numbers: remarks that differ only in those are the same.
    kind: String,
    /// The remark as it was first made.
    text: &'a str,
    runs: usize,
    places: Vec<String>,
}

/// Returns the remarks on some samples, each once for a peer. `place` distinguishes their scenarios when
/// there are several: "64 connections".
pub(super) fn remarks<'a>(
    results: &Results,
    samples: impl Iterator<Item = &'a Sample>,
    place: impl Fn(&Sample) -> Option<String>,
) -> Vec<String> {
    let mut found: Vec<Remark<'_>> = Vec::new();
    for sample in samples {
        for text in &sample.remarks {
            let kind = without_numbers(text);
            let known = found
                .iter()
                .position(|remark| remark.peer == sample.peer && remark.kind == kind);
            let index = known.unwrap_or(found.len());
            if known.is_none() {
                found.push(Remark {
                    peer: &sample.peer,
                    kind,
                    text,
                    runs: 0,
                    places: Vec::new(),
                });
            }
            found[index].runs += 1;
            let new = |place: &String| !found[index].places.contains(place);
            if let Some(place) = place(sample).filter(new) {
                found[index].places.push(place);
            }
        }
    }
    let in_words = |remark: Remark<'_>| {
        let mut text = format!("{}: {}", name(results, remark.peer), remark.text);
        let mut more = remark.places;
        if remark.runs > 1 {
            more.push(format!("so in {} runs", remark.runs));
        }
        if !more.is_empty() {
            text += &format!(" ({})", more.join("; "));
        }
        text
    };
    found.into_iter().map(in_words).collect()
}

/// The proofs of a peer in some samples, likewise.
pub(super) fn proofs(results: &Results) -> Vec<(String, Vec<String>)> {
    let mut peers: Vec<(String, Vec<String>)> = Vec::new();
    let mut seen = BTreeSet::new();
    for sample in &results.samples {
        for text in &sample.evidence {
            if seen.insert((sample.peer.as_str(), without_numbers(text))) {
                let name = name(results, &sample.peer);
                match peers.iter_mut().find(|(peer, _)| *peer == name) {
                    Some((_, texts)) => texts.push(text.clone()),
                    None => peers.push((name, vec![text.clone()])),
                }
            }
        }
    }
    peers
}

fn without_numbers(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for c in text.chars() {
        let c = if c.is_ascii_digit() || c == '.' {
            '#'
        } else {
            c
        };
        if c != '#' || !kept.ends_with('#') {
            kept.push(c);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_identity_are_told_apart() {
        let kind = |evidence: &[&str]| {
            let owned: Vec<String> = evidence.iter().map(|e| (*e).to_owned()).collect();
            Identity::from_evidence(&owned)
        };
        let refused = "refused to n/stranger, which has no sidecar";
        let counted = "istio_requests_total 7: mutual_tls, /ns/n/sa/client -> /ns/n/sa/server";
        assert!(kind(&[refused, counted]) == Identity::Account);
        let unknown = format!("{NOT_LOOKED_AT}: this mesh's counters are its own");
        let unknown = unknown.as_str();
        assert!(kind(&[refused, unknown, refused, unknown]) == Identity::Refusal);
        assert!(kind(&[refused]) == Identity::None);
        let spiffe =
            "mutual_tls spiffe://tulle.local/svc/a -> spiffe://tulle.local/svc/b: 7 requests";
        assert!(kind(&[spiffe]) == Identity::Spiffe);
        assert!(kind(&["7 requests; CN=client verified 7"]) == Identity::Certificate);
        assert!(kind(&["no mutual TLS: there are no sidecars"]) == Identity::NoTls);
    }

    #[test]
    fn who_is_refused_is_not_who_is_known() {
        let of = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            Identity::from_evidence(&texts)
        };
        let stranger = "refused spiffe://tulle.local/svc/stranger: status 403";
        let name = "TLS 1.3, certificate verified, CN=client";
        let id = "mutual_tls, spiffe://tulle.local/svc/client";
        assert!(of(&[name, stranger]) == Identity::Certificate);
        assert!(of(&[id, stranger]) == Identity::Spiffe);
        assert!(of(&[stranger]) == Identity::None);
        assert!(of(&["clientsidecar: one sidecar, so no mutual TLS to prove"]) == Identity::NoTls);
    }

    #[test]
    fn remarks_that_differ_in_numbers_are_one() {
        assert_eq!(
            without_numbers("load CPU 97.5% busy"),
            without_numbers("load CPU 100% busy")
        );
    }
}
