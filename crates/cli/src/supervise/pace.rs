//! Decides when a workload is probed, and what failures in a row mean.

use std::time::{Duration, Instant};
use tulle_model::manifest::Probe;

/// Between tries where no period is asked for and nobody knows yet that it is ready: people wait.
const SOON: Duration = Duration::from_millis(100);
/// How many such tries there are.
const MANY: u32 = 50;
/// Between tries otherwise, if no period is asked for.
const PERIOD: Duration = Duration::from_secs(1);
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
        self.failed = if good {
            0
        } else {
            self.failed.saturating_add(1)
        };
        let hurried = !good && self.failed < MANY;
        self.due = now
            + match (self.period, hurried) {
                (Some(period), _) => period,
                (None, true) => SOON,
                (None, false) => PERIOD,
            };
    }

    /// Its process was not there: the next try is its first.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.failed = 0;
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
