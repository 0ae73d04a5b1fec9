//! A joined host behind a slow line that loses packets: what crosses it, and how long it takes to be of use. Bytes are of
//! IP with all headers from there on, in both directions together.

use crate::cli_join::terminate;
use crate::two_hosts::{ROUND, TwoHosts};
use rustix::process::Signal;
use std::process::Child;
use std::time::{Duration, Instant};
use tests_local::{Crossed, eventually, free_port, is_root, note_wait, pause, signal};

/// An idle host may send and get 0.2 kbit/s.
const IDLE_BYTES_A_SECOND: u64 = 25;
/// A change of an endpoint that sidecars of a host are interested in.
const CHANGE_BYTES: u64 = 300;
/// Tries of which the middle one is held to that. A question whether the other end is there, every 20 s from each end,
/// falls into two of them at most.
const CHANGES: usize = 5;
/// How soon a host that joins over the slow line answers, the quickest of so many times: which packets are lost is chance.
const JOINED: Duration = Duration::from_secs(10);
const JOINS: usize = 3;
/// The same for each of them.
const JOINED_AT_LATEST: Duration = Duration::from_secs(40);

#[test]
fn joining_takes_seconds_over_a_slow_line_that_loses_packets() {
    if !is_root() {
        return;
    }
    let hosts = TwoHosts::start();
    hosts.yard.slow("64kbit");
    let mut joins: Vec<Duration> = Vec::new();
    while joins.len() < JOINS && !joins.iter().any(|took| *took <= JOINED) {
        let mut command = hosts.join();
        hosts.yard.lose(5);
        let (before, begun) = (hosts.yard.crossed(), Instant::now());
        let mut joined = command.spawn().unwrap();
        hosts.await_answer(ROUND);
        let (took, crossed) = (begun.elapsed(), hosts.yard.crossed() - before);
        println!("join and first request at 64 kbit/s with 5 % loss: {took:?}, {crossed:?}");
        assert!(took < JOINED_AT_LATEST, "{took:?}");
        assert!(crossed.bytes < 100_000, "{crossed:?}");
        joins.push(took);
        hosts.yard.mend();
        assert_eq!(terminate(&mut joined), 0);
    }
    assert!(joins.iter().any(|took| *took <= JOINED), "{joins:?}");
}

/// The edge with three workloads that call ratings.
fn three_callers(edge: String) -> String {
    let port = edge.split("targetPort: ").nth(1).unwrap();
    let port = port.lines().next().unwrap();
    let copy = |name: &str| {
        let copy = edge.replace("name: reviews\n", &format!("name: {name}\n"));
        copy.replace(port, &free_port().to_string())
    };
    [copy("reviews-2"), copy("reviews-3"), edge].join("\n---\n")
}

/// A joined host, when reports of what was just counted and looks for what changed have come to an end.
fn quiet(hosts: TwoHosts) -> (TwoHosts, Child) {
    let joined = hosts.join().spawn().unwrap();
    hosts.await_answer(ROUND);
    eventually("the line is quiet", || {
        let before = hosts.yard.crossed();
        pause("whether anything crosses", Duration::from_secs(6));
        hosts.yard.crossed() == before
    });
    (hosts, joined)
}

fn assert_idle_costs_little(seconds: u64) {
    let (hosts, mut joined) = quiet(TwoHosts::start());
    let before = hosts.yard.crossed();
    pause("the host is idle", Duration::from_secs(seconds));
    let idle = hosts.yard.crossed() - before;
    println!("idle for {seconds} s: {idle:?}");
    assert!(idle.bytes <= IDLE_BYTES_A_SECOND * seconds, "{idle:?}");
    hosts.await_answer(ROUND);
    assert_eq!(terminate(&mut joined), 0);
}

/// The questions of the supervisor's connection. Those of sidecars, and their reports, are too rare for a test that
/// everybody waits for: `report::tests` of the proxy computes what they add.
#[test]
fn an_idle_host_costs_few_bytes() {
    if is_root() {
        assert_idle_costs_little(21);
    }
}

/// A report is sent every ten minutes, and in between each end of a sidecar's connection asks twice.
#[test]
#[ignore = "thirteen minutes; make test-month runs it"]
fn an_idle_host_costs_few_bytes_with_reports_and_all_questions() {
    if is_root() {
        assert_idle_costs_little(12 * 60);
    }
}

/// The only endpoint of a service of the centre's host is gone, and comes back: two changes.
fn two_changes(hosts: &TwoHosts, service: &str) -> Crossed {
    let before = hosts.yard.crossed();
    let old = hosts.centre.application(service);
    signal(old, Signal::KILL);
    eventually("its application runs again", || {
        let now = hosts.centre.application_now(service);
        now.is_some_and(|now| now != old)
    });
    let begun = Instant::now();
    eventually("its service is ready", || {
        let status = hosts.centre.status();
        let services = status["services"].as_array().unwrap();
        services
            .iter()
            .any(|s| s["name"] == service && s["ready"] == true)
    });
    note_wait("its service is ready", begun.elapsed());
    pause(
        "the last acknowledgement is on its way",
        Duration::from_millis(300),
    );
    hosts.yard.crossed() - before
}

/// The middle one of some tries costs no more bytes than this. They end as soon as that is known.
fn assert_middle(what: &str, most: u64, mut cost: impl FnMut() -> Crossed) {
    let mut little = 0_usize;
    let mut tries: Vec<Crossed> = Vec::new();
    while 2 * little < CHANGES && 2 * (tries.len() - little) < CHANGES {
        let crossed = cost();
        little += usize::from(crossed.bytes <= most);
        tries.push(crossed);
    }
    println!("{what}: {tries:?}");
    assert!(2 * little > CHANGES, "{what}: {tries:?}");
}

#[test]
fn a_change_elsewhere_costs_few_bytes() {
    if !is_root() {
        return;
    }
    let (hosts, mut joined) = quiet(TwoHosts::start_with(three_callers));
    // The host is told once for its three sidecars. Where it takes longer than 40 ms for its answer, as on a busy machine it
    // may, the kernel acknowledges by itself: so this test runs alone.
    assert_middle("two changes of an endpoint", 2 * CHANGE_BYTES, || {
        two_changes(&hosts, "ratings")
    });
    // The service `details` has no caller on that host.
    assert_middle("two changes that it is not told of", 0, || {
        two_changes(&hosts, "details")
    });
    hosts.await_answer(ROUND);
    assert_eq!(terminate(&mut joined), 0);
}
