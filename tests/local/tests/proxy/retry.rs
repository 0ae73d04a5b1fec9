//! Requests that are sent again, and those that must not be, through sidecars.

use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tests_local::{
    CLIENT, Client, Fleet, Gate, Mesh, Pair, Proxy, SERVER, Server, free_port, get, inbound_config,
    ok, outbound_config, pattern, pause, post,
};

fn routes(retry: &Value, more: &Value) -> Value {
    let mut rule = json!({ "backends": [{ "service": "ratings", "port": 9080 }] });
    if !retry.is_null() {
        rule["retry"] = retry.clone();
    }
    for (key, value) in more.as_object().unwrap() {
        rule[key] = value.clone();
    }
    json!([{ "name": "r", "rules": [rule] }])
}

fn pair(app: &Server, retry: Value, more: Value) -> Pair {
    Pair::with(app.address(), |client, server| {
        let routes = routes(&retry, &more);
        (client.set("/services/0/routes", routes), server)
    })
}

fn status(code: u16) -> Vec<u8> {
    format!("HTTP/1.1 {code} Whatever\r\nContent-Length: 4\r\n\r\nbad\n").into_bytes()
}

/// Answers a request as bad so many times before it is fine. Counts requests.
fn flaky(bad: u32, code: u16) -> (Server, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let seen = count.clone();
    let app = Server::http(move |request| {
        let number = seen.fetch_add(1, Ordering::SeqCst);
        match number < bad {
            true => status(code),
            false => ok(&[request.head.as_bytes(), &request.body].concat()),
        }
    });
    (app, count)
}

fn counted(count: &AtomicU32) -> u32 {
    count.load(Ordering::SeqCst)
}

#[test]
fn a_bad_status_is_tried_again_on_the_same_connection() {
    let (app, count) = flaky(2, 503);
    let pair = pair(
        &app,
        json!({ "attempts": 3, "statuses": [502, 503], "backoffMs": 1 }),
        json!({}),
    );
    let mut client = pair.connect();
    let answer = client.get("/a");
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(counted(&count), 3);
    assert_eq!(client.get("/b").status(), 200);
    let cause = ["cause=\"status\""];
    assert_eq!(pair.client.metric("tulle_retries_total", &cause), 2.0);
    // One request for those who count requests.
    let labels = ["reporter=\"source\"", "response_code=\"503\""];
    assert_eq!(pair.client.metric("istio_requests_total", &labels), 0.0);
}

#[test]
fn the_last_bad_answer_goes_back_whole() {
    let (app, count) = flaky(100, 503);
    let pair = pair(
        &app,
        json!({ "attempts": 2, "statuses": [503], "backoffMs": 1 }),
        json!({}),
    );
    let mut client = pair.connect();
    for round in 1..=3 {
        let answer = client.get("/");
        assert_eq!((answer.status(), answer.text().as_str()), (503, "bad\n"));
        assert_eq!(counted(&count), 3 * round);
    }
    // Another status is nobody's business.
    let (app, count) = flaky(100, 500);
    let pair = self::pair(&app, json!({ "attempts": 2, "statuses": [503] }), json!({}));
    assert_eq!(pair.connect().get("/").status(), 500);
    assert_eq!(counted(&count), 1);
}

#[test]
fn what_is_not_idempotent_is_sent_again_only_if_it_is_named() {
    let (app, count) = flaky(1, 503);
    let pair = pair(&app, json!({ "attempts": 2, "statuses": [503] }), json!({}));
    let mut client = pair.connect();
    client.send(post("/", b"once"));
    assert_eq!(client.response("POST").status(), 503);
    assert_eq!(counted(&count), 1);

    let (app, count) = flaky(1, 503);
    let retry = json!({ "attempts": 2, "statuses": [503], "methods": ["POST"], "backoffMs": 1 });
    let pair = self::pair(&app, retry, json!({}));
    let mut client = pair.connect();
    // The body comes later and in pieces: it is kept.
    let body = pattern(40_000);
    let length = body.len();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: ratings\r\nContent-Length: {length}\r\n\r\n"
    ));
    for piece in body.chunks(15_000) {
        pause("between parts of a body", Duration::from_millis(20));
        client.send(piece);
    }
    let answer = client.response("POST");
    assert_eq!(answer.status(), 200);
    assert!(
        answer.body.ends_with(&body),
        "the whole body was sent again"
    );
    assert_eq!(counted(&count), 2);
    assert_eq!(client.get("/next").status(), 200);
}

#[test]
fn a_body_that_is_too_large_to_keep_is_not_sent_again() {
    let (app, count) = flaky(1, 503);
    let retry = json!({ "attempts": 2, "statuses": [503], "methods": ["POST"] });
    let pair = pair(&app, retry, json!({}));
    let mut client = pair.connect();
    client.send(post("/", &pattern(300_000)));
    assert_eq!(client.response("POST").status(), 503);
    assert_eq!(counted(&count), 1);
    let body = pattern(300_000);
    client.send(post("/", &body));
    let answer = client.response("POST");
    assert!(answer.body.ends_with(&body), "it passes all the same");
    let chunked = "POST / HTTP/1.1\r\nHost: ratings\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(chunked);
    let piece = pattern(10_000);
    for _ in 0..30 {
        client.send(format!("{:x}\r\n", piece.len()));
        client.send(&piece);
        client.send("\r\n");
    }
    client.send("0\r\n\r\n");
    let answer = client.response("POST");
    assert!(answer.body.ends_with(&piece));
    let windows = answer.body.windows(piece.len());
    assert_eq!(windows.filter(|w| *w == piece).count(), 30);
}

#[test]
fn the_end_of_a_body_that_was_not_kept_is_no_request() {
    let smuggled = "POST /admin HTTP/1.1\r\nHost: ratings\r\nContent-Length: 0\r\n\r\n";
    for method in ["PUT", "POST"] {
        let targets = Arc::new(Mutex::new(Vec::new()));
        let seen = targets.clone();
        let app = Server::http(move |request| {
            let mut seen = seen.lock().unwrap();
            seen.push(request.target().to_owned());
            match seen.len() {
                1 => status(503),
                _ => ok(b"fine"),
            }
        });
        let retry =
            json!({ "attempts": 2, "statuses": [503], "methods": ["POST"], "backoffMs": 1 });
        let pair = pair(&app, retry, json!({}));
        let mut client = pair.connect();
        // The second piece makes the request longer than what is kept; the last one comes by itself.
        let pieces = [&pattern(65_000)[..], &pattern(1_000), smuggled.as_bytes()];
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        client.send(format!(
            "{method} /upload HTTP/1.1\r\nHost: ratings\r\nContent-Length: {length}\r\n\r\n"
        ));
        for piece in pieces {
            client.send(piece);
            pause("each piece comes by itself", Duration::from_millis(100));
        }
        assert_eq!(client.response(method).status(), 503, "{method}");
        assert_eq!(client.get("/after").text(), "fine");
        assert_eq!(*targets.lock().unwrap(), ["/upload", "/after"], "{method}");
    }
}

#[test]
fn a_lost_connection_is_tried_again_only_if_asked_for() {
    let reset_first = || {
        let count = Arc::new(AtomicU32::new(0));
        let seen = count.clone();
        let app = Server::start(move |mut connection| {
            while let Ok(request) = connection.request() {
                if request.target() == "/lost" && seen.fetch_add(1, Ordering::SeqCst) < 2 {
                    return connection.reset();
                }
                connection.send(ok(b"fine"));
            }
        });
        (app, count)
    };
    let (app, count) = reset_first();
    let retry = json!({ "attempts": 3, "statuses": [502], "reset": true, "backoffMs": 1 });
    let pair = pair(&app, retry, json!({}));
    assert_eq!(pair.connect().get("/lost").text(), "fine");
    assert_eq!(counted(&count), 3);

    let (app, count) = reset_first();
    let pair = self::pair(&app, json!({ "attempts": 3, "statuses": [503] }), json!({}));
    assert_eq!(pair.connect().get("/lost").status(), 502);
    assert_eq!(counted(&count), 1);
}

#[test]
fn a_try_that_takes_too_long_makes_way_for_another() {
    let (count, never) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (seen, seen_never) = (count.clone(), never.clone());
    let app = Server::http(move |request| {
        let is_never = request.target() == "/never";
        // Tries of the other request may come late.
        let seen = if is_never { &seen_never } else { &seen };
        let number = seen.fetch_add(1, Ordering::SeqCst);
        if number == 0 || is_never {
            Gate::default().pass();
        }
        ok(b"fine")
    });
    let retry = json!({ "attempts": 4, "timeout": true, "backoffMs": 1 });
    // Several tries may meet a machine that stands still.
    let patient = json!({ "tryTimeoutMs": 1000, "requestTimeoutMs": 15_000 });
    let pair = pair(&app, retry.clone(), patient);
    let mut client = pair.connect();
    assert_eq!(client.get("/").text(), "fine");
    let tries = counted(&count);
    assert!(tries >= 2, "{tries} tries");
    let hasty = json!({ "tryTimeoutMs": 600, "requestTimeoutMs": 2000 });
    let mut config = pair.client.config.clone();
    config["services"][0]["routes"] = routes(&retry, &hasty);
    pair.client.reload(&config);
    // All tries together end with the request's own timeout: before the fifth try.
    let answer = client.get("/never");
    assert_eq!(answer.status(), 504);
    assert_eq!(answer.header("x-tulle-reason"), "request_timeout");
    let tries = counted(&never);
    assert!((1..=4).contains(&tries), "{tries} tries");
}

#[test]
fn a_timeout_of_one_try_needs_no_retries() {
    let count = Arc::new(AtomicU32::new(0));
    let seen = count.clone();
    let app = Server::http(move |request| {
        if request.target() == "/late" {
            seen.fetch_add(1, Ordering::SeqCst);
            Gate::default().pass();
        }
        ok(b"fine")
    });
    let pair = pair(&app, Value::Null, json!({ "tryTimeoutMs": 3000 }));
    let mut client = pair.connect();
    assert_eq!(client.get("/").text(), "fine");
    // The connection is known to be good: slow is not dead.
    let answer = client.get("/late");
    assert_eq!(answer.header("x-tulle-reason"), "request_timeout");
    assert_eq!(counted(&count), 1, "sent once");
}

#[test]
fn no_timeout_at_all() {
    let app = Server::http(|_| {
        // Several times the mesh's limit, so that no late timer is taken for none.
        pause("a slow answer", Duration::from_secs(2));
        ok(b"late")
    });
    let with = |timeout: u32| {
        Pair::with(app.address(), |client, server| {
            let routes = routes(&Value::Null, &json!({ "requestTimeoutMs": timeout }));
            let client = client
                .set("/services/0/routes", routes)
                .set("/mesh/requestTimeoutMs", 500);
            (client, server)
        })
    };
    assert_eq!(with(u32::MAX).connect().get("/").text(), "late");
    assert_eq!(with(0).connect().get("/").status(), 504, "the mesh's");
}

#[test]
fn another_endpoint_is_preferred() {
    let mesh = Mesh::new();
    let bad = Server::http(|_| status(503));
    let good = Server::http(|_| ok(b"fine"));
    let dead = free_port();
    let start = |app: &Server| {
        let config = inbound_config(app.address());
        let address = config.address;
        (Proxy::start(&mesh, SERVER, config.file), address)
    };
    let (_one, bad_at) = start(&bad);
    let (_two, good_at) = start(&good);
    let client = outbound_config(bad_at);
    let endpoints = json!([
        { "address": bad_at.to_string() },
        { "address": good_at.to_string() },
    ]);
    let retry = json!({ "attempts": 1, "statuses": [503], "backoffMs": 1,
                        "budgetMinPerS": 1000 });
    let client = client
        .set("/services/0/ports/0/endpoints", endpoints)
        .set("/services/0/routes", routes(&retry, &json!({})));
    let address = client.address;
    let proxy = Proxy::start(&mesh, CLIENT, client.file);
    let mut client = Client::connect(address);
    for _ in 0..50 {
        assert_eq!(client.get("/").text(), "fine", "one retry is always enough");
    }
    // An endpoint that cannot be reached at all.
    let mut file = proxy.config.clone();
    file["services"][0]["ports"][0]["endpoints"] = json!([
        { "address": format!("127.0.0.1:{dead}") },
    ]);
    file["services"][0]["routes"] = routes(
        &json!({ "attempts": 2, "connectFailure": true, "backoffMs": 1 }),
        &json!({}),
    );
    proxy.reload(&file);
    let answer = client.get("/");
    assert_eq!(answer.header("x-tulle-reason"), "connect_failed");
    let cause = ["cause=\"connect_failure\""];
    assert_eq!(proxy.metric("tulle_retries_total", &cause), 2.0);
}

#[test]
fn a_budget_ends_the_retries_of_a_service_in_trouble() {
    let (app, count) = flaky(u32::MAX, 503);
    let retry = json!({ "attempts": 5, "statuses": [503], "backoffMs": 1,
                        "budgetPercent": 10, "budgetMinPerS": 1 });
    let pair = pair(&app, retry, json!({}));
    let mut client = pair.connect();
    let begin = Instant::now();
    for _ in 0..200 {
        assert_eq!(client.get("/").status(), 503);
    }
    // A tenth of the requests, and one for each of ten seconds; each window that follows has its own.
    let retries = counted(&count) - 200;
    let windows = u32::try_from(begin.elapsed().as_secs()).unwrap() / 10 + 2;
    assert!(
        (10..=20 + 10 * windows).contains(&retries),
        "{retries} retries in {windows} windows"
    );
    pair.client
        .await_metric("tulle_retries_refused_total", &["spent=\"budget\""], 1.0);
}

#[test]
fn a_grpc_status_in_the_head_is_tried_again() {
    let count = Arc::new(AtomicU32::new(0));
    let seen = count.clone();
    let app = Server::http(move |_| match seen.fetch_add(1, Ordering::SeqCst) {
        0 => b"HTTP/1.1 200 OK\r\ngrpc-status: 14\r\nContent-Length: 0\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 200 OK\r\ngrpc-status: 0\r\nContent-Length: 0\r\n\r\n".to_vec(),
    });
    let retry = json!({ "attempts": 1, "grpcStatuses": [14], "methods": ["POST"] });
    let pair = pair(&app, retry, json!({}));
    let mut client = pair.connect();
    client.send(post("/package.Service/Method", b"message"));
    assert_eq!(client.response("POST").header("grpc-status"), "0");
    assert_eq!(counted(&count), 2);
}

#[test]
fn a_client_that_goes_away_is_not_waited_for() {
    let (app, count) = flaky(u32::MAX, 503);
    let retry = json!({ "attempts": 1, "statuses": [503], "backoffMs": 3_600_000,
                        "backoffMaxMs": 3_600_000 });
    let pair = pair(&app, retry, json!({ "requestTimeoutMs": u32::MAX }));
    let mut client = pair.connect();
    client.send(get("/"));
    pair.client
        .await_metric("tulle_retries_total", &["cause=\"status\""], 1.0);
    rustix::net::sockopt::set_socket_linger(client.stream(), Some(Duration::ZERO)).unwrap();
    drop(client);
    pair.client
        .await_metric("istio_requests_total", &["response_code=\"499\""], 1.0);
    assert_eq!(counted(&count), 1);
}

/// A port's own retry, without a route.
fn with_traffic(app: &Server, traffic: Value) -> Pair {
    Pair::with(app.address(), |client, server| {
        let client = client.set("/services/0/ports/0/traffic", traffic);
        (client.set("/workers", 2), server)
    })
}

#[test]
fn a_port_says_what_is_tried_again_and_a_route_says_otherwise() {
    let (app, count) = flaky(1, 503);
    let retry = json!({ "attempts": 1, "statuses": [503], "backoffMs": 1 });
    let pair = with_traffic(&app, json!({ "retry": retry }));
    assert_eq!(pair.connect().get("/").status(), 200);
    assert_eq!(counted(&count), 2);

    // The port's is for rules that say nothing.
    for (of_rule, tries) in [
        (Value::Null, 2),
        (
            json!({ "attempts": 3, "statuses": [503], "backoffMs": 1 }),
            4,
        ),
        (
            json!({ "attempts": 3, "statuses": [502], "backoffMs": 1 }),
            1,
        ),
    ] {
        let (app, count) = flaky(u32::MAX, 503);
        let pair = Pair::with(app.address(), |client, server| {
            let client = client
                .set("/services/0/routes", routes(&of_rule, &json!({})))
                .set("/services/0/ports/0/traffic", json!({ "retry": retry }));
            (client, server)
        });
        assert_eq!(pair.connect().get("/").status(), 503);
        assert_eq!(counted(&count), tries, "{of_rule}");
    }
}

#[test]
fn a_port_limits_the_time_of_each_try() {
    let count = Arc::new(AtomicU32::new(0));
    let seen = count.clone();
    let app = Server::http(move |_| {
        if seen.fetch_add(1, Ordering::SeqCst) == 0 {
            Gate::default().pass();
        }
        ok(b"fine")
    });
    let retry = json!({ "attempts": 5, "timeout": true, "tryTimeoutMs": 1000, "backoffMs": 1 });
    let pair = with_traffic(&app, json!({ "retry": retry }));
    assert_eq!(pair.connect().get("/").text(), "fine");
    assert!(counted(&count) >= 2);
}

#[test]
fn so_many_retries_at_a_time_whatever_worker_makes_them() {
    // The first try of each target is bad; a second one waits until the gate is open.
    let tried = Arc::new(Mutex::new(HashSet::new()));
    let open = Arc::<Gate>::default();
    let (seen, gate) = (tried, open.clone());
    let app = Server::http(move |request| {
        if seen.lock().unwrap().insert(request.target().to_owned()) {
            return status(503);
        }
        gate.pass();
        ok(b"fine")
    });
    let retry = json!({ "attempts": 1, "statuses": [503], "backoffMs": 1 });
    let pair = with_traffic(&app, json!({ "retry": retry, "limits": { "retries": 2 } }));
    let mut under_way: Vec<_> = ["/1", "/2"]
        .map(|target| {
            let mut client = pair.connect();
            client.send(get(target));
            client
        })
        .into();
    let retries = |least| pair.client.await_metric("tulle_retries_total", &[], least);
    retries(2.0);
    // Connections enough that both workers have some.
    for number in 3..9 {
        assert_eq!(pair.connect().get(&format!("/{number}")).status(), 503);
    }
    let refused = ["spent=\"limit\""];
    let name = "tulle_retries_refused_total";
    assert_eq!(pair.client.metric(name, &refused), 6.0);
    open.open();
    for client in &mut under_way {
        assert_eq!(client.response("GET").status(), 200);
    }
    // There are places again.
    for number in 10..16 {
        assert_eq!(pair.connect().get(&format!("/{number}")).status(), 200);
    }
    assert_eq!(pair.client.metric(name, &refused), 6.0);
}

/// An application that has ended, as in a rolling update, while its sidecar is still among the endpoints.
#[test]
fn what_no_application_has_seen_goes_to_another() {
    let up = Server::http(|request| ok(&request.body));
    let down = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let fleet = Fleet::start(&[down, up.address()], json!({}), |client| client);
    let mut client = fleet.connect();
    for _ in 0..4 {
        // Not idempotent, yet nobody has done anything.
        client.send(post("/", b"once"));
        let answer = client.response("POST");
        assert_eq!(
            (answer.status(), answer.text().contains("once")),
            (200, true)
        );
    }
    assert!(fleet.client.metric("tulle_replays_total", &[]) >= 1.0);
    // When there is nobody else, the cause is told.
    let fleet = Fleet::start(&[down, down], json!({}), |client| client);
    let answer = fleet.connect().get("/");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("x-tulle-reason"), "connect_failed");
    assert!(
        answer.text().contains("cannot be reached"),
        "{}",
        answer.text()
    );
}
