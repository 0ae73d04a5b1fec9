//! Measures the CPU time of a thread, which other processes and the wall clock hardly affect.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Number of rounds of each measurement. The cheapest round counts, since disturbances only add.
const ROUNDS: usize = 5;
/// The shortest round.
const LONG_ENOUGH: Duration = Duration::from_micros(200);

/// Nanoseconds that one run takes.
pub fn measure(run: fn(&[u8]), input: &[u8]) -> f64 {
    let once = time(run, input, 1).max(Duration::from_nanos(100));
    let times = LONG_ENOUGH.div_duration_f64(once).ceil() as u32;
    let rounds = (0..ROUNDS).map(|_| time(run, input, times));
    let least = rounds.min().unwrap_or_default();
    least.as_secs_f64() * 1e9 / f64::from(times)
}

/// Nanoseconds that the first run takes.
#[allow(dead_code)] // only the fuzz target is in such a hurry
pub fn once(run: fn(&[u8]), input: &[u8]) -> f64 {
    time(run, input, 1).as_secs_f64() * 1e9
}

fn time(run: fn(&[u8]), input: &[u8], times: u32) -> Duration {
    let begun = now();
    for _ in 0..times {
        run(std::hint::black_box(input));
    }
    now().saturating_sub(begun)
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns `prefix`, then `unit` so many times, then `suffix`. The bytes 0xfe and 0xfd become
/// letters that count the units: some costs only grow with names that differ.
pub fn repeated(prefix: &[u8], unit: &[u8], suffix: &[u8], times: usize) -> Vec<u8> {
    let mut out = prefix.to_vec();
    for number in 0..times {
        out.extend(unit.iter().map(|byte| match byte {
            0xfe => b'a' + (number % 26) as u8,
            0xfd => b'a' + (number / 26 % 26) as u8,
            other => *other,
        }));
    }
    out.extend_from_slice(suffix);
    out
}
