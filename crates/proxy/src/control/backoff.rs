//! How long the proxy waits before it tries again to reach its controller.
//!
//! A controller that restarts is away for seconds, and until a sidecar is back it hears of nothing. So it asks
//! often for a minute, as long as nobody is there to be burdened: a refused connection costs no handshake. Its
//! name is resolved each time, so after that minute it asks less often. A controller that answers, and does
//! not serve, has too much to do already: it is asked less often at once.

use std::time::Duration;
use tokio::time::Instant;

/// The first wait.
pub(super) const FIRST: Duration = Duration::from_millis(100);
/// The longest wait for a controller that is expected to be back soon.
const SOON: Duration = Duration::from_millis(1500);
/// The longest wait.
pub(super) const LONGEST: Duration = Duration::from_secs(5);
/// How long a controller takes to restart.
const RESTART: Duration = Duration::from_mins(1);

/// The waits between tries since there was a stream.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// The last wait, before the random part was taken off.
    last: Duration,
    since: Option<Instant>,
}

impl Backoff {
    /// Returns the next wait. Half of it is random, so that proxies do not all come back at once: `fraction` is a
    /// random number from 0 to 1. `is_away`: nobody listens at the controller's address.
    pub(super) fn next(&mut self, now: Instant, is_away: bool, fraction: f32) -> Duration {
        let since = *self.since.get_or_insert(now);
        let restarts = is_away && now.duration_since(since) < RESTART;
        let longest = if restarts { SOON } else { LONGEST };
        self.last = (self.last * 2).clamp(FIRST, longest);
        (self.last / 2).mul_f64(1.0 + f64::from(fraction))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_restarts_is_asked_often_and_one_that_is_busy_or_gone_is_not() {
        let start = Instant::now();
        let waits = |is_away: bool, from: Duration| -> Vec<u128> {
            let mut backoff = Backoff::default();
            backoff.next(start, is_away, 0.0);
            let next = |_| backoff.next(start + from, is_away, 1.0).as_millis();
            (0..7).map(next).collect()
        };
        let busy = [200, 400, 800, 1600, 3200, 5000, 5000];
        assert_eq!(waits(false, Duration::ZERO), busy);
        assert_eq!(
            waits(true, Duration::ZERO),
            [200, 400, 800, 1500, 1500, 1500, 1500]
        );
        assert_eq!(waits(true, RESTART), busy);
    }

    #[test]
    fn half_of_a_wait_is_random() {
        let now = Instant::now();
        let first = |fraction| Backoff::default().next(now, true, fraction);
        assert_eq!((first(0.0), first(1.0)), (FIRST / 2, FIRST));
    }
}
