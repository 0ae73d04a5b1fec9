//! Tests failures behind, before and inside the proxy: the status, the reason code in every place, and that
//! no cut response looks complete.

use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tests_local::{
    CLIENT, Client, Mesh, Message, Pair, Proxy, SERVER, Server, eventually, free_port,
    gateway_config, get, id, inbound_config, ok, one, outbound_config, pause, post,
};

/// The refusal carries the reason, and so do metrics, `/errors` and the access log.
fn assert_reason(proxy: &Proxy, response: &Message, status: u16, reason: &str) {
    assert_eq!(
        response.status(),
        status,
        "{}{}",
        response.head,
        response.text()
    );
    assert_eq!(response.header("x-tulle-reason"), reason);
    assert!(
        response.text().starts_with(&format!("tulle: {reason}: ")),
        "{}",
        response.text()
    );
    let labels = [format!("code=\"{status}\""), format!("flags=\"{reason}\"")];
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    proxy.await_metric("istio_requests_total", &labels, 1.0);
    assert_eq!(proxy.await_error(reason)["code"], status);
}

fn gateway(
    app: SocketAddr,
    change: impl FnOnce(tests_local::Config) -> tests_local::Config,
) -> (Mesh, Proxy, SocketAddr) {
    let mesh = Mesh::new();
    let config = change(gateway_config(app));
    let proxy = Proxy::start(&mesh, "edge", config.file);
    (mesh, proxy, config.address)
}

fn nobody() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

#[test]
fn no_listener_at_the_endpoint_is_503_connect_failed() {
    let (_mesh, proxy, address) = gateway(nobody(), |c| c);
    let mut client = Client::connect(address);
    let response = client.get("/some/path");
    assert_reason(&proxy, &response, 503, "connect_failed");
    assert_eq!(proxy.await_error("connect_failed")["path"], "/some/path");
    // The connection of the client has not suffered.
    assert_eq!(client.get("/").status(), 503);
}

#[test]
fn no_endpoint_is_503_no_endpoint() {
    let (_mesh, proxy, address) = gateway(nobody(), |c| {
        c.set("/services/0/ports/0/endpoints", json!([]))
    });
    assert_reason(&proxy, &one(address, "/"), 503, "no_endpoint");
}

#[test]
fn no_route_is_404_no_route() {
    let app = Server::echo();
    let (_mesh, proxy, address) = gateway(app.address(), |c| {
        c.set(
            "/gateways/0/routes/0/rules/0/matches",
            json!([{ "path": { "prefix": "/a" } }]),
        )
    });
    let mut client = Client::connect(address);
    assert_eq!(client.get("/a/b").status(), 200);
    assert_reason(&proxy, &client.get("/ab"), 404, "no_route");
    assert_eq!(client.get("/a").status(), 200, "the connection goes on");
    // A connection whose request body was not read cannot go on.
    client.send(post("/x", b"GET /a HTTP/1.1\r\nHost: smuggled\r\n\r\n"));
    let response = client.response("POST");
    assert_eq!(
        (response.status(), response.header("connection")),
        (404, "close")
    );
    assert!(client.is_ended());
    assert!(!app.received_text().contains("smuggled"));
}

#[test]
fn a_connect_that_is_not_answered_is_504_connect_timeout() {
    // A full queue: the kernel drops what comes after it.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = Client::connect(address);
    let (_mesh, proxy, front) = gateway(address, |c| c.set("/mesh/connectTimeoutMs", 300));
    let mut response = one(front, "/");
    if response.status() == 504 && response.header("x-tulle-reason") == "request_timeout" {
        // The queue still had one place.
        response = one(front, "/");
    }
    assert_reason(&proxy, &response, 504, "connect_timeout");
}

#[test]
fn a_silent_application_is_504_request_timeout() {
    let app = Server::start(
        |mut connection| {
            while connection.read_some().is_ok_and(|bytes| !bytes.is_empty()) {}
        },
    );
    let pair = Pair::with(app.address(), |client, server| {
        (client, server.set("/mesh/requestTimeoutMs", 150))
    });
    let mut client = pair.connect();
    let response = client.get("/");
    assert_reason(&pair.server, &response, 504, "request_timeout");
    assert_eq!(
        client.get("/").status(),
        504,
        "the connection of the client goes on"
    );
    // A route's own timeout counts for its requests. The server's sidecar must not be before it.
    let mut config = pair.server.config.clone();
    config["mesh"]["requestTimeoutMs"] = 15_000.into();
    pair.server.reload(&config);
    let timeout = json!([{
        "name": "r",
        "rules": [{ "backends": [{ "service": SERVER, "port": 9080 }], "requestTimeoutMs": 50 }],
    }]);
    let mut config = pair.client.config.clone();
    config["services"][0]["routes"] = timeout;
    pair.client.reload(&config);
    assert_reason(
        &pair.client,
        &one(pair.address, "/"),
        504,
        "request_timeout",
    );
}

#[test]
fn an_unfinished_head_is_408_header_timeout() {
    let app = Server::echo();
    let (_mesh, proxy, address) = gateway(app.address(), |c| c.set("/mesh/headerTimeoutMs", 200));
    let mut client = Client::connect(address);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Slow");
    let response = client.response("GET");
    assert_reason(&proxy, &response, 408, "header_timeout");
    assert!(client.is_ended());
    assert_eq!(app.connections(), 0);
}

#[test]
fn an_idle_connection_is_ended_without_a_word() {
    let app = Server::echo();
    let (_mesh, _proxy, address) = gateway(app.address(), |c| c.set("/mesh/idleTimeoutMs", 2000));
    let mut never = Client::connect(address);
    assert!(never.is_ended());
    let mut used = Client::connect(address);
    assert_eq!(used.get("/").status(), 200);
    assert!(used.is_ended());
}

#[test]
fn a_body_that_stops_is_ended_by_the_idle_timeout() {
    let app = Server::http(|_| ok(b"never"));
    let (_mesh, proxy, address) = gateway(app.address(), |c| c.set("/mesh/idleTimeoutMs", 2000));
    let mut client = Client::connect(address);
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
    let response = client.response("POST");
    assert_reason(&proxy, &response, 408, "idle_timeout");
    assert!(client.is_ended());
}

#[test]
fn too_many_and_too_long_headers_are_431() {
    let app = Server::echo();
    let (_mesh, proxy, address) = gateway(app.address(), |c| {
        c.set("/mesh/maxHeaderBytes", 4096)
            .set("/mesh/maxHeaders", 20)
    });
    for fields in [
        "X: y\r\n".repeat(30),
        format!("X: {}\r\n", "y".repeat(5000)),
    ] {
        let mut client = Client::connect(address);
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        assert_reason(&proxy, &client.response("GET"), 431, "bad_request");
        assert!(client.is_ended());
    }
    let mut client = Client::connect(address);
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "X: y\r\n".repeat(15)
    ));
    assert_eq!(client.response("GET").status(), 200);
    // A head without end is refused as soon as it is too long.
    let mut client = Client::connect(address);
    client.send(format!("GET /{}", "a".repeat(8000)));
    assert!(matches!(client.response("GET").status(), 414 | 431));
}

/// An application that dies in some way at its first request and answers the following ones.
fn dying(how: &'static str) -> Server {
    Server::start(move |mut connection| {
        loop {
            let Ok(request) = connection.request() else {
                return;
            };
            if request.target() == "/good" {
                connection.send(ok(b"good"));
                continue;
            }
            connection.send(how);
            return;
        }
    })
}

#[test]
fn an_application_that_dies_before_the_end_of_its_head_is_502() {
    for how in ["", "HTTP/1.1 200 OK\r\nContent-Le"] {
        let app = dying(how);
        let pair = Pair::start(app.address());
        let mut client = pair.connect();
        client.send(post("/", b"x"));
        let response = client.response("POST");
        assert_reason(&pair.server, &response, 502, "upstream_reset");
        assert_eq!(client.get("/good").text(), "good");
        let (_mesh, proxy, address) = gateway(app.address(), |c| c);
        assert_reason(&proxy, &one(address, "/"), 502, "upstream_reset");
    }
}

#[test]
fn a_response_that_is_cut_never_looks_complete() {
    for how in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nha",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n",
    ] {
        let app = dying(how);
        let pair = Pair::start(app.address());
        let (_mesh, proxy, address) = gateway(app.address(), |c| c);
        for (place, proxy) in [(pair.address, &pair.server), (address, &proxy)] {
            let mut client = Client::connect(place);
            client.send(get("/"));
            let response = client.try_response("GET");
            let complete = response.as_ref().is_ok_and(|r| r.status() == 200);
            assert!(!complete, "{how:?} came as {response:?}");
            let labels = ["response_flags=\"upstream_reset\""];
            proxy.await_metric("istio_requests_total", &labels, 1.0);
            assert_eq!(one(place, "/good").text(), "good");
        }
    }
}

#[test]
fn a_cut_response_of_unknown_length_ends_in_a_reset() {
    let app = Server::start(|mut connection| {
        if connection.request().is_ok() {
            connection.send("HTTP/1.1 200 OK\r\n\r\nhalf");
            pause(
                "a part of the response is on its way",
                Duration::from_millis(100),
            );
            connection.reset();
        }
    });
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    client.send(get("/"));
    let error = client
        .try_response("GET")
        .expect_err("a reset must not look like the end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_response_that_breaks_the_framing_rules_is_502() {
    for how in [
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ] {
        let app = dying(how);
        let (_mesh, proxy, address) = gateway(app.address(), |c| c);
        assert_reason(&proxy, &one(address, "/"), 502, "bad_response");
    }
}

#[test]
fn bytes_after_a_response_never_become_the_next_one() {
    // An application that sends two responses to one request.
    let app = Server::start(|mut connection| {
        while connection.request().is_ok() {
            let mut both = ok(b"first");
            both.extend(ok(b"second"));
            connection.send(both);
        }
    });
    let (_mesh, _proxy, address) = gateway(app.address(), |c| c);
    let mut client = Client::connect(address);
    for _ in 0..5 {
        assert_eq!(client.get("/").text(), "first");
    }
}

/// An application that closes a kept connection when the second request on it arrives.
fn closes_at_second() -> Server {
    Server::start(|mut connection| {
        if connection.request().is_ok() {
            connection.send(ok(b"first"));
        }
        if connection.number == 0 {
            let _ = connection.request();
            return;
        }
        while connection.request().is_ok() {
            connection.send(ok(b"replayed"));
        }
    })
}

#[test]
fn a_get_on_a_dead_reused_connection_is_sent_once_more() {
    let app = closes_at_second();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    assert_eq!(client.get("/1").text(), "first");
    assert_eq!(client.get("/2").text(), "first");
    assert_eq!(app.received_text().matches("GET /2 ").count(), 2);
    assert_eq!(pair.server.metric("tulle_replays_total", &[]), 1.0);
}

#[test]
fn a_post_is_never_sent_twice() {
    let app = closes_at_second();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    assert_eq!(client.get("/1").text(), "first");
    client.send(post("/2", b"order"));
    let response = client.response("POST");
    assert_reason(&pair.server, &response, 502, "upstream_reset");
    assert_eq!(app.received_text().matches("POST /2 ").count(), 1);
    assert_eq!(pair.server.metric("tulle_replays_total", &[]), 0.0);
}

#[test]
fn a_get_on_a_fresh_connection_is_not_sent_again() {
    let app = dying("");
    let (_mesh, proxy, address) = gateway(app.address(), |c| c);
    assert_reason(&proxy, &one(address, "/"), 502, "upstream_reset");
    assert_eq!(app.received_text().matches("GET / ").count(), 1);
}

#[test]
fn connections_the_application_closed_while_idle_are_not_used() {
    // It closes each connection a moment after its answer.
    let closed = Arc::<AtomicUsize>::default();
    let count = closed.clone();
    let app = Server::start(move |mut connection| {
        if connection.request().is_ok() {
            connection.send(ok(b"ok"));
        }
        drop(connection);
        count.fetch_add(1, Ordering::SeqCst);
    });
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    for number in 0..50 {
        client.send(post("/", b"x"));
        let response = client.response("POST");
        assert_eq!(response.text(), "ok", "request {number}");
        eventually("it is closed", || closed.load(Ordering::SeqCst) > number);
        pause("before the next request", Duration::from_millis(5));
    }
}

#[test]
fn endpoints_that_are_down_are_passed_over() {
    let app = Server::echo();
    let (_mesh, _proxy, address) = gateway(app.address(), |c| {
        let down = json!({ "address": nobody().to_string(), "mutualTls": false });
        let up = json!({ "address": app.address().to_string(), "mutualTls": false });
        c.set("/services/0/ports/0/endpoints", json!([down, up]))
    });
    for _ in 0..20 {
        assert_eq!(one(address, "/").status(), 200);
    }
}

#[test]
fn requests_are_spread_over_endpoints() {
    let (one_, two) = (Server::http(|_| ok(b"one")), Server::http(|_| ok(b"two")));
    let (_mesh, _proxy, address) = gateway(one_.address(), |c| {
        let endpoint =
            |s: &Server| json!({ "address": s.address().to_string(), "mutualTls": false });
        c.set(
            "/services/0/ports/0/endpoints",
            json!([endpoint(&one_), endpoint(&two)]),
        )
    });
    let mut client = Client::connect(address);
    let answers: Vec<_> = (0..20).map(|_| client.get("/").text()).collect();
    assert_eq!(
        answers.iter().filter(|a| *a == "one").count(),
        10,
        "{answers:?}"
    );
}

#[test]
fn the_access_log_says_who_what_and_how_it_ended() {
    let app = Server::http(|request| match request.target() {
        "/dies" => Vec::new(),
        _ => ok(b"12345"),
    });
    let pair = Pair::with(app.address(), |client, server| {
        (client, server.set("/mesh/accessLog", true))
    });
    let mut client = pair.connect();
    client.send(
        "POST /ratings?x=1 HTTP/1.1\r\nHost: ratings\r\nUser-Agent: \"test\"\r\n\
         X-Forwarded-For: 10.0.0.1\r\nx-request-id: r-1\r\nContent-Length: 3\r\n\r\nabc",
    );
    assert_eq!(client.response("POST").status(), 200);
    eventually("a line in the access log", || {
        !pair.server.access_log().is_empty()
    });
    let line = pair.server.access_log().remove(0);
    for (field, value) in [
        ("method", json!("POST")),
        ("path", json!("/ratings?x=1")),
        ("protocol", json!("HTTP/1.1")),
        ("response_code", json!(200)),
        ("response_flags", json!("-")),
        ("upstream_cluster", json!("ratings")),
        ("upstream_host", json!(app.address().to_string())),
        ("bytes_received", json!(3)),
        ("x_forwarded_for", json!("10.0.0.1")),
        ("user_agent", json!("\"test\"")),
        ("request_id", json!("r-1")),
        ("authority", json!("ratings")),
        ("source_principal", json!(id(CLIENT))),
        ("destination_principal", json!(id(SERVER))),
        ("connection_security_policy", json!("mutual_tls")),
    ] {
        assert_eq!(line[field], value, "{field} in {line:#}");
    }
    assert!(
        line["start_time"].as_str().unwrap().starts_with("20"),
        "{line:#}"
    );
    assert!(line["duration"].as_f64().unwrap() >= line["time_to_first_byte"].as_f64().unwrap());
    assert!(line["bytes_sent"].as_u64().unwrap() >= 5, "{line:#}");
    assert!(pair.client.access_log().is_empty(), "off by default");
}

#[test]
fn the_access_log_carries_the_reason_of_a_refusal() {
    let mesh = Mesh::new();
    let config = outbound_config(nobody()).set("/mesh/accessLog", true);
    let proxy = Proxy::start(&mesh, CLIENT, config.file);
    assert_eq!(one(config.address, "/x").status(), 503);
    eventually("a line in the access log", || {
        !proxy.access_log().is_empty()
    });
    let line = proxy.access_log().remove(0);
    assert_eq!(
        (&line["response_code"], &line["response_flags"]),
        (&json!(503), &json!("connect_failed"))
    );
    assert_eq!(line["path"], "/x");
    // A client that is no client of HTTP is logged too.
    let _ = Client::connect(config.address).try_send("nonsense\r\n\r\n");
    eventually("a second line", || proxy.access_log().len() == 2);
    let line = proxy.access_log().remove(1);
    assert_eq!(
        (&line["response_code"], &line["response_flags"]),
        (&json!(400), &json!("bad_request"))
    );
    assert_eq!((&line["method"], &line["path"]), (&json!("-"), &json!("-")));
}

#[test]
fn a_file_that_contradicts_itself_is_refused_with_a_reason() {
    let config = inbound_config(nobody()).set("/inbound/ports/0/port", 9081);
    let mesh = Mesh::new();
    let file = mesh.path().join("bad.yaml");
    std::fs::write(&file, format!("{:#}", config.file)).unwrap();
    let output = std::process::Command::new(tests_local::proxy_binary())
        .args(["--check", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(65));
    assert!(!output.stderr.is_empty());
}

/// Fields that a gateway and sidecars add on the way do not count as the client's, but a client's own are
/// limited.
#[test]
fn the_mesh_s_own_fields_are_not_counted() {
    let app = Server::echo();
    let fields = |count: usize| "X: y\r\n".repeat(count);
    let pair = Pair::start(app.address());
    // 100 fields are allowed, with `Host`.
    assert_eq!(pair.ask("/", &fields(99)).status(), 200);
    let refused = pair.ask("/", &fields(100));
    assert_reason(&pair.client, &refused, 431, "bad_request");
    // A gateway adds most; what is behind it counts the client's own. The second is the most that the Mesh
    // may allow.
    for most in [20, 128] {
        let server = inbound_config(app.address()).set("/mesh/maxHeaders", most);
        let mesh = Mesh::new();
        let edge = gateway_config(server.address)
            .set("/mesh/maxHeaders", most)
            .set("/services/0/ports/0/endpoints/0/mutualTls", true);
        let _server = Proxy::start(&mesh, SERVER, server.file);
        let _edge = Proxy::start(&mesh, "edge", edge.file);
        let ask = |count: usize| {
            let mut client = Client::connect(edge.address);
            let fields = fields(count);
            client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
            client.response("GET").status()
        };
        eventually("the gateway serves", || ask(1) == 200);
        assert_eq!((ask(most - 1), ask(most)), (200, 431));
    }
}
