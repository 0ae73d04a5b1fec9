//! New programs take over while the mesh serves.

use super::replicas::{endpoints, is_ready, replica};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tests_local::{Demo, Load, RATING, can_redirect, eventually};

/// Whether a process runs the program that is in this file now.
fn runs(pid: i32, program: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let own = file(Path::new(&format!("/proc/{pid}/exe")));
    own.is_some() && own == file(program)
}

#[test]
fn an_upgrade_runs_every_new_program_and_cuts_no_request_of_a_service_with_two_workloads() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let file = demo.write("replica.yaml", &replica(&demo));
    demo.apply(&file);
    eventually("it is ready", || is_ready(&demo, "ratings-2"));
    eventually("both are used", || endpoints(&demo) == 2);
    let programs = ["tulle", "tulle-proxy"].map(|name| demo.path().join(name));
    // As `install` does: other files of the same names.
    for program in &programs {
        let new = program.with_extension("new");
        fs::copy(program, &new).unwrap();
        fs::rename(&new, program).unwrap();
    }
    let [tulle, proxy] = &programs;
    let proxies = [
        "gateway.ingress",
        "ratings",
        "ratings-2",
        "reviews",
        "productpage",
    ];
    let (supervisor, controller) = demo.supervisor_and_controller();
    assert!(!runs(controller, tulle), "they differ");
    assert!(!proxies.iter().any(|p| runs(demo.sidecar(p), proxy)));

    let direct = format!("/ratings/{RATING}");
    // One of the clients comes anew for each request; the others keep their connections.
    let load = Load::gets(demo.ingress, 6, &[&direct]);
    let answer = demo.tulle(&["service", "upgrade"]);
    load.await_more(50);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(
        answer.out.contains("workload/ratings-2 restarted"),
        "{answer:?}"
    );
    let (same, controller) = demo.supervisor_and_controller();
    assert_eq!(same, supervisor);
    assert!(runs(controller, tulle), "the controller is the old program");
    for name in proxies {
        assert!(runs(demo.sidecar(name), proxy), "{name} is the old program");
    }
    let failures = load.failures();
    assert!(
        failures.is_empty(),
        "{} failed: {:#?}",
        failures.len(),
        failures.first()
    );
}
