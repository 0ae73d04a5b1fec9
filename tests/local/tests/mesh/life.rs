//! Tests that a mesh survives, under load: the killing of controller, sidecars, applications and
//! supervisor, and expired certificates.

use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};
use tests_local::{Client, Demo, Load, RATING, can_redirect, eventually, id, read_demo, signal};

const THREADS: usize = 5;
pub(crate) const PROXIES: [&str; 6] = [
    "details",
    "gateway",
    "productpage",
    "ratings",
    "reviews",
    "gateway.ingress",
];

fn direct() -> String {
    format!("/ratings/{RATING}")
}

fn by_gateway() -> String {
    format!("/bookinfo-ratings/ratings/{RATING}")
}

fn load(demo: &Demo) -> Load {
    let load = Load::gets(
        demo.ingress,
        THREADS,
        &[&direct(), &by_gateway(), &direct(), "/productpage"],
    );
    load.await_more(50);
    load
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn traffic_goes_on_while_the_controller_is_killed_again_and_again() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let load = load(&demo);
    let objects = demo.tulle(&["get", "-o", "yaml"]).out;
    let fingerprint = demo.status()["mesh"]["ca_fingerprint"].clone();
    assert!(objects.contains("TrafficTarget") && fingerprint.as_str().unwrap().len() == 64);
    for round in 1..=3 {
        let (_, controller) = demo.supervisor_and_controller();
        signal(controller, Signal::KILL);
        load.await_more(50);
        let mut status = Value::Null;
        eventually("the controller is back, and the proxies with it", || {
            status = demo.status();
            let controller = &status["controller"];
            controller["ready"] == true
                && controller["restarts"] == round
                && controller["proxies_connected"] == 6
        });
        assert_eq!(status["mesh"]["ca_fingerprint"], fingerprint);
        assert_eq!(demo.tulle(&["get", "-o", "yaml"]).out, objects);
    }
    load.await_more(100);
    let done = load.assert_no_failure();
    eprintln!("{done} requests, none failed");
    for proxy in PROXIES {
        assert_eq!(demo.proxy(proxy)["restarts"], 0, "{proxy}");
    }
    // It is obeyed as before.
    demo.apply(&demo.write("deny.yaml", &read_demo("deny-ratings.yaml")));
    eventually("gateway is refused", || {
        demo.get(&by_gateway()).status() == 403
    });
    assert_eq!(demo.get(&direct()).status(), 200);
}

/// The waits that a sidecar's log names in lines with this text, in milliseconds.
fn waits(log: &str, text: &str) -> Vec<f64> {
    let lines = log.lines().filter(|line| line.contains(text));
    let wait = |line: &str| {
        let (_, rest) = line.split_once("\"retry_in\":\"")?;
        let (wait, _) = rest.split_once('"')?;
        let units = [("ns", 1e-6), ("µs", 1e-3), ("ms", 1.0), ("s", 1e3)];
        let number = |(unit, millis): (&str, f64)| {
            let number: f64 = wait.strip_suffix(unit)?.parse().ok()?;
            Some(number * millis)
        };
        units.into_iter().find_map(number)
    };
    lines.filter_map(wait).collect()
}

/// Until a sidecar is back it hears of nothing; and those of a large mesh must not all come at once.
#[test]
fn sidecars_come_back_soon_to_a_controller_that_restarts() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let all_are_back = |restarts: u64| {
        eventually("the controller is back, and the proxies with it", || {
            let status = demo.status();
            status["controller"]["restarts"] == restarts
                && status["controller"]["proxies_connected"] == PROXIES.len()
        });
    };
    all_are_back(0);
    let (_, controller) = demo.supervisor_and_controller();
    signal(controller, Signal::TERM);
    all_are_back(1);
    for workload in ["details", "ratings", "reviews"] {
        let log = demo.tulle(&["logs", workload, "--sidecar"]).out;
        // A controller that ends has a millisecond for each.
        let told = waits(&log, "the controller is shutting down");
        assert!(
            matches!(told[..], [wait] if wait <= PROXIES.len() as f64),
            "{log}"
        );
        // One that is not there is asked again and again.
        for wait in waits(&log, "cannot reach the controller") {
            assert!(wait <= 1500.0, "{log}");
        }
    }
}

#[test]
fn a_sidecar_comes_back_from_its_snapshot_while_the_controller_is_away() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    assert_eq!(demo.get(&by_gateway()).status(), 200);
    let ratings = (demo.address("ratings", true, false), 8101).into();
    let by_details = || demo.inside("details", true, || Client::connect(ratings).get(&direct()));
    assert_eq!(by_details().header("x-tulle-reason"), "denied");
    let (_, controller) = demo.supervisor_and_controller();
    // Worse than dead: whoever asks it waits.
    signal(controller, Signal::STOP);
    for name in ["ratings", "gateway", "gateway.ingress"] {
        let before = demo.sidecar(name);
        let certificate = json(&demo.admin(name, "/certificates").text())["serial"].clone();
        signal(before, Signal::KILL);
        eventually("the proxy is back and ready", || {
            let proxy = demo.proxy(name);
            proxy["ready"] == true && proxy["pid"].as_i64() != Some(before.into())
        });
        let again = json(&demo.admin(name, "/certificates").text());
        assert_eq!(again["serial"], certificate, "its identity was kept for it");
    }
    let status = demo.status();
    assert_eq!(status["controller"]["ready"], false, "{status:#}");
    for target in [direct(), by_gateway()] {
        eventually("it serves", || {
            Client::try_connect(demo.ingress).is_ok_and(|mut c| c.get(&target).status() == 200)
        });
    }
    // The snapshot has the policies, too.
    assert_eq!(by_details().header("x-tulle-reason"), "denied");

    signal(controller, Signal::CONT);
    eventually("all are connected again", || {
        demo.status()["controller"]["proxies_connected"] == 6
    });
    demo.apply(&demo.write("deny.yaml", &read_demo("deny-ratings.yaml")));
    eventually("gateway is refused", || {
        demo.get(&by_gateway()).status() == 403
    });
}

#[test]
fn a_certificate_is_renewed_without_a_failed_request() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| {
        let from = "  permissiveMode: false\n";
        assert!(text.contains(from));
        // Renewed often, and valid so long that none expires on a machine that stands still.
        let certificates = "  certificates: {lifetime: 5m, renewAfter: 3s}\n";
        text.replace(from, &format!("{from}{certificates}"))
    });
    let load = load(&demo);
    let mut serials: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    eventually("every sidecar has had four certificates", || {
        for proxy in PROXIES {
            let certificate = json(&demo.admin(proxy, "/certificates").text());
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let left = certificate["not_after"].as_i64().unwrap() - now.as_secs().cast_signed();
            assert!((0..=301).contains(&left), "{proxy}: {left} s left");
            let serial = certificate["serial"].as_str().unwrap().to_owned();
            serials.entry(proxy).or_default().insert(serial);
        }
        serials.values().all(|serials| serials.len() >= 4)
    });
    let done = load.assert_no_failure();
    for proxy in PROXIES {
        assert_eq!(demo.proxy(proxy)["restarts"], 0, "{proxy}");
    }
    let renewals: usize = serials.values().map(|s| s.len() - 1).sum();
    eprintln!("{done} requests, none failed, while certificates were renewed {renewals} times");
    assert!(done > 1000, "that was no load: {done} requests");
}

#[test]
fn a_shortened_lifetime_holds_for_the_certificates_that_there_are() {
    if !can_redirect() {
        return;
    }
    let mut mesh = String::new();
    let demo = Demo::start(|text| {
        let of_mesh = text.split("\n---\n").find(|d| d.contains("kind: Mesh"));
        of_mesh.unwrap().clone_into(&mut mesh);
        text
    });
    let left = |proxy: &str| {
        let certificate = json(&demo.admin(proxy, "/certificates").text());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        certificate["not_after"].as_i64().unwrap() - now.as_secs().cast_signed()
    };
    let day = 24 * 3600;
    for proxy in PROXIES {
        assert!((day - 600..=day).contains(&left(proxy)), "{proxy}");
    }
    let load = load(&demo);
    let from = "  permissiveMode: false\n";
    let hour = mesh.replace(from, &format!("{from}  certificates: {{lifetime: 1h}}\n"));
    assert_ne!(hour, mesh);
    demo.apply(&demo.write("hour.yaml", &hour));
    eventually("certificates of an hour", || {
        PROXIES.iter().all(|proxy| left(proxy) <= 3600)
    });
    load.assert_no_failure();
}

#[test]
fn a_crashed_application_is_restarted_and_missed_with_a_reason() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let status = |demo: &Demo| {
        let status = demo.status();
        let services = status["services"].as_array().unwrap().clone();
        services
            .into_iter()
            .find(|s| s["name"] == "ratings")
            .unwrap()
    };
    // A crash.
    let before = demo.application("ratings");
    signal(before, Signal::KILL);
    eventually("it is restarted", || {
        let workload = &status(&demo)["workloads"][0];
        workload["ready"] == true && workload["restarts"] == 1
    });
    assert_ne!(demo.application("ratings"), before);
    assert_eq!(
        status(&demo)["workloads"][0]["last_exit"],
        "killed by signal 9"
    );
    // The proxies are told of it after the supervisor knows.
    eventually("it serves", || demo.get(&direct()).status() == 200);

    // One it cannot come back from.
    let (program, away) = (demo.path().join("bookinfo"), demo.path().join("away"));
    fs::rename(&program, &away).unwrap();
    signal(demo.application("ratings"), Signal::KILL);
    let mut reasons = BTreeSet::new();
    eventually("the call is refused with a reason", || {
        let answer = demo.get(&direct());
        let reason = answer.header("x-tulle-reason").to_owned();
        if answer.status() != 200 {
            assert!(!reason.is_empty(), "{}", answer.head);
        }
        reasons.insert(reason);
        answer.status() == 503
    });
    let text = demo.get(&direct()).text();
    // The message is from its own sidecar, or already from the caller's, which knows that it has no
    // endpoint.
    let said = ["application of ratings", "no endpoint for port 8101"];
    assert!(said.iter().any(|s| text.contains(s)), "{text}");
    eventually("status says what is wrong", || {
        let ratings = status(&demo);
        let message = ratings["workloads"][0]["message"].as_str().unwrap();
        ratings["ready"] == false && message.contains("does not run")
    });
    // Paths that do not need it go on.
    assert_eq!(demo.get("/productpage").status(), 200);
    let why = demo.tulle(&["why", "ingress", "ratings", &direct()]);
    assert!(why.out.contains("503"), "{why:?}");

    fs::rename(away, program).unwrap();
    eventually("it is back", || demo.get(&direct()).status() == 200);
    eprintln!("reasons seen: {reasons:?}");
}

/// Gone, or only its parent has not asked for it yet.
fn is_dead(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned());
    state.is_none_or(|s| s.starts_with(['Z', 'X']))
}

fn janitor(demo: &Demo) -> i32 {
    let janitors = fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let start = format!("tulle\0janitor\0{}\0", demo.name());
        command.starts_with(start.as_bytes())
    });
    let pids: Vec<i32> = janitors
        .map(|e| e.file_name().to_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 1, "one janitor");
    pids[0]
}

#[test]
fn a_killed_supervisor_leaves_nothing() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    assert_eq!(demo.get(&direct()).status(), 200);
    let (supervisor, _) = demo.supervisor_and_controller();
    // A killed supervisor leaves nothing only because of its janitor, so there always is one.
    let first = janitor(&demo);
    signal(first, Signal::KILL);
    eventually("there is another janitor", || {
        let alive = fs::read_link(format!("/proc/{first}/exe")).is_ok();
        !alive && demo.left().iter().any(|l| l.contains("janitor"))
    });
    signal(supervisor, Signal::KILL);
    demo.await_nothing_left();
    assert!(Client::try_connect(demo.ingress).is_err());

    // And with both gone at once, `down` clears up; so does the next `up`.
    for clear in ["down", "up"] {
        demo.up();
        assert_eq!(demo.get(&direct()).status(), 200);
        let (supervisor, _) = demo.supervisor_and_controller();
        signal(supervisor, Signal::STOP);
        signal(janitor(&demo), Signal::KILL);
        signal(supervisor, Signal::KILL);
        eventually("it is dead", || is_dead(supervisor));
        assert!(!demo.left().is_empty(), "nobody is there to clear up");
        if clear == "down" {
            let down = demo.tulle(&["down"]);
            assert_eq!(down.code, 0, "{down:?}");
            assert_eq!(demo.left(), [""; 0]);
        }
    }
    demo.up();
    assert_eq!(demo.get(&direct()).status(), 200);
    assert_eq!(demo.proxy("ratings")["identity"], id("ratings"));
}
