//! Every reason code is provoked once: the header of the answer, the access log, the metrics and
//! `/errors` of the proxy that refuses say the same. And the codes are those of docs/reasons.md.

use crate::outside::{OUTSIDE, World, at};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use tests_local::{
    Client, Config, Mesh, Message, Pair, Proxy, SERVER, Server, TLS13, TlsClient, eventually,
    free_port, gateway_config, get, id, inbound_config, is_root, ok, outbound_config, post,
};
use tulle_tls::testing::{Leaf, TestCa};

/// Makes a test of each code, in a module of their own, and the list of the codes. The function of the same name
/// provokes the code and looks for it everywhere.
macro_rules! cases {
    ($($code:ident)*) => {
        mod same_in_answer_log_and_metrics {
            $(
                #[test]
                fn $code() {
                    super::$code(stringify!($code));
                }
            )*
        }

        const CASES: &[&str] = &[$(stringify!($code)),*];
    };
}

cases! {
    denied
    plaintext_refused
    no_service
    egress_denied
    no_route
    no_port
    no_endpoint
    connect_failed
    connect_timeout
    tls_failed
    upstream_reset
    bad_response
    request_timeout
    no_backend
    fault_injected
    redirected
    responded
    cors_preflight
    header_timeout
    idle_timeout
    bad_request
    misdirected
    client_closed
    overload
    circuit_open
    external_denied
    external_unavailable
    plugin_failed
    unauthenticated
    rate_limited
    not_ready
}

#[test]
fn every_code_is_documented_and_provoked_here() {
    let cases: BTreeSet<_> = CASES.iter().copied().collect();
    assert_eq!(cases.len(), CASES.len(), "no code twice");
    // A match must name every variant, so this list is complete.
    let source = include_str!("../../../../crates/proxy/src/telemetry/reason.rs");
    let (_, code) = source.split_once("pub fn code(self)").unwrap();
    let (code, _) = code.split_once("\n    }\n").unwrap();
    let codes = code.lines().filter_map(|line| {
        let (_, code) = line.split_once(" => \"")?;
        code.strip_suffix("\",")
    });
    let codes: BTreeSet<_> = codes.filter(|code| *code != "-").collect();
    assert_eq!(cases, codes, "each code of the proxy has a case");
    let page = include_str!("../../../../docs/reasons.md");
    let (table, _) = page.split_once("\nThe gRPC column").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<_> = rows.map(|r| r.split_once('`').unwrap().0).collect();
    assert_eq!(codes, documented, "docs/reasons.md");
    // Whoever is on call finds each of them, too.
    let incidents = include_str!("../../../../docs/incidents.md");
    let (_, by_code) = incidents.split_once("\n## Act by the code\n").unwrap();
    for code in codes {
        assert!(
            by_code.contains(&format!("`{code}`")),
            "docs/incidents.md lacks {code}"
        );
    }
}

/// Asserts that the proxy records the answer as the client got it.
fn agree(proxy: &Proxy, answer: &Message, status: u16, code: &str) {
    assert_eq!(
        (answer.status(), answer.header("x-tulle-reason")),
        (status, code),
        "{}{}",
        answer.head,
        answer.text()
    );
    told(proxy, status, code);
}

/// The same of what had no answer.
fn told(proxy: &Proxy, status: u16, code: &str) {
    let flags = format!("response_flags=\"{code}\"");
    let labels = [&*format!("response_code=\"{status}\""), &flags];
    proxy.await_metric("istio_requests_total", &labels, 1.0);
    assert_eq!(proxy.metric("istio_requests_total", &[&flags]), 1.0);
    let line = logged(proxy, code);
    assert_eq!(line["response_code"], status, "{line:#}");
    // No failures of the proxy or of what it calls.
    if !["redirected", "responded", "cors_preflight", "client_closed"].contains(&code) {
        let error = proxy.await_error(code);
        assert_eq!(error["code"], status, "{error:#}");
        assert_ne!(error["detail"], "", "{error:#}");
    }
}

/// The only line of the access log with this code.
fn logged(proxy: &Proxy, code: &str) -> Value {
    let lines = || {
        let mut lines = proxy.access_log();
        lines.retain(|line| line["response_flags"] == code);
        lines
    };
    eventually(&format!("{code} in the access log"), || !lines().is_empty());
    let mut lines = lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    lines.remove(0)
}

fn pair_with(app: SocketAddr, change: impl FnOnce(Config, Config) -> (Config, Config)) -> Pair {
    Pair::with(app, |client, server| {
        let (client, server) = change(client, server);
        (
            client.set("/mesh/accessLog", true),
            server.set("/mesh/accessLog", true),
        )
    })
}

/// One GET through both sidecars, which the client's refuses.
fn by_client(code: &str, status: u16, app: SocketAddr, path: &str, value: Value) {
    let pair = pair_with(app, |client, server| (client.set(path, value), server));
    agree(&pair.client, &pair.connect().get("/x"), status, code);
    assert_eq!(pair.server.metric("istio_requests_total", &[]), 0.0);
}

/// One GET through both sidecars, which the server's refuses, and the client's passes the reason on.
fn by_server(code: &str, status: u16, app: SocketAddr, path: &str, value: Value) {
    let pair = pair_with(app, |client, server| (client, server.set(path, value)));
    agree(&pair.server, &pair.connect().get("/x"), status, code);
    // It was not the client's sidecar that refused.
    let labels = [
        &*format!("response_code=\"{status}\""),
        "response_flags=\"-\"",
    ];
    pair.client
        .await_metric("istio_requests_total", &labels, 1.0);
}

/// A route of the client with this filter, and what goes to it.
fn by_filter(code: &str, status: u16, filter: Value, request: &str) {
    let app = Server::echo();
    let rule = json!({ "filters": [filter], "backends": [{ "service": SERVER, "port": 9080 }] });
    let routes = json!([{ "name": "HTTPRoute/r", "rules": [rule] }]);
    let pair = pair_with(app.address(), |client, server| {
        (client.set("/services/0/routes", routes), server)
    });
    let mut client = pair.connect();
    client.send(request);
    agree(&pair.client, &client.response("GET"), status, code);
    assert_eq!(app.connections(), 0);
}

fn nobody() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

fn silent() -> Server {
    Server::start(
        |mut connection| {
            while connection.read_some().is_ok_and(|bytes| !bytes.is_empty()) {}
        },
    )
}

fn denied(code: &str) {
    let app = Server::echo();
    let rules = json!({ "rules": [{ "name": "TrafficTarget/t", "sources": [id("other")] }] });
    by_server(code, 403, app.address(), "/inbound/policy", rules);
    assert_eq!(app.connections(), 0);
}

fn plaintext_refused(code: &str) {
    let app = Server::echo();
    let pair = pair_with(app.address(), |client, server| (client, server));
    // Past the client's sidecar.
    let answer = Client::connect(pair.inbound).get("/x");
    agree(&pair.server, &answer, 403, code);
    assert_eq!(app.connections(), 0);
}

/// The application's sidecar, which knows one service, at an address outside the mesh.
fn world(more: Value) -> Option<(World, Server, SocketAddr)> {
    if !is_root() {
        return None;
    }
    let mut world = World::new();
    let here = at(OUTSIDE[0], 80);
    let server = world.http(here);
    let service = json!({
        "name": SERVER, "identities": [id(SERVER)], "addresses": [OUTSIDE[1]],
        "ports": [{ "port": 9080, "protocol": "http", "endpoints": [] }],
    });
    let mut config = more;
    config["services"] = json!([service]);
    world.rules(json!([]), config);
    Some((world, server, here))
}

/// Rules for clients that say nothing: the sidecar need not wait for that.
fn silence() -> Value {
    let mesh = json!({ "accessLog": true, "detectTimeoutMs": 300 });
    json!({ "egress": null, "mesh": mesh })
}

/// A connection of the application is cut before it says anything.
fn cut(world: &World, to: SocketAddr, service: &str, code: &str) {
    assert!(world.is_cut(to));
    world.sidecar(|proxy| {
        let labels = [&*format!("reason=\"{code}\"")];
        proxy.await_metric("tulle_tcp_failures_total", &labels, 1.0);
        assert_eq!(logged(proxy, code)["upstream_cluster"], service);
        assert_ne!(proxy.await_error(code)["detail"], "");
    });
}

fn no_service(code: &str) {
    let Some((world, server, here)) = world(silence()) else {
        return;
    };
    cut(&world, here, "unknown", code);
    assert_eq!(server.connections(), 0);
}

fn egress_denied(code: &str) {
    let rule = json!({ "name": "Egress/r", "hosts": ["other.example.com"] });
    let Some((world, server, here)) = world(json!({ "egress": { "rules": [rule] } })) else {
        return;
    };
    let answer = world.ask(here, "api.example.com", "/x").unwrap();
    world.sidecar(|proxy| agree(proxy, &answer, 403, code));
    assert_eq!(server.connections(), 0);
}

fn no_route(code: &str) {
    let app = Server::echo();
    let rule = json!({
        "matches": [{ "path": { "prefix": "/a" } }],
        "backends": [{ "service": SERVER, "port": 9080 }],
    });
    let routes = json!([{ "name": "HTTPRoute/r", "rules": [rule] }]);
    by_client(code, 404, app.address(), "/services/0/routes", routes);
}

fn no_port(code: &str) {
    let Some((world, _server, _)) = world(silence()) else {
        return;
    };
    cut(&world, at(OUTSIDE[1], 9081), SERVER, code);
}

fn no_endpoint(code: &str) {
    let path = "/services/0/ports/0/endpoints";
    by_client(code, 503, nobody(), path, json!([]));
}

fn connect_failed(code: &str) {
    by_server(code, 503, nobody(), "/inbound/service", SERVER.into());
}

fn connect_timeout(code: &str) {
    // A full queue: the kernel drops what comes after it.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = Client::connect(address);
    let pair = pair_with(address, |client, server| {
        (client, server.set("/mesh/connectTimeoutMs", 300))
    });
    let mut answer = pair.connect().get("/x");
    if answer.header("x-tulle-reason") == "request_timeout" {
        // The queue still had one place.
        answer = pair.connect().get("/x");
    }
    agree(&pair.server, &answer, 504, code);
}

fn tls_failed(code: &str) {
    let app = Server::echo();
    let path = "/services/0/identities";
    by_client(code, 502, app.address(), path, json!([id("other")]));
    assert_eq!(app.connections(), 0);
}

fn upstream_reset(code: &str) {
    let app = Server::start(|mut connection| drop(connection.request()));
    let pair = pair_with(app.address(), |client, server| (client, server));
    let mut client = pair.connect();
    // A GET would be sent again.
    client.send(post("/x", b"y"));
    agree(&pair.server, &client.response("POST"), 502, code);
}

fn bad_response(code: &str) {
    let app = Server::http(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".to_vec()
    });
    by_server(code, 502, app.address(), "/inbound/service", SERVER.into());
}

fn request_timeout(code: &str) {
    let app = silent();
    let path = "/mesh/requestTimeoutMs";
    by_server(code, 504, app.address(), path, 200.into());
}

fn no_backend(code: &str) {
    let backend = json!({ "service": SERVER, "port": 9080, "weight": 0 });
    let routes = json!([{ "name": "HTTPRoute/r", "rules": [{ "backends": [backend] }] }]);
    by_client(code, 500, nobody(), "/services/0/routes", routes);
}

fn fault_injected(code: &str) {
    let filter = json!({ "fault": { "abortStatus": 418, "abortPpm": 1_000_000 } });
    by_filter(code, 418, filter, &get("/x"));
}

fn redirected(code: &str) {
    let filter = json!({ "redirect": { "scheme": "https", "status": 301 } });
    by_filter(code, 301, filter, &get("/x"));
}

fn responded(code: &str) {
    let filter = json!({ "respond": { "status": 451, "body": "no" } });
    by_filter(code, 451, filter, &get("/x"));
}

fn cors_preflight(code: &str) {
    let filter = json!({ "cors": { "allowOrigins": ["https://a.test"], "allowMethods": ["PUT"] } });
    let request = "OPTIONS /x HTTP/1.1\r\nHost: ratings\r\nOrigin: https://a.test\r\n\
                   Access-Control-Request-Method: PUT\r\n\r\n";
    by_filter(code, 204, filter, request);
}

/// Tests a request that the client begins at its sidecar and does not continue. The limit leaves it time to
/// begin.
fn begun(code: &str, status: u16, limit: &str, bytes: &str) {
    let app = Server::echo();
    let pair = pair_with(app.address(), |client, server| {
        (client.set(limit, 2000), server)
    });
    let mut client = pair.connect();
    client.send(bytes);
    agree(&pair.client, &client.response("POST"), status, code);
    assert!(client.is_ended());
}

fn header_timeout(code: &str) {
    let bytes = "POST / HTTP/1.1\r\nHost: a\r\nX-Slow";
    begun(code, 408, "/mesh/headerTimeoutMs", bytes);
}

fn idle_timeout(code: &str) {
    let bytes = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf";
    begun(code, 408, "/mesh/idleTimeoutMs", bytes);
}

fn bad_request(code: &str) {
    let bytes = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1x\r\n\r\n";
    begun(code, 400, "/mesh/idleTimeoutMs", bytes);
}

/// Through a gateway that ends TLS: one connection, the host of another listener.
fn misdirected(code: &str) {
    let app = Server::echo();
    let (mesh, web) = (Mesh::new(), TestCa::new("web root"));
    let inbound = inbound_config(app.address());
    let listener = |name: &str| {
        let issued = web.issue_leaf(&Leaf {
            uris: vec![],
            dns: vec![name.to_owned()],
            client_auth: false,
            ..Leaf::new("spiffe://none/none")
        });
        let certificate = json!({ "chain": issued.chain_pem, "key": issued.key_pem });
        json!({ "name": name.split_once('.').unwrap().0, "port": 80, "hostname": name,
                "protocol": "https", "tls": { "certificates": [certificate] } })
    };
    let listeners = json!([listener("a.test"), listener("b.test")]);
    let config = gateway_config(inbound.address)
        .set("/services/0/ports/0/endpoints/0/mutualTls", true)
        .set("/gateways/0/listeners", listeners)
        .set("/mesh/accessLog", true);
    let _sidecar = Proxy::start(&mesh, SERVER, inbound.file);
    let gateway = Proxy::start(&mesh, "edge", config.file);
    let tls = tests_local::client_config(None, TLS13, &["http/1.1"]);
    let ask = |host: &str| {
        let mut client = TlsClient::connect_to(config.address, &tls, "a.test").unwrap();
        client
            .send(format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .unwrap();
        client.response("GET").unwrap()
    };
    assert_eq!(ask("a.test").status(), 200);
    agree(&gateway, &ask("b.test"), 421, code);
}

fn client_closed(code: &str) {
    let app = silent();
    let pair = pair_with(app.address(), |client, server| (client, server));
    let client = pair.connect();
    let mut request = client;
    request.send(post("/x", b"y"));
    eventually("the application has it", || {
        app.received_text().contains("/x")
    });
    // Reset the connection: a client that only ends its half may still wait for the answer.
    let linger = Some(std::time::Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(request.stream(), linger).unwrap();
    drop(request);
    told(&pair.client, 499, code);
    told(&pair.server, 499, code);
}

fn overload(code: &str) {
    let app = silent();
    let limits = json!({ "name": "TrafficPolicy/r", "limits": { "requests": 1, "pending": 0 } });
    let pair = pair_with(app.address(), |client, server| {
        (client.set("/services/0/ports/0/traffic", limits), server)
    });
    let mut first = pair.connect();
    first.send(get("/first"));
    eventually("the first is there", || app.connections() == 1);
    agree(&pair.client, &pair.connect().get("/x"), 503, code);
}

fn circuit_open(code: &str) {
    let app = Server::http(|_| b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec());
    let breaker = json!({ "minRequests": 1, "errorAmount": 1, "openMs": 600_000 });
    let traffic = json!({ "name": "TrafficPolicy/r", "breaker": breaker });
    let pair = pair_with(app.address(), |client, server| {
        (client.set("/services/0/ports/0/traffic", traffic), server)
    });
    assert_eq!(pair.connect().get("/x").status(), 500);
    agree(&pair.client, &pair.connect().get("/x"), 503, code);
}

/// The server's sidecar asks a service about requests.
fn external(code: &str, status: u16, authority: SocketAddr) {
    let app = Server::echo();
    let filter = json!({ "externalAuth": {
        "name": "Authentication/r", "service": "authority", "port": 80, "timeoutMs": 10_000,
    }});
    let rules = json!([{ "name": "Authentication/r", "filters": [filter] }]);
    let endpoint = json!({ "address": authority.to_string(), "mutualTls": false });
    let service = json!({ "name": "authority", "ports": [{
        "port": 80, "protocol": "http", "endpoints": [endpoint] }] });
    let pair = pair_with(app.address(), |client, server| {
        let server = server.set("/services", json!([service]));
        (client, server.set("/inbound/ports/0/rules", rules))
    });
    agree(&pair.server, &pair.connect().get("/x"), status, code);
    assert_eq!(app.connections(), 0);
}

fn external_denied(code: &str) {
    let authority = Server::http(|_| b"HTTP/1.1 402 Pay\r\nContent-Length: 0\r\n\r\n".to_vec());
    external(code, 402, authority.address());
}

fn external_unavailable(code: &str) {
    external(code, 503, nobody());
}

fn plugin_failed(code: &str) {
    let app = Server::echo();
    let source = "export function onRequest() { throw new Error('no') }";
    let filter = json!({ "plugin": { "name": "p", "source": source } });
    let rules = json!([{ "name": "Plugin/p", "filters": [filter] }]);
    by_server(code, 500, app.address(), "/inbound/ports/0/rules", rules);
    assert_eq!(app.connections(), 0);
}

fn unauthenticated(code: &str) {
    let app = Server::echo();
    let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "1", "alg": "EdDSA",
                      "x": "THBRoioHyeBpfLlo60wwU5ipsutRrw3bskXEOTjW4hg" });
    let provider =
        json!({ "issuer": "https://issuer", "jwks": json!({ "keys": [key] }).to_string() });
    let filter = json!({ "jwt": { "name": "Authentication/r", "providers": [provider] } });
    let rules = json!([{ "name": "Authentication/r", "filters": [filter] }]);
    let path = "/inbound/ports/0/rules";
    by_server(code, 401, app.address(), path, rules);
    assert_eq!(app.connections(), 0);
}

fn rate_limited(code: &str) {
    let app = Server::http(|_| ok(b""));
    let limit = json!({ "name": "RateLimit/r", "tokens": 1, "perMs": 3_600_000 });
    let rules = json!([{ "name": "RateLimit/r", "filters": [{ "rateLimit": limit }] }]);
    let pair = pair_with(app.address(), |client, server| {
        (client, server.set("/inbound/ports/0/rules", rules))
    });
    assert_eq!(pair.connect().get("/x").status(), 200);
    agree(&pair.server, &pair.connect().get("/x"), 429, code);
}

/// A gateway whose controller does not answer.
fn not_ready(code: &str) {
    let mesh = Mesh::new();
    let config = outbound_config(nobody());
    let control = json!({ "address": nobody().to_string(), "caFingerprint": "0".repeat(64) });
    let file = json!({
        "listeners": [{ "address": config.address.to_string(), "kind": "gateway",
                        "gateway": "edge", "port": 80 }],
        "mesh": { "accessLog": true },
        "control": control,
    });
    let gateway = Proxy::start_unready(&mesh, "edge", file);
    let answer = Client::connect(config.address).get("/x");
    agree(&gateway, &answer, 503, code);
}
