//! Programs of the version before and today's in one mesh, as they meet while somebody upgrades.
//!
//! `make test-skew` has `tests/kube/previous.sh` build the version before and names its directory in `PREVIOUS_PROGRAMS`;
//! without that these tests are skipped.

use crate::cli_join::terminate;
use crate::two_hosts::{ROUND, TwoHosts};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tests_local::{
    Demo, Load, RATING, eventually, is_root, program, read_demo, redirects, signal, skip,
};

fn previous() -> Option<PathBuf> {
    let place = std::env::var_os("PREVIOUS_PROGRAMS").map(PathBuf::from);
    let place = place.filter(|p| !p.as_os_str().is_empty());
    if place.is_none() {
        skip("`make test-skew` builds the programs of the version before, which it needs");
    }
    place
}

/// A program of the demo becomes another file, as a package or `install.sh` replaces it.
fn replace(demo: &Demo, name: &str, by: &Path) {
    let new = demo.path().join(format!("{name}.new"));
    fs::copy(by.join(name), &new).unwrap();
    fs::rename(new, demo.path().join(name)).unwrap();
}

/// Whether the sidecar of a workload runs the program that now lies in the demo's directory.
fn is_new(demo: &Demo, workload: &str) -> bool {
    let seen = |path: PathBuf| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let running = format!("/proc/{}/exe", demo.sidecar(workload));
    let running = seen(running.into());
    running.is_some() && running == seen(demo.path().join("tulle-proxy"))
}

fn by_gateway() -> String {
    format!("/bookinfo-ratings/ratings/{RATING}")
}

fn load(demo: &Demo) -> Load {
    let direct = format!("/ratings/{RATING}");
    let load = Load::gets(demo.ingress, 2, &[&direct, &by_gateway(), "/productpage"]);
    load.await_more(50);
    load
}

/// The controller tells the sidecars of a change, and they obey.
fn changes_hold(demo: &Demo) {
    demo.apply(&demo.write("deny.yaml", &read_demo("deny-ratings.yaml")));
    eventually("gateway is refused", || {
        demo.get(&by_gateway()).status() == 403
    });
    let direct = format!("/ratings/{RATING}");
    assert_eq!(demo.get(&direct).status(), 200);
}

/// A host that nobody has upgraded yet, and its controller's, which somebody has.
#[test]
fn a_joined_host_of_the_version_before_works_with_todays_controller() {
    let Some(previous) = previous() else { return };
    if !is_root() {
        return;
    }
    let hosts = TwoHosts::start();
    for program in ["tulle", "tulle-proxy"] {
        replace(&hosts.edge, program, &previous);
    }
    let mut joined = hosts.join().spawn().unwrap();
    hosts.await_answer(ROUND);
    // An endpoint that the edge has to hear of: its reviews ask ratings.
    let before = hosts.centre.application("ratings");
    signal(before, Signal::KILL);
    eventually("ratings are started again", || {
        hosts
            .centre
            .application_now("ratings")
            .is_some_and(|now| now != before)
    });
    hosts.await_answer(ROUND);
    // And a policy that the edge's sidecar judges by.
    let deny = read_demo("deny-ratings.yaml").replace("name: ratings", "name: reviews");
    hosts.centre.apply(&hosts.centre.write("deny.yaml", &deny));
    eventually("the gateway is refused by reviews", || {
        hosts.get(ROUND) == 403
    });
    assert_eq!(terminate(&mut joined), 0);
}

#[test]
fn todays_sidecars_work_with_the_controller_of_the_version_before() {
    let Some(previous) = previous() else { return };
    let demo = Demo::prepare(!redirects(), |text| text);
    replace(&demo, "tulle", &previous);
    demo.up();
    let load = load(&demo);
    changes_hold_under(load, &demo);
}

fn changes_hold_under(load: Load, demo: &Demo) {
    load.await_more(200);
    load.assert_no_failure();
    changes_hold(demo);
}

/// A package is upgraded while its mesh runs: what ends then comes back as the new program, under the controller that
/// runs already.
#[test]
fn a_sidecar_that_ends_after_an_upgrade_comes_back_as_the_new_one() {
    let Some(previous) = previous() else { return };
    let demo = Demo::prepare(!redirects(), |text| text);
    for program in ["tulle", "tulle-proxy"] {
        replace(&demo, program, &previous);
    }
    demo.up();
    let today = program("tulle-proxy");
    replace(&demo, "tulle-proxy", today.parent().unwrap());
    // The server's, then its client's: each meets the version before on the other side.
    for workload in ["ratings", "gateway"] {
        assert!(!is_new(&demo, workload));
        signal(demo.sidecar(workload), Signal::KILL);
        eventually("the sidecar is back, and new", || {
            is_new(&demo, workload) && demo.get(&by_gateway()).status() == 200
        });
        demo.await_answer("/productpage");
    }
    let load = load(&demo);
    changes_hold_under(load, &demo);
}
