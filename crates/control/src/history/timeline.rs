//! Counts of an edge over fifteen minutes: of the last two for every five seconds, of those before for every
//! thirty.

use super::counts::Counts;
use std::iter;

/// Seconds of a step.
pub(crate) const STEP: u32 = 5;
/// Steps that are kept one by one.
pub(crate) const FINE: u32 = 24;
/// Steps that are kept together when they are older.
pub(crate) const COARSE: u32 = 6;
/// Steps that are kept at all.
pub(crate) const KEPT: u32 = 180;
/// Bytes before an entry: its step and its length.
const HEAD: usize = 6;
/// Room for a few entries more.
const SPARE: usize = 96;

/// The counts of an edge by time.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    fine: Entries,
    /// The step of an entry is the first of its group.
    coarse: Entries,
}

/// Counts by step, the oldest first, in one piece of memory: an allocation for each would take twice as much.
#[derive(Debug, Default)]
struct Entries {
    bytes: Vec<u8>,
    /// Where the newest entry begins.
    newest: usize,
}

/// A step and what was counted in it, as [`Counts::encode`] writes it.
type Entry<'a> = (u32, &'a [u8]);

impl Entries {
    fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut rest = self.bytes.as_slice();
        iter::from_fn(move || {
            let (entry, after) = first(rest)?;
            rest = after;
            Some(entry)
        })
    }

    fn oldest(&self) -> Option<Entry<'_>> {
        first(&self.bytes).map(|(entry, _)| entry)
    }

    fn newest(&self) -> Option<Entry<'_>> {
        let (entry, _) = first(self.bytes.get(self.newest..)?)?;
        Some(entry)
    }

    fn forget_oldest(&mut self) {
        let length = self.oldest().map_or(0, |(_, counts)| HEAD + counts.len());
        self.bytes.drain(..length);
        self.newest = self.newest.saturating_sub(length);
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }

    /// Forgets what was counted after a step.
    fn forget_after(&mut self, step: u32) {
        let (mut length, mut newest) = (0, 0);
        for (_, counts) in self.iter().take_while(|(at, _)| *at <= step) {
            newest = length;
            length += HEAD + counts.len();
        }
        self.bytes.truncate(length);
        self.newest = newest;
    }

    /// Adds to the newest step, or begins a later one.
    fn add(&mut self, step: u32, counts: &Counts) {
        let encoded = match self.newest().filter(|(newest, _)| *newest == step) {
            Some((_, known)) => {
                let mut sum = counts.clone();
                sum.add_encoded(known);
                self.bytes.truncate(self.newest);
                sum.encode()
            }
            None => counts.encode(),
        };
        // There are so few kinds of numbers that a kilobyte is not reached.
        let Ok(length) = u16::try_from(encoded.len()) else {
            return;
        };
        let needed = HEAD + encoded.len();
        if self.bytes.capacity() - self.bytes.len() < needed {
            self.bytes.reserve_exact(needed + SPARE);
        }
        self.newest = self.bytes.len();
        self.bytes.extend_from_slice(&step.to_le_bytes());
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&encoded);
    }
}

/// Reads the first entry, and returns what comes after it.
fn first(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (step, rest) = bytes.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (counts, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    Some(((u32::from_le_bytes(*step), counts), rest))
}

/// Steps from one to before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Span {
    /// Returns the span that is looked at for this one: where steps are kept together only whole ones can be.
    pub(crate) fn kept(self, now: u32) -> Self {
        let fine = fine_begin(now);
        let from = match self.from < fine {
            true => self.from / COARSE * COARSE,
            false => self.from,
        };
        let to = match self.to < fine {
            true => self.to.div_ceil(COARSE) * COARSE,
            false => self.to,
        };
        Self { from, to }
    }

    /// How long it is.
    pub(crate) fn seconds(self) -> f64 {
        f64::from(self.to.saturating_sub(self.from).max(1) * STEP)
    }
}

/// Returns the first step that is kept by itself; those before are whole groups.
fn fine_begin(now: u32) -> u32 {
    now.saturating_sub(FINE) / COARSE * COARSE
}

impl Timeline {
    /// Adds to a step, which is the newest one or later.
    pub(crate) fn add(&mut self, step: u32, counts: &Counts) {
        let newest = self
            .fine
            .newest()
            .map_or(step, |(newest, _)| step.max(newest));
        self.fine.add(newest, counts);
    }

    /// Puts old steps together, and forgets those that are too old.
    pub(crate) fn age(&mut self, now: u32) {
        let begin = fine_begin(now);
        while let Some((step, encoded)) = self.fine.oldest().filter(|(step, _)| *step < begin) {
            let mut counts = Counts::default();
            counts.add_encoded(encoded);
            self.fine.forget_oldest();
            self.coarse.add(step / COARSE * COARSE, &counts);
        }
        let oldest = now.saturating_sub(KEPT);
        while self
            .coarse
            .oldest()
            .is_some_and(|(group, _)| group + COARSE <= oldest)
        {
            self.coarse.forget_oldest();
        }
    }

    /// Forgets what was counted after a step: the clock was ahead then.
    pub(crate) fn forget_after(&mut self, step: u32) {
        self.fine.forget_after(step);
        self.coarse.forget_after(step);
    }

    /// Sums up a span, as [`Span::kept`] gives it.
    pub(crate) fn sum(&self, span: Span) -> Counts {
        let mut counts = Counts::default();
        let kept = self.coarse.iter().chain(self.fine.iter());
        for (_, encoded) in kept.filter(|(step, _)| (span.from..span.to).contains(step)) {
            counts.add_encoded(encoded);
        }
        counts
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.fine.bytes.is_empty() && self.coarse.bytes.is_empty()
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.fine.bytes.capacity() + self.coarse.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(requests: u64) -> Counts {
        Counts {
            requests,
            ..Counts::default()
        }
    }

    #[test]
    fn older_steps_are_kept_together_and_none_is_lost() {
        let mut timeline = Timeline::default();
        let begin = 1_000_002;
        for step in begin..begin + 400 {
            timeline.add(step, &requests(1));
            timeline.add(step, &requests(1));
            timeline.age(step);
        }
        let now = begin + 399;
        assert!(timeline.fine.iter().count() <= (FINE + COARSE) as usize);
        assert!(timeline.coarse.iter().count() <= (KEPT / COARSE + 1) as usize);
        let sum = |from, to| {
            let span = Span { from, to }.kept(now);
            (timeline.sum(span).requests, span.seconds())
        };
        assert_eq!(sum(now - 11, now + 1), (24, 60.0), "one by one");
        let (all, seconds) = sum(now - 179, now + 1);
        assert_eq!(all as f64 / seconds, 2.0 / f64::from(STEP));
        let (old, seconds) = sum(now - 100, now - 94);
        assert_eq!(old as f64 / seconds, 2.0 / f64::from(STEP));
        timeline.age(now + KEPT + FINE + COARSE);
        assert!(timeline.is_empty(), "nobody called any more");
    }

    #[test]
    fn a_clock_that_goes_back_changes_nothing_that_was() {
        let mut timeline = Timeline::default();
        timeline.add(100, &requests(1));
        timeline.add(90, &requests(1));
        assert_eq!(timeline.sum(Span { from: 100, to: 101 }).requests, 2);
    }
}
