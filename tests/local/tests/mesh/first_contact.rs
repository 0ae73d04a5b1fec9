//! Services that are called for the first time while the controller is away.

use rustix::process::Signal;
use serde_json::Value;
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tests_local::{Client, Demo, Message, RATING, can_redirect, eventually, holds_within, signal};

/// A call that waits for the controller takes 5 s.
const AT_ONCE: Duration = Duration::from_secs(2);

const LATE: &str = "apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata: {name: late}
spec:
  workingDirectory: .
  command: [./bookinfo, ratings, --port, \"8109\"]
  ports: [{name: http, port: 8109, appProtocol: http}]
  readinessProbe: {httpGet: {path: /health, port: 8109}}
";

/// No controller runs until this is dropped: who would start another one is stopped.
struct Away(i32);

impl Away {
    fn begin(demo: &Demo) -> Self {
        let (supervisor, controller) = demo.supervisor_and_controller();
        signal(supervisor, Signal::STOP);
        let away = Self(supervisor);
        signal(controller, Signal::KILL);
        away
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// Asks from a workload, and says how long the answer took.
fn call(demo: &Demo, caller: &str, at: SocketAddr, path: &str) -> (Message, Duration) {
    demo.inside(caller, true, || {
        let began = Instant::now();
        let answer = Client::connect(at).get(path);
        (answer, began.elapsed())
    })
}

fn served_at_once(demo: &Demo, caller: &str, at: SocketAddr, path: &str) {
    let (answer, took) = call(demo, caller, at, path);
    assert_eq!(answer.status(), 200, "{caller} to {at}: {}", answer.head);
    assert!(took < AT_ONCE, "{caller} to {at}: {took:?}");
}

#[test]
fn services_never_called_before_are_reached_without_the_controller() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text.replace("permissiveMode: false", "permissiveMode: true"));
    // A service that comes later is pushed to those that may call it.
    demo.apply(&demo.write("late.yaml", LATE));
    eventually("late is ready", || {
        let status = demo.status();
        let services = status["services"].as_array().unwrap();
        let late = services.iter().find(|s| s["name"] == "late");
        late.is_some_and(|late| {
            let endpoints = late["endpoints"].as_array();
            endpoints.is_some_and(|e| !e.is_empty()) && demo.proxy("late")["ready"] == true
        })
    });
    // Readiness of its endpoint is pushed, too, and what has not come to a sidecar it cannot know.
    for caller in ["details", "reviews"] {
        eventually("the sidecars know its endpoint", || {
            let config: Value =
                serde_json::from_str(&demo.admin(caller, "/config").text()).unwrap();
            let endpoints = config["services"]["late"]["ports"][0]["endpoints"].as_array();
            endpoints.is_some_and(|e| !e.is_empty())
        });
    }
    let ratings = |v6| SocketAddr::new(demo.address("ratings", true, v6), 8101);
    let (ratings, ratings6) = (ratings(false), ratings(true));
    let late = SocketAddr::new(demo.address("late", true, false), 8109);
    let path = format!("/ratings/{RATING}");

    let away = Away::begin(&demo);
    served_at_once(&demo, "productpage", ratings, &path);
    served_at_once(&demo, "details", ratings6, &path);
    served_at_once(&demo, "details", late, "/health");
    // Nobody has this address (RFC 5737). Whose it is only the controller could say.
    let unknown = SocketAddr::from(([192, 0, 2, 1], 80));
    let (answer, took) = call(&demo, "productpage", unknown, "/");
    assert_eq!(answer.status(), 503, "{}", answer.head);
    assert_eq!(answer.header("x-tulle-reason"), "not_ready");
    let text = answer.text();
    assert!(
        text.contains("the controller is away") && text.contains("192.0.2.1"),
        "{text}"
    );
    assert!(took < AT_ONCE, "{took:?}");
    // A client that does not speak HTTP cannot be told the reason, and is not held up.
    let (is_reset, took) = demo.inside("productpage", true, || {
        let began = Instant::now();
        let is_reset = Client::is_reset(unknown, [0x10, 0x80, 0, 0]);
        (is_reset, began.elapsed())
    });
    assert!(is_reset && took < AT_ONCE, "{is_reset} {took:?}");

    drop(away);
    eventually("the controller is back, and the proxies with it", || {
        let controller = &demo.status()["controller"];
        controller["ready"] == true && controller["proxies_connected"] == 7
    });
    // Now somebody says that the address is nobody's.
    let (answer, _) = call(&demo, "productpage", unknown, "/");
    assert_eq!(answer.header("x-tulle-reason"), "no_service");

    // A sidecar that comes back without the controller knows what it knew, used or not.
    let (_, controller) = demo.supervisor_and_controller();
    signal(controller, Signal::STOP);
    let before = demo.sidecar("reviews");
    signal(before, Signal::KILL);
    eventually("the sidecar of reviews is back and ready", || {
        let proxy = demo.proxy("reviews");
        proxy["ready"] == true && proxy["pid"].as_i64() != Some(before.into())
    });
    served_at_once(&demo, "reviews", late, "/health");
    signal(controller, Signal::CONT);
}

/// Services in a mesh that is too large to be told to every sidecar.
const SERVICES: usize = 1000;

/// KiB that a process alone has in memory.
fn private_kib(pid: i32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let private = text
        .lines()
        .filter_map(|l| l.strip_prefix("Private_Dirty:"));
    let numbers = private.map(|l| l.trim().trim_end_matches(" kB").parse::<usize>().unwrap());
    numbers.sum()
}

#[test]
fn what_a_sidecar_knows_of_a_large_mesh_is_bounded() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let known = || -> usize {
        let config: Value = serde_json::from_str(&demo.admin("details", "/config").text()).unwrap();
        config["services"].as_object().unwrap().len()
    };
    let pid = demo.sidecar("details");
    assert_eq!(known(), 5);
    let before = private_kib(pid);
    // Another host would run them; they have as many ports that they are no small mesh.
    let mut many = String::new();
    for i in 0..SERVICES {
        write!(
            many,
            "---\napiVersion: tulle.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: s{i:03}, labels: {{tulle.dev/node: elsewhere}}}}\n\
             spec:\n  command: [/bin/true]\n  ports:\n"
        )
        .unwrap();
        for port in 8000..8012 {
            writeln!(many, "  - {{port: {port}, appProtocol: http}}").unwrap();
        }
    }
    demo.apply(&demo.write("many.yaml", &many));
    let mut last = 0;
    eventually("the sidecar has heard of it", || {
        let is_still = known() == last && last > 300;
        last = known();
        is_still
    });
    assert!(last < SERVICES * 3 / 4, "{last}");
    // 256 KiB of resources, as they came and compiled, once what it took to read them is given back.
    let mut grown = 0;
    let given_back = holds_within(Duration::from_secs(60), "memory is given back", || {
        grown = private_kib(pid).saturating_sub(before);
        grown < 3 * 1024
    });
    assert!(given_back, "{grown} KiB more");
    eprintln!("{last} of {SERVICES} services known, {grown} KiB more");
}
