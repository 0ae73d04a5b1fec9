//! A joined host that loses its controller, or its address, and comes back.

use crate::cli_join::terminate;
use crate::two_hosts::{EDGE, ROUND, TwoHosts};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};
use tests_local::{Client, Demo, Host, eventually, free_port, free_ports, is_root, pause, signal};

const MOVED: &str = "10.77.0.3";
/// Times that the address changes, and how soon requests are answered again after the middle one of them.
const CHANGES: usize = 5;
const SOON: Duration = Duration::from_secs(2);
/// The same after each of them: a machine may be busy for a moment. Without being told, the ends of connections would
/// find out after 40 s.
const AT_LATEST: Duration = Duration::from_secs(15);

/// A Workload that answers nothing.
fn sleeper(name: &str, seconds: u16) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata:\n  name: {name}\nspec:\n  command: [sleep, '{seconds}']\n"
    )
}

fn workloads(host: &Demo) -> Vec<String> {
    let answer = host.tulle(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&answer.out).unwrap_or_default();
    let services = status["services"].as_array().cloned().unwrap_or_default();
    let of_service = |s: &Value| s["workloads"].as_array().cloned().unwrap_or_default();
    let own = services.iter().flat_map(of_service);
    let own = own.filter(|w| w["pid"].is_number());
    own.map(|w| w["name"].as_str().unwrap().to_owned())
        .collect()
}

fn supervisor(host: &Demo) -> i32 {
    i32::try_from(host.status()["mesh"]["supervisor_pid"].as_i64().unwrap()).unwrap()
}

/// Kills the supervisor of a host, and waits until the janitor has cleared up.
fn kill_host(host: &Demo, joined: &mut Child) {
    signal(supervisor(host), Signal::KILL);
    joined.wait().unwrap();
    eventually("what was left of it is cleared away", || {
        host.left().is_empty()
    });
}

#[test]
fn a_host_whose_address_changes_serves_again_soon() {
    if !is_root() {
        return;
    }
    let hosts = TwoHosts::start();
    let mut joined = hosts.join().spawn().unwrap();
    hosts.await_answer(ROUND);
    let before = hosts.edge.application("reviews");
    let mut places = [EDGE, MOVED];
    let mut took: Vec<Duration> = (0..CHANGES)
        .map(|_| {
            let [old, new] = places;
            places.reverse();
            hosts.yard.readdress(old, new);
            let begun = Instant::now();
            eventually("requests are answered again", || hosts.answers_soon(ROUND));
            let took = begun.elapsed();
            let status = hosts.centre.status().to_string();
            assert!(status.contains(new), "{status}");
            took
        })
        .collect();
    println!("served again after {took:?}");
    took.sort_unstable();
    assert!(took[CHANGES / 2] <= SOON, "{took:?}");
    assert!(took[CHANGES - 1] < AT_LATEST, "{took:?}");
    assert_eq!(
        hosts.edge.application("reviews"),
        before,
        "the application noticed nothing"
    );
    assert_eq!(terminate(&mut joined), 0);
}

#[test]
fn a_returning_host_neither_loses_nor_resurrects_objects() {
    if !is_root() {
        return;
    }
    // Seconds to sleep by which this test knows its own processes among those of others.
    let first = free_ports(4);
    let [deleted, changed, kept, other] = [0, 1, 2, 3].map(|more| first + more);
    let hosts = TwoHosts::start_with(|own| {
        [
            own,
            sleeper("deleted", deleted),
            sleeper("changed", changed),
            sleeper("kept", kept),
        ]
        .join("---\n")
    });
    let mut joined = hosts.join().spawn().unwrap();
    hosts.await_answer(ROUND);
    eventually("all of it runs", || workloads(&hosts.edge).len() == 4);

    hosts.yard.cut();
    assert_eq!(
        hosts.centre.tulle(&["delete", "workload", "deleted"]).code,
        0
    );
    let stored = hosts
        .centre
        .tulle(&["get", "workload", "changed", "-o", "yaml"])
        .out;
    let [before, after] = [changed, other].map(|seconds| seconds.to_string());
    assert!(stored.contains(&before), "{stored}");
    let changed = stored.replace(&before, &after);
    hosts
        .centre
        .apply(&hosts.centre.write("changed.yaml", &changed));
    let policy = "apiVersion: tulle.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: new}\nspec:\n  action: Deny\n  targetRefs: [{name: reviews}]\n  rules:\n    - to: {paths: [{type: PathPrefix, value: /closed}]}\n";
    hosts
        .centre
        .apply(&hosts.centre.write("policy.yaml", policy));
    // Meanwhile life at the edge goes on.
    let old = hosts.edge.application("reviews");
    signal(old, Signal::KILL);
    eventually("reviews was started again there", || {
        hosts
            .edge
            .application_now("reviews")
            .is_some_and(|now| now != old)
    });
    assert_eq!(workloads(&hosts.edge).len(), 4, "nobody has told it yet");

    // With another address it comes back at once: its old connections are nobody's.
    hosts.yard.mend();
    hosts.yard.readdress(EDGE, MOVED);
    let as_the_centre_says = || {
        let mut names = workloads(&hosts.edge);
        names.sort();
        names == ["changed", "kept", "reviews"]
    };
    eventually("the edge is as the centre says", as_the_centre_says);
    let runs = |seconds: &str| {
        fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            command == [b"sleep\0", seconds.as_bytes(), b"\0"].concat()
        })
    };
    eventually("what was changed runs as it is now", || {
        runs(&after) && !runs(&before)
    });
    hosts.await_answer(ROUND);
    let names = hosts.centre.tulle(&["get", "workloads"]).out;
    assert!(
        !names.contains("deleted") && names.contains("kept"),
        "{names}"
    );
    assert!(
        hosts
            .centre
            .tulle(&["get", "authorizationpolicy", "new"])
            .code
            == 0
    );

    // Nor does a crash of the whole host and the same command bring back what was deleted.
    kill_host(&hosts.edge, &mut joined);
    let mut again = hosts.join();
    again.env_remove("TULLE_TOKEN");
    let mut joined = again.spawn().unwrap();
    hosts.await_answer(ROUND);
    eventually("the edge is as the centre says", as_the_centre_says);
    assert!(runs(&after) && !runs(&before) && !runs(&deleted.to_string()));
    assert_eq!(terminate(&mut joined), 0);
}

/// The files in which a host keeps what it counted.
fn kept(host: &Demo) -> Vec<Value> {
    let directory = host.path().join("state/host-away");
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = files.filter(|f| f.path().extension().is_some_and(|e| e == "json"));
    files
        .filter_map(|f| serde_json::from_slice(&fs::read(f.path()).ok()?).ok())
        .collect()
}

fn sum(kept: &[Value], key: &str) -> u64 {
    let edges = kept.iter().flat_map(|k| k["edges"].as_array().unwrap());
    edges.map(|e| e["sums"][key].as_u64().unwrap()).sum()
}

#[test]
fn what_was_counted_while_the_controller_was_away_is_told_once() {
    if !is_root() {
        return;
    }
    // Beside reviews a caller that no policy allows to call it.
    let port = free_port();
    let hosts = TwoHosts::start_with(|own| {
        let stranger = sleeper("stranger", 900);
        let upstreams = format!(
            "  upstreams:\n    - service: reviews\n      port: 8102\n      localPort: {port}\n"
        );
        format!("{own}---\n{stranger}{upstreams}")
    });
    let mut joined = hosts.join().spawn().unwrap();
    hosts.await_answer(ROUND);
    eventually("both run", || workloads(&hosts.edge).len() == 2);
    let ask = || {
        let get = || {
            Client::connect(([127, 0, 0, 1], port).into())
                .get("/")
                .status()
        };
        hosts.yard.sidecar(Host::Client, get)
    };
    eventually("the stranger is refused", || ask() == 403);

    // The controller is gone, and then the line: nothing answers any more. Of a line alone the host would hear in 40 s.
    let (centre, controller) = hosts.centre.supervisor_and_controller();
    signal(centre, Signal::STOP);
    signal(controller, Signal::KILL);
    eventually("the host notices", || {
        hosts.edge.status()["controller"]["away"] == true
    });
    hosts.yard.cut();
    eventually("the host counts by itself", || {
        !kept(&hosts.edge).is_empty()
    });
    let before = sum(&kept(&hosts.edge), "denied");
    for _ in 0..7 {
        assert_eq!(ask(), 403, "policy holds without a controller");
    }
    eventually("it has written them down", || {
        sum(&kept(&hosts.edge), "denied") == before + 7
    });

    // A crash of the host loses nothing of it.
    kill_host(&hosts.edge, &mut joined);
    let written = kept(&hosts.edge);
    let expected = ["requests", "denied"].map(|key| sum(&written, key));
    assert!(expected[1] >= 7, "{written:?}");

    hosts.yard.mend();
    signal(centre, Signal::CONT);
    eventually("the controller is back", || {
        hosts.centre.status()["controller"]["ready"] == true
    });
    let mut again = hosts.join();
    again.env_remove("TULLE_TOKEN");
    let mut joined = again.spawn().unwrap();
    let away = || hosts.centre.status()["away"].as_array().unwrap().clone();
    let mut told = Vec::new();
    eventually("the centre has been told", || {
        told = away();
        told.iter().any(|a| a["partly"] == false)
    });
    assert_eq!(told.len(), 1, "{told:#?}");
    let of = |key: &str| told[0][key].as_u64().unwrap();
    assert_eq!([of("requests"), of("denied")], expected, "{told:#?}");
    assert_eq!(
        (
            told[0]["host"].as_str(),
            told[0]["reasons"]["denied"].as_u64()
        ),
        (Some("edge"), Some(expected[1]))
    );
    let table = hosts.centre.tulle(&["status"]).out;
    let line = format!("{} denied (denied stranger -> reviews)", expected[1]);
    assert!(
        table.contains("while edge was away, from ") && table.contains(&line),
        "{table}"
    );

    // The file goes once it is told, and comes no second time.
    eventually("the file is gone", || kept(&hosts.edge).is_empty());
    hosts.await_answer(ROUND);
    kill_host(&hosts.edge, &mut joined);
    let mut again = hosts.join();
    again.env_remove("TULLE_TOKEN");
    let mut joined = again.spawn().unwrap();
    hosts.await_answer(ROUND);
    pause("a look at the counters", Duration::from_secs(1));
    assert_eq!(away(), told);
    assert_eq!(terminate(&mut joined), 0);
}
