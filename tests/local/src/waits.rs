//! Waits of tests, written down for the account of times (`make times`).

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// Pause between two looks at something that tells nobody when it changes.
const POLL: Duration = Duration::from_millis(10);

/// Adds a wait to the file that `TULLE_TEST_WAITS` names. Without it, or under a hundredth of a second, does
/// nothing.
pub fn note_wait(what: &str, took: Duration) {
    let Some(path) = std::env::var_os("TULLE_TEST_WAITS") else {
        return;
    };
    if took < Duration::from_millis(10) {
        return;
    }
    if let Ok(mut file) = File::options().append(true).create(true).open(path) {
        // One write: several threads of a test may wait at once.
        let line = format!("{:.3} {what}\n", took.as_secs_f64());
        let _ = file.write_all(line.as_bytes());
    }
}

/// Sleeps where time itself is what the test is about, as when nothing may happen for a while.
pub fn pause(why: &str, time: Duration) {
    std::thread::sleep(time);
    note_wait(why, time);
}

/// Waits until `holds`, at most for `limit`. Returns whether it did, for callers that explain why not.
pub fn holds_within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(POLL);
    }
    note_wait(what, begun.elapsed());
    true
}
