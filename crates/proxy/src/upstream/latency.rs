//! How long an endpoint takes, as a moving average in which a peak counts at once and is forgotten
//! slowly.

use std::cell::Cell;

/// The weight of older samples falls to 1/e in this time.
const DECAY_MS: f64 = 10_000.0;
/// Assumed latency of an endpoint that was asked and has not answered yet: others are preferred.
const UNKNOWN_MS: f64 = 1_000.0;
/// A failure is not a fast answer: it counts as at least this long.
const FAILURE_MS: f64 = 1_000.0;

/// The average of one endpoint, as one worker sees it.
#[derive(Debug, Default)]
pub struct Latency {
    ms: Cell<f64>,
    at: Cell<u64>,
}

impl Latency {
    /// Records an answer that took so long.
    pub fn observe(&self, ms: f64, now: u64) {
        let passed = now.saturating_sub(self.at.replace(now)) as f64;
        let old = self.ms.get();
        let keep = (-passed / DECAY_MS).exp();
        self.ms.set(if ms > old {
            ms
        } else {
            old * keep + ms * (1.0 - keep)
        });
    }

    /// Records a failure.
    pub fn failed(&self, ms: f64, now: u64) {
        self.observe(ms.max(FAILURE_MS), now);
    }

    /// The average.
    pub fn ms(&self) -> f64 {
        self.ms.get()
    }

    /// Estimates the cost of another request. An endpoint that was not asked for long gets another
    /// chance.
    pub fn cost(&self, active: u32, now: u64) -> f64 {
        let known = self.ms.get();
        if known == 0.0 && active > 0 {
            return UNKNOWN_MS * f64::from(active + 1);
        }
        let passed = now.saturating_sub(self.at.get()) as f64;
        known * (-passed / DECAY_MS).exp() * f64::from(active + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_counts_at_once_and_is_forgotten_slowly() {
        let latency = Latency::default();
        assert!(latency.cost(0, 1) < 0.1 && latency.cost(1, 1) >= UNKNOWN_MS);
        latency.observe(10.0, 1000);
        latency.observe(500.0, 1001);
        assert_eq!(latency.ms(), 500.0);
        latency.observe(10.0, 2000);
        assert!((400.0..500.0).contains(&latency.ms()), "{}", latency.ms());
        (2..200).for_each(|i| latency.observe(10.0, i * 1000));
        assert!(latency.ms() < 11.0);
        latency.failed(1.0, 201_000);
        assert_eq!(latency.ms(), FAILURE_MS);
        assert!(latency.cost(0, 300_000) < 1.0);
    }
}
