//! Moderation of a worker's wake-ups, as network cards moderate their interrupts: where requests come fast, the worker pauses before it
//! waits for events, and then serves all that have come in one turn.
//!
//! A wake-up costs several microseconds of CPU time: two switches between threads, a return from the kernel, cold caches. At
//! some thousand requests a second nearly every one has wake-ups of its own. A pause is a wake-up, too, so it pays
//! only where it merges several: [`Pace`] measures how fast requests come, and pauses nowhere else.
//!
//! Only requests on connections of their own count, those of applications and of clients outside the mesh. What another
//! sidecar sends has been merged there, and the answers to it come together: a pause of the server's sidecar as well added half as
//! much latency again, and saved no CPU time.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// The time over which the rate of requests is judged. Long enough for dozens of them at the least rate that is moderated,
/// and short enough that a burst which has ended is forgotten at once.
const WINDOW: Duration = Duration::from_millis(10);
/// Requests that a pause merges where it may be so long; and the fewest that pay for it.
const MERGED: u32 = 4;
const WORTH: f64 = 1.5;

thread_local! {
    static REQUESTS: Cell<u32> = const { Cell::new(0) };
    static LONGEST: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static PAUSES: Cell<u64> = const { Cell::new(0) };
    static PACE: Cell<Option<Pace>> = const { Cell::new(None) };
}

/// Notes a request that has come to this thread on a connection of its own.
pub fn requested() {
    REQUESTS.set(REQUESTS.get().wrapping_add(1));
}

/// Sets the longest pause of this thread. Zero, as at first: none.
pub fn set_longest(pause: Duration) {
    if LONGEST.replace(pause) == pause {
        return;
    }
    PACE.set(None);
    // The kernel may end a sleep 50 us late if nothing is said, which is half a pause. Where this fails, pauses are longer.
    let slack = (!pause.is_zero()).then_some(NonZeroU64::MIN);
    let _ = rustix::thread::set_current_timer_slack(slack);
}

/// Returns how often this thread has paused.
pub fn pauses() -> u64 {
    PAUSES.get()
}

/// Pauses if that is worth it. To be called by a thread that has nothing to do, before it waits for events.
pub fn before_waiting() {
    let longest = LONGEST.get();
    if longest.is_zero() {
        return;
    }
    let now = Instant::now();
    let requests = REQUESTS.get();
    let mut pace = PACE.get().unwrap_or(Pace::new(requests, now));
    let pause = pace.pause(requests, now, longest);
    PACE.set(Some(pace));
    if !pause.is_zero() {
        PAUSES.set(PAUSES.get() + 1);
        std::thread::sleep(pause);
    }
}

/// The rate at which requests come.
#[derive(Clone, Copy)]
struct Pace {
    since: Instant,
    requests: u32,
    pause: Duration,
}

impl Pace {
    fn new(requests: u32, now: Instant) -> Self {
        Self {
            since: now,
            requests,
            pause: Duration::ZERO,
        }
    }

    /// Returns the pause that the present rate is worth.
    fn pause(&mut self, requests: u32, now: Instant, longest: Duration) -> Duration {
        let passed = now - self.since;
        if passed >= WINDOW {
            let count = requests.wrapping_sub(self.requests);
            *self = Self {
                since: now,
                requests,
                pause: worth(count, passed, longest),
            };
        }
        self.pause
    }
}

/// Returns the pause for so many requests in that time: as long as it takes [`MERGED`] of them to come.
fn worth(count: u32, passed: Duration, longest: Duration) -> Duration {
    if f64::from(count) * longest.as_secs_f64() < WORTH * passed.as_secs_f64() {
        return Duration::ZERO;
    }
    longest.min(passed * MERGED / count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(200);

    /// Returns the pauses of a second in which requests come evenly.
    fn pauses(per_second: u32) -> Vec<Duration> {
        let begun = Instant::now();
        let mut pace = Pace::new(u32::MAX - 5, begun);
        (0..per_second)
            .map(|n| {
                let now = begun + Duration::from_secs(1) * n / per_second;
                pace.pause((u32::MAX - 5).wrapping_add(n), now, LONGEST)
            })
            .collect()
    }

    #[test]
    fn slow_requests_are_waited_for_without_a_pause() {
        for per_second in [1, 100, 2000, 7_000] {
            assert!(pauses(per_second).iter().all(Duration::is_zero));
        }
    }

    #[test]
    fn the_pause_is_as_long_as_several_requests_take() {
        let last = |per_second| *pauses(per_second).last().unwrap();
        assert_eq!(last(8_000), LONGEST);
        assert_eq!(last(16_000), LONGEST);
        let fast = last(100_000);
        assert!(fast > Duration::from_micros(38) && fast < Duration::from_micros(42));
    }

    #[test]
    fn a_burst_that_has_ended_is_forgotten() {
        let begun = Instant::now();
        let mut pace = Pace::new(0, begun);
        let burst = begun + WINDOW;
        assert_eq!(pace.pause(1000, burst, LONGEST), Duration::from_micros(40));
        let later = burst + WINDOW;
        assert!(pace.pause(1001, later, LONGEST).is_zero());
    }

    #[test]
    fn a_thread_pauses_only_where_it_is_told_to() {
        // Returns how often a thread waits for events while a request comes each 50 us.
        let turns = |longest| {
            let thread = std::thread::spawn(move || {
                set_longest(longest);
                let begun = Instant::now();
                let (mut come, mut turns) = (0, 0);
                while begun.elapsed() < 40 * WINDOW {
                    while come < begun.elapsed().as_micros() / 50 {
                        requested();
                        come += 1;
                    }
                    before_waiting();
                    turns += 1;
                }
                turns
            });
            thread.join().unwrap()
        };
        let (without, with) = (turns(Duration::ZERO), turns(LONGEST));
        assert!(without > 5 * with, "{without} turns, {with} with pauses");
    }
}
