//! Decides when a workload is probed, and what failures in a row mean.

use std::time::{Duration, Instant};
use tulle_model::manifest::Probe;

/// Between tries where no period is asked for and nobody knows yet that it is ready: people wait.
const SOON: Duration = Duration::from_millis(100);
/// How many such tries there are.
const MANY: u32 = 50;
/// Between tries otherwise, if no period is asked for.
const PERIOD: Duration = Duration::from_secs(1);
/// Good tries in a row after which less is asked, a minute of them, and the time between tries from then on. Probes of a
/// mesh that does nothing are most of what its supervisor does. A process that ends is noticed at once either way.
pub(super) const STEADY_TRIES: u32 = 60;
pub(super) const STEADY_PERIOD: Duration = Duration::from_secs(3);
/// Tries in a row that may fail, if no threshold is asked for: until the start has failed, and until
/// callers no longer come. One slow answer on a busy host is no reason to take it away from them.
const START_FAILURES: u32 = 30;
const FAILURES: u32 = 3;

/// The pace of a workload's probe.
#[derive(Debug)]
pub(crate) struct Pace {
    period: Option<Duration>,
    threshold: Option<u32>,
    failed: u32,
    good: u32,
    due: Instant,
}

impl Pace {
    /// The first try is due now.
    pub(crate) fn new(probe: Option<&Probe>, now: Instant) -> Self {
        let period = probe.and_then(|p| p.period_seconds);
        Self {
            period: period.map(|s| Duration::from_secs(s.max(1).into())),
            threshold: probe.and_then(|p| p.failure_threshold),
            failed: 0,
            good: 0,
            due: now,
        }
    }

    /// Whether it is time for a try.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// How long until then.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// A try has ended.
    pub(crate) fn tried(&mut self, good: bool, now: Instant) {
        if good {
            (self.good, self.failed) = (self.good.saturating_add(1), 0);
        } else {
            (self.good, self.failed) = (0, self.failed.saturating_add(1));
        }
        let steady = self.good >= STEADY_TRIES;
        let hurried = !good && self.failed < MANY;
        self.due = now
            + match (self.period, hurried) {
                (Some(period), _) => period,
                (None, true) => SOON,
                (None, false) if steady => STEADY_PERIOD,
                (None, false) => PERIOD,
            };
    }

    /// Its process was not there: the next try is its first.
    pub(crate) fn restart(&mut self, now: Instant) {
        (self.good, self.failed) = (0, 0);
        self.due = now;
    }

    /// Whether callers should go elsewhere.
    pub(crate) fn is_gone(&self) -> bool {
        self.failed >= self.threshold.unwrap_or(FAILURES)
    }

    /// Returns after how many tries its start has failed, if it has.
    pub(crate) fn start_failed(&self) -> Option<u32> {
        let allowed = self.threshold.unwrap_or(START_FAILURES);
        (self.failed >= allowed).then_some(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(period: Option<u32>, threshold: Option<u32>) -> Probe {
        Probe {
            period_seconds: period,
            failure_threshold: threshold,
            ..Probe::default()
        }
    }

    #[test]
    fn a_period_holds_from_the_first_try_on() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(&probe(Some(7), Some(2))), start);
        assert!(pace.is_due(start));
        pace.tried(false, start);
        assert!(!pace.is_due(start + Duration::from_secs(6)));
        assert!(pace.is_due(start + Duration::from_secs(7)));
        assert!(!pace.is_gone());
        pace.tried(false, start);
        assert!(pace.is_gone());
        assert_eq!(pace.start_failed(), Some(2));
        pace.tried(true, start);
        assert_eq!(pace.left(start), Duration::from_secs(7));
        assert!(!pace.is_gone() && pace.start_failed().is_none());
    }

    #[test]
    fn one_that_has_been_good_for_a_minute_is_asked_less_until_it_fails() {
        let start = Instant::now();
        let mut pace = Pace::new(None, start);
        for _ in 1..STEADY_TRIES {
            pace.tried(true, start);
            assert_eq!(pace.left(start), PERIOD);
        }
        pace.tried(true, start);
        assert_eq!(pace.left(start), STEADY_PERIOD);
        pace.tried(false, start);
        assert_eq!(pace.left(start), SOON);
        pace.tried(true, start);
        assert_eq!(pace.left(start), PERIOD);
        // A period that was asked for stays.
        let mut asked = Pace::new(Some(&probe(Some(1), None)), start);
        for _ in 0..=STEADY_TRIES {
            asked.tried(true, start);
            assert_eq!(asked.left(start), PERIOD);
        }
    }

    #[test]
    fn without_one_the_start_is_watched_closely() {
        let start = Instant::now();
        let mut pace = Pace::new(None, start);
        for count in 1..MANY {
            pace.tried(false, start);
            assert_eq!(pace.left(start), SOON);
            assert_eq!(pace.is_gone(), count >= 3);
            assert_eq!(pace.start_failed().is_some(), count >= 30);
        }
        pace.tried(false, start);
        assert_eq!(pace.left(start), PERIOD);
        pace.restart(start);
        assert!(pace.is_due(start) && !pace.is_gone());
        pace.tried(true, start);
        assert_eq!(pace.left(start), PERIOD);
    }
}
