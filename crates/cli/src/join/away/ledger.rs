//! Sums of what was counted in one time without the controller, and their file.
//!
//! Pure but for reading and writing the file. What there is no room for is summed up, and said to be.

use crate::failure::{OrFail, Result};
use crate::new_file::write_durably;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tulle_api::away::{Hour, Names, Sums};
use tulle_api::v1;

/// Pairs that are told apart. With the longest names and most reasons they are 5 MiB.
const MAX_EDGES: usize = 4096;
/// Hours that are told apart: seven days. Those before are one.
const MAX_HOURS: usize = 168;
const MAX_NAME: usize = 253;
/// Edges of a message. It has 5 KB, so what is urgent waits less than a second on a line of 64 kbit/s. With the longest
/// names and all reasons it has 40 KB, which takes five.
const EDGES_OF_PIECE: usize = 50;
const HOUR: i64 = 3600;

/// Caller and called service, by name.
pub(super) type Pair = (String, String);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Edge {
    source: String,
    service: String,
    sums: Sums,
}

/// The sums of one time away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ledger {
    /// Tells the times of a host apart.
    pub(super) period: String,
    pub(super) from: i64,
    pub(super) until: i64,
    /// Nothing is added any more, so each of its pieces is always the same.
    pub(super) is_sealed: bool,
    /// Some of its pieces may have been sent. The controller knows them by their numbers, so they stay as they are.
    pub(super) is_begun: bool,
    edges: BTreeMap<Pair, Sums>,
    hours: Vec<Hour>,
    /// Sums of pairs that there was no room for.
    rest: Sums,
}

/// The form of the file.
#[derive(Serialize, Deserialize)]
struct File {
    period: String,
    from: i64,
    until: i64,
    sealed: bool,
    /// Files of earlier versions do not say it.
    #[serde(default)]
    begun: bool,
    edges: Vec<Edge>,
    hours: Vec<Hour>,
    rest: Sums,
}

/// A name, or as much of it as there is room for.
pub(super) fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_NAME))
        .unwrap_or_default()
        .to_owned()
}

impl Ledger {
    /// One that begins at this time, in Unix seconds.
    pub(super) fn begin(from: i64) -> Self {
        Self {
            // Also where the clock was set back.
            period: format!("{from}-{}", std::process::id()),
            from,
            until: from,
            is_sealed: false,
            is_begun: false,
            edges: BTreeMap::new(),
            hours: Vec::new(),
            rest: Sums::default(),
        }
    }

    /// Whether nothing was counted.
    pub(super) fn is_empty(&self) -> bool {
        self.edges.is_empty() && self.rest.is_nothing()
    }

    /// Adds what was counted until this time.
    pub(super) fn add<'a>(
        &mut self,
        until: i64,
        counted: impl IntoIterator<Item = (&'a Pair, &'a Sums)>,
    ) {
        self.until = self.until.max(until);
        let begin = until - until.rem_euclid(HOUR);
        if self.hours.last().is_none_or(|hour| hour.begin != begin) {
            self.hours.push(Hour {
                begin,
                ..Hour::default()
            });
        }
        for ((source, service), sums) in counted {
            if let Some(hour) = self.hours.last_mut() {
                hour.requests = hour.requests.saturating_add(sums.requests);
                hour.failed = hour.failed.saturating_add(sums.failed);
                hour.denied = hour.denied.saturating_add(sums.denied);
            }
            let pair = (cut(source), cut(service));
            if self.edges.len() < MAX_EDGES || self.edges.contains_key(&pair) {
                self.edges.entry(pair).or_default().add(sums);
            } else {
                self.rest.add(sums);
            }
        }
        while self.hours.len() > MAX_HOURS {
            let first = self.hours.remove(0);
            if let Some(next) = self.hours.first_mut() {
                next.begin = first.begin;
                next.requests = next.requests.saturating_add(first.requests);
                next.failed = next.failed.saturating_add(first.failed);
                next.denied = next.denied.saturating_add(first.denied);
            }
        }
    }

    /// Sums all pairs up, to make room. Returns whether there were any.
    pub(super) fn sum_up(&mut self) -> bool {
        let edges = std::mem::take(&mut self.edges);
        for sums in edges.values() {
            self.rest.add(sums);
        }
        !edges.is_empty()
    }

    /// Reads a file. The inner error: it has no ledger, and never will. The outer one may pass.
    pub(super) fn read(file: &Path) -> Result<serde_json::Result<Self>> {
        let text = std::fs::read(file).or_fail(|| format!("cannot read {}", file.display()))?;
        Ok(serde_json::from_slice::<File>(&text).map(Self::from))
    }
}

impl From<File> for Ledger {
    fn from(read: File) -> Self {
        Self {
            period: read.period,
            from: read.from,
            until: read.until,
            is_sealed: read.sealed,
            is_begun: read.begun,
            edges: read
                .edges
                .into_iter()
                .map(|e| ((e.source, e.service), e.sums))
                .collect(),
            hours: read.hours,
            rest: read.rest,
        }
    }
}

impl Ledger {
    /// Writes it, so that a crash leaves it as it is or as it was.
    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let what = || format!("cannot write {}", file.display());
        let edges = self.edges.iter();
        let edges = edges.map(|((source, service), sums)| Edge {
            source: source.clone(),
            service: service.clone(),
            sums: sums.clone(),
        });
        let text = serde_json::to_vec(&File {
            period: self.period.clone(),
            from: self.from,
            until: self.until,
            sealed: self.is_sealed,
            begun: self.is_begun,
            edges: edges.collect(),
            hours: self.hours.clone(),
            rest: self.rest.clone(),
        });
        let text = text.or_fail(what)?;
        write_durably(file, &text).or_fail(what)
    }

    /// Returns the messages that are to be sent, once its file says that some may have been. One alone comes as a whole or
    /// not at all.
    pub(super) fn take_pieces(&mut self, file: &Path) -> Result<Vec<v1::AwayPiece>> {
        let pieces = self.pieces();
        if pieces.len() > 1 && !self.is_begun {
            self.is_begun = true;
            self.write(file)?;
        }
        Ok(pieces)
    }

    /// The messages that tell of it. Names come once in each.
    pub(super) fn pieces(&self) -> Vec<v1::AwayPiece> {
        let all: Vec<_> = self.edges.iter().collect();
        let mut chunks: Vec<&[_]> = all.chunks(EDGES_OF_PIECE).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        let mut pieces = Vec::new();
        for (number, chunk) in (0..count).zip(chunks) {
            let mut names = Names::default();
            let edges = chunk.iter().map(|((source, service), sums)| v1::AwayEdge {
                source: names.number(source),
                service: names.number(service),
                sums: Some(sums.message(&mut names)),
            });
            let edges = edges.collect();
            let mut piece = v1::AwayPiece {
                period: self.period.clone(),
                piece: number,
                pieces: count,
                from_unix_seconds: self.from,
                until_unix_seconds: self.until,
                edges,
                ..Default::default()
            };
            if number == 0 {
                piece.rest = (!self.rest.is_nothing()).then(|| self.rest.message(&mut names));
                piece.hours = self.hours.iter().map(Into::into).collect();
            }
            piece.names = names.into_list();
            pieces.push(piece);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use tulle_api::away::MAX_REASONS;

    fn pair(source: &str, service: &str) -> Pair {
        (source.to_owned(), service.to_owned())
    }

    fn sums(requests: u64, denied: u64) -> Sums {
        let reasons = (denied > 0).then(|| ("denied".to_owned(), denied));
        Sums {
            requests,
            failed: 0,
            denied,
            reasons: reasons.into_iter().collect(),
        }
    }

    #[test]
    fn what_was_written_is_read_and_sent() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("1.json");
        let mut ledger = Ledger::begin(7000);
        let (a, b) = (pair("svc/a", "ratings"), pair("svc/b", "ratings"));
        ledger.add(7100, [(&a, &sums(5, 0)), (&b, &sums(2, 2))]);
        ledger.add(7300, [(&a, &sums(1, 0))]);
        ledger.write(&file).unwrap();
        assert_eq!(Ledger::read(&file).unwrap().unwrap(), ledger);
        let pieces = ledger.pieces();
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].names, ["svc/a", "ratings", "svc/b", "denied"]);
        assert_eq!(pieces[0].edges[0].sums.as_ref().unwrap().requests, 6);
        let requests: Vec<u64> = pieces[0].hours.iter().map(|h| h.requests).collect();
        assert_eq!(requests, [7, 1], "hours are told apart");
        assert_eq!(
            (pieces[0].from_unix_seconds, pieces[0].until_unix_seconds),
            (7000, 7300)
        );
    }

    #[test]
    fn a_week_of_more_than_anybody_has_is_within_its_bound_and_sums_stay_right() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("1.json");
        let mut ledger = Ledger::begin(0);
        let long = "x".repeat(300);
        let many: BTreeMap<Pair, Sums> = (0..6000)
            .map(|i| {
                let reasons = (0..20).map(|r| (format!("{r}_{}", "y".repeat(30)), 1));
                let sums = Sums {
                    requests: 1,
                    failed: 0,
                    denied: 1,
                    reasons: reasons.collect(),
                };
                (pair(&format!("{i}{long}"), &format!("{i}{long}")), sums)
            })
            .collect();
        for hour in 0..200 {
            ledger.add(hour * HOUR, &many);
        }
        ledger.write(&file).unwrap();
        let bytes = std::fs::metadata(&file).unwrap().len();
        assert!(bytes < 8 << 20, "{bytes} bytes");
        assert_eq!(ledger.hours.len(), MAX_HOURS);
        let hours: u64 = ledger.hours.iter().map(|h| h.requests).sum();
        let edges: u64 = ledger.edges.values().map(|s| s.requests).sum();
        assert_eq!(
            (hours, edges + ledger.rest.requests),
            (6000 * 200, 6000 * 200)
        );
        let pieces = ledger.pieces();
        assert!(pieces.iter().all(|p| p.edges.len() <= EDGES_OF_PIECE));
        assert!(ledger.sum_up() && !ledger.sum_up());
        assert_eq!(
            (ledger.pieces().len(), ledger.rest.requests),
            (1, 6000 * 200)
        );
    }

    /// The lengths of the messages about it.
    fn lengths(ledger: &Ledger) -> Vec<usize> {
        ledger.pieces().iter().map(Message::encoded_len).collect()
    }

    #[test]
    fn a_week_is_told_within_a_second_of_a_slow_line() {
        let begin = 1_700_000_000;
        let mut ledger = Ledger::begin(begin);
        let many: BTreeMap<Pair, Sums> = (0..100)
            .map(|i| {
                let source = format!("spiffe://tulle.local/svc/caller-{}", i / 10);
                let reasons = [("denied".to_owned(), 300), ("no_endpoint".to_owned(), 40)];
                let sums = Sums {
                    requests: 6000,
                    failed: 40,
                    denied: 300,
                    reasons: reasons.into(),
                };
                (pair(&source, &format!("service-{}", i % 10)), sums)
            })
            .collect();
        for hour in 0..168 {
            ledger.add(begin + hour * HOUR, &many);
        }
        assert_eq!((ledger.edges.len(), ledger.hours.len()), (100, MAX_HOURS));
        // A pair has 34 bytes, of which its two names are four, and an hour 19. Each of the two messages has 17 names beside
        // them, 330 bytes. All of it is 7.4 KB, and a second of 64 kbit/s is 8.
        let lengths = lengths(&ledger);
        assert_eq!(lengths.len(), 2);
        assert!(lengths.iter().sum::<usize>() <= 8000, "{lengths:?}");
    }

    #[test]
    fn what_is_urgent_never_waits_long_for_a_message() {
        let mut ledger = Ledger::begin(1_700_000_000);
        let many = u64::from(u32::MAX);
        let reasons = (0..MAX_REASONS).map(|r| (format!("{r:02}{}", "r".repeat(30)), many));
        let sums = Sums {
            requests: many,
            failed: many,
            denied: many,
            reasons: reasons.collect(),
        };
        let long = "x".repeat(MAX_NAME);
        let edges: BTreeMap<Pair, Sums> = (0..200)
            .map(|i| {
                (
                    pair(&format!("{i}{long}"), &format!("-{i}{long}")),
                    sums.clone(),
                )
            })
            .collect();
        for hour in 0..168 {
            ledger.add(1_700_000_000 + hour * HOUR, &edges);
        }
        let lengths = lengths(&ledger);
        assert_eq!(lengths.len(), 200 / EDGES_OF_PIECE);
        assert!(lengths.iter().all(|l| *l <= 48 << 10), "{lengths:?}");
    }

    #[test]
    fn sums_beyond_32_bits_and_times_after_2038_are_kept_and_told_whole() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("1.json");
        let (year_2040, many) = (2_208_988_800, (1 << 32) + 7);
        let mut ledger = Ledger::begin(year_2040);
        let a = pair("svc/a", "ratings");
        ledger.add(year_2040 + 60, [(&a, &sums(many, 1))]);
        ledger.add(year_2040 + 120, [(&a, &sums(many, many))]);
        ledger.write(&file).unwrap();
        assert_eq!(Ledger::read(&file).unwrap().unwrap(), ledger);
        let piece = ledger.pieces().remove(0);
        assert_eq!(piece.until_unix_seconds, year_2040 + 120);
        let told = piece.edges[0].sums.clone().unwrap();
        assert_eq!((told.requests, told.denied), (2 * many, many + 1));
        assert_eq!(told.reasons[0].count, many + 1);
        let hour = &piece.hours[0];
        assert_eq!(
            (hour.begin_unix_seconds, hour.requests),
            (year_2040, 2 * many)
        );
    }
}
