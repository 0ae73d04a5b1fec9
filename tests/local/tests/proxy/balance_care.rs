//! Tests how a client's sidecar protects against bad servers and overload: breaker, outliers, health
//! checks, limits, timeouts of a port.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tests_local::{
    Client, Fleet, Gate, Http2Client, Message, Pair, Server, eventually, get, number, ok, pause,
    request,
};

fn fail(number: usize) -> Vec<u8> {
    format!("HTTP/1.1 500 Broken\r\nContent-Length: 1\r\n\r\n{number}").into_bytes()
}

/// An application that answers with its number; with 500 as long as the flag is set.
fn app(number: usize, broken: &Arc<AtomicBool>) -> Server {
    let broken = broken.clone();
    Server::http(move |_| match broken.load(Ordering::SeqCst) {
        true => fail(number),
        false => ok(number.to_string().as_bytes()),
    })
}

fn pair(app: SocketAddr, traffic: Value) -> Pair {
    Pair::with(app, |client, server| {
        (client.set("/services/0/ports/0/traffic", traffic), server)
    })
}

/// An application that keeps requests waiting until it is told, and counts them.
#[derive(Default)]
struct Busy {
    gate: Gate,
    waiting: AtomicUsize,
    most: AtomicUsize,
}

impl Busy {
    fn app(self: &Arc<Self>) -> Server {
        let busy = self.clone();
        Server::http(move |_| {
            let now = busy.waiting.fetch_add(1, Ordering::SeqCst) + 1;
            busy.most.fetch_max(now, Ordering::SeqCst);
            busy.gate.pass();
            busy.waiting.fetch_sub(1, Ordering::SeqCst);
            ok(b"0")
        })
    }
}

fn asks(address: SocketAddr) -> Client {
    let mut client = Client::connect(address);
    client.send(get("/"));
    client
}

fn refused(response: &Message, reason: &str) {
    assert_eq!(
        response.header("x-tulle-reason"),
        reason,
        "{}",
        response.text()
    );
}

#[test]
fn an_endpoint_that_fails_in_a_row_is_left_alone_and_comes_back() {
    let broken: Vec<_> = (0..3).map(|_| Arc::<AtomicBool>::default()).collect();
    let apps: Vec<_> = broken.iter().enumerate().map(|(i, b)| app(i, b)).collect();
    let addresses: Vec<_> = apps.iter().map(Server::address).collect();
    let outlier = json!({ "outlier": { "consecutive": 2, "baseMs": 4000, "maxPercent": 40 } });
    let fleet = Fleet::start(&addresses, outlier, |c| c);
    assert_eq!(fleet.spread(9, |_| get("/")), [3, 3, 3]);
    broken[1].store(true, Ordering::SeqCst);
    let mut client = fleet.connect();
    eventually("it is out", || {
        client.get("/");
        fleet.states()[1] == "ejected"
    });
    let seen = fleet.spread(10, |_| get("/"));
    assert_eq!(seen[1], 0, "{seen:?}");
    let ejected = ["tulle_endpoint_ejected_total", "tulle_endpoints_ejected"];
    for name in ejected {
        assert_eq!(
            fleet
                .client
                .metric(name, &["destination_service=\"ratings\""]),
            1.0
        );
    }
    // No more than 40 % of three.
    broken[0].store(true, Ordering::SeqCst);
    (0..12).for_each(|_| drop(client.get("/")));
    assert!(fleet.states()[0] != "ejected");
    broken.iter().for_each(|b| b.store(false, Ordering::SeqCst));
    eventually("it is asked again", || number(&client.get("/")) == 1);
}

#[test]
fn errors_open_the_circuit_and_one_probe_closes_it() {
    let broken = Arc::<AtomicBool>::default();
    let app = app(7, &broken);
    let breaker = json!({
        "name": "TrafficPolicy/ratings",
        "breaker": {
            "minRequests": 4, "errorPpm": 500_000, "openMs": 1500, "status": 599, "body": "later",
        },
    });
    let pair = pair(app.address(), breaker);
    let mut client = pair.connect();
    assert_eq!(client.get("/").status(), 200);
    broken.store(true, Ordering::SeqCst);
    let mut last = client.get("/");
    eventually("the circuit is open", || {
        last = client.get("/");
        last.status() == 599
    });
    refused(&last, "circuit_open");
    assert_eq!(last.text(), "later");
    assert_eq!(pair.client.metric("tulle_circuit_open", &[]), 1.0);
    let detail = pair.client.await_error("circuit_open")["detail"].to_string();
    assert!(detail.contains("TrafficPolicy/ratings"), "{detail}");
    // A probe that fails opens it again.
    eventually("it is opened again", || {
        let _ = client.get("/");
        pair.client.metric("tulle_circuit_opened_total", &[]) >= 2.0
    });
    let before = app.received_text().matches("GET /").count();
    broken.store(false, Ordering::SeqCst);
    eventually("it is closed", || client.get("/").status() == 200);
    assert_eq!(pair.client.metric("tulle_circuit_open", &[]), 0.0);
    let asked = app.received_text().matches("GET /").count() - before;
    assert!(asked <= 3, "{asked} requests to try whether it goes again");
    assert_eq!(client.get("/").status(), 200);
}

#[test]
fn slow_answers_open_the_circuit() {
    let app = Server::http(|_| {
        pause("a slow answer", Duration::from_millis(30));
        ok(b"0")
    });
    let breaker = json!({ "breaker": { "minRequests": 3, "slowMs": 20, "slowAmount": 3 } });
    let pair = pair(app.address(), breaker);
    let mut client = pair.connect();
    (0..3).for_each(|_| assert_eq!(client.get("/").status(), 200));
    eventually("the circuit is open", || client.get("/").status() == 503);
    let shown: Value = serde_json::from_str(&pair.client.admin("/endpoints").text()).unwrap();
    assert_eq!(shown[0]["breaker"], "open");
}

#[test]
fn requests_above_the_limit_wait_in_order_or_are_refused() {
    let busy = Arc::<Busy>::default();
    let app = busy.app();
    let limits = json!({ "limits": { "requests": 2, "pending": 1 } });
    let pair = Pair::with(app.address(), |client, server| {
        let client = client.set("/services/0/ports/0/traffic", limits);
        (client.set("/workers", 2), server)
    });
    let mut first: Vec<_> = (0..2).map(|_| asks(pair.address)).collect();
    eventually("two are there", || busy.waiting.load(Ordering::SeqCst) == 2);
    let mut waits = asks(pair.address);
    pair.client.await_metric("tulle_requests_pending", &[], 1.0);
    let refusal = asks(pair.address).response("GET");
    assert_eq!(refusal.status(), 503);
    refused(&refusal, "overload");
    busy.gate.open();
    for client in first.iter_mut().chain([&mut waits]) {
        assert_eq!(client.response("GET").status(), 200);
    }
    assert_eq!(busy.most.load(Ordering::SeqCst), 2);
    assert_eq!(pair.client.metric("tulle_requests_pending", &[]), 0.0);
    assert_eq!(pair.client.metric("tulle_requests_limited_total", &[]), 1.0);
}

#[test]
fn who_waits_longer_than_the_request_timeout_is_refused() {
    let busy = Arc::<Busy>::default();
    let app = busy.app();
    let limits = json!({ "limits": { "requests": 1, "pending": 5 }, "requestTimeoutMs": 2000 });
    let pair = pair(app.address(), limits);
    let mut first = asks(pair.address);
    eventually("it is there", || busy.waiting.load(Ordering::SeqCst) == 1);
    let mut second = asks(pair.address);
    let responses = [first.response("GET"), second.response("GET")];
    assert_eq!(responses[0].status(), 504, "the port's own timeout");
    // It got the first one's place, or waited for it too long.
    assert!(matches!(responses[1].status(), 503 | 504));
    busy.gate.open();
}

/// Tests that a request whose client leaves the queue makes room for others, and is never sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_while_waiting_gives_its_place_up() {
    let busy = Arc::<Busy>::default();
    let app = busy.app();
    let pair = pair(
        app.address(),
        json!({ "limits": { "requests": 1, "pending": 1 } }),
    );
    let mut first = asks(pair.address);
    eventually("it is there", || busy.waiting.load(Ordering::SeqCst) == 1);
    let waiting = || pair.client.metric("tulle_requests_pending", &[]);
    let left = |count| {
        eventually("its place is free", || waiting() == 0.0);
        let labels = ["response_code=\"499\"", "reporter=\"source\""];
        pair.client
            .await_metric("istio_requests_total", &labels, count);
    };

    let mut leaves = Client::connect(pair.address);
    leaves.send(get("/left"));
    eventually("it waits", || waiting() == 1.0);
    rustix::net::sockopt::set_socket_linger(leaves.stream(), Some(Duration::ZERO)).unwrap();
    drop(leaves);
    left(1.0);

    let client = Http2Client::connect(pair.address).await;
    let (_response, mut send) = client.open(request("GET", "/left"), true).await.unwrap();
    eventually("the stream waits", || waiting() == 1.0);
    send.send_reset(h2::Reason::CANCEL);
    left(2.0);

    assert_eq!(
        busy.waiting.load(Ordering::SeqCst),
        1,
        "the first one is still there"
    );
    let mut next = asks(pair.address);
    eventually("another one waits", || waiting() == 1.0);
    busy.gate.open();
    assert_eq!(first.response("GET").status(), 200);
    assert_eq!(next.response("GET").status(), 200);
    let received = app.received_text();
    assert!(!received.contains("/left"), "{received}");
    assert_eq!(pair.client.metric("tulle_requests_limited_total", &[]), 0.0);
}

#[test]
fn connections_are_limited_for_opaque_bytes() {
    let app = crate::tcp::echo();
    let pair = Pair::with(app.address(), |client, server| {
        let limits = json!({ "limits": { "connections": 1 } });
        let client = client.set("/services/0/ports/0/traffic", limits);
        let client = client.set("/services/0/ports/0/protocol", "tcp");
        (client, server.set("/inbound/ports/0/protocol", "tcp"))
    });
    let mut first = pair.connect();
    first.send("one");
    assert_eq!(first.read_exact(3), b"one");
    assert!(Client::is_cut(pair.address, ""));
    drop(first);
    eventually("there is a place again", || {
        !Client::is_cut(pair.address, "two")
    });
}

#[test]
fn a_connection_ends_after_as_many_requests_as_it_may_carry() {
    let app = Server::echo();
    let limits = json!({ "limits": { "requestsPerConnection": 5 } });
    let pair = pair(app.address(), limits);
    let mut client = pair.connect();
    (0..20).for_each(|_| assert_eq!(client.get("/").status(), 200));
    let handshakes = pair.client.metric("tulle_tls_handshakes_total", &[]);
    assert_eq!(handshakes, 4.0);
}

#[test]
fn checks_take_an_endpoint_out_and_bring_it_back() {
    let broken: Vec<_> = (0..2).map(|_| Arc::<AtomicBool>::default()).collect();
    // Only checks see that it is broken.
    let apps: Vec<_> = (0..2)
        .map(|i| {
            let broken = broken[i].clone();
            Server::http(move |request| {
                let sick = broken.load(Ordering::SeqCst) && request.target() == "/healthz";
                if sick {
                    fail(i)
                } else {
                    ok(i.to_string().as_bytes())
                }
            })
        })
        .collect();
    let addresses: Vec<_> = apps.iter().map(Server::address).collect();
    let check = json!({ "path": "/healthz", "intervalMs": 100, "healthy": 2, "unhealthy": 2,
                        "timeoutMs": 5000 });
    let fleet = Fleet::start(&addresses, json!({ "healthCheck": check }), |c| {
        c.set("/workers", 2)
    });
    assert!(
        !apps[0].received_text().contains("healthz"),
        "nobody has called yet"
    );
    assert_eq!(fleet.spread(2, |_| get("/")).iter().sum::<usize>(), 2);
    eventually("checks have begun", || {
        apps[0].received_text().contains("healthz")
    });
    broken[0].store(true, Ordering::SeqCst);
    eventually("it is unhealthy", || {
        fleet.states().first().is_some_and(|s| s == "unhealthy")
    });
    assert_eq!(fleet.client.metric("tulle_endpoints_unhealthy", &[]), 1.0);
    assert_eq!(fleet.spread(10, |_| get("/")), [0, 10]);
    // When nobody is well, anybody is better than nobody.
    broken[1].store(true, Ordering::SeqCst);
    eventually("both are unhealthy", || {
        fleet.states() == ["unhealthy", "unhealthy"]
    });
    assert_eq!(fleet.spread(10, |_| get("/")).iter().sum::<usize>(), 10);
    assert!(fleet.client.metric("tulle_endpoint_panics_total", &[]) >= 10.0);
    broken.iter().for_each(|b| b.store(false, Ordering::SeqCst));
    eventually("both are back", || fleet.states() == ["ready", "ready"]);
}

#[test]
fn a_check_without_a_path_only_connects() {
    let apps = [Server::http(|_| ok(b"0")), Server::http(|_| ok(b"1"))];
    let addresses: Vec<_> = apps.iter().map(Server::address).collect();
    let check = json!({ "intervalMs": 100, "unhealthy": 2, "timeoutMs": 5000 });
    let mut fleet = Fleet::start(&addresses, json!({ "healthCheck": check }), |c| c);
    assert_eq!(fleet.spread(2, |_| get("/")), [1, 1]);
    fleet.servers.remove(1).kill();
    eventually("it is unhealthy", || fleet.states()[1] == "unhealthy");
    assert_eq!(fleet.states()[0], "ready");
}

#[test]
fn an_endpoint_that_comes_gets_little_at_first() {
    let apps = [Server::http(|_| ok(b"0")), Server::http(|_| ok(b"1"))];
    let addresses: Vec<_> = apps.iter().map(Server::address).collect();
    let slow = json!({ "slowStartMs": 3_600_000 });
    let fleet = Fleet::start(&addresses, slow, |c| c);
    assert_eq!(
        fleet.spread(10, |_| get("/")),
        [5, 5],
        "those of the beginning are alike"
    );
    let mut config = fleet.client.config.clone();
    let both = config["services"][0]["ports"][0]["endpoints"].clone();
    config["services"][0]["ports"][0]["endpoints"] = json!([both[0]]);
    fleet.client.reload(&config);
    config["services"][0]["ports"][0]["endpoints"] = both;
    fleet.client.reload(&config);
    eventually("the worker knows", || {
        fleet.states() == ["ready", "warming"]
    });
    let seen = fleet.spread(100, |_| get("/"));
    assert!((1..20).contains(&seen[1]), "{seen:?}");
}

#[test]
fn a_port_has_its_own_timeouts() {
    let silent = Server::start(
        |mut connection| {
            while connection.read_some().is_ok_and(|b| !b.is_empty()) {}
        },
    );
    let pair = pair(silent.address(), json!({ "requestTimeoutMs": 100 }));
    let response = pair.connect().get("/");
    assert_eq!(response.status(), 504);
    let detail = pair.client.await_error("request_timeout")["detail"].to_string();
    assert!(detail.contains("100ms"), "{detail}");
}

#[test]
fn connections_above_the_limit_of_a_proxy_are_closed_at_once() {
    let app = Server::echo();
    let pair = Pair::with(app.address(), |client, server| {
        (client.set("/mesh/maxConnections", 4), server)
    });
    let mut clients: Vec<_> = (0..4).map(|_| pair.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/").status(), 200);
    }
    assert!(Client::is_cut(pair.address, ""));
    pair.client
        .await_metric("tulle_connections_shed_total", &[], 1.0);
    clients.pop();
    eventually("there is a place again", || {
        let response = Client::try_connect(pair.address).and_then(|mut next| {
            next.try_send(get("/"))?;
            next.try_response("GET")
        });
        response.is_ok_and(|r| r.status() == 200)
    });
}
