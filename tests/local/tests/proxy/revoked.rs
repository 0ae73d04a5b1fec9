//! Certificates that are revoked: refused at once by either side, and what they opened ends.

use crate::outlived::switches;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::net::SocketAddr;
use tests_local::{
    CLIENT, Client, Connection, Mesh, Pair, Proxy, SERVER, Server, TLS13, TlsClient, id,
    inbound_config,
};

/// The configuration of a proxy to which this is revoked.
fn knowing(proxy: &Proxy, revoked: &Value) -> Value {
    let mut config = proxy.config.clone();
    config["mesh"]["revoked"] = revoked.clone();
    config
}

fn upgraded(address: SocketAddr) -> Client {
    let mut client = Client::connect(address);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(client.read_exact(1));
    }
    client
}

fn is_alive(client: &mut Client) {
    client.send("still here");
    assert_eq!(client.read_exact(10), b"still here");
}

/// Requests of one side are refused by the other, whichever of them was revoked.
#[test]
fn who_is_revoked_is_neither_served_nor_called() {
    for (name, at_server) in [(CLIENT, true), (SERVER, false)] {
        let app = Server::echo();
        let pair = Pair::start(app.address());
        let mut kept = pair.connect();
        assert_eq!(kept.get("/before").status(), 200);
        let judge = if at_server {
            &pair.server
        } else {
            &pair.client
        };
        judge.reload(&knowing(judge, &json!({ "identities": [id(name)] })));
        for client in [&mut kept, &mut pair.connect()] {
            let refused = client.get("/refused");
            // A client learns of its refusal in TLS 1.3 when its handshake is done.
            let expected = if at_server {
                "upstream_reset"
            } else {
                "tls_failed"
            };
            let reason = refused.header("x-tulle-reason");
            assert_eq!((refused.status(), reason), (502, expected), "{name}");
        }
        assert!(!app.received_text().contains("/refused"));
        judge.await_metric(
            "tulle_tls_handshakes_failed_total",
            &["reason=\"revoked\""],
            1.0,
        );
        judge.reload(&judge.config);
        assert_eq!(pair.connect().get("/after").status(), 200, "{name}");
    }
}

/// Streams and tunnels that were open before the revocation end, with both kinds of connection between proxies.
#[test]
fn what_a_revoked_peer_has_opened_is_cut() {
    for at_server in [true, false] {
        for protocol in ["tcp", "http"] {
            let app = match protocol {
                "tcp" => Server::start(Connection::echo),
                _ => switches(),
            };
            let pair = Pair::speaking(app.address(), protocol);
            let mut client = match protocol {
                "tcp" => pair.connect(),
                _ => upgraded(pair.address),
            };
            is_alive(&mut client);
            let (judge, name) = match at_server {
                true => (&pair.server, CLIENT),
                false => (&pair.client, SERVER),
            };
            // Somebody else is not meant.
            judge.reload(&knowing(judge, &json!({ "identities": [id("other")] })));
            is_alive(&mut client);
            judge.reload(&knowing(judge, &json!({ "identities": [id(name)] })));
            // Its end or a reset, whichever comes first, and not silence.
            let silent =
                |e: std::io::Error| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            let goes_on = client.read_to_end().is_err_and(silent);
            assert!(!goes_on, "{name} revoked, {protocol}");
        }
    }
}

/// One certificate, by its serial number; by HTTP/1.1 and opaque bytes in mutual TLS without `tulle/1`.
#[test]
fn one_certificate_is_cut_and_another_of_the_same_identity_is_served() {
    for alpn in [&["http/1.1"][..], &[]] {
        let (app, mesh) = (Server::echo(), Mesh::new());
        let inbound = inbound_config(app.address());
        let proxy = Proxy::start(&mesh, SERVER, inbound.file.clone());
        let (stolen, other) = (mesh.ca.issue(&id(CLIENT)), mesh.ca.issue(&id(CLIENT)));
        let connect = |certificate| {
            let client = TlsClient::connect(inbound.address, Some(certificate), TLS13, alpn);
            client.unwrap()
        };
        let (mut thief, mut owner) = (connect(&stolen), connect(&other));
        for client in [&mut thief, &mut owner] {
            assert_eq!(client.get("/before").unwrap().status(), 200);
        }
        let serial = stolen.identity().public().serial.replace(':', "");
        let serial = serial.trim_start_matches('0');
        proxy.reload(&knowing(&proxy, &json!({ "serials": [serial] })));
        assert!(thief.get("/thief").is_err());
        assert_eq!(owner.get("/owner").unwrap().status(), 200);
        assert_eq!(connect(&other).get("/owner").unwrap().status(), 200);
        let again = TlsClient::connect(inbound.address, Some(&stolen), TLS13, alpn);
        // A client learns of its refusal in TLS 1.3 with the first answer.
        assert!(again.and_then(|mut thief| thief.get("/thief")).is_err());
        assert!(!app.received_text().contains("/thief"));
    }
}
