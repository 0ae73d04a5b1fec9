//! Lines by which a test says that it cannot run here. It passes all the same, so `scripts/suite test` looks for them: it counts
//! such tests, prints the reasons, and fails where nobody expects a skip (`tests/skips.txt`).

use std::fmt::Display;

/// Says that this test does not run, and why. The caller returns.
pub fn skip(reason: impl Display) {
    println!("skipped: {}", in_a_line(reason));
}

/// Says that a part of this test does not run, and why. The rest does.
pub fn skip_part(reason: impl Display) {
    println!("skipped in part: {}", in_a_line(reason));
}

fn in_a_line(reason: impl Display) -> String {
    let reason = reason.to_string();
    reason.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
