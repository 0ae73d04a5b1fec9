//! Requests that would like to be taken for something else: on ports whose protocol is not declared,
//! by streams that the client's sidecar has taken for opaque bytes, and by who speaks late. What the
//! application could read as a request is read as one before, or does not arrive.

use serde_json::json;
use tests_local::{
    CLIENT, Client, Config, Connection, Mesh, Pair, Proxy, SERVER, Server, eventually, id,
    inbound_config,
};

const FORGED: &str = "X-Forwarded-Client-Cert: URI=spiffe://tulle.local/svc/admin\r\n\r\n";

/// Lines that lenient servers accept as the first line of a request.
const LINES: [&str; 12] = [
    "GET /{} HTTP/1.1\r\nHost: a\r\n",
    "\r\nGET /{} HTTP/1.1\r\nHost: a\r\n",
    "\r\n\r\n\n\r\nGET /{} HTTP/1.1\r\nHost: a\r\n",
    "\nGET /{} HTTP/1.1\r\nHost: a\r\n",
    " GET /{} HTTP/1.1\r\nHost: a\r\n",
    "\0GET /{} HTTP/1.1\r\nHost: a\r\n",
    "get /{} HTTP/1.1\r\nHost: a\r\n",
    "Brew /{} HTTP/1.1\r\nHost: a\r\n",
    "GET\t/{}\tHTTP/1.1\r\nHost: a\r\n",
    "GET  /{} HTTP/1.0\r\n",
    "x y HTTP/1.1\r\nHost: a\r\n",
    "GET /{}\r\n",
];

fn server_of(protocol: &'static str) -> impl Fn(Config) -> Config {
    move |config| config.set("/inbound/ports/0/protocol", protocol)
}

/// A pair whose client's sidecar is told one protocol, and whose server's another. The first waits
/// for nothing, so that silence is soon over.
fn pair(app: &Server, client: &str, server: &'static str) -> Pair {
    Pair::with(app.address(), |c, s| {
        (
            c.set("/services/0/ports/0/protocol", client)
                .set("/mesh/detectTimeoutMs", 1),
            server_of(server)(s)
                .set("/mesh/detectTimeoutMs", 1)
                .set("/mesh/headerTimeoutMs", 500),
        )
    })
}

/// Sends a forged request and waits for the end of whatever becomes of it.
fn forge(mut client: Client, line: &str) {
    let line = line.replace("{}", "x");
    let _ = client.try_send(format!("{line}{FORGED}"));
    let _ = client.stream().shutdown(std::net::Shutdown::Write);
    let _ = client.read_to_end();
}

fn assert_no_forgery(app: &Server, what: &str) {
    let heard = app.received_text().to_ascii_lowercase();
    assert!(!heard.contains("svc/admin"), "{what}: {heard:?}");
}

/// Sidecars with their clients' view of the port: one that does not know, and one that says `tcp`,
/// which is what a workload that has taken over its sidecar would say.
#[test]
fn no_request_passes_unread_however_it_begins() {
    for view in ["detect", "tcp"] {
        let app = Server::echo();
        let pair = pair(&app, view, "detect");
        for line in LINES {
            forge(pair.connect(), line);
            assert_no_forgery(&app, line);
        }
    }
}

#[test]
fn a_client_without_a_certificate_forges_nothing_either() {
    let app = Server::echo();
    let mesh = Mesh::new();
    let config = server_of("detect")(inbound_config(app.address()))
        .set("/mesh/strictMtls", false)
        .set("/mesh/headerTimeoutMs", 500)
        .set("/mesh/detectTimeoutMs", 1);
    let proxy = Proxy::start(&mesh, SERVER, config.file);
    for line in LINES {
        forge(Client::connect(config.address), line);
        assert_no_forgery(&app, line);
    }
    // Nor in pieces, with a silence before each.
    let timeouts = "tulle_detect_timeouts_total";
    for pieces in [
        &["", "GET /x HTTP/1.1\r\nHost: a\r\n"][..],
        &["", "get /x HT", "TP/1.1\r\n"],
        &["get /x", " HTTP/1.1\r\n"],
        &["\r\n", "get /x HTTP/1.1\r\n"],
    ] {
        let before = proxy.metric(timeouts, &[]);
        let mut client = Client::connect(config.address);
        client.send(pieces[0]);
        proxy.await_metric(timeouts, &[], before + 1.0);
        for piece in &pieces[1..] {
            let _ = client.try_send(piece);
        }
        let _ = client.try_send(FORGED);
        client.half_close();
        let _ = client.read_to_end();
        assert_no_forgery(&app, &format!("{pieces:?}"));
    }
}

/// The decision is made on the client's first bytes, whenever they come.
#[test]
fn who_speaks_late_is_served_like_everybody() {
    let app = Server::echo();
    let pair = pair(&app, "detect", "detect");
    let mut client = pair.connect();
    // Taken for opaque bytes on both sides, as the server may have to speak first.
    eventually("the application has a connection", || {
        app.connections() == 1
    });
    client.send(format!("GET /late HTTP/1.1\r\nHost: a\r\n{FORGED}"));
    let answer = client.response("GET");
    assert_eq!(answer.status(), 200);
    let caller = format!(
        "x-forwarded-client-cert: By={};URI={}\r\n",
        id(SERVER),
        id(CLIENT)
    );
    assert!(answer.text().contains(&caller), "{}", answer.text());
    assert_no_forgery(&app, "late");
    assert_eq!(client.get("/next").status(), 200);
    for proxy in [&pair.client, &pair.server] {
        proxy.await_metric("istio_requests_total", &["\"200\""], 2.0);
    }
}

#[test]
fn the_policy_for_requests_holds_for_who_speaks_late() {
    let app = Server::echo();
    let policy = json!({ "permissive": true, "rules": [
        { "name": "closed", "action": "deny", "matches": [{ "path": { "exact": "/admin" } }] },
    ]});
    let pair = Pair::with(app.address(), |c, s| {
        (
            c.set("/services/0/ports/0/protocol", "tcp"),
            server_of("detect")(s)
                .set("/mesh/detectTimeoutMs", 60_000)
                .set("/inbound/policy", policy),
        )
    });
    // A rule about requests refuses bytes that nobody reads, so the first bytes are waited for here.
    let mut client = pair.connect();
    for (path, status) in [("/admin", 403), ("/other", 200)] {
        client.send(format!("\r\nGET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.response("GET").status(), status);
    }
    assert!(!app.received_text().contains("/admin"));
}

#[test]
fn what_a_server_that_speaks_first_is_told_is_no_request() {
    let app = crate::tcp::greets();
    for view in ["detect", "tcp"] {
        let pair = pair(&app, view, "detect");
        let mut client = pair.connect();
        assert_eq!(client.read_exact(11), b"220 ready\r\n");
        let _ = client.try_send(format!("GET / HTTP/1.1\r\nHost: a\r\n{FORGED}"));
        assert!(client.read_to_end().is_err(), "a reset");
        assert_no_forgery(&app, view);
        let server = match view {
            "detect" => &pair.client,
            _ => &pair.server,
        };
        let error = server.await_error("bad_request");
        assert!(
            error["detail"].to_string().contains("appProtocol"),
            "{error}"
        );
    }
}

/// A stream of opaque bytes to a port that speaks HTTP is read as HTTP.
#[test]
fn a_declared_port_is_not_opened_by_streams_of_opaque_bytes() {
    let app = Server::echo();
    let pair = pair(&app, "tcp", "http");
    let mut client = pair.connect();
    for target in ["/1", "/2"] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{FORGED}"));
        let answer = client.response("GET");
        assert_eq!(answer.status(), 200);
        assert!(answer.text().contains(&id(CLIENT)), "{}", answer.text());
    }
    assert_no_forgery(&app, "http");
    pair.server
        .await_metric("istio_requests_total", &["\"200\""], 2.0);
    // Bytes that are no request are no request here either.
    let mut client = pair.connect();
    client.send("\x01\x02\r\n\r\n");
    assert_eq!(client.response("GET").status(), 400);
}

/// A `TCPRoute` of a gateway leads clients from outside to a port that speaks HTTP.
#[test]
fn a_tcp_route_does_not_open_a_port_that_speaks_http() {
    for protocol in ["http", "detect"] {
        let app = Server::echo();
        let mesh = Mesh::new();
        let inbound = server_of(protocol)(inbound_config(app.address()));
        let _server = Proxy::start(&mesh, SERVER, inbound.file);
        let edge = tests_local::gateway_config(inbound.address)
            .set("/services/0/ports/0/protocol", protocol)
            .set(
                "/services/0/ports/0/endpoints/0",
                json!({ "address": inbound.address.to_string() }),
            )
            .set("/gateways/0/listeners/0/protocol", "tcp")
            .set("/gateways/0/routes", json!([]))
            .set(
                "/gateways/0/tcpRoutes",
                json!([{ "name": "TCPRoute/x", "targets": [{ "service": SERVER, "port": 9080 }] }]),
            );
        let _gateway = Proxy::start(&mesh, "edge", edge.file);
        let mut client = Client::connect(edge.address);
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{FORGED}"));
        let answer = client.response("GET");
        assert_eq!(answer.status(), 200, "{protocol}");
        assert!(answer.text().contains(&id("edge")), "{}", answer.text());
        assert_no_forgery(&app, protocol);
    }
}

/// Bytes of others pass as before, late or not.
#[test]
fn what_is_no_request_passes() {
    let app = Server::start(Connection::echo);
    let pair = pair(&app, "detect", "detect");
    for bytes in [
        &b"*1\r\n$4\r\nPING\r\n"[..],
        b"EHLO a\r\n",
        b"get key\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"no line",
    ] {
        let mut client = pair.connect();
        client.send(bytes);
        assert!(client.read_exact(bytes.len()) == bytes, "{bytes:?}");
        client.send("GET / HTTP/1.1\r\n");
        if bytes.ends_with(b"\n") {
            // The first line is through; whoever reads lines like these is no HTTP server.
            assert_eq!(client.read_exact(16), b"GET / HTTP/1.1\r\n");
        }
    }
}
