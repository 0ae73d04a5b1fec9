//! A mesh without sidecars: the same manifests and names, plaintext, nobody decides who may call.

use std::net::SocketAddr;
use tests_local::{Client, Demo, RATING, is_root};

fn every_path_answers(demo: &Demo) {
    for target in [
        format!("/ratings/{RATING}"),
        format!("/bookinfo-ratings/ratings/{RATING}"),
        "/productpage".to_owned(),
    ] {
        let answer = demo.get(&target);
        assert_eq!(answer.status(), 200, "{target}: {}", answer.head);
    }
    assert!(demo.get("/productpage").text().contains("5 of 5 stars"));
}

fn says_that_there_are_no_sidecars(demo: &Demo) {
    let status = demo.status();
    assert_eq!(status["mesh"]["data_plane"], "none");
    // Only the gateway's.
    assert_eq!(status["proxies"].as_array().unwrap().len(), 1, "{status:#}");
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("everything is plaintext"), "{warnings}");
    let text = demo.tulle(&["status"]).out;
    assert!(text.contains("no sidecars"), "{text}");
    assert!(text.contains("not mutual TLS"), "{text}");
}

/// Tests that an upstream's variable names the other application itself, on loopback.
#[test]
fn loopback_without_sidecars() {
    let demo = Demo::prepare(true, |text| text);
    demo.up_with(&["--data-plane", "none"]);
    every_path_answers(&demo);
    says_that_there_are_no_sidecars(&demo);
    let down = demo.tulle(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    demo.await_nothing_left();
}

/// Tests that a service's name stands for its workloads' own addresses, in namespaces.
#[test]
fn namespaces_without_sidecars() {
    if !is_root() {
        return;
    }
    // One application listens on another port than its service's; all listen on loopback.
    let demo = Demo::prepare(false, |text| {
        let details = text.find("bookinfo, details]").unwrap();
        let (before, after) = text.split_at(details);
        let after = after.replacen("port: 8103\n", "port: 8103\n      targetPort: 7103\n", 1);
        let text = format!("{before}{after}");
        text.replace("bookinfo, details]", "bookinfo, details, --port, \"7103\"]")
            .replace(
                "path: /health\n      port: 8103",
                "path: /health\n      port: 7103",
            )
    });
    demo.up_with(&["--data-plane", "none"]);
    every_path_answers(&demo);
    says_that_there_are_no_sidecars(&demo);
    // Nobody decides: ratings allows neither details nor the host.
    let status = demo.status();
    let services = status["services"].as_array().unwrap();
    let ratings = services.iter().find(|s| s["name"] == "ratings").unwrap();
    let at: SocketAddr = ratings["endpoints"][0].as_str().unwrap().parse().unwrap();
    let target = format!("/ratings/{RATING}");
    assert_eq!(Client::connect(at).get(&target).status(), 200);
    let inside = demo.inside("details", true, || {
        Client::connect(at).get(&target).status()
    });
    assert_eq!(inside, 200);
    // A workload that comes later, and one that goes, are followed by their names.
    let hosts = || {
        let run = status["mesh"]["run_directory"].as_str().unwrap();
        std::fs::read_to_string(format!("{run}/hosts")).unwrap()
    };
    assert!(
        hosts().contains(&format!("{} ratings", at.ip())),
        "{}",
        hosts()
    );
    let gone = demo.tulle(&["delete", "workload", "details"]);
    assert_eq!(gone.code, 0, "{gone:?}");
    tests_local::eventually("details has no name any more", || {
        !hosts().contains("details")
    });
    let down = demo.tulle(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    demo.await_nothing_left();
}

#[test]
fn a_local_port_without_a_sidecar_is_an_error_that_says_what_to_do() {
    let port = tests_local::free_port();
    let demo = Demo::prepare(true, |text| {
        text.replacen(
            "      env: RATINGS_URL",
            &format!("      localPort: {port}"),
            1,
        )
    });
    let args = [
        "up",
        "--detach",
        "--loopback",
        "--listen",
        "127.0.0.1:0",
        "--timeout",
        "5s",
    ];
    let manifest = demo.manifest.to_str().unwrap();
    let up = demo.tulle(&[&args[..], &["--data-plane", "none", manifest]].concat());
    assert_eq!(up.code, 1, "{up:?}");
    assert!(up.err.contains("give the upstream `env`"), "{up:?}");
}
