//! The process that clears up after a bench knows what belongs to it by one mark, which it has itself.
#![allow(clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

const MARK: &str = "TULLE_BENCH";

/// A process of the bench with this mark.
fn sleeper(mark: &str) -> Child {
    let mut command = Command::new("sleep");
    command.arg("600").env(MARK, mark).spawn().unwrap()
}

/// Ends a sleeper that nobody has ended. Returns the signal that ended it.
fn ended_by(mut sleeper: Child) -> Option<i32> {
    kill_process(Pid::from_child(&sleeper), Signal::TERM).unwrap();
    sleeper.wait().unwrap().signal()
}

#[test]
fn it_ends_what_has_its_mark_and_nothing_else() {
    let own = format!("{}.test", std::process::id());
    let (marked, other) = (sleeper(&own), sleeper("another bench's"));
    // Its standard input ends, as when a bench is killed.
    let janitor = Command::new(env!("CARGO_BIN_EXE_tulle-bench"))
        .args(["internal", "janitor"])
        .env(MARK, &own)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    let signals = [marked, other].map(ended_by);
    let (by_janitor, by_test) = (Signal::KILL.as_raw(), Signal::TERM.as_raw());
    assert_eq!(signals, [Some(by_janitor), Some(by_test)]);
    assert_eq!(janitor.unwrap().code(), Some(0), "it does not end itself");
}
