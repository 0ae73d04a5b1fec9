//! The PROXY protocol at a gateway and before an application's own sidecar: the load balancer's
//! client is the client, and whoever sends no header is refused.

use crate::tcp::greets;
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use tests_local::{
    CLIENT, Client, Mesh, Pair, Proxy, SERVER, Server, TLS13, TlsClient, client_config, eventually,
    gateway_config, get, id, inbound_config,
};

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\n";
const V1_SIX: &[u8] = b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 443\r\n";
/// The load balancer itself, looking whether we are there.
const V2_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// Version 2 for an IPv6 client, with an extra that is to be passed over.
fn v2() -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x29".to_vec();
    let address: std::net::Ipv6Addr = "2001:db8::9".parse().unwrap();
    header.extend(address.octets());
    header.extend(address.octets());
    header.extend([0xdc, 4, 1, 0xbb, 4, 0, 2, 9, 9]);
    header
}

/// Gateway ═ mutual TLS ═ sidecar of `ratings` → application.
struct Edge {
    gateway: Proxy,
    server: Proxy,
    address: SocketAddr,
    _mesh: Mesh,
}

fn edge(app: &Server, header_timeout_ms: u32) -> Edge {
    let mesh = Mesh::new();
    let server = inbound_config(app.address()).set("/mesh/accessLog", true);
    let config = gateway_config(server.address)
        .set("/services/0/ports/0/endpoints/0/mutualTls", true)
        .set("/gateways/0/listeners/0/proxyProtocol", true)
        .set("/mesh/accessLog", true)
        .set("/mesh/headerTimeoutMs", header_timeout_ms);
    let address = config.address;
    Edge {
        gateway: Proxy::start(&mesh, "edge", config.file),
        server: Proxy::start(&mesh, SERVER, server.file),
        address,
        _mesh: mesh,
    }
}

fn forwarded_for(head: &str) -> String {
    let head = head.to_ascii_lowercase();
    let lines = head.lines();
    let named: Vec<&str> = lines
        .filter_map(|l| l.strip_prefix("x-forwarded-for: "))
        .collect();
    assert!(!named.is_empty(), "none in {head}");
    named.join(", ")
}

#[test]
fn a_gateway_takes_the_load_balancers_word_for_its_client() {
    let app = Server::echo();
    let edge = edge(&app, 10_000);
    let cases: [(&[u8], &str); 4] = [
        (V1, "192.0.2.7"),
        (V1_SIX, "2001:db8::7"),
        (&v2(), "2001:db8::9"),
        (V2_LOCAL, "127.0.0.1"),
    ];
    for (header, wanted) in cases {
        let mut client = Client::connect(edge.address);
        // The header comes in one packet with the request; then a second request comes on the same
        // connection, without a header.
        client.send([header, get("/one").as_bytes()].concat());
        assert_eq!(forwarded_for(&client.response("GET").text()), wanted);
        client.send("GET /two HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.1\r\n\r\n");
        let both = format!("203.0.113.1, {wanted}");
        assert_eq!(forwarded_for(&client.response("GET").text()), both);
        // Byte by byte.
        let mut slow = Client::connect(edge.address);
        for byte in header {
            slow.send([*byte]);
        }
        assert_eq!(forwarded_for(&slow.get("/three").text()), wanted);
    }
    for proxy in [&edge.gateway, &edge.server] {
        eventually("every request is logged", || proxy.access_log().len() == 12);
        let log = proxy.access_log();
        let mut seen: Vec<&Value> = log.iter().map(|l| &l["x_forwarded_for"]).collect();
        seen.dedup();
        let first = ["192.0.2.7", "203.0.113.1, 192.0.2.7", "192.0.2.7"];
        assert_eq!(seen.get(..3).unwrap(), first);
        assert_eq!(seen.last().unwrap().as_str(), Some("127.0.0.1"));
    }
}

#[test]
fn a_gateway_refuses_who_sends_no_header_or_a_wrong_one() {
    let app = Server::echo();
    let edge = edge(&app, 3000);
    for bytes in [
        get("/bare").as_bytes(),
        b"PROXY TCP4 192.0.2.7 10.0.0.1 56324\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 99999 1\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x01\0",
        &[b"PROXY ".as_slice(), &[b'x'; 4000]].concat(),
        // A second header is not the client's to send: it is no request either.
    ] {
        assert!(Client::is_reset(edge.address, bytes));
    }
    let error = edge.gateway.await_error("bad_request");
    let detail = error["detail"].to_string();
    assert!(detail.contains("proxyProtocol"), "{detail}");
    // Silence and half a header.
    for bytes in [&b""[..], b"PROXY TCP4 "] {
        assert!(Client::is_cut(edge.address, bytes));
    }
    edge.gateway.await_error("header_timeout");
    assert_eq!(app.connections(), 0);
    // A header after the header belongs to nobody.
    let mut client = Client::connect(edge.address);
    client.send([V1, V1, get("/").as_bytes()].concat());
    assert_eq!(client.response("GET").status(), 400);
    assert_eq!(app.connections(), 0);
}

#[test]
fn where_it_is_not_configured_a_header_is_no_request() {
    let app = Server::echo();
    let mesh = Mesh::new();
    let config = gateway_config(app.address());
    let _gateway = Proxy::start(&mesh, "edge", config.file);
    let mut client = Client::connect(config.address);
    client.send([V1, get("/").as_bytes()].concat());
    assert_eq!(client.response("GET").status(), 400);
    let mut client = Client::connect(config.address);
    client.send([&v2()[..], get("/").as_bytes()].concat());
    assert_eq!(client.response("GET").status(), 400);
    assert_eq!(app.connections(), 0);
}

#[test]
fn listeners_of_one_port_must_agree() {
    let app = Server::echo();
    let mesh = Mesh::new();
    let config = gateway_config(app.address());
    let gateway = Proxy::start(&mesh, "edge", config.file);
    let mut changed = gateway.config.clone();
    changed["gateways"][0]["listeners"] = json!([
        { "name": "a", "port": 80, "hostname": "a.test", "proxyProtocol": true },
        { "name": "b", "port": 80, "hostname": "b.test" },
    ]);
    gateway.write_config(&changed);
    eventually("the change is refused", || {
        gateway.log().contains("do not agree on proxyProtocol")
    });
    assert_eq!(Client::connect(config.address).get("/").status(), 200);
}

/// A sidecar behind a load balancer, in permissive mode; other sidecars go on to call it as ever.
fn inbound(app: &Server, protocol: &str) -> Pair {
    // Where the server speaks first, its clients wait so long for it.
    let detect_timeout_ms = if protocol == "tcp" { 100 } else { 60_000 };
    Pair::with(app.address(), |client, server| {
        (
            client
                .set("/services/0/ports/0/protocol", protocol)
                .set("/mesh/detectTimeoutMs", detect_timeout_ms),
            server
                .set("/mesh/detectTimeoutMs", detect_timeout_ms)
                .set("/inbound/ports/0/protocol", protocol)
                .set("/inbound/ports/0/proxyProtocol", true)
                .set("/mesh/strictMtls", false)
                .set("/mesh/accessLog", true),
        )
    })
}

#[test]
fn a_sidecar_behind_a_load_balancer() {
    let app = Server::echo();
    for protocol in ["http", "detect"] {
        let pair = inbound(&app, protocol);
        let mut client = Client::connect(pair.inbound);
        client.send([V1, get("/balanced").as_bytes()].concat());
        let seen = client.response("GET").text();
        assert_eq!(forwarded_for(&seen), "192.0.2.7");
        assert!(!seen.to_ascii_lowercase().contains("spiffe"), "{seen}");
        // A sidecar sends no header, and the client is not named.
        let seen = pair.connect().get("/meshed").text();
        assert!(
            !seen.to_ascii_lowercase().contains("x-forwarded-for"),
            "{seen}"
        );
        assert!(seen.contains(&id(CLIENT)), "{seen}");
        let before = app.connections();
        // Anybody else is refused, as plaintext without a header.
        assert!(Client::is_reset(pair.inbound, get("/bare")));
        pair.server.await_error("bad_request");
        assert_eq!(app.connections(), before);
    }
}

#[test]
fn opaque_connections_behind_a_load_balancer_are_logged_with_their_client() {
    let app = greets();
    let pair = inbound(&app, "tcp");
    let mut client = Client::connect(pair.inbound);
    client.send(V1_SIX);
    assert_eq!(client.read_exact(11), b"220 ready\r\n");
    client.send("hello");
    assert_eq!(client.read_exact(5), b"hello");
    client.half_close();
    assert_eq!(client.read_to_end().unwrap(), b"");
    eventually("it is logged", || !pair.server.access_log().is_empty());
    let line = pair.server.access_log().remove(0);
    assert_eq!(line["x_forwarded_for"], "2001:db8::7");
    assert_eq!(line["bytes_received"], 5, "without the header");
    assert_eq!(app.received()[0], b"hello");
}

/// A load balancer that passes mutual TLS on: its header, then the handshake.
#[test]
fn mutual_tls_may_follow_the_header() {
    let app = Server::echo();
    let pair = inbound(&app, "http");
    let certificate = pair.mesh.ca.issue(&id(CLIENT));
    let config = client_config(Some(&certificate), TLS13, &["http/1.1"]);
    // Both may arrive together or one after the other.
    for _ in 0..20 {
        let mut tcp = std::net::TcpStream::connect(pair.inbound).unwrap();
        tcp.write_all(V1).unwrap();
        let mut client = TlsClient::over(tcp, &config).unwrap();
        let seen = client.get("/both").unwrap().text();
        assert_eq!(forwarded_for(&seen), "192.0.2.7");
        assert!(seen.contains(&id(CLIENT)), "{seen}");
    }
}

/// A policy about addresses means the load balancer's client, also where mutual TLS is strict.
#[test]
fn the_policy_holds_for_the_client_that_is_named() {
    let app = Server::echo();
    let pair = Pair::with(app.address(), |client, server| {
        let rule =
            json!({ "rules": [{ "name": "AccessControl/net", "networks": ["192.0.2.0/24"] }] });
        let server = server
            .set("/inbound/ports/0/proxyProtocol", true)
            .set("/inbound/policy", rule);
        (client, server)
    });
    for (header, status) in [(V1, 200), (&v2()[..], 403), (V2_LOCAL, 403), (V1, 200)] {
        let mut client = Client::connect(pair.inbound);
        client.send([header, get("/").as_bytes()].concat());
        assert_eq!(client.response("GET").status(), status, "{header:?}");
    }
    assert_eq!(app.connections(), 1);
}
