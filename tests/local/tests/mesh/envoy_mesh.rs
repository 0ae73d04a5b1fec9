//! A mesh whose sidecars are Envoy: real Envoys, a real controller, the demo's manifests.

use crate::demo::EDGES;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tests_local::{
    Client, Demo, Load, RATING, Server, TLS13, TlsClient, can_redirect, envoy_binary, eventually,
    holds_within, id, read_demo, signal,
};
use tulle_tls::testing::TestCa;

const SIDECARS: [&str; 5] = ["details", "gateway", "productpage", "ratings", "reviews"];

fn direct() -> String {
    format!("/ratings/{RATING}")
}

fn by_gateway() -> String {
    format!("/bookinfo-ratings/ratings/{RATING}")
}

fn up(demo: &Demo) {
    let envoy = envoy_binary();
    demo.up_with(&["--data-plane", "envoy", "--envoy", envoy.to_str().unwrap()]);
}

/// Starts the demo in network namespaces.
fn start(change: impl FnOnce(String) -> String) -> Demo {
    let demo = Demo::prepare(false, change);
    up(&demo);
    demo
}

/// Returns the certificate that the Envoy of ratings presents to others.
fn presented(demo: &Demo) -> Vec<u8> {
    let ratings = (demo.address("ratings", false, false), 8101).into();
    demo.inside("details", false, || {
        let tls = TlsClient::connect(ratings, None, TLS13, &["http/1.1"]).unwrap();
        tls.peer_certificates()[0].to_vec()
    })
}

fn every_path_answers(demo: &Demo) {
    for target in [&direct(), &by_gateway(), "/productpage"] {
        let answer = demo.get(target);
        assert_eq!(answer.status(), 200, "{target}: {}", answer.head);
    }
    assert!(demo.get("/productpage").text().contains("5 of 5 stars"));
}

/// Process ids of all Envoys that a mesh runs.
fn envoys(demo: &Demo) -> Vec<i32> {
    let below = format!("{}/proxies/", run_directory(demo));
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|p| p.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("--disable-hot-restart") && line.contains(&below)
    })
    .collect()
}

fn run_directory(demo: &Demo) -> String {
    let status = demo.status();
    status["mesh"]["run_directory"].as_str().unwrap().to_owned()
}

fn alive(pids: &[i32]) -> Vec<i32> {
    let state = |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let lives = |pid: &i32| state(*pid).is_some_and(|s| !s.contains(") Z "));
    pids.iter().copied().filter(lives).collect()
}

#[test]
fn the_demo_runs_on_loopback() {
    let demo = Demo::prepare(true, |text| text);
    up(&demo);
    every_path_answers(&demo);
    assert_eq!(demo.status()["mesh"]["data_plane"], "envoy");
    let down = demo.tulle(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    demo.await_nothing_left();
}

/// Runs as an ordinary user, who could not read root's files.
#[test]
fn the_demo_runs_without_privileges() {
    let demo = Demo::prepare_without_privileges(|text| text);
    up(&demo);
    every_path_answers(&demo);
    let supervisor = demo.supervisor_and_controller().0;
    let pids = envoys(&demo);
    assert_eq!(pids.len(), SIDECARS.len());
    signal(supervisor, Signal::KILL);
    eventually("no Envoy is left", || alive(&pids).is_empty());
    demo.await_nothing_left();
}

#[test]
fn every_hop_is_mutual_tls_and_the_gateway_is_tulles_own() {
    if !can_redirect() {
        return;
    }
    let demo = start(|text| text);
    every_path_answers(&demo);
    for (from, to) in EDGES {
        let edge = demo.await_edge(from, to);
        assert_eq!(edge["security"], "mutual_tls", "{edge:#}");
        assert_eq!(edge["success_rate"], 1.0, "{edge:#}");
    }
    assert_eq!(envoys(&demo).len(), SIDECARS.len());
    let check = demo.tulle(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");

    // Durations come at Envoy's next look at its histograms.
    eventually("durations are known", || {
        demo.await_edge("gateway", "ratings")["p50_ms"].is_f64()
    });
    // The key is in no file of the sidecar.
    let directory = format!("{}/proxies/ratings", run_directory(&demo));
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        assert!(!text.contains("PRIVATE KEY"), "{}", entry.path().display());
    }

    // Neither plaintext, nor a stranger's certificate for the right name, nor nobody's.
    let ratings = (demo.address("ratings", false, false), 8101).into();
    let stranger = TestCa::new("a stranger");
    let certificate = stranger.issue(&id("gateway"));
    demo.inside("details", false, || {
        let mut plain = Client::connect(ratings);
        plain.send("GET /health HTTP/1.1\r\nHost: ratings\r\n\r\n");
        assert!(plain.try_response("GET").is_err());
        for certificate in [None, Some(&certificate)] {
            let tls = TlsClient::connect(ratings, certificate, TLS13, &["http/1.1"]);
            assert!(tls.and_then(|mut t| t.get("/health")).is_err());
        }
    });
    // A workload of the mesh that the policy does not name.
    let service = (demo.address("ratings", true, false), 8101).into();
    let denied = demo.inside("details", true, || Client::connect(service).get("/health"));
    assert_eq!(denied.status(), 403, "{}", denied.head);
    // A port that the service does not have.
    let none = (demo.address("ratings", true, false), 8999).into();
    assert!(demo.inside("details", true, || Client::is_cut(none, "")));
}

/// Statuses of so many requests on one connection.
fn statuses(demo: &Demo, target: &str, count: usize) -> BTreeSet<u16> {
    let mut client = Client::connect(demo.ingress);
    (0..count).map(|_| client.get(target).status()).collect()
}

#[test]
fn changes_take_effect_live_and_what_cannot_be_translated_is_said() {
    if !can_redirect() {
        return;
    }
    let demo = start(|text| text);
    let load = Load::gets(demo.ingress, 3, &[&direct(), "/productpage"]);
    let pids = envoys(&demo);

    // A policy.
    let deny = read_demo("deny-ratings.yaml");
    let allow = format!("{deny}    - kind: ServiceAccount\n      name: gateway\n");
    let status = || demo.get(&by_gateway()).status();
    demo.apply(&demo.write("deny.yaml", &deny));
    eventually("gateway is refused", || status() == 403);
    demo.apply(&demo.write("allow.yaml", &allow));
    eventually("gateway may again", || status() == 200);

    // A split between services: details knows no ratings.
    let split = |ratings: u32, details: u32| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata:\n  name: split\n\
             spec:\n  parentRefs:\n    - kind: Service\n      group: \"\"\n      name: ratings\n  rules:\n\
             \x20   - matches:\n        - headers:\n            - name: x-split\n              value: \"1\"\n\
             \x20     backendRefs:\n        - name: ratings\n          port: 8101\n          weight: {ratings}\n\
             \x20       - name: details\n          port: 8103\n          weight: {details}\n\
             \x20   - backendRefs:\n        - name: ratings\n          port: 8101\n"
        )
    };
    let service = (demo.address("ratings", true, false), 8101).into();
    let answers = || {
        demo.inside("gateway", true, || {
            let mut client = Client::connect(service);
            let mut ask = || {
                client.send(format!(
                    "GET {} HTTP/1.1\r\nHost: ratings\r\nx-split: 1\r\n\r\n",
                    direct()
                ));
                client.response("GET").status()
            };
            (0..60).map(|_| ask()).collect::<BTreeSet<u16>>()
        })
    };
    demo.apply(&demo.write("split.yaml", &split(1, 1)));
    eventually("both get a share", || answers() == [200, 404].into());
    demo.apply(&demo.write("split.yaml", &split(0, 1)));
    eventually("one gets all", || answers() == [404].into());
    let deleted = demo.tulle(&["delete", "httproute", "split"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    eventually("the other gets all", || answers() == [200].into());

    // Plaintext from outside, while the Mesh allows it. Then anyone may call: it has no identity.
    let plain = || {
        let ratings = (demo.address("ratings", false, false), 8101).into();
        demo.inside("details", false, || {
            let mut client = Client::connect(ratings);
            client.send("GET /health HTTP/1.1\r\nHost: ratings\r\n\r\n");
            client.try_response("GET").map(|m| m.status()).ok()
        })
    };
    let mesh = |mode: &str, open: bool| {
        format!(
            "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata:\n  name: bookinfo\nspec:\n  \
             permissiveMode: {open}\n  mtls:\n    mode: {mode}\n"
        )
    };
    assert_eq!(plain(), None);
    demo.apply(&demo.write("mesh.yaml", &mesh("permissive", false)));
    eventually("plaintext is seen, and denied", || plain() == Some(403));
    demo.apply(&demo.write("mesh.yaml", &mesh("permissive", true)));
    eventually("plaintext is taken", || plain() == Some(200));
    demo.apply(&demo.write("mesh.yaml", &mesh("strict", false)));
    eventually("plaintext is refused", || plain().is_none());

    // Envoy cannot do this: it is reported, and the last good configuration stays.
    let odd = "apiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\nmetadata:\n  name: odd\n\
         spec:\n  matches:\n    - name: odd\n      pathRegex: '/[a-z&&[^b]]+'\n      methods: ['*']\n---\n";
    let rules = "  rules:\n    - kind: HTTPRouteGroup\n      name: odd\n      matches: [odd]\n";
    let odd = format!(
        "{odd}{}{rules}",
        allow.replace("name: ratings\nspec", "name: odd\nspec")
    );
    demo.apply(&demo.write("odd.yaml", &odd));
    let mut said = String::new();
    eventually("status says why", || {
        said = demo.proxy("ratings")["last_nack"].to_string();
        said.contains("TrafficTarget/odd")
    });
    assert!(
        said.contains("pathRegex") && said.contains("no intersection"),
        "{said}"
    );
    assert_eq!(demo.tulle(&["check"]).code, 79);
    let deleted = demo.tulle(&[
        "delete",
        "-f",
        demo.path().join("odd.yaml").to_str().unwrap(),
    ]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    eventually("it is accepted again", || {
        demo.proxy("ratings")["last_nack"].is_null()
    });
    demo.apply(&demo.write("deny.yaml", &deny));
    eventually("changes take effect again", || status() == 403);

    load.assert_no_failure();
    assert_eq!(envoys(&demo), pids, "none was restarted");
    assert_eq!(statuses(&demo, &direct(), 5), [200].into());
}

/// Ports that say nothing of their protocol, and addresses outside the mesh.
#[test]
fn protocols_are_detected_and_egress_is_as_the_mesh_says() {
    if !can_redirect() {
        return;
    }
    let demo = start(|text| text.replace("      appProtocol: http\n", ""));
    every_path_answers(&demo);
    let edge = demo.await_edge("gateway", "ratings");
    assert_eq!(edge["requests"], 1, "seen as HTTP: {edge:#}");

    // Bytes that are not HTTP reach the application, which says what it thinks of them.
    let service = (demo.address("details", true, false), 8103).into();
    let answer = demo.inside("gateway", true, || {
        let mut client = Client::connect(service);
        client.send(b"\x00\x01 not http\r\n\r\n");
        client.read_to_end().unwrap_or_default()
    });
    assert!(
        answer.starts_with(b"HTTP/1.1 400"),
        "{}",
        String::from_utf8_lossy(&answer)
    );

    let outside = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), |mut connection| {
        let _ = connection.try_send(b"hello");
    });
    let status = demo.status();
    let host: SocketAddr = status["controller"]["address"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let hears = |address: SocketAddr| {
        demo.inside("details", true, || {
            // A refused client may be cut while it still connects.
            let said = Client::try_connect(address).and_then(|mut client| client.read_to_end());
            said.unwrap_or_default()
        })
    };
    let beyond = SocketAddr::new(host.ip(), outside.address().port());
    assert_eq!(hears(beyond), b"");
    let mesh = "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata:\n  name: bookinfo\nspec:\n  \
         allowEgress: true\n";
    demo.apply(&demo.write("mesh.yaml", mesh));
    eventually("the outside is reached", || hears(beyond) == b"hello");
    // A port that a service does not have is not the outside, and the mesh is as before.
    assert_eq!(
        hears((demo.address("ratings", true, false), beyond.port()).into()),
        b""
    );
    assert_eq!(
        hears((demo.address("ratings", true, false), 8103).into()),
        b""
    );
    every_path_answers(&demo);
}

#[test]
fn a_certificate_is_renewed_without_a_failed_request() {
    if !can_redirect() {
        return;
    }
    let demo = start(|text| {
        let from = "  permissiveMode: false\n";
        assert!(text.contains(from));
        text.replace(from, &format!("{from}  certificates:\n    lifetime: 10s\n"))
    });
    let pids = envoys(&demo);
    let load = Load::gets(demo.ingress, 4, &[&direct(), &by_gateway(), "/productpage"]);
    let mut seen = BTreeSet::new();
    let limit = Duration::from_secs(120);
    let renewed = holds_within(limit, "four certificates are presented", || {
        seen.insert(presented(&demo));
        seen.len() == 4
    });
    assert!(renewed, "only {} certificates", seen.len());
    let done = load.assert_no_failure();
    assert!(done > 100, "that was no load: {done} requests");
    assert_eq!(envoys(&demo), pids, "none was restarted");
}

#[test]
fn a_shortened_lifetime_holds_at_once() {
    if !can_redirect() {
        return;
    }
    let demo = start(|text| text);
    let pids = envoys(&demo);
    let load = Load::gets(demo.ingress, 4, &[&direct(), &by_gateway()]);
    let left = |proxy: &str| {
        let told = demo.admin(proxy, "/certificates").text();
        let told: Value = serde_json::from_str(&told).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        told["not_after"].as_i64().unwrap() - now.as_secs().cast_signed()
    };
    for proxy in SIDECARS {
        assert!(left(proxy) > 23 * 3600, "{proxy}");
    }
    let before = presented(&demo);
    let mesh = "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {name: bookinfo}\n\
         spec: {certificates: {lifetime: 1h}}\n";
    demo.apply(&demo.write("hour.yaml", mesh));
    eventually("every Envoy presents a certificate of an hour", || {
        SIDECARS.iter().all(|proxy| left(proxy) <= 3600) && presented(&demo) != before
    });
    load.assert_no_failure();
    assert_eq!(envoys(&demo), pids, "none was restarted");
}

#[test]
fn kills_leave_no_envoy_behind() {
    if !can_redirect() {
        return;
    }
    let demo = start(|text| text);
    every_path_answers(&demo);
    let works = || {
        let client = Client::try_connect(demo.ingress);
        client.is_ok_and(|mut c| c.get(&by_gateway()).status() == 200)
    };
    // The agent of one: its Envoy goes with it, and both come back, even without a controller.
    let before = envoys(&demo);
    let (_, controller) = demo.supervisor_and_controller();
    signal(controller, Signal::STOP);
    signal(demo.sidecar("ratings"), Signal::KILL);
    eventually("its Envoy is gone", || {
        alive(&before).len() == before.len() - 1
    });
    eventually("it is back", || {
        envoys(&demo).len() == before.len() && works()
    });
    signal(controller, Signal::CONT);
    // An Envoy: its agent ends, and both come back.
    let envoy = envoys(&demo)[0];
    signal(envoy, Signal::KILL);
    eventually("it is back", || {
        let now = envoys(&demo);
        now.len() == before.len() && !now.contains(&envoy) && works()
    });
    // The supervisor.
    let pids = envoys(&demo);
    signal(demo.supervisor_and_controller().0, Signal::KILL);
    eventually("no Envoy is left", || alive(&pids).is_empty());
    demo.await_nothing_left();
}

/// A host with Tulle's sidecars, and one that joins it with Envoy's: requests go both ways.
#[test]
fn a_host_with_envoy_joins_one_with_tulle() {
    let is_elsewhere = |document: &str| {
        ["ratings", "gateway"]
            .iter()
            .any(|name| document.contains(&format!("kind: Workload\nmetadata:\n  name: {name}\n")))
    };
    let only = |text: &str, elsewhere: bool| {
        let documents = text.split("---\n");
        let kept: Vec<_> = documents.filter(|d| is_elsewhere(d) == elsewhere).collect();
        kept.join("---\n")
    };
    let one = Demo::prepare_without_privileges(|text| only(&text, false));
    one.up();
    let two = Demo::prepare_without_privileges(|text| only(&text, true));
    let token = one.tulle(&["token", "create", "node/edge", "-o", "json"]);
    let token: Value = serde_json::from_str(&token.out).unwrap();
    let text = |field: &str| token[field].as_str().unwrap();
    let join = |data_plane: &str| {
        let mut command = two.command();
        command
            .args(["join", "--controller", text("controller")])
            .args(["--ca-fingerprint", text("ca_fingerprint")])
            .args(["--data-plane", data_plane])
            .arg("--envoy")
            .arg(envoy_binary())
            .arg(&two.manifest)
            .env("TULLE_TOKEN", text("token"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    };
    assert_eq!(join("none").status().unwrap().code(), Some(64));
    let mut joined = join("envoy").spawn().unwrap();
    eventually("the other host's workloads answer", || {
        let status = two.tulle(&["status", "-o", "json"]).out;
        status.contains(r#""phase": "running""#)
    });
    assert_eq!(envoys(&two).len(), 2);
    // gateway is there and asks reviews, which is here and asks ratings, which is there.
    let reviews = "/bookinfo-reviews/reviews/a071c269-369c-4f79-be03-6a41f27d6b5f";
    for path in [&direct(), &by_gateway(), "/productpage", reviews] {
        one.await_answer(path);
    }
    for (host, from, to) in [
        (&one, "ingress", "ratings"),
        (&one, "reviews", "ratings"),
        (&one, "gateway", "reviews"),
        (&two, "gateway", "ratings"),
    ] {
        let edge = host.await_edge(from, to);
        assert_eq!(edge["security"], "mutual_tls", "{edge:#}");
    }
    let pid = i32::try_from(joined.id()).unwrap();
    signal(pid, Signal::TERM);
    assert_eq!(joined.wait().unwrap().code(), Some(0));
    assert_eq!(two.left(), Vec::<String>::new());
}

#[test]
fn without_an_envoy_up_says_what_to_do() {
    let demo = Demo::prepare(true, |text| text);
    let manifest = demo.manifest.to_str().unwrap();
    let args = [
        "up",
        "--detach",
        "--loopback",
        "--data-plane",
        "envoy",
        manifest,
    ];
    let up = demo.tulle(&[&args[..], &["--envoy", "/nowhere/envoy"]].concat());
    assert_eq!(up.code, 1, "{up:?}");
    assert!(
        up.err.contains("/nowhere/envoy") && up.err.contains("TULLE_ENVOY"),
        "{up:?}"
    );
    let status: Value = demo.tulle(&["status"]).code.into();
    assert_eq!(status, 1);
}

#[test]
fn the_agent_says_what_is_wrong_with_its_arguments_and_its_file() {
    let demo = Demo::prepare(true, |text| text);
    let file = demo.write("alone.json", "{\"name\": \"alone\"}");
    let file = file.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--config", file], 64, "--envoy PROGRAM is missing"),
        (&["--config", file, "--envoi", "x"], 64, "--envoi"),
        (
            &["--config", "/nowhere/x.json", "--envoy", "/bin/true"],
            65,
            "/nowhere/x.json",
        ),
        (
            &["--config", file, "--envoy", "/bin/true"],
            65,
            "alone.json",
        ),
    ];
    for (arguments, code, said) in cases {
        let ran = std::process::Command::new(tests_local::program("tulle-envoy"))
            .args(arguments)
            .output()
            .unwrap();
        let err = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(code), "{arguments:?}: {err}");
        assert!(
            err.starts_with("tulle-envoy: ") && err.contains(said),
            "{arguments:?}: {err}"
        );
    }
    // As a supervisor of the version before starts it.
    let before = demo.tulle(&["envoy-agent", "--config", file]);
    assert_eq!(before.code, 64, "{before:?}");
    assert!(
        before.err.starts_with("tulle-envoy: --envoy PROGRAM"),
        "{before:?}"
    );
}
