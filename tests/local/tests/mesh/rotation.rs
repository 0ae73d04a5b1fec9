//! The root of a mesh is replaced under load: nobody notices, not even when the controller is killed
//! in the middle of it, and the old root's certificates count for nothing afterwards.

use crate::wire::{ask, issue, own_authority};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};
use tests_local::{Demo, Load, RATING, can_redirect, eventually, id, signal};

const PROXIES: [&str; 6] = [
    "productpage",
    "details",
    "reviews",
    "ratings",
    "gateway",
    "gateway.ingress",
];

fn authority(demo: &Demo) -> Value {
    let shown = demo.tulle(&["ca", "show", "-o", "json"]);
    serde_json::from_str(&shown.out).unwrap_or_else(|e| panic!("{e}: {shown:?}"))
}

fn step(demo: &Demo) -> String {
    // The controller may be away.
    let shown = demo.tulle(&["ca", "show", "-o", "json"]);
    let shown: Value = serde_json::from_str(&shown.out).unwrap_or_default();
    shown["step"].as_str().unwrap_or_default().to_owned()
}

/// Fingerprints of the roots that a proxy believes.
fn believed(demo: &Demo, proxy: &str) -> BTreeSet<String> {
    let page: Value =
        serde_json::from_str(&demo.admin(proxy, "/certificates").text()).unwrap_or_default();
    let roots = page["trust_bundle"].as_array().unwrap().iter();
    roots
        .map(|r| r["fingerprint"].as_str().unwrap().to_owned())
        .collect()
}

pub(crate) fn kill_controller(demo: &Demo) {
    let (_, controller) = demo.supervisor_and_controller();
    signal(controller, Signal::KILL);
    eventually("another controller is there", || {
        let status = demo.status();
        status["controller"]["ready"] == true
            && status["controller"]["pid"].as_i64() != Some(controller.into())
    });
}

#[test]
fn the_root_is_replaced_under_load_and_nothing_fails() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let old = own_authority(&demo);
    let ask_with_old = || {
        let gateway = issue(&old, &id("gateway"), SystemTime::now());
        ask(&demo, Some(&gateway), &format!("/ratings/{RATING}"))
    };
    assert_eq!(ask_with_old().unwrap().status(), 200);
    let first = authority(&demo);
    assert_eq!(first["step"], "steady");
    let old_root = first["roots"][0]["sha256"].as_str().unwrap().to_owned();
    assert_eq!(old_root, old.fingerprint());
    let sidecars = PROXIES.map(|p| demo.sidecar(p));

    let load = Load::gets(
        demo.ingress,
        4,
        &[
            &format!("/ratings/{RATING}"),
            &format!("/bookinfo-ratings/ratings/{RATING}"),
            "/productpage",
        ],
    );
    load.await_more(50);
    let begun = Instant::now();
    // Each step lasts until it was seen, and the controller killed in it.
    let answer = demo.tulle(&["ca", "rotate", "--hold", "10s", "--no-wait", "-o", "json"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    // One at a time.
    let again = demo.tulle(&["ca", "rotate", "--no-wait"]);
    assert_eq!(again.code, 65, "{again:?}");
    assert!(again.err.contains("under way"), "{again:?}");

    // Killed at once: the step is on the disk, and goes on when all are back.
    kill_controller(&demo);
    let spreading = authority(&demo);
    assert_eq!(spreading["step"], "spreading", "{spreading:#}");
    let new_root = spreading["roots"][1]["sha256"].as_str().unwrap().to_owned();
    eventually("everybody believes both", || {
        let both = BTreeSet::from([old_root.clone(), new_root.clone()]);
        step(&demo) != "spreading" || PROXIES.iter().all(|p| believed(&demo, p) == both)
    });
    eventually("the new root signs", || step(&demo) == "renewing");
    eprintln!("spreading: {:?}", begun.elapsed());
    kill_controller(&demo);
    // Both count until everybody has renewed.
    assert_eq!(step(&demo), "renewing");
    assert_eq!(ask_with_old().unwrap().status(), 200);
    eventually("the old root is removed", || step(&demo) == "steady");
    eprintln!("renewing: {:?}", begun.elapsed());

    let last = authority(&demo);
    assert_eq!(last["roots"].as_array().unwrap().len(), 1, "{last:#}");
    assert_eq!(last["roots"][0]["sha256"], *new_root);
    let only_new = BTreeSet::from([new_root.clone()]);
    for proxy in PROXIES {
        eventually("it believes the new root alone", || {
            believed(&demo, proxy) == only_new
        });
    }
    load.await_more(100);
    let done = load.assert_no_failure();
    eprintln!("{done} requests, none failed");
    assert_eq!(PROXIES.map(|p| demo.sidecar(p)), sidecars, "none restarted");
    let refused = ask_with_old();
    assert!(refused.is_err(), "{refused:?}");
    // New sidecars get in: tokens come with the new root's fingerprint.
    let token = demo.tulle(&["token", "create", "svc/late", "-o", "json"]);
    assert!(token.out.contains(&new_root), "{token:?}");
}
