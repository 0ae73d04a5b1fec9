//! The month in five minutes: a host may go on without its controller for 30 days, which is thirty lifetimes of a
//! certificate of a day. Here certificates last ten seconds and the authority of a host five minutes.
//!
//! `make test-month` runs these; nobody waits for them otherwise.

use crate::cli_join::terminate;
use crate::cut_off::{
    LIFETIME, Story, await_answer, call, call_until, cut_power, mesh, shown, sleeper, start_again,
    two_hosts,
};
use crate::host_authority::assert_hosts_stop;
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tests_local::{Client, Demo, Load, RATING, eventually, free_port, signal};

/// Seconds of an authority, and those without a controller. A host tries every ten seconds whether it is back, and at the
/// begin its authority is up to seven seconds old, as old as certificates become.
const MONTH: u64 = 30 * LIFETIME;
const CUT_OFF: u64 = 27 * LIFETIME;

/// A policy that refuses a path of ratings.
fn refusing(path: &str) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: {path}}}\nspec:\n  action: Deny\n  \
         targetRefs: [{{name: ratings}}]\n  rules:\n    - to: {{paths: [{{type: PathPrefix, value: /{path}}}]}}\n"
    )
}

fn status(address: SocketAddr, path: &str) -> u16 {
    Client::connect(address).get(path).status()
}

/// Calls in the background, each on a connection of its own; none may fail.
fn load(address: SocketAddr) -> Load {
    Load::gets(address, 1, &[&format!("/ratings/{RATING}")])
}

/// Ends the application of a workload, and waits until its host has started it again.
fn end_application(host: &Demo, workload: &str) {
    let old = host.application(workload);
    signal(old, Signal::KILL);
    eventually("the application was started again", || {
        let now = host.application_now(workload);
        now.is_some_and(|now| now != old)
    });
}

/// Refusals of a host's workloads while it was cut off, as it has told the centre.
fn refused(story: &Story, host: &str) -> u64 {
    let status = story.centre.status();
    let away = status["away"].as_array().unwrap().iter();
    let told = away.filter(|a| a["host"] == host && a["partly"] == false);
    told.map(|a| a["denied"].as_u64().unwrap()).sum()
}

#[test]
#[ignore = "five minutes; make test-month runs it"]
fn hosts_are_cut_off_for_most_of_a_month_and_come_back() {
    let closed = refusing("closed");
    let story = Story::start(|_| format!("{}---\n{closed}", mesh(MONTH)));
    let (two, three, ratings) = two_hosts(true);
    let port = free_port();
    let visited = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let upstream = format!("  upstreams: [{{service: ratings, port: 8101, localPort: {port}}}]\n");
    let four = Demo::prepare_without_privileges(|_| sleeper("visitor", &upstream));
    let mut joined = vec![story.join(&two, "two"), story.join(&three, "three")];
    let of_four = story.join(&four, "four");
    let made = story.token("four");
    story.await_authority("two", &["ratings", "spare"]);
    story.await_authority("three", &["caller"]);
    story.await_authority("four", &["visitor"]);
    let await_ratings = || {
        for address in [ratings, visited] {
            await_answer(address);
        }
    };
    await_ratings();
    let signed = || {
        [
            shown(&two, "ratings"),
            shown(&three, "caller"),
            shown(&four, "visitor"),
        ]
    };
    assert_eq!(signed(), [1, 1, 1]);

    story.kill();
    let lost = Instant::now();
    let mut denied = 0;
    // Policy holds and requests are answered, until so many seconds after the loss.
    let mut go_on = |until: u64| {
        for _ in 0..3 {
            assert_eq!(status(ratings, "/closed"), 403);
            denied += 1;
        }
        assert_eq!(call(visited), Ok(()));
        call_until(ratings, lost + Duration::from_secs(until));
        assert_eq!(call(visited), Ok(()));
    };
    go_on(4 * LIFETIME);
    assert_eq!(signed(), [2, 2, 2], "their hosts have signed");

    // An application that ends is started again by its host alone.
    end_application(&two, "spare");
    go_on(7 * LIFETIME);
    end_application(&two, "ratings");
    await_ratings();
    // A host writes down within ten seconds how much a sidecar has counted.
    go_on(10 * LIFETIME);
    signal(two.sidecar("ratings"), Signal::KILL);
    signal(three.sidecar("caller"), Signal::KILL);
    await_ratings();
    go_on(13 * LIFETIME);

    // A host loses its power, and comes back with nothing but its disk. The others notice nothing.
    let calls = load(ratings);
    cut_power(&four, of_four);
    joined.push(start_again(&four, &made, &[]));
    await_answer(visited);
    calls.assert_no_failure();
    assert_eq!(signed(), [2, 2, 2]);
    go_on(20 * LIFETIME);

    // Meanwhile the operator changes what no host hears of.
    let calls = load(ratings);
    let text = std::fs::read_to_string(&story.centre.manifest).unwrap();
    let text = format!("{text}---\n{}", refusing("late"));
    std::fs::write(&story.centre.manifest, text).unwrap();
    story.up(free_port());
    let deleted = story.centre.tulle(&["delete", "workload", "spare"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    assert_eq!(story.authority("two")["counts"], false);
    assert_eq!(story.centre.tulle(&["down"]).code, 0);
    calls.assert_no_failure();
    end_application(&two, "spare");
    go_on(CUT_OFF);
    assert_ne!(status(ratings, "/late"), 403, "nobody has told them yet");

    story.up(story.port);
    eventually("the centre certifies all of them again", || {
        signed() == [1, 1, 1]
    });
    // All that was refused meanwhile, and nothing has been refused since.
    eventually("every refusal of meanwhile was told", || {
        refused(&story, "two") == denied
    });
    await_ratings();
    assert_eq!(status(ratings, "/closed"), 403);
    eventually("the policy of meanwhile holds", || {
        status(ratings, "/late") == 403
    });
    // Neither lost nor resurrected.
    eventually("the host has ended what was deleted", || {
        two.application_now("spare").is_none()
    });
    assert_eq!(story.workloads(), ["caller", "ratings", "visitor"]);
    for policy in ["closed", "late"] {
        let got = story.centre.tulle(&["get", "authorizationpolicy", policy]);
        assert_eq!(got.code, 0, "{got:?}");
    }
    story.await_authority("two", &["ratings"]);
    // The first lifetime was the centre's own certificate.
    let least = usize::try_from(CUT_OFF / LIFETIME - 1).unwrap();
    eventually("the hosts have told what they certified", || {
        ["two", "three", "four"].iter().all(|host| {
            let issued = story.authority(host)["issued"].clone();
            issued
                .as_array()
                .is_some_and(|issued| issued.len() >= least)
        })
    });
    for child in &mut joined {
        assert_eq!(terminate(child), 0);
    }
}

#[test]
#[ignore = "five minutes; make test-month runs it"]
fn hosts_stop_when_their_month_is_over() {
    assert_hosts_stop(MONTH, MONTH - 2 * LIFETIME);
}
