//! The last fifteen minutes of the mesh: who called whom and how it went, what failed, and what happened.
//!
//! Pure: it knows no clock and no proxies. Its memory is bounded whatever it is told: edges that there is no room for,
//! those with the fewest requests, are summed up, and it says so.

mod counts;
mod samples;
mod timeline;

pub(crate) use counts::{BUCKETS, Counts, Reasons};
pub(crate) use samples::Sample;
pub(crate) use timeline::{COARSE, FINE, KEPT, STEP, Span};

use samples::Samples;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use timeline::Timeline;

/// Bytes for edges: of 8,000 that are always busy. Twice as many are resident.
const MAX_BYTES: usize = 16 << 20;
/// Bytes that an edge takes beside its counts.
const EDGE: usize = 320;
/// Samples of failures, of all edges.
const MAX_SAMPLES: usize = 4096;
/// Edges that are known to have no place of their own.
const MAX_REST: usize = 65_536;
/// After so many steps they are looked at anew.
const REST_STEPS: u32 = 12;
/// Events that are kept.
const MAX_MARKS: usize = 1024;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) at: f64,
    pub(crate) kind: &'static str,
    pub(crate) what: String,
    pub(crate) verb: &'static str,
    pub(crate) who: String,
}

/// Caller and called, as ids of nodes.
pub(crate) type Pair = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
struct Track {
    timeline: Timeline,
    samples: Samples,
}

/// The history.
#[derive(Debug)]
pub(crate) struct History {
    edges: HashMap<Pair, Track>,
    rest: Timeline,
    /// Hashes of edges that are part of the rest, as of this period and the one before.
    rest_edges: [HashSet<u64>; 2],
    hasher: RandomState,
    reasons: Reasons,
    events: VecDeque<Event>,
    samples: usize,
    bytes: usize,
    most: usize,
    now: u32,
}

impl Default for History {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

/// The step of a time.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn step(time: f64) -> u32 {
    (time / f64::from(STEP)) as u32
}

/// Where a step begins.
pub(crate) fn begin(step: u32) -> f64 {
    f64::from(step) * f64::from(STEP)
}

impl History {
    fn new(most: usize) -> Self {
        Self {
            edges: HashMap::new(),
            rest: Timeline::default(),
            rest_edges: Default::default(),
            hasher: RandomState::new(),
            reasons: Reasons::default(),
            events: VecDeque::new(),
            samples: 0,
            bytes: 0,
            most,
            now: 0,
        }
    }

    /// The number of a reason's code.
    pub(crate) fn reason(&mut self, code: &str) -> u8 {
        self.reasons.number(code)
    }

    /// The code of a number.
    pub(crate) fn code(&self, number: u8) -> &str {
        self.reasons.code(number)
    }

    /// Adds what a proxy has counted of an edge.
    pub(crate) fn add(&mut self, time: f64, edge: &Pair, counts: &Counts) {
        let step = step(time).max(self.now);
        if let Some(track) = self.edges.get_mut(edge) {
            let before = track.timeline.bytes();
            track.timeline.add(step, counts);
            self.bytes = self.bytes + track.timeline.bytes() - before;
            return;
        }
        let hash = self.hasher.hash_one(edge);
        let is_rest = self.rest_edges.iter().any(|edges| edges.contains(&hash));
        if is_rest || self.bytes > self.most {
            self.add_to_rest(step, hash, counts);
            return;
        }
        let mut track = Track::default();
        track.timeline.add(step, counts);
        self.bytes += EDGE + track.timeline.bytes();
        self.edges.insert(edge.clone(), track);
    }

    fn add_to_rest(&mut self, step: u32, hash: u64, counts: &Counts) {
        let sum = Counts {
            requests: counts.requests,
            ..Counts::default()
        };
        self.rest.add(step, &sum);
        if self.rest_edges[0].len() < MAX_REST {
            self.rest_edges[0].insert(hash);
        }
    }

    /// Adds a failure of an edge that is known.
    pub(crate) fn failed(&mut self, edge: &Pair, sample: Sample) {
        if self.samples < MAX_SAMPLES
            && let Some(track) = self.edges.get_mut(edge)
        {
            self.samples += track.samples.add(sample);
        }
    }

    /// Adds an event.
    pub(crate) fn happened(&mut self, event: Event) {
        if self.events.len() == MAX_MARKS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Time goes on: forgets what is too old, and gives the places of the edges with the fewest requests up if memory is
    /// short.
    pub(crate) fn tick(&mut self, time: f64) {
        let now = step(time);
        if now < self.now {
            self.set_back(time, now);
        }
        let rotated = now / REST_STEPS != self.now / REST_STEPS;
        self.now = now;
        let oldest = begin(now.saturating_sub(KEPT));
        let (mut bytes, mut samples) = (0, 0);
        self.edges.retain(|_, track| {
            track.timeline.age(now);
            track.samples.forget(oldest);
            let keep = !track.timeline.is_empty();
            if keep {
                bytes += EDGE + track.timeline.bytes();
                samples += track.samples.len();
            }
            keep
        });
        (self.bytes, self.samples) = (bytes, samples);
        self.rest.age(now);
        while self.events.front().is_some_and(|event| event.at < oldest) {
            self.events.pop_front();
        }
        if rotated {
            self.rest_edges.swap(0, 1);
            self.rest_edges[0].clear();
        }
        if self.bytes > self.most {
            self.make_room(now);
        }
    }

    /// The clock was ahead: forgets what was counted in the future, else nothing could be added until then. Events and
    /// samples are moved to the present.
    fn set_back(&mut self, time: f64, now: u32) {
        for track in self.edges.values_mut() {
            track.timeline.forget_after(now);
            track.samples.set_back(time);
        }
        self.rest.forget_after(now);
        for event in &mut self.events {
            event.at = event.at.min(time);
        }
    }

    fn make_room(&mut self, now: u32) {
        let span = Span {
            from: now.saturating_sub(FINE),
            to: now + 1,
        };
        let ranked = self.edges.iter();
        let mut ranked: Vec<(u64, Pair)> = ranked
            .map(|(pair, track)| (track.timeline.sum(span).requests, pair.clone()))
            .collect();
        ranked.sort_unstable();
        for (_, pair) in ranked {
            if self.bytes <= self.most / 10 * 9 {
                break;
            }
            let Some(track) = self.edges.remove(&pair) else {
                continue;
            };
            self.bytes = self.bytes.saturating_sub(EDGE + track.timeline.bytes());
            self.samples -= track.samples.len().min(self.samples);
            let hash = self.hasher.hash_one(&pair);
            if self.rest_edges[0].len() < MAX_REST {
                self.rest_edges[0].insert(hash);
            }
        }
    }

    /// Returns the span of so many seconds that ends at a time: of whole steps that have passed.
    pub(crate) fn span(&self, at: f64, seconds: u32) -> Span {
        let to = step(at);
        let span = Span {
            from: to.saturating_sub(seconds.div_ceil(STEP).max(1)),
            to,
        };
        span.kept(self.now)
    }

    /// Sums up all edges that had requests.
    pub(crate) fn edges(&self, span: Span) -> impl Iterator<Item = (&Pair, Counts)> {
        let all = self.edges.iter();
        let all = all.map(move |(pair, track)| (pair, track.timeline.sum(span)));
        all.filter(|(_, counts)| *counts != Counts::default())
    }

    /// Sums up one edge.
    pub(crate) fn edge(&self, pair: &Pair, span: Span) -> Option<Counts> {
        Some(self.edges.get(pair)?.timeline.sum(span))
    }

    /// Sums up what has no edge of its own: how many edges at least, and their requests.
    pub(crate) fn rest(&self, span: Span) -> Option<(usize, u64)> {
        let requests = self.rest.sum(span).requests;
        let edges = self.rest_edges.iter().map(HashSet::len).max();
        (requests > 0).then(|| (edges.unwrap_or_default().max(1), requests))
    }

    /// Samples of an edge's failures, the newest first.
    pub(crate) fn samples(&self, pair: &Pair, since: f64) -> Vec<Sample> {
        let track = self.edges.get(pair);
        track
            .map(|track| track.samples.since(since))
            .unwrap_or_default()
    }

    /// Events between two times.
    pub(crate) fn events(&self, from: f64, to: f64) -> Vec<Event> {
        let events = self.events.iter();
        let within = events.filter(|event| (from..=to).contains(&event.at));
        within.cloned().collect()
    }
}

#[cfg(test)]
mod tests;
