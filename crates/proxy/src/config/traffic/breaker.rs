//! The circuit breaker: stops asking a destination that fails or is slow, for a while; then one
//! request probes whether it works again.
//!
//! All workers of the proxy share one breaker: a single worker may see too few requests to tell. A
//! request takes a short lock when it has ended, and only on ports that have a breaker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tulle_model::resource;

/// Parts of the window; the oldest is forgotten as a whole.
const BUCKETS: usize = 10;

/// A breaker.
#[derive(Debug)]
pub struct Breaker {
    /// When it opens; defaults are filled in.
    pub rule: resource::Breaker,
    window: Mutex<Window>,
    /// Milliseconds of the coarse clock; 0: closed.
    open_until: AtomicU64,
    probing: AtomicBool,
    opened: AtomicU64,
}

#[derive(Debug, Default)]
struct Window {
    buckets: [Counts; BUCKETS],
    /// The number of the newest bucket since the clock's zero.
    newest: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    all: u32,
    errors: u32,
    slow: u32,
}

/// Decision about a request.
#[derive(Debug)]
pub enum BreakerVerdict {
    /// It is forwarded.
    Closed,
    /// It probes whether the destination works again.
    Probe(BreakerProbe),
    /// It is refused; the breaker stays open for this many milliseconds.
    Open(u64),
}

/// The one request that probes. Dropped without a result, it leaves probing to the next request.
#[derive(Debug)]
pub struct BreakerProbe(Arc<Breaker>);

impl Drop for BreakerProbe {
    fn drop(&mut self) {
        self.0.probing.store(false, Ordering::Release);
    }
}

impl Breaker {
    /// Creates a closed breaker.
    pub fn new(rule: &resource::Breaker) -> Arc<Self> {
        let or = |value: u32, default| if value == 0 { default } else { value };
        let mut rule = rule.clone();
        rule.window_ms = or(rule.window_ms, 30_000);
        rule.min_requests = or(rule.min_requests, 100);
        rule.slow_ms = or(rule.slow_ms, 5_000);
        rule.open_ms = or(rule.open_ms, 30_000);
        Arc::new(Self {
            rule,
            window: Mutex::default(),
            open_until: AtomicU64::new(0),
            probing: AtomicBool::new(false),
            opened: AtomicU64::new(0),
        })
    }

    /// Decides about a request that comes `now`.
    pub fn admit(self: &Arc<Self>, now: u64) -> BreakerVerdict {
        let until = self.open_until.load(Ordering::Acquire);
        if until == 0 {
            return BreakerVerdict::Closed;
        }
        if now < until || self.probing.swap(true, Ordering::AcqRel) {
            return BreakerVerdict::Open(until.saturating_sub(now));
        }
        BreakerVerdict::Probe(BreakerProbe(self.clone()))
    }

    /// Records the end of a request. `probe`: it was the one that probed.
    pub fn record(&self, now: u64, error: bool, ms: u64, probe: Option<BreakerProbe>) {
        let slow = ms >= u64::from(self.rule.slow_ms);
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(_probe) = probe {
            *window = Window::default();
            // When slow answers can open the breaker, a slow answer to the probe is a failure.
            let bad = error || slow && (self.rule.slow_amount > 0 || self.rule.slow_ppm > 0);
            return self.turn(bad.then_some(now));
        }
        // The result of a request that began before the breaker opened adds nothing.
        if self.is_open() {
            return;
        }
        let sum = window.add(now, u64::from(self.rule.window_ms), error, slow);
        if self.is_too_much(sum) {
            *window = Window::default();
            self.turn(Some(now));
        }
    }

    fn turn(&self, open: Option<u64>) {
        let until = open.map_or(0, |now| now + u64::from(self.rule.open_ms));
        self.opened
            .fetch_add(u64::from(open.is_some()), Ordering::Relaxed);
        self.open_until.store(until, Ordering::Release);
    }

    fn is_too_much(&self, sum: Counts) -> bool {
        let rule = &self.rule;
        let amount = |count, limit| limit > 0 && count >= limit;
        let share = |count: u32, ppm: u32| {
            ppm > 0 && u64::from(count) * 1_000_000 >= u64::from(ppm) * u64::from(sum.all)
        };
        sum.all >= rule.min_requests
            && (amount(sum.errors, rule.error_amount)
                || amount(sum.slow, rule.slow_amount)
                || share(sum.errors, rule.error_ppm)
                || share(sum.slow, rule.slow_ppm))
    }

    /// Whether requests are refused or probe.
    pub fn is_open(&self) -> bool {
        self.open_until.load(Ordering::Acquire) > 0
    }

    /// `closed`, `open` or `half-open`.
    pub fn state(&self, now: u64) -> &'static str {
        match self.open_until.load(Ordering::Acquire) {
            0 => "closed",
            until if now < until => "open",
            _ => "half-open",
        }
    }

    /// How often it has opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Window {
    /// Counts one request and returns the sums of the window.
    fn add(&mut self, now: u64, window: u64, error: bool, slow: bool) -> Counts {
        let number = now / (window / BUCKETS as u64).max(1);
        let passed = number.saturating_sub(self.newest).min(BUCKETS as u64);
        for i in 0..passed {
            self.buckets[((number - i) % BUCKETS as u64) as usize] = Counts::default();
        }
        // Workers look at the clock before they take the lock.
        self.newest = self.newest.max(number);
        let bucket = &mut self.buckets[(self.newest % BUCKETS as u64) as usize];
        bucket.all = bucket.all.saturating_add(1);
        bucket.errors = bucket.errors.saturating_add(error.into());
        bucket.slow = bucket.slow.saturating_add(slow.into());
        let add = |a: Counts, b: &Counts| Counts {
            all: a.all.saturating_add(b.all),
            errors: a.errors.saturating_add(b.errors),
            slow: a.slow.saturating_add(b.slow),
        };
        self.buckets.iter().fold(Counts::default(), add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(change: impl FnOnce(&mut resource::Breaker)) -> Arc<Breaker> {
        let mut rule = resource::Breaker {
            window_ms: 10_000,
            min_requests: 4,
            open_ms: 1_000,
            ..Default::default()
        };
        change(&mut rule);
        Breaker::new(&rule)
    }

    #[test]
    fn an_amount_of_errors_opens_it_and_one_probe_closes_it() {
        let breaker = breaker(|r| r.error_amount = 3);
        let start = 1_000_000;
        for i in 0..3 {
            assert!(matches!(breaker.admit(start), BreakerVerdict::Closed));
            breaker.record(start + i, true, 1, None);
        }
        assert!(!breaker.is_open(), "fewer than four prove nothing");
        breaker.record(start, false, 1, None);
        assert!(matches!(
            breaker.admit(start + 999),
            BreakerVerdict::Open(1)
        ));
        let BreakerVerdict::Probe(probe) = breaker.admit(start + 1000) else {
            panic!("the time is up")
        };
        assert!(matches!(
            breaker.admit(start + 1000),
            BreakerVerdict::Open(_)
        ));
        drop(probe);
        let BreakerVerdict::Probe(probe) = breaker.admit(start + 1000) else {
            panic!("a probe without a result makes place for another")
        };
        breaker.record(start + 1001, true, 1, Some(probe));
        assert_eq!(breaker.state(start + 1500), "open");
        let BreakerVerdict::Probe(probe) = breaker.admit(start + 2001) else {
            panic!("again")
        };
        breaker.record(start + 2002, false, 1, Some(probe));
        assert!(matches!(
            breaker.admit(start + 2002),
            BreakerVerdict::Closed
        ));
        assert_eq!(breaker.opened(), 2);
    }

    #[test]
    fn a_share_counts_only_within_the_window() {
        let breaker = breaker(|r| r.slow_ppm = 500_000);
        for i in 0..3 {
            breaker.record(1_000_000 + i, false, 6_000, None);
        }
        // The last ten seconds hold one slow request and three fast ones.
        for (at, ms) in [(11, 1), (12, 1), (13, 1), (13, 9_000)] {
            breaker.record(1_000_000 + at * 1000, false, ms, None);
            assert!(!breaker.is_open(), "{at}");
        }
        breaker.record(1_014_000, false, 9_000, None);
        breaker.record(1_014_000, false, 9_000, None);
        assert!(breaker.is_open());
    }
}
