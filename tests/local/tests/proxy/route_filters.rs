//! Tests the changes of requests and responses by routes, through two sidecars.

use serde_json::{Value, json};
use std::time::Duration;
use tests_local::{Client, Pair, Server, eventually, ok, pattern, pause, post};

/// A pair whose client's sidecar has these rules for the service.
fn pair(app: &Server, rules: Value) -> Pair {
    Pair::with(app.address(), |client, server| {
        let routes = json!([{ "name": "r", "rules": rules }]);
        (client.set("/services/0/routes", routes), server)
    })
}

fn to_ratings() -> Value {
    json!([{ "service": "ratings", "port": 9080 }])
}

/// A rule for a prefix, with filters.
fn rule(prefix: &str, filters: Value) -> Value {
    json!({ "matches": [{ "path": { "prefix": prefix } }], "filters": filters,
            "backends": to_ratings() })
}

fn ask(client: &mut Client, head: &str) -> tests_local::Message {
    client.send(format!("{head}\r\n\r\n"));
    let method = head.split(' ').next().unwrap().to_owned();
    client.response(&method)
}

#[test]
fn headers_are_edited_both_ways() {
    let app = Server::http(|request| {
        let body = request.head.as_bytes();
        let mut out = format!(
            "HTTP/1.1 200 OK\r\nX-Secret: 1\r\nX-Old: a\r\nx-old: b\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        out.extend_from_slice(body);
        out
    });
    let pair = pair(
        &app,
        json!([
            rule(
                "/edited",
                json!([
                    { "requestHeaders": {
                        "set": [{ "name": "x-set", "value": "new" }],
                        "add": [{ "name": "x-add", "value": "2" }],
                        "remove": ["x-gone"] } },
                    { "responseHeaders": {
                        "set": [{ "name": "x-old", "value": "c" }],
                        "add": [{ "name": "x-more", "value": "d" }],
                        "remove": ["x-secret"] } },
                ])
            ),
            rule("/", json!([])),
        ]),
    );
    let mut client = pair.connect();
    for _ in 0..3 {
        let head = "GET /edited HTTP/1.1\r\nHost: ratings\r\nX-Set: 1\r\nx-set: 2\r\n\
                    X-Add: 1\r\nX-Gone: 1";
        let answer = ask(&mut client, head);
        assert_eq!(answer.status(), 200);
        let got = answer.text().to_ascii_lowercase();
        assert!(
            got.contains("x-set: new\r\n") && !got.contains("x-set: 1"),
            "{got}"
        );
        assert!(
            got.contains("x-add: 1\r\n") && got.contains("x-add: 2\r\n"),
            "{got}"
        );
        assert!(!got.contains("x-gone"), "{got}");
        assert_eq!(answer.all("x-old"), ["c"]);
        assert_eq!(answer.header("x-more"), "d");
        assert_eq!(answer.header("x-secret"), "");
        // The same connection, another rule: nothing is left of the edits.
        let answer = client.get("/plain");
        assert_eq!(answer.all("x-old"), ["a", "b"]);
        assert_eq!(answer.header("x-secret"), "1");
    }
    // A body that comes with its head, and one that comes later.
    let body = pattern(100_000);
    client.send(post("/edited", &body));
    assert_eq!(client.response("POST").status(), 200);
    let received = app.received();
    assert!(
        received
            .iter()
            .any(|bytes| bytes.windows(body.len()).any(|w| w == body)),
        "the body is whole"
    );
}

#[test]
fn redirections_rewrites_and_fixed_answers() {
    let app = Server::echo();
    let pair = pair(
        &app,
        json!([
            { "matches": [{ "path": { "prefix": "/old" } }],
              "filters": [{ "redirect": { "scheme": "https", "hostname": "shop.example",
                            "path": { "prefix": "/new" }, "status": 301 } }] },
            rule("/api", json!([{ "rewrite": { "hostname": "inner.example",
                                              "path": { "prefix": "/v2" } } }])),
            rule("/full", json!([{ "rewrite": { "path": { "full": "/all" } } }])),
            { "matches": [{ "path": { "exact": "/hello" } }],
              "filters": [{ "respond": { "status": 203, "body": "{\"a\":1}",
                            "contentType": "application/json" } },
                          { "responseHeaders": { "add": [{ "name": "x-made", "value": "here" }] } }] },
            { "matches": [{ "path": { "prefix": "/nobody" } }] },
        ]),
    );
    let mut client = pair.connect();
    let answer = client.get("/old/a%20b?q=1&r");
    assert_eq!(answer.status(), 301);
    assert_eq!(
        answer.header("location"),
        "https://shop.example/new/a%20b?q=1&r"
    );
    assert_eq!(answer.header("x-tulle-reason"), "redirected");

    let text = client.get("/api/things?x=%2F").text();
    assert!(
        text.starts_with("GET /v2/things?x=%2F HTTP/1.1\r\n"),
        "{text}"
    );
    assert!(
        text.to_ascii_lowercase()
            .contains("host: inner.example\r\n"),
        "{text}"
    );
    assert_eq!(text.to_ascii_lowercase().matches("\r\nhost:").count(), 1);
    let text = client.get("/full/things?x").text();
    assert!(text.starts_with("GET /all?x HTTP/1.1\r\n"), "{text}");

    let answer = client.get("/hello");
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (203, "{\"a\":1}")
    );
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("x-made"), "here");
    assert_eq!(answer.header("x-tulle-reason"), "responded");

    let answer = client.get("/nobody");
    assert_eq!(answer.status(), 500);
    assert_eq!(answer.header("x-tulle-reason"), "no_backend");
    assert!(
        answer.text().contains("has no backend"),
        "{}",
        answer.text()
    );
    assert_eq!(client.get("/elsewhere").status(), 404);
    let errors = pair.client.errors();
    assert!(
        errors.iter().all(|e| e["reason"] != "redirected"),
        "no failures: {errors:?}"
    );
    let labels = ["response_code=\"301\"", "response_flags=\"redirected\""];
    pair.client
        .await_metric("istio_requests_total", &labels, 1.0);
}

#[test]
fn a_redirected_body_is_not_taken_for_a_request() {
    let app = Server::echo();
    let pair = pair(
        &app,
        json!([rule(
            "/",
            json!([{ "redirect": { "hostname": "other.example" } }])
        )]),
    );
    let mut client = pair.connect();
    client.send(post(
        "/",
        b"GET /smuggled HTTP/1.1\r\nHost: ratings\r\n\r\n",
    ));
    assert_eq!(client.response("POST").status(), 302);
    assert!(client.is_ended());
    assert!(app.received().is_empty());
}

#[test]
fn faults_delay_and_abort() {
    let app = Server::http(|_| ok(b"fine"));
    let pair = pair(
        &app,
        json!([
            rule(
                "/slow",
                json!([{ "fault": { "delayMs": 300, "delayPpm": 1_000_000 } }])
            ),
            rule(
                "/both",
                json!([{ "fault": { "delayMs": 300, "delayPpm": 1_000_000,
                                   "abortStatus": 418, "abortPpm": 1_000_000 } }])
            ),
            rule("/reset", json!([{ "fault": { "abortPpm": 1_000_000 } }])),
            rule(
                "/some",
                json!([{ "fault": { "abortStatus": 503, "abortPpm": 300_000 } }])
            ),
            rule(
                "/hours",
                json!([{ "fault": { "delayMs": 3_600_000, "delayPpm": 1_000_000 } }])
            ),
            rule("/", json!([{ "fault": { "delayMs": 3_600_000 } }])),
        ]),
    );
    let mut client = pair.connect();
    assert_eq!(client.get("/").text(), "fine", "a share of none");
    let start = std::time::Instant::now();
    assert_eq!(client.get("/slow").text(), "fine");
    // Half of it: deadlines follow the kernel's tick, which may be late on a busy machine.
    assert!(start.elapsed() >= Duration::from_millis(150));
    let start = std::time::Instant::now();
    let answer = client.get("/both");
    assert_eq!(answer.status(), 418);
    assert_eq!(answer.header("x-tulle-reason"), "fault_injected");
    assert!(start.elapsed() >= Duration::from_millis(150));
    let mut aborted = 0;
    for _ in 0..400 {
        aborted += u32::from(client.get("/some").status() == 503);
    }
    // 0.3 of 400; eight standard deviations on either side.
    assert!((47..193).contains(&aborted), "{aborted} of 400");
    client.send("GET /reset HTTP/1.1\r\nHost: ratings\r\n\r\n");
    assert!(client.read_to_end().is_err(), "a reset");
    // A delayed request ends when its client goes away.
    let mut waiting = pair.connect();
    waiting.send("GET /hours HTTP/1.1\r\nHost: ratings\r\n\r\n");
    eventually("it is there", || {
        pair.client.metric("tulle_connections_open", &[]) >= 1.0
    });
    rustix::net::sockopt::set_socket_linger(waiting.stream(), Some(Duration::ZERO)).unwrap();
    drop(waiting);
    let labels = ["response_code=\"499\""];
    pair.client
        .await_metric("istio_requests_total", &labels, 1.0);
}

#[test]
fn cross_origin_requests() {
    let app = Server::http(|_| {
        let head = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: https://own.example\r\n\
                    Content-Length: 2\r\n\r\nok";
        head.into()
    });
    let pair = pair(
        &app,
        json!([rule(
            "/",
            json!([{ "cors": {
            "allowOrigins": ["https://a.example", "https://*.b.example"],
            "allowMethods": ["GET", "PUT"], "allowHeaders": ["x-a"], "exposeHeaders": ["x-e"],
            "allowCredentials": true, "maxAgeS": 60 } }])
        )]),
    );
    let mut client = pair.connect();
    let preflight = |origin: &str| {
        format!(
            "OPTIONS /x HTTP/1.1\r\nHost: ratings\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a"
        )
    };
    let answer = ask(&mut client, &preflight("https://x.b.example"));
    assert_eq!(answer.status(), 204);
    assert_eq!(
        answer.header("access-control-allow-origin"),
        "https://x.b.example"
    );
    assert_eq!(answer.header("access-control-allow-methods"), "GET, PUT");
    assert_eq!(answer.header("access-control-allow-headers"), "x-a");
    assert_eq!(answer.header("access-control-allow-credentials"), "true");
    assert_eq!(answer.header("access-control-max-age"), "60");
    assert_eq!(answer.header("x-tulle-reason"), "cors_preflight");
    let answer = ask(&mut client, &preflight("https://evil.example"));
    assert_eq!(answer.status(), 204);
    assert_eq!(answer.header("access-control-allow-origin"), "");
    assert!(app.received().is_empty(), "the application is not asked");

    let actual = |origin: &str| format!("GET / HTTP/1.1\r\nHost: ratings\r\nOrigin: {origin}");
    let answer = ask(&mut client, &actual("https://a.example"));
    assert_eq!(answer.text(), "ok");
    assert_eq!(
        answer.header("access-control-allow-origin"),
        "https://a.example"
    );
    assert_eq!(answer.header("access-control-expose-headers"), "x-e");
    assert_eq!(answer.header("vary"), "origin");
    let answer = ask(&mut client, &actual("https://own.example"));
    assert_eq!(
        answer.header("access-control-allow-origin"),
        "",
        "the route decides"
    );
}

#[test]
fn a_share_of_requests_is_copied_and_copies_do_not_matter() {
    let app = Server::http(|_| ok(b"fine"));
    let shadow = Server::http(|request| match request.target() {
        "/a/bad" => b"nonsense\r\n\r\n".to_vec(),
        _ => ok(b"nobody reads this"),
    });
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::with(app.address(), |client, server| {
        let service = |name: &str, address: String| {
            json!({ "name": name, "ports": [{ "port": 80, "protocol": "http",
                    "endpoints": [{ "address": address, "mutualTls": false }] }] })
        };
        let own = client.file["services"][0].clone();
        let services = json!([
            own,
            service("shadow", shadow.address().to_string()),
            service("silent", silent.local_addr().unwrap().to_string()),
        ]);
        let mirror = |service: &str| {
            json!({ "mirror": { "service": service, "port": 80,
                                                         "ppm": 1_000_000 } })
        };
        let rules = json!([
            rule(
                "/a",
                json!([mirror("shadow"), mirror("silent"), mirror("missing")])
            ),
            rule(
                "/",
                json!([{ "mirror": { "service": "shadow", "port": 80, "ppm": 0 } }])
            ),
        ]);
        let client = client.set("/services", services).set(
            "/services/0/routes",
            json!([{ "name": "r", "rules": rules }]),
        );
        (client, server)
    });
    let mut client = pair.connect();
    let copies = || {
        let all = shadow.received().concat();
        String::from_utf8_lossy(&all).into_owned()
    };
    assert_eq!(client.get("/none").text(), "fine");
    assert_eq!(client.get("/a/one").text(), "fine");
    eventually("a copy", || copies().contains("GET /a/one HTTP/1.1\r\n"));
    let body = pattern(30_000);
    client.send(post("/a/two", &body));
    assert_eq!(client.response("POST").text(), "fine");
    eventually("a copy with its body", || {
        let all = shadow.received();
        all.iter()
            .any(|bytes| bytes.windows(body.len()).any(|w| w == body))
    });
    // The request comes in pieces, so that the copy grows with it.
    client.send("POST /a/pieces HTTP/1.1\r\nHost: ratings\r\nTransfer-Encoding: chunked\r\n\r\n");
    for part in ["5\r\nhel", "lo\r\n", "0\r\n\r\n"] {
        pause("between parts of a body", Duration::from_millis(20));
        client.send(part);
    }
    assert_eq!(client.response("POST").text(), "fine");
    eventually("a copy of pieces", || {
        copies().contains("5\r\nhello\r\n0\r\n\r\n")
    });
    // Too large to be kept.
    client.send(post("/a/large", &pattern(200_000)));
    assert_eq!(client.response("POST").text(), "fine");
    pair.client
        .await_metric("tulle_mirrored_total", &["outcome=\"too_large\""], 1.0);
    assert_eq!(client.get("/a/bad").text(), "fine");
    pair.client
        .await_metric("tulle_mirrored_total", &["outcome=\"failed\""], 1.0);
    assert!(!copies().contains("/a/large") && !copies().contains("/none"));
    let missing = ["outcome=\"no_service\""];
    pair.client
        .await_metric("tulle_mirrored_total", &missing, 5.0);
}

#[test]
fn what_would_break_messages_is_refused() {
    let app = Server::echo();
    let pair = pair(&app, json!([rule("/", json!([]))]));
    let generation = pair.client.generation();
    for filter in [
        json!({ "requestHeaders": { "set": [{ "name": "content-length", "value": "1" }] } }),
        json!({ "responseHeaders": { "remove": ["Transfer-Encoding"] } }),
        json!({ "requestHeaders": { "add": [{ "name": "x", "value": "a\r\nb: c" }] } }),
        json!({ "redirect": { "status": 200 } }),
        json!({ "respond": { "status": 101 } }),
    ] {
        let mut config = pair.client.config.clone();
        config["services"][0]["routes"][0]["rules"][0]["filters"] = json!([filter]);
        pair.client.write_config(&config);
        eventually("it is refused", || {
            pair.client.log().contains("HTTPRoute/r:") || pair.client.generation() > generation
        });
        assert_eq!(pair.client.generation(), generation, "{filter}");
    }
    assert_eq!(pair.connect().get("/").status(), 200);
}
