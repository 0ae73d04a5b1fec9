//! Counts of two real proxies reach who observes the mesh: rates, a refusal with what helps, answers, requests as they
//! end, and a proxy that dies.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{config, placement, start_as, target, workload};
use serde_json::json;
use std::env;
use std::fs;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tulle_api::v1;
use tulle_control::ControllerConfig;
use tulle_control::observe::{Observer, Question, TapEvent, TapFilter, WhyQuery};
use tulle_proxy::control::file::Source;

/// Names the configuration of the proxy that this process is.
const PROXY: &str = "TULLE_TEST_PROXY";
const LONG: Duration = Duration::from_secs(60);
const REQUESTS: u32 = 20;
const REFUSED: u32 = 5;

/// Not a test, but the proxy that the test below starts.
#[test]
#[ignore = "another test starts it, as a process"]
fn a_proxy_of_its_own_process() {
    if let Ok(config) = env::var(PROXY) {
        tulle_proxy::run::run(&Source::File(PathBuf::from(config))).unwrap();
    }
}

struct Proxy {
    child: Child,
    admin: SocketAddr,
    listener: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free() -> SocketAddr {
    let bound = StdListener::bind("127.0.0.1:0").unwrap();
    bound.local_addr().unwrap()
}

/// Starts a sidecar; `listener` is what its listener is, without its address.
async fn proxy(
    mesh: &mut common::Mesh,
    directory: &Path,
    name: &str,
    mut listener: serde_json::Value,
) -> Proxy {
    let token = directory.join(format!("{name}.token"));
    fs::write(&token, mesh.token(&format!("svc/{name}")).await).unwrap();
    let (admin, address) = (free(), free());
    listener["address"] = json!(address.to_string());
    let config = json!({
        "identity": format!("spiffe://tulle.local/svc/{name}"),
        "workers": 1,
        "admin": admin.to_string(),
        "metrics": free().to_string(),
        "control": {
            "address": mesh.running.local_addr().to_string(),
            "caFingerprint": mesh.running.ca_fingerprint(),
            "joinTokenFile": token,
        },
        "listeners": [listener],
    });
    let file = directory.join(format!("{name}.yaml"));
    fs::write(&file, config.to_string()).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_proxy_of_its_own_process"])
        .args(["--include-ignored", "--nocapture"])
        .env(PROXY, file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Proxy {
        child: child.unwrap(),
        admin,
        listener: address,
    }
}

/// Waits until something is there.
async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LONG, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends a request and returns the status of the answer.
async fn get(address: SocketAddr, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    let text = String::from_utf8_lossy(&answer);
    text.split(' ').nth(1)?.parse().ok()
}

async fn ready(proxy: &Proxy) {
    let begin = Instant::now();
    while get(proxy.admin, "/ready").await != Some(200) {
        assert!(begin.elapsed() < LONG, "a proxy is not ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An application that answers every request with 200, but one.
async fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut bytes) = (vec![0; 4096], Vec::new());
                while let Ok(count @ 1..) = stream.read(&mut read).await {
                    bytes.extend_from_slice(&read[..count]);
                    while let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
                        let status = match bytes.starts_with(b"GET /broken") {
                            true => "500 Broken",
                            false => "200 OK",
                        };
                        bytes.drain(..end + 4);
                        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nhi");
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}

fn deny(path: &str) -> serde_json::Value {
    json!({
        "apiVersion": "tulle.dev/v1alpha1",
        "kind": "AuthorizationPolicy",
        "metadata": { "name": "secret" },
        "spec": {
            "targetRefs": [{ "kind": "Service", "name": "b" }],
            "action": "Deny",
            "rules": [{ "to": { "paths": [{ "type": "Exact", "value": path }] }, "ignoreCase": false }],
        },
    })
}

fn unix() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

fn why(from: &str, path: &str, at: Option<f64>) -> WhyQuery {
    WhyQuery {
        from: from.into(),
        to: "b".into(),
        path: path.into(),
        at,
        ..WhyQuery::default()
    }
}

/// The edge between the two, as soon as all requests are in it.
async fn whole_edge(observer: &Observer) -> tulle_control::observe::Edge {
    eventually("all requests are counted", || {
        let graph = observer.graph(None, 60);
        let edge = graph
            .edges
            .into_iter()
            .find(|e| e.id == "service/a>service/b")?;
        let counted = (edge.rate * 60.0).round() as u32;
        let denied = (edge.denied * 60.0).round() as u32;
        (counted == REQUESTS + REFUSED + 1 && denied == REFUSED).then_some(edge)
    })
    .await
}

/// The sidecars of `a` and `b`: the first calls the second, behind which an application answers.
async fn pair(mesh: &mut common::Mesh, directory: &Path) -> (Proxy, Proxy) {
    let inbound = json!({ "kind": "inboundPort", "port": 9002 });
    let outbound = json!({ "kind": "upstream", "service": "b", "port": 9002 });
    let b = proxy(mesh, directory, "b", inbound).await;
    let mut placed = placement("b", 9002, b.listener.port());
    placed.ports[0].target = application().await.to_string();
    mesh.report(placed).await;
    let a = proxy(mesh, directory, "a", outbound).await;
    ready(&a).await;
    ready(&b).await;
    (a, b)
}

async fn both_report(observer: &Observer) {
    eventually("both report", || {
        (observer.graph(None, 60).coverage.reporting == 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_a_caller_passes_over_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start_as(ControllerConfig {
        observe: true,
        ..config(directory.path())
    })
    .await;
    let observer = mesh.running.observer().unwrap();
    let checked = json!({
        "apiVersion": "tulle.dev/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": { "name": "checked" },
        "spec": {
            "targetRefs": [{ "kind": "Service", "name": "b" }],
            "healthCheck": { "path": "/broken", "interval": "1s", "unhealthyThreshold": 1 },
        },
    });
    let objects = [
        workload("a", 9001),
        workload("b", 9002),
        target("t", "a", "b"),
        checked,
    ];
    mesh.apply(&objects).await;
    let (a, _b) = pair(&mut mesh, directory.path()).await;
    both_report(&observer).await;
    let endpoint = || observer.service("service/b").unwrap().endpoints.remove(0);
    assert_eq!((endpoint().ready, endpoint().left_out_by), (true, 0));
    let begin = Instant::now();
    while endpoint().left_out_by != 1 {
        assert!(begin.elapsed() < LONG, "{:?}", endpoint());
        get(a.listener, "/ok").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(endpoint().ready, "the controller calls it ready");
    drop(a);
    eventually("its caller is gone", || {
        (endpoint().left_out_by == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_proxies_count_reaches_who_observes() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start_as(ControllerConfig {
        observe: true,
        ..config(directory.path())
    })
    .await;
    let observer = mesh.running.observer().unwrap();
    let mut changes = observer.changes();
    let applied = [
        workload("a", 9001),
        workload("b", 9002),
        target("t", "a", "b"),
        deny("/secret"),
    ];
    mesh.apply(&applied).await;
    let (a, mut b) = pair(&mut mesh, directory.path()).await;
    both_report(&observer).await;
    // The first report tells what it begins with.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut tap = observer.tap(TapFilter {
        destination: "b".into(),
        path: "/secret".into(),
        ..TapFilter::default()
    });
    let tap = tap.as_mut().unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;

    for _ in 0..REQUESTS {
        assert_eq!(get(a.listener, "/ok?x=1").await, Some(200));
    }
    for _ in 0..REFUSED {
        assert_eq!(get(a.listener, "/secret?password=1").await, Some(403));
    }
    assert_eq!(get(a.listener, "/broken?x=1").await, Some(500));

    let edge = whole_edge(&observer).await;
    assert_eq!((edge.protocol, edge.mtls), ("http", "all"));
    let success = edge.success.unwrap();
    assert!((success - 20.0 / 26.0).abs() < 0.01, "{edge:?}");
    assert!(edge.p99.unwrap() > 0.0);
    assert_eq!(edge.reasons[0].code, "denied");
    let delta = eventually("a delta tells of it", || {
        let delta = changes.borrow_and_update().clone();
        (delta.edges.iter().any(|e| e.id == edge.id)).then_some(delta)
    })
    .await;
    assert!(!delta.whole && delta.revision > 0);
    let whole = observer.whole();
    assert!(
        whole.whole
            && whole
                .nodes
                .iter()
                .any(|n| n.id == "service/b" && n.proxies == 1)
    );

    let page = observer.edge(&edge.id, 900).unwrap();
    let denied = page.errors.iter().find(|e| e.reason == "denied").unwrap();
    assert_eq!((denied.path.as_str(), denied.status), ("/secret", 403));
    assert_eq!(
        (denied.method.as_str(), denied.count),
        ("GET", REFUSED.into())
    );
    assert!(
        denied.cause.contains("AuthorizationPolicy/secret"),
        "{denied:?}"
    );
    assert!(denied.fix.contains("tulle why"), "{denied:?}");
    let broken = page.errors.iter().find(|e| e.status == 500).unwrap();
    assert_eq!(
        (broken.path.as_str(), broken.reason.as_str()),
        ("/broken", "-")
    );
    assert!(page.why.unwrap().allowed);
    let counted: f64 = page
        .series
        .rate
        .iter()
        .map(|rate| rate * f64::from(page.series.step))
        .sum();
    assert!(counted > 20.0, "{:?}", page.series);

    let proxies = observer.proxies();
    let of_b = proxies.iter().find(|p| p.name == "b").unwrap();
    assert!(of_b.reporting && of_b.memory.unwrap() > 0, "{of_b:?}");
    let shown = observer.ask(&of_b.id, Question::Config).await.unwrap();
    assert_eq!(shown["config"]["identity"], "spiffe://tulle.local/svc/b");
    let of_a = proxies.iter().find(|p| p.name == "a").unwrap();
    let shown = observer.ask(&of_a.id, Question::Endpoints).await.unwrap();
    assert_eq!(shown["services"][0]["endpoints"][0]["healthy"], true);
    let odd = Question::SetLogLevel {
        level: "loud".into(),
        seconds: 1,
    };
    assert_eq!(
        observer.ask(&of_a.id, odd).await.unwrap_err().code,
        "proxy_refused"
    );

    let mut lines = 0;
    while let Ok(Some(TapEvent::Line(line))) =
        tokio::time::timeout(Duration::from_millis(500), tap.recv()).await
    {
        assert!(
            line["path"].as_str().unwrap().starts_with("/secret"),
            "{line:?}"
        );
        lines += 1;
    }
    assert!(lines >= REFUSED, "{lines}");

    // A policy that would cut who calls now is told of before it is applied, and what was allowed is known afterwards.
    let dry = v1::ApplyRequest {
        objects: vec![v1::Object {
            kind: "TrafficTarget".into(),
            name: "t".into(),
            json: target("t", "b", "b").to_string(),
        }],
        dry_run: true,
        ..Default::default()
    };
    let judged = mesh.objects.apply(dry).await.unwrap().into_inner();
    let found = judged.findings.iter().find(|f| f.code == "TL0051");
    let found = found.unwrap_or_else(|| panic!("{judged:?}"));
    assert_eq!(found.object, "service/b");
    assert!(found.message.contains("a (26 requests)"), "{found:?}");
    let asked = mesh.objects.observed(v1::ObservedRequest { seconds: 900 });
    let observed = asked.await.unwrap().into_inner().edges;
    let known = observed
        .iter()
        .find(|e| (e.from.as_str(), e.to.as_str()) == ("a", "b"));
    let known = known.map(|e| (e.requests, e.denied));
    assert_eq!(known, Some((26, REFUSED.into())), "{observed:?}");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let then = unix();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    mesh.apply(&[target("t", "b", "b")]).await;
    assert!(!observer.why(why("a", "/ok", None)).unwrap().allowed);
    assert!(observer.why(why("a", "/ok", Some(then))).unwrap().allowed);
    assert_eq!(
        observer
            .why(why("a", "/ok", Some(then - 5000.0)))
            .unwrap_err()
            .code,
        "beyond_history"
    );

    b.child.kill().unwrap();
    let marks = eventually("the proxy is missed", || {
        let marks = observer.marks(0.0, f64::MAX);
        let gone = marks
            .iter()
            .any(|m| (m.kind, m.verb, m.what.as_str()) == ("proxy", "gone", "b"));
        gone.then_some(marks)
    })
    .await;
    let told = |verb: &str, what: &str| {
        marks
            .iter()
            .any(|m| (m.verb, m.what.as_str()) == (verb, what))
    };
    assert!(
        told("created", "TrafficTarget t") && told("changed", "TrafficTarget t"),
        "{marks:?}"
    );
    assert!(told("connected", "a"), "{marks:?}");
    mesh.running.shutdown().await;
}

#[tokio::test]
async fn a_controller_that_observes_nothing_has_no_reports() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = common::start(directory.path()).await;
    assert!(mesh.running.observer().is_none());
    mesh.apply(&[workload("a", 80)]).await;
    let identity = mesh.join("svc/a").await;
    let mut stream = mesh.stream(&identity).await;
    stream.subscribe(&["mesh"]).await;
    assert_eq!(stream.accept().await.report_seconds, 0);
    let channel = mesh.dial(Some(&identity)).await;
    let mut client = v1::telemetry_client::TelemetryClient::new(channel);
    let refused = client.report(tokio_stream::empty()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
}
