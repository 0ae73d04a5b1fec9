//! Keeps what hosts counted while they could not reach the controller. A host tells it when it is back, in pieces, each of which
//! counts once however often it comes.
//!
//! It is the host's word about traffic that nobody else has seen, and no decision depends on it.

use super::{Actor, MeshState, Refused};
use crate::store::{Space, Write};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tulle_api::away::{Hour, MAX_REASONS, Names, Sums};
use tulle_api::v1;

/// Times away that are kept of a host, the newest.
const MAX_PERIODS: usize = 16;
/// Pairs of a time that are told apart: those that matter most.
const MAX_EDGES: usize = 500;
const MAX_HOURS: usize = 168;
/// Pieces of a time: a host tells 4,096 pairs apart, 50 in each.
const MAX_PIECES: u32 = 100;
/// Limits of a piece.
const MAX_PIECE_EDGES: usize = 200;
const MAX_NAME: usize = 300;
/// Bytes of a reason's name that are kept. The longest has 20.
const MAX_REASON: usize = 40;
/// Pairs, and times, that `tulle status` is told of.
const SHOWN: usize = 20;
const SHOWN_PERIODS: usize = 64;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Edge {
    source: String,
    service: String,
    sums: Sums,
}

impl Edge {
    /// Orders pairs by how much they matter.
    fn rank(&self) -> (u64, u64, u64) {
        (self.sums.denied, self.sums.failed, self.sums.requests)
    }
}

/// A time away of a host, as it is stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Period {
    from: i64,
    until: i64,
    pieces: u32,
    /// The number of the piece that comes next.
    next: u32,
    edges: Vec<Edge>,
    hours: Vec<Hour>,
    /// All together.
    sums: Sums,
    /// Edges that there was no room for.
    left_out: u32,
}

fn invalid(what: &str) -> Refused {
    Refused::Invalid(format!("what the host counted while it was away: {what}"))
}

/// The names of a piece, as a host gives them.
struct GivenNames(Vec<String>);

impl GivenNames {
    fn get(&self, number: u32) -> Result<String, Refused> {
        let name = self.0.get(number as usize);
        let name = name.ok_or_else(|| invalid("a number has no name"))?;
        if name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(invalid("a name is too long, or no name"));
        }
        Ok(name.clone())
    }

    fn sums(&self, told: v1::AwaySums) -> Result<Sums, Refused> {
        let mut sums = Sums {
            requests: told.requests,
            failed: told.failed,
            denied: told.denied,
            reasons: BTreeMap::new(),
        };
        for reason in told.reasons.into_iter().take(MAX_REASONS) {
            let mut name = self.get(reason.code)?;
            name.truncate(name.floor_char_boundary(MAX_REASON));
            let count = sums.reasons.entry(name).or_default();
            *count = count.saturating_add(reason.count);
        }
        Ok(sums)
    }
}

impl Period {
    fn add(&mut self, piece: v1::AwayPiece) -> Result<(), Refused> {
        if piece.edges.len() > MAX_PIECE_EDGES || self.hours.len() + piece.hours.len() > MAX_HOURS {
            return Err(invalid("a piece has too much"));
        }
        let names = GivenNames(piece.names);
        for edge in piece.edges {
            let sums = names.sums(edge.sums.unwrap_or_default())?;
            self.sums.add(&sums);
            self.edges.push(Edge {
                source: names.get(edge.source)?,
                service: names.get(edge.service)?,
                sums,
            });
        }
        if let Some(surplus) = self.edges.len().checked_sub(MAX_EDGES) {
            self.sort();
            self.edges.truncate(MAX_EDGES);
            let surplus = u32::try_from(surplus).unwrap_or(u32::MAX);
            self.left_out = self.left_out.saturating_add(surplus);
        }
        if let Some(rest) = piece.rest {
            self.sums.add(&names.sums(rest)?);
            self.left_out = self.left_out.saturating_add(1);
        }
        self.hours.extend(piece.hours.into_iter().map(Hour::from));
        self.next += 1;
        Ok(())
    }

    /// Puts pairs that matter most first.
    fn sort(&mut self) {
        self.edges
            .sort_by_key(|edge| std::cmp::Reverse(edge.rank()));
    }

    fn shown(mut self, host: String) -> v1::AwayPeriod {
        self.sort();
        let more = self.edges.len().saturating_sub(SHOWN);
        let more = u32::try_from(more)
            .unwrap_or(u32::MAX)
            .saturating_add(self.left_out);
        self.edges.truncate(SHOWN);
        let mut names = Names::default();
        let edges = self.edges.iter().map(|edge| v1::AwayEdge {
            source: names.number(&edge.source),
            service: names.number(&edge.service),
            sums: Some(edge.sums.message(&mut names)),
        });
        let edges = edges.collect();
        let sums = Some(self.sums.message(&mut names));
        v1::AwayPeriod {
            host,
            from_unix_seconds: self.from,
            until_unix_seconds: self.until,
            hours: self.hours.iter().map(Into::into).collect(),
            edges,
            sums,
            names: names.into_list(),
            more_edges: more,
            partly: self.next < self.pieces,
        }
    }
}

/// Key of a host's times: a name of a host has no slash.
fn prefix(host: &str) -> String {
    format!("{host}/")
}

impl MeshState {
    /// Keeps a piece of what a host counted.
    pub(crate) fn keep_away(&self, actor: &Actor, piece: v1::AwayPiece) -> Result<(), Refused> {
        let Actor::Node(host) = actor else {
            return Err(Refused::NotAllowed(
                "only a host tells what it counted while it was away".into(),
            ));
        };
        let is_name = |c: char| c.is_ascii_digit() || c == '-';
        if piece.period.is_empty() || piece.period.len() > 40 || !piece.period.chars().all(is_name)
        {
            return Err(invalid("its time has no name"));
        }
        if piece.pieces > MAX_PIECES || piece.piece >= piece.pieces {
            return Err(invalid("it has more pieces than it says, or may have"));
        }
        let key = format!("{}{}", prefix(host), piece.period);
        // One writer: two pieces at a time would be one.
        let _index = self.index();
        let stored = self.store.value(Space::Away, &key)?;
        let stored = stored.and_then(|p| serde_json::from_slice::<Period>(&p).ok());
        let mut period = stored.unwrap_or_else(|| Period {
            from: piece.from_unix_seconds,
            until: piece.until_unix_seconds,
            pieces: piece.pieces,
            ..Period::default()
        });
        if piece.piece < period.next {
            return Ok(());
        }
        if piece.piece > period.next {
            return Err(Refused::Conflict(format!(
                "piece {} of what was counted comes before piece {}",
                piece.piece, period.next
            )));
        }
        period.add(piece)?;
        let value = serde_json::to_vec(&period).map_err(|e| Refused::Failed(e.to_string()))?;
        // Only the first piece of a time takes the place of another.
        let mut writes = match period.next {
            1 => self.surplus(host, &key)?,
            _ => Vec::new(),
        };
        writes.push(Write::PutValue {
            space: Space::Away,
            key,
            value,
        });
        self.store.commit(&writes)?;
        if period.next == period.pieces {
            tracing::info!(
                node = host,
                requests = period.sums.requests,
                denied = period.sums.denied,
                "the host has told what it counted while it was away"
            );
        }
        Ok(())
    }

    /// Makes room for another time of a host.
    fn surplus(&self, host: &str, key: &str) -> Result<Vec<Write>, Refused> {
        let mut of_host = self.of_host(host)?;
        of_host.retain(|(known, _)| known != key);
        of_host.sort_by_key(|(_, period)| period.from);
        let surplus = (of_host.len() + 1).saturating_sub(MAX_PERIODS);
        let surplus = of_host.into_iter().take(surplus);
        Ok(surplus.map(|(key, _)| deleted(key)).collect())
    }

    fn of_host(&self, host: &str) -> Result<Vec<(String, Period)>, Refused> {
        let prefix = prefix(host);
        let stored = self.store.values(Space::Away)?.into_iter();
        let of_host = stored.filter(|(key, _)| key.starts_with(&prefix));
        // One that cannot be read is of a later version, and is the first to go.
        let read =
            of_host.map(|(key, value)| (key, serde_json::from_slice(&value).unwrap_or_default()));
        Ok(read.collect())
    }

    /// Writes with which nothing is kept of a host.
    pub(super) fn away_gone(&self, host: &str) -> Result<Vec<Write>, Refused> {
        let of_host = self.of_host(host)?.into_iter();
        Ok(of_host.map(|(key, _)| deleted(key)).collect())
    }

    /// Returns what hosts have told, by host and time.
    pub(crate) fn away_periods(&self) -> Result<Vec<v1::AwayPeriod>, Refused> {
        let mut periods = Vec::new();
        for (key, value) in self.store.values(Space::Away)? {
            let host = key.split('/').next().unwrap_or_default().to_owned();
            if let Ok(period) = serde_json::from_slice::<Period>(&value) {
                periods.push(period.shown(host));
            }
        }
        periods.sort_by_key(|p| std::cmp::Reverse(p.until_unix_seconds));
        periods.truncate(SHOWN_PERIODS);
        periods.sort_by(|a, b| (&a.host, a.from_unix_seconds).cmp(&(&b.host, b.from_unix_seconds)));
        Ok(periods)
    }
}

fn deleted(key: String) -> Write {
    Write::DeleteValue {
        space: Space::Away,
        key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(period: &str, number: u32, pieces: u32, requests: u64) -> v1::AwayPiece {
        let sums = v1::AwaySums {
            requests,
            failed: 0,
            denied: 1,
            reasons: vec![v1::AwayReason { code: 2, count: 1 }],
        };
        v1::AwayPiece {
            period: period.into(),
            piece: number,
            pieces,
            from_unix_seconds: period.parse().unwrap_or_default(),
            until_unix_seconds: 2000,
            names: vec![
                format!("spiffe://t/svc/{number}"),
                "b".into(),
                "denied".into(),
            ],
            edges: vec![v1::AwayEdge {
                source: 0,
                service: 1,
                sums: Some(sums),
            }],
            ..Default::default()
        }
    }

    #[test]
    fn each_piece_counts_once() {
        let state = MeshState::in_memory().unwrap();
        let edge = Actor::Node("edge".into());
        assert!(
            state
                .keep_away(&Actor::Operator, piece("1", 0, 1, 1))
                .is_err()
        );
        assert!(
            state.keep_away(&edge, piece("1", 1, 2, 5)).is_err(),
            "the first is missing"
        );
        for number in [0, 0, 1, 0, 1] {
            state.keep_away(&edge, piece("1", number, 2, 5)).unwrap();
        }
        let periods = state.away_periods().unwrap();
        assert_eq!(periods.len(), 1);
        let sums = periods[0].sums.as_ref().unwrap();
        assert_eq!(
            (sums.requests, sums.denied, periods[0].partly),
            (10, 2, false)
        );
        assert_eq!(periods[0].edges.len(), 2);
        let reason = sums.reasons[0];
        assert_eq!(
            (
                periods[0].names[reason.code as usize].as_str(),
                reason.count
            ),
            ("denied", 2)
        );
    }

    #[test]
    fn what_is_kept_of_a_host_is_bounded_and_goes_with_it() {
        let state = MeshState::in_memory().unwrap();
        let edge = Actor::Node("edge".into());
        for period in 1..=20 {
            state
                .keep_away(&edge, piece(&period.to_string(), 0, 1, 1))
                .unwrap();
        }
        let from: Vec<i64> = state
            .away_periods()
            .unwrap()
            .iter()
            .map(|p| p.from_unix_seconds)
            .collect();
        assert_eq!(from, (5..=20).collect::<Vec<_>>());
        let endless = (0..=MAX_PIECES).map(|n| state.keep_away(&edge, piece("31", n, n + 1, 1)));
        assert_eq!(endless.filter(Result::is_ok).count(), MAX_PIECES as usize);
        let mut weeks = piece("32", 0, 2, 1);
        weeks.hours = vec![v1::AwayHour::default(); MAX_HOURS];
        state.keep_away(&edge, weeks.clone()).unwrap();
        weeks.piece = 1;
        assert!(state.keep_away(&edge, weeks).is_err());
        for bad in ["", "a/b", "1".repeat(41).as_str()] {
            assert!(state.keep_away(&edge, piece(bad, 0, 1, 1)).is_err());
        }
        let mut odd = piece("21", 0, 1, 1);
        odd.names[0] = "a\nb".into();
        assert!(state.keep_away(&edge, odd).is_err());
        assert_eq!(state.away_gone("edge").unwrap().len(), MAX_PERIODS);
        assert!(state.away_gone("edg").unwrap().is_empty());
    }

    #[test]
    fn pairs_that_matter_most_are_kept_wherever_they_come() {
        let state = MeshState::in_memory().unwrap();
        let edge = Actor::Node("edge".into());
        let (pieces, of_piece) = (82, 50);
        // Each pair has one request more than the one before, and two of them have a failure and a refusal.
        for number in 0..pieces {
            let mut told = piece("1", number, pieces, 0);
            told.names = vec!["b".into(), "r".repeat(MAX_NAME)];
            told.edges.clear();
            for i in 0..of_piece {
                let all = number * of_piece + i;
                told.names.push(format!("spiffe://t/svc/{all:04}"));
                told.edges.push(v1::AwayEdge {
                    source: 2 + i,
                    service: 0,
                    sums: Some(v1::AwaySums {
                        requests: u64::from(all),
                        failed: u64::from(all == 4000),
                        denied: u64::from(all == 4001),
                        reasons: vec![v1::AwayReason { code: 1, count: 1 }],
                    }),
                });
            }
            state.keep_away(&edge, told).unwrap();
        }
        let stored = state.of_host("edge").unwrap().remove(0).1;
        assert_eq!(stored.edges.len(), MAX_EDGES);
        let period = state.away_periods().unwrap().remove(0);
        let sources = period.edges.iter().map(|e| {
            let name = &period.names[e.source as usize];
            name.rsplit('/').next().unwrap().parse::<u32>().unwrap()
        });
        let last = pieces * of_piece;
        let most: Vec<u32> = [4001, 4000].into_iter().chain((0..last).rev()).collect();
        assert_eq!(sources.collect::<Vec<_>>(), most[..SHOWN]);
        assert_eq!(period.more_edges as usize, last as usize - SHOWN);
        let sums = period.sums.unwrap();
        let all = u64::from(last);
        assert_eq!(sums.requests, all * (all - 1) / 2);
        let reason = &sums.reasons[0];
        let name = &period.names[reason.code as usize];
        assert_eq!((name.len(), reason.count), (MAX_REASON, all));
    }
}
