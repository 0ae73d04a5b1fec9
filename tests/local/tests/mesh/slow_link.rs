//! A joined host behind a slow line that loses packets: what crosses it, and how long it takes to be of use. Bytes are of
//! IP with all headers from there on, in both directions together.

use crate::cli_join::terminate;
use crate::two_hosts::{ROUND, TwoHosts};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tests_local::{Crossed, can_redirect, eventually, note_wait, pause, signal};

/// An idle host may send and get 0.2 kbit/s.
const IDLE_BYTES_A_SECOND: u64 = 25;
/// A change of an endpoint that one sidecar of a host is interested in.
const CHANGE_BYTES: u64 = 300;
/// So often at most it is looked how much that is.
const TRIES: usize = 6;

#[test]
fn joining_takes_seconds_over_a_slow_line_that_loses_packets() {
    if !can_redirect() {
        return;
    }
    let hosts = TwoHosts::start();
    hosts.yard.slow("64kbit");
    hosts.yard.lose(5);
    let mut command = hosts.join();
    let (before, begun) = (hosts.yard.crossed(), Instant::now());
    let mut joined = command.spawn().unwrap();
    hosts.await_answer(ROUND);
    let (took, crossed) = (begun.elapsed(), hosts.yard.crossed() - before);
    println!("join and first request at 64 kbit/s with 5 % loss: {took:?}, {crossed:?}");
    // Ten seconds are what is promised; packets are lost at random, and this machine may be busy.
    assert!(took < Duration::from_secs(40), "{took:?}");
    assert!(crossed.bytes < 100_000, "{crossed:?}");
    hosts.yard.mend();
    assert_eq!(terminate(&mut joined), 0);
}

/// The only endpoint of ratings is gone, and comes back: two changes for the sidecar of reviews, which calls it.
fn two_changes(hosts: &TwoHosts) -> Crossed {
    let before = hosts.yard.crossed();
    let old = hosts.centre.application("ratings");
    signal(old, Signal::KILL);
    eventually("ratings runs again", || {
        let now = hosts.centre.application_now("ratings");
        now.is_some_and(|now| now != old)
    });
    let begun = Instant::now();
    eventually("its service is ready", || {
        let status = hosts.centre.status();
        let services = status["services"].as_array().unwrap();
        services
            .iter()
            .any(|s| s["name"] == "ratings" && s["ready"] == true)
    });
    note_wait("its service is ready", begun.elapsed());
    pause(
        "the last acknowledgement is on its way",
        Duration::from_millis(300),
    );
    hosts.yard.crossed() - before
}

#[test]
fn an_idle_host_and_a_change_elsewhere_cost_few_bytes() {
    if !can_redirect() {
        return;
    }
    let hosts = TwoHosts::start();
    let mut joined = hosts.join().spawn().unwrap();
    hosts.await_answer(ROUND);
    // Reports of what was just counted, and looks for what changed, come to an end.
    eventually("the line is quiet", || {
        let before = hosts.yard.crossed();
        pause("whether anything crosses", Duration::from_secs(6));
        hosts.yard.crossed() == before
    });

    let (before, seconds) = (hosts.yard.crossed(), 21);
    pause("the host is idle", Duration::from_secs(seconds));
    let idle = hosts.yard.crossed() - before;
    println!("idle for {seconds} s: {idle:?}");
    assert!(idle.bytes <= IDLE_BYTES_A_SECOND * seconds, "{idle:?}");

    // Where a sidecar takes longer than 40 ms for its answer, as on a busy machine it may, the kernel acknowledges by itself.
    let mut changes = Vec::new();
    let is_little = (0..TRIES).any(|_| {
        let crossed = two_changes(&hosts);
        changes.push(crossed);
        crossed.bytes <= 2 * CHANGE_BYTES
    });
    println!("two changes of an endpoint: {changes:?}");
    assert!(is_little, "{changes:?}");
    hosts.await_answer(ROUND);
    assert_eq!(terminate(&mut joined), 0);
}
