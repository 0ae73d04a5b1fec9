//! Numbers that only grow, added to from any thread.

use super::Text;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One number.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number for each value of its labels. All values are in the program's text, so there are few.
#[derive(Debug)]
pub struct Tally<const LABELS: usize>(Mutex<BTreeMap<[&'static str; LABELS], u64>>);

impl<const LABELS: usize> Tally<LABELS> {
    /// Creates a tally without counts.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Adds to one of them.
    pub fn add(&self, values: [&'static str; LABELS], n: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(values).or_default() += n;
    }

    /// Writes them.
    pub fn write(&self, text: &mut Text, name: &str, labels: [&str; LABELS], help: &str) {
        text.metric(name, "counter", help);
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (values, count) in all.iter() {
            let pairs: Vec<_> = labels.into_iter().zip(values.iter().copied()).collect();
            text.sample(name, &pairs, count);
        }
    }
}

impl<const LABELS: usize> Default for Tally<LABELS> {
    fn default() -> Self {
        Self::new()
    }
}

/// Upper bounds in milliseconds.
const BOUNDS: [u64; 13] = [
    5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000,
];

/// How long something took.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [Counter; BOUNDS.len()],
    count: Counter,
    microseconds: Counter,
}

impl Histogram {
    pub(crate) fn observe(&self, took: Duration) {
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        // Buckets are cumulative only when they are shown.
        let bucket = BOUNDS.iter().position(|ms| microseconds <= ms * 1000);
        if let Some(bucket) = bucket {
            self.buckets[bucket].add(1);
        }
        self.count.add(1);
        self.microseconds.add(microseconds);
    }

    #[allow(clippy::cast_precision_loss)] // a sum that long is of centuries
    pub(crate) fn write(&self, text: &mut Text, name: &str, help: &str) {
        text.metric(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        // Read first: what is counted meanwhile must not make a bucket larger than all.
        let mut below = 0;
        let counts = self.buckets.each_ref().map(Counter::get);
        for (bound, count) in BOUNDS.iter().zip(counts) {
            below += count;
            let bound = (*bound as f64 / 1000.0).to_string();
            text.sample(&bucket, &[("le", &bound)], below);
        }
        let all = self.count.get().max(below);
        text.sample(&bucket, &[("le", "+Inf")], all);
        let sum = self.microseconds.get() as f64 / 1e6;
        text.sample(&format!("{name}_sum"), &[], sum);
        text.sample(&format!("{name}_count"), &[], all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let histogram = Histogram::default();
        for ms in [1, 5, 6, 400, 70_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let mut text = Text::default();
        histogram.write(&mut text, "h", "Time.");
        let text = text.end();
        for row in [
            "h_bucket{le=\"0.005\"} 2\n",
            "h_bucket{le=\"0.01\"} 3\n",
            "h_bucket{le=\"0.5\"} 4\n",
            "h_bucket{le=\"60\"} 4\n",
            "h_bucket{le=\"+Inf\"} 5\n",
            "h_sum 70.412\n",
            "h_count 5\n",
        ] {
            assert!(text.contains(row), "{row} in {text}");
        }
    }

    #[test]
    fn a_tally_has_a_row_for_each_value_that_was_counted() {
        let tally = Tally::new();
        tally.add(["a", "x"], 1);
        tally.add(["b", "x"], 2);
        tally.add(["a", "x"], 1);
        let mut text = Text::default();
        tally.write(&mut text, "t", ["one", "two"], "All.");
        assert_eq!(
            text.end(),
            "# HELP t All.\n# TYPE t counter\nt{one=\"a\",two=\"x\"} 2\nt{one=\"b\",two=\"x\"} 2\n"
        );
    }
}
