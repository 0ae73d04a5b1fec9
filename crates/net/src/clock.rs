//! The time to a few milliseconds, cheap enough to be asked for at every step.
//!
//! The kernel writes these clocks at each of its ticks (1 to 10 ms). Reading one is reading memory;
//! a precise clock costs several times that, and a request that is looked at ten times pays it ten
//! times.

use rustix::time::{ClockId, clock_getres, clock_gettime};
use std::time::{Duration, SystemTime};

fn since_zero(time: rustix::time::Timespec) -> Duration {
    // The clocks of a running system are not negative, and a nanosecond part is below 10^9.
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Since some moment in the past; never goes back. At most one [`tick`] late, if the kernel is in time.
pub fn monotonic() -> Duration {
    since_zero(clock_gettime(ClockId::MonotonicCoarse))
}

/// Since the same moment, to the nanosecond. Costs more.
pub fn precise() -> Duration {
    since_zero(clock_gettime(ClockId::Monotonic))
}

/// The time of day, as late as [`monotonic`].
pub fn time_of_day() -> SystemTime {
    SystemTime::UNIX_EPOCH + since_zero(clock_gettime(ClockId::RealtimeCoarse))
}

/// The time between two changes of these clocks.
pub fn tick() -> Duration {
    since_zero(clock_getres(ClockId::MonotonicCoarse))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_are_late_by_at_most_a_tick() {
        // A thread that is not run in between makes one round say nothing.
        let late = |coarse: Duration, precise: Duration| precise.saturating_sub(coarse);
        let rounds = (0..100).map(|_| {
            std::thread::sleep(Duration::from_millis(3));
            let (coarse, now) = (monotonic(), precise());
            assert!(coarse <= now);
            let day = late(
                time_of_day()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap(),
                SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap(),
            );
            late(coarse, now).max(day)
        });
        let least = rounds.min().unwrap();
        assert!(least <= tick(), "{least:?}, a tick is {:?}", tick());
        assert!(tick() <= Duration::from_millis(10), "{:?}", tick());
    }
}
