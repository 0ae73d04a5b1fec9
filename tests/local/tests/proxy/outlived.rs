//! Connections that last longer than what let them in: a peer's certificate, or a policy.

use serde_json::json;
use std::time::{Duration, SystemTime};
use tests_local::{
    CLIENT, Client, Connection, Mesh, Proxy, SERVER, Server, TLS13, TlsClient, TlsServer,
    eventually, gateway_config, id, inbound_config, outbound_config,
};
use tulle_tls::testing::{Issued, Leaf};

/// A certificate that is good for a handshake and little more.
fn short(mesh: &Mesh, name: &str) -> Issued {
    mesh.ca.issue_leaf(&Leaf {
        not_after: SystemTime::now() + Duration::from_secs(8),
        ..Leaf::new(&id(name))
    })
}

/// Switches protocols when asked, and repeats then what it is sent; else repeats from the beginning.
pub(crate) fn switches() -> Server {
    Server::start(|mut connection| {
        if connection.request().is_ok() {
            connection.send("HTTP/1.1 101 ok\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
            connection.echo();
        }
    })
}

#[test]
fn a_stream_and_a_tunnel_end_with_the_clients_certificate() {
    for (protocol, app) in [
        ("tcp", Server::start(Connection::echo)),
        ("http", switches()),
    ] {
        let mesh = Mesh::new();
        let inbound = inbound_config(app.address()).set("/inbound/ports/0/protocol", protocol);
        let proxy = Proxy::start(&mesh, SERVER, inbound.file);
        let alpn: &[&str] = if protocol == "tcp" {
            &[]
        } else {
            &["http/1.1"]
        };
        let certificate = short(&mesh, CLIENT);
        let client = TlsClient::connect(inbound.address, Some(&certificate), TLS13, alpn);
        let mut client = client.unwrap();
        if protocol == "http" {
            let asked = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
            client.send(asked).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.extend(client.read_exact(1).unwrap());
            }
        }
        client.send("still here").unwrap();
        assert_eq!(client.read_exact(10).unwrap(), b"still here", "{protocol}");
        eventually("it ends", || {
            client
                .send("x")
                .and_then(|()| client.read_exact(1))
                .is_err()
        });
        let error = proxy.await_error("tls_failed");
        assert!(error["detail"].to_string().contains("expired"), "{error}");
    }
}

#[test]
fn a_stream_ends_with_the_servers_certificate() {
    let mesh = Mesh::new();
    let server = TlsServer::start(&short(&mesh, SERVER), &[], |mut connection| {
        while connection.request().is_ok() {
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let config = outbound_config(server.address()).set("/services/0/ports/0/protocol", "tcp");
    let proxy = Proxy::start(&mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    assert_eq!(client.get("/").status(), 200);
    eventually("it ends", || {
        let asked = client.try_send(tests_local::get("/"));
        asked.and_then(|()| client.try_response("GET")).is_err()
    });
    let error = proxy.await_error("tls_failed");
    assert!(error["detail"].to_string().contains("expired"), "{error}");
}

/// A stream of bytes that nobody reads ends where its port is declared to speak HTTP.
#[test]
fn a_stream_of_bytes_ends_when_its_port_speaks_http() {
    let app = Server::start(Connection::echo);
    let mesh = Mesh::new();
    let inbound = inbound_config(app.address())
        .set("/inbound/ports/0/protocol", "tcp")
        .set("/mesh/strictMtls", false)
        .set("/mesh/detectTimeoutMs", 1);
    let proxy = Proxy::start(&mesh, SERVER, inbound.file);
    let mut client = Client::connect(inbound.address);
    client.send("still here");
    assert_eq!(client.read_exact(10), b"still here");
    let mut declared = proxy.config.clone();
    declared["inbound"]["ports"][0]["protocol"] = json!("http");
    proxy.reload(&declared);
    assert!(client.read_to_end().is_err(), "a reset");
    let error = proxy.await_error("denied");
    assert!(
        error["detail"].to_string().contains("speaks HTTP"),
        "{error}"
    );
}

/// Clients of a gateway that a policy no longer lets in.
#[test]
fn a_gateways_connections_and_tunnels_are_judged_again() {
    for protocol in ["tcp", "http"] {
        let app = match protocol {
            "tcp" => Server::start(Connection::echo),
            _ => switches(),
        };
        let mesh = Mesh::new();
        let mut edge = gateway_config(app.address())
            .set("/services/0/ports/0/protocol", protocol)
            .set("/gateways/0/listeners/0/protocol", protocol)
            .set(
                "/gateways/0/listeners/0/policy",
                json!({ "permissive": true }),
            );
        if protocol == "tcp" {
            let target = json!({ "service": SERVER, "port": 9080 });
            let route = json!([{ "name": "TCPRoute/x", "targets": [target] }]);
            edge = edge
                .set("/gateways/0/routes", json!([]))
                .set("/gateways/0/tcpRoutes", route);
        }
        let gateway = Proxy::start(&mesh, "edge", edge.file);
        let mut client = Client::connect(edge.address);
        if protocol == "http" {
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.extend(client.read_exact(1));
            }
        }
        client.send("still here");
        assert_eq!(client.read_exact(10), b"still here");
        let mut closed = gateway.config.clone();
        closed["gateways"][0]["listeners"][0]["policy"] = json!({ "rules": [] });
        gateway.reload(&closed);
        assert!(client.read_to_end().is_err(), "{protocol}: a reset");
        gateway.await_error("denied");
    }
}
