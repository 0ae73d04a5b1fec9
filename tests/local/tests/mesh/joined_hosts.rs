//! A host that joined: the operator sees where each workload runs, knows the ports that a firewall
//! has to let pass, and the host comes back without a new token.

use crate::cli_join::{is_elsewhere, join, only, said, terminate, token};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};
use tests_local::{Demo, RATING, eventually, free_ports};
use tulle_tls::enrol::Enrolled;

/// Ports that one of the hosts may use.
const PORTS: u16 = 8;

fn two_hosts() -> (Demo, Demo) {
    let one = Demo::prepare_without_privileges(|text| only(&text, |d| !is_elsewhere(d)));
    let two = Demo::prepare_without_privileges(|text| only(&text, is_elsewhere));
    (one, two)
}

fn start(host: &Demo, mut command: Command) -> Child {
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    eventually("the joined host's workloads answer", || {
        let status = host.tulle(&["status", "-o", "json"]);
        status.out.contains(r#""phase": "running""#)
    });
    child
}

/// Host and ports of each workload, by name.
fn placed(status: &Value) -> Vec<(String, String, Vec<u16>)> {
    let services = status["services"].as_array().unwrap();
    let workloads = services
        .iter()
        .flat_map(|s| s["workloads"].as_array().unwrap());
    let port = |endpoint: &Value| {
        let text = endpoint.as_str().unwrap();
        text.rsplit_once(':').unwrap().1.parse().unwrap()
    };
    let shown = workloads.map(|w| {
        let endpoints = w["endpoints"].as_array().unwrap();
        (
            w["name"].as_str().unwrap().to_owned(),
            w["host"].as_str().unwrap().to_owned(),
            endpoints.iter().map(port).collect(),
        )
    });
    shown.collect()
}

#[test]
fn a_host_is_shown_keeps_to_its_ports_and_comes_back_without_a_token() {
    let (one, two) = two_hosts();
    let first = [free_ports(PORTS), free_ports(PORTS)];
    let range = first.map(|f| format!("{f}-{}", f + PORTS - 1));
    one.up_with(&["--inbound-ports", &range[0]]);
    let alone = one.tulle(&["status"]).out;
    assert!(!alone.contains("HOST"), "{alone}");
    assert!(
        placed(&one.status())
            .iter()
            .all(|(_, host, _)| host.is_empty())
    );

    let made = token(&one);
    let joining = || {
        let mut command = join(&two, &made);
        command.args(["--inbound-ports", &range[1]]);
        command
    };
    let mut joined = start(&two, joining());
    let rating = format!("/ratings/{RATING}");
    one.await_answer(&rating);

    // Both ends say where what runs, and each host keeps to its ports.
    eventually(
        "the joined host's workloads are ready, seen from here",
        || {
            let status = one.status();
            let services = status["services"].as_array().unwrap();
            services
                .iter()
                .any(|s| s["name"] == "ratings" && s["ready"] == true)
        },
    );
    let seen = placed(&one.status());
    for (name, host, ports) in &seen {
        let there = ["ratings", "gateway"].contains(&name.as_str());
        assert_eq!(host, if there { "edge" } else { "" }, "{name}: {seen:?}");
        let from = first[usize::from(there)];
        let within = ports.iter().all(|p| (from..from + PORTS).contains(p));
        assert!(within && !ports.is_empty(), "{name}: {seen:?}");
    }
    let table = one.tulle(&["status"]).out;
    let row = |name: &str| {
        let mut rows = table
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>());
        rows.find(|cells| cells.first() == Some(&name)).unwrap()
    };
    assert_eq!(row("SERVICE")[1], "HOST", "{table}");
    assert_eq!(row("ratings")[1..3], ["edge", "1/1"], "{table}");
    assert_eq!(row("reviews")[1..3], ["this", "host"], "{table}");
    assert!(
        placed(&two.status())
            .iter()
            .all(|(_, host, _)| host == "edge")
    );
    assert_eq!(one.tulle(&["check"]).code, 0, "{:?}", one.tulle(&["check"]));
    // Each host asks its own proxies, and says whose it does not ask.
    for (host, own, note) in [
        (&one, "reviews", "gateway, ratings on host edge"),
        (&two, "ratings", "joined as edge"),
    ] {
        let listed = host.tulle(&["proxy", "list"]);
        assert_eq!(listed.code, 0, "{listed:?}");
        assert!(listed.out.contains(&format!("svc/{own}")), "{listed:?}");
        assert!(listed.err.contains(note), "{listed:?}");
    }
    let elsewhere = one.tulle(&["tap", "ratings", "--for", "1s"]);
    assert_eq!(elsewhere.code, 1, "{elsewhere:?}");
    assert!(
        elsewhere.err.contains("it runs on host edge"),
        "{elsewhere:?}"
    );

    // Its identity is for its owner alone, and outlives a crash of the whole host.
    let identity = two.path().join("state/host-identity.pem");
    let found = std::fs::metadata(&identity).unwrap();
    assert_eq!(found.mode() & 0o777, 0o600);
    let before = placed(&two.status());
    joined.kill().unwrap();
    joined.wait().unwrap();
    eventually("what was left of it is cleared away", || {
        two.left().is_empty()
    });
    let mut again = joining();
    again.env_remove("TULLE_TOKEN");
    let mut joined = start(&two, again);
    one.await_answer(&rating);
    let names = |all: &[(String, String, Vec<u16>)]| {
        let named = all
            .iter()
            .map(|(name, host, _)| (name.clone(), host.clone()));
        named.collect::<Vec<_>>()
    };
    let after = placed(&two.status());
    assert_eq!(names(&after), names(&before));
    let mut ports = after.iter().flat_map(|(_, _, ports)| ports);
    assert!(
        ports.all(|p| (first[1]..first[1] + PORTS).contains(p)),
        "{after:?}"
    );
    assert_eq!(terminate(&mut joined), 0);

    // A service manager starts it with the same arguments, whose token is spent.
    let mut timed = joining();
    let timed = said(timed.args(["--for", "1s", "--stay"]));
    assert_eq!(timed.code, 0, "{timed:?}");
    assert!(timed.err.contains("the token is spent"), "{timed:?}");

    // A host that was removed does not come back, and keeps no counts for the next mesh.
    let away = two.path().join("state/host-away");
    std::fs::create_dir_all(&away).unwrap();
    std::fs::write(away.join("kept"), "").unwrap();
    std::os::unix::fs::chown(&away, Some(found.uid()), Some(found.gid())).unwrap();
    assert_eq!(one.tulle(&["delete", "node", "edge"]).code, 0);
    let mut removed = joining();
    let removed = said(removed.env_remove("TULLE_TOKEN"));
    assert_eq!(removed.code, 1, "{removed:?}");
    assert!(
        removed.err.contains("tulle token create node/edge"),
        "{removed:?}"
    );
    assert_eq!(two.left(), Vec::<String>::new());
    assert!(!away.exists());

    // Nor one that never joined from here.
    assert_eq!(two.tulle(&["down", "--purge"]).code, 0);
    assert!(!identity.exists());
    let mut never = joining();
    let never = said(never.env_remove("TULLE_TOKEN"));
    assert_eq!(never.code, 64, "{never:?}");
    assert!(
        never.err.contains("tulle token create node/NAME"),
        "{never:?}"
    );
}

#[test]
fn an_identity_that_expired_while_its_host_was_off_is_named_with_the_cure() {
    let short = "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {certificates: {lifetime: 60s}}\n---\n";
    let workload = "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\nspec: {command: [sleep, '9']}\n";
    let one = Demo::prepare_without_privileges(|_| {
        format!("{short}{}", workload.replace("name: a", "name: b"))
    });
    one.up();
    let two = Demo::prepare_without_privileges(|_| workload.into());
    let made = token(&one);
    let mut timed = join(&two, &made);
    let timed = said(timed.args(["--for", "1s"]));
    assert_eq!(timed.code, 0, "{timed:?}");
    tests_local::pause(
        "its certificate expires while the host is off",
        Duration::from_secs(61),
    );
    let mut late = join(&two, &made);
    let late = said(late.env_remove("TULLE_TOKEN"));
    assert_eq!(late.code, 1, "{late:?}");
    for part in [
        "has expired",
        "host-identity.pem",
        "`tulle token create node/edge`",
    ] {
        assert!(late.err.contains(part), "{part}: {late:?}");
    }
    // A new token helps.
    let mut timed = join(&two, &token(&one));
    let timed = said(timed.args(["--for", "1s"]));
    assert_eq!(timed.code, 0, "{timed:?}");
}

#[test]
fn the_certificate_of_a_host_follows_the_terms_of_the_mesh() {
    let (one, two) = two_hosts();
    one.up();
    let mut joined = start(&two, join(&two, &token(&one)));
    let kept = || {
        let text = std::fs::read_to_string(two.path().join("state/host-identity.pem")).unwrap();
        Enrolled::from_cache(&text).unwrap().identity.not_after()
    };
    let left = || kept().duration_since(SystemTime::now()).unwrap();
    assert!(left() > Duration::from_hours(23));
    let mesh = |certificates: &str| {
        format!(
            "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: bookinfo}}\nspec: {{certificates: {certificates}}}\n"
        )
    };
    one.apply(&one.write("hour.yaml", &mesh("{lifetime: 1h}")));
    eventually("it is valid for an hour", || {
        left() <= Duration::from_hours(1)
    });
    let first = kept();
    one.apply(&one.write("often.yaml", &mesh("{lifetime: 1h, renewAfter: 2s}")));
    eventually("it is renewed at the age that the Mesh names", || {
        kept() > first
    });
    assert_eq!(terminate(&mut joined), 0);
}

#[test]
fn a_host_with_too_few_ports_says_so() {
    let two_workloads = |text: String| {
        only(&text, |d| {
            d.contains("kind: Mesh")
                || d.contains("name: ratings\n")
                || d.contains("name: reviews\n")
        })
    };
    let one = Demo::prepare_without_privileges(two_workloads);
    let port = free_ports(1);
    let mut up = one.command();
    up.args(["up", "--loopback", "--listen", "127.0.0.1:0", "--for", "1s"])
        .args(["--timeout", "5s", "--inbound-ports", &port.to_string()])
        .arg(&one.manifest);
    let said = said(&mut up);
    assert_eq!(said.code, 1, "{said:?}");
    let log = one.tulle(&["logs", "supervisor"]);
    let expected = format!("all of --inbound-ports {port}-{port} are in use");
    assert!(
        format!("{said:?}{log:?}").contains(&expected),
        "{said:?} {log:?}"
    );
}
