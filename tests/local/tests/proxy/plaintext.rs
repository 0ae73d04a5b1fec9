//! Plaintext from outside the mesh: refused in strict mode, without an identity in permissive
//! mode. And peers of the mesh that speak HTTP/1.1 over mutual TLS but no `tulle/1`.

use crate::tcp::{echo, greets};
use serde_json::json;
use std::time::Duration;
use tests_local::{
    CLIENT, Client, Config, Mesh, Proxy, SERVER, Server, TLS13, TlsClient, TlsServer,
    client_config, eventually, get, id, inbound_config, ok, outbound_config, pause, post,
};

fn inbound(
    app: &Server,
    change: impl FnOnce(Config) -> Config,
) -> (Mesh, Proxy, std::net::SocketAddr) {
    let mesh = Mesh::new();
    let config = change(inbound_config(app.address()));
    let proxy = Proxy::start(&mesh, SERVER, config.file);
    (mesh, proxy, config.address)
}

const NONE: &str = "connection_security_policy=\"none\"";
const REFUSED: &str = "response_flags=\"plaintext_refused\"";

/// Repeats what it is sent.
#[test]
fn strict_mode_refuses_plaintext_http() {
    let app = Server::echo();
    let (_mesh, proxy, address) = inbound(&app, |c| c.set("/mesh/accessLog", true));
    for request in [get("/secret").into_bytes(), post("/secret", b"body")] {
        let mut client = Client::connect(address);
        client.send(request);
        let response = client.response("GET");
        assert_eq!(response.status(), 403);
        assert_eq!(response.header("x-tulle-reason"), "plaintext_refused");
        assert!(client.is_ended());
    }
    proxy.await_metric("istio_requests_total", &[REFUSED, NONE, "\"403\""], 2.0);
    assert_eq!(proxy.metric("tulle_plaintext_refused_total", &[]), 2.0);
    assert_eq!(proxy.await_error("plaintext_refused")["code"], 403);
    eventually("both in the access log", || proxy.access_log().len() == 2);
    let line = proxy.access_log().remove(0);
    assert_eq!(line["response_flags"], "plaintext_refused");
    assert_eq!(line["source_principal"], "-");
    assert_eq!(app.connections(), 0);
}

#[test]
fn strict_mode_refuses_plaintext_tcp() {
    let app = echo();
    let (_mesh, proxy, address) = inbound(&app, |c| c.set("/inbound/ports/0/protocol", "tcp"));
    assert!(Client::is_reset(address, [0, 1, 2, 3, 4, 5, 6, 7]));
    proxy.await_metric(
        "tulle_tcp_failures_total",
        &["reason=\"plaintext_refused\"", NONE],
        1.0,
    );
    assert_eq!(proxy.metric("tulle_plaintext_refused_total", &[]), 1.0);
    proxy.await_error("plaintext_refused");
    assert_eq!(app.connections(), 0);
}

#[test]
fn strict_mode_gives_nothing_to_a_silent_client() {
    // A server that speaks first must not be heard by somebody outside the mesh.
    let app = Server::start(|mut connection| connection.send("220 secret banner\r\n"));
    let (_mesh, _proxy, address) = inbound(&app, |c| {
        c.set("/inbound/ports/0/protocol", "tcp")
            .set("/mesh/headerTimeoutMs", 300)
    });
    let mut client = Client::connect(address);
    assert!(client.is_ended());
    assert_eq!(app.connections(), 0);
}

#[test]
fn permissive_mode_takes_plaintext_and_gives_it_no_identity() {
    let app = Server::echo();
    let (_mesh, proxy, address) = inbound(&app, |c| c.set("/mesh/strictMtls", false));
    let mut client = Client::connect(address);
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Client-Cert: By=x;URI={}\r\n\r\n",
        id(CLIENT)
    ));
    assert_eq!(client.response("GET").status(), 200);
    let seen = app.received_text().to_ascii_lowercase();
    assert!(!seen.contains("spiffe"), "{seen}");
    let labels = [
        NONE,
        "source_principal=\"unknown\"",
        "source_workload=\"unknown\"",
        "\"200\"",
    ];
    proxy.await_metric("istio_requests_total", &labels, 1.0);
    assert_eq!(proxy.metric("tulle_plaintext_refused_total", &[]), 0.0);
}

#[test]
fn permissive_mode_takes_plaintext_tcp_and_a_server_that_speaks_first() {
    let app = greets();
    for protocol in ["tcp", "detect"] {
        let (_mesh, proxy, address) = inbound(&app, |c| {
            c.set("/mesh/strictMtls", false)
                .set("/inbound/ports/0/protocol", protocol)
        });
        let mut client = Client::connect(address);
        assert_eq!(client.read_exact(11), b"220 ready\r\n");
        client.send("EHLO a\r\n");
        assert_eq!(client.read_exact(8), b"EHLO a\r\n");
        drop(client);
        let labels = [NONE, "source_principal=\"unknown\""];
        proxy.await_metric("istio_tcp_connections_closed_total", &labels, 1.0);
    }
}

#[test]
fn permissive_mode_still_takes_mutual_tls_and_names_the_caller() {
    let app = Server::echo();
    let (mesh, proxy, address) = inbound(&app, |c| c.set("/mesh/strictMtls", false));
    let mut client = TlsClient::http(address, &mesh.ca.issue(&id(CLIENT)));
    assert_eq!(client.get("/").unwrap().status(), 200);
    assert!(
        app.received_text()
            .contains(&format!("URI={}\r\n", id(CLIENT)))
    );
    let source = format!("source_principal=\"{}\"", id(CLIENT));
    let labels = ["connection_security_policy=\"mutual_tls\"", source.as_str()];
    proxy.await_metric("istio_requests_total", &labels, 1.0);
    // A wrong certificate is no plaintext.
    let stranger = mesh.ca.issue("spiffe://other.local/svc/x");
    let answer = TlsClient::connect(address, Some(&stranger), TLS13, &["http/1.1"])
        .and_then(|mut client| client.get("/"));
    assert!(answer.is_err(), "{answer:?}");
}

#[test]
fn permissive_mode_does_not_open_what_a_policy_closes() {
    let app = Server::echo();
    let rules = json!({ "rules": [{ "name": "pages", "sources": [id(CLIENT)] }] });
    let (_mesh, proxy, address) = inbound(&app, |c| {
        c.set("/mesh/strictMtls", false)
            .set("/inbound/policy", rules)
    });
    let response = Client::connect(address).get("/");
    assert_eq!(
        (response.status(), response.header("x-tulle-reason")),
        (403, "denied")
    );
    proxy.await_error("denied");
    assert_eq!(app.connections(), 0);
}

/// A caller cannot evade a deny rule by leaving out its certificate.
#[test]
fn permissive_mode_does_not_let_pass_whom_a_policy_names_to_deny() {
    let app = Server::echo();
    let deny = json!({ "permissive": true, "rules": [{
        "name": "AuthorizationPolicy/no-client", "action": "deny", "sources": [id(CLIENT)],
        "matches": [{ "path": { "prefix": "/admin" } }],
    }] });
    let (mesh, proxy, address) = inbound(&app, |c| {
        c.set("/mesh/strictMtls", false)
            .set("/inbound/policy", deny)
    });
    let response = Client::connect(address).get("/admin");
    assert_eq!(
        (response.status(), response.header("x-tulle-reason")),
        (403, "denied")
    );
    let detail = proxy.await_error("denied")["detail"].to_string();
    assert!(detail.contains("no-client"), "{detail}");
    assert_eq!(Client::connect(address).get("/page").status(), 200);
    // A caller that proves another identity may call.
    let other = mesh.ca.issue(&id("other"));
    let mut client = TlsClient::http(address, &other);
    assert_eq!(client.get("/admin").unwrap().status(), 200);
}

#[test]
fn callers_in_plaintext_are_named_whether_they_are_let_in_or_not() {
    let app = Server::echo();
    let (mesh, proxy, address) = inbound(&app, |c| c.set("/mesh/strictMtls", false));
    let seen = || {
        let shown = proxy.admin("/outside").text();
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()
    };
    let mut client = TlsClient::http(address, &mesh.ca.issue(&id(CLIENT)));
    assert_eq!(client.get("/").unwrap().status(), 200);
    assert_eq!(seen(), json!([]));
    for _ in 0..2 {
        assert_eq!(Client::connect(address).get("/").status(), 200);
    }
    let mut config = proxy.config.clone();
    config["mesh"]["strictMtls"] = true.into();
    proxy.reload(&config);
    assert_eq!(Client::connect(address).get("/").status(), 403);
    let rows = seen();
    let row = &rows[0];
    assert_eq!(
        (
            &row["direction"],
            &row["address"],
            &row["allowed"],
            &row["refused"]
        ),
        (&json!("inbound"), &json!("127.0.0.1"), &json!(2), &json!(1)),
        "{rows}"
    );
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
}

#[test]
fn a_change_of_mode_holds_for_connections_that_are_open() {
    let app = Server::echo();
    let (_mesh, proxy, address) = inbound(&app, |c| c.set("/mesh/strictMtls", false));
    let mut config = proxy.config.clone();
    let mut client = Client::connect(address);
    assert_eq!(client.get("/1").status(), 200);

    config["mesh"]["strictMtls"] = true.into();
    proxy.reload(&config);
    let response = client.get("/2");
    assert_eq!(
        (response.status(), response.header("x-tulle-reason")),
        (403, "plaintext_refused")
    );
    assert_eq!(Client::connect(address).get("/3").status(), 403);

    config["mesh"]["strictMtls"] = false.into();
    proxy.reload(&config);
    assert_eq!(Client::connect(address).get("/4").status(), 200);
    let seen = app.received_text();
    assert!(seen.contains("GET /4 ") && !seen.contains("GET /2 ") && !seen.contains("GET /3 "));
}

#[test]
fn a_change_to_strict_ends_open_plaintext_tcp() {
    let app = echo();
    let (_mesh, proxy, address) = inbound(&app, |c| {
        c.set("/mesh/strictMtls", false)
            .set("/inbound/ports/0/protocol", "tcp")
    });
    let mut client = Client::connect(address);
    client.send("before");
    assert_eq!(client.read_exact(6), b"before");
    let mut config = proxy.config.clone();
    config["mesh"]["strictMtls"] = true.into();
    proxy.reload(&config);
    assert!(client.read_to_end().is_err(), "a reset, not an orderly end");
    proxy.await_metric(
        "tulle_tcp_failures_total",
        &["reason=\"plaintext_refused\""],
        1.0,
    );
}

// ---- mutual TLS without `tulle/1`

#[test]
fn a_client_of_http11_over_mutual_tls_is_served_on_one_connection() {
    let app = Server::echo();
    let (mesh, proxy, address) = inbound(&app, |c| c);
    let certificate = mesh.ca.issue(&id(CLIENT));
    let mut client = TlsClient::http(address, &certificate);
    assert_eq!(client.alpn().as_deref(), Some("http/1.1"));
    for number in 0..10 {
        let response = client.get(&format!("/{number}")).unwrap();
        assert_eq!(response.status(), 200);
    }
    client.send(post("/post", &[b'x'; 100_000])).unwrap();
    assert!(client.response("POST").unwrap().body.len() > 100_000);
    assert_eq!(
        app.connections(),
        1,
        "the connection to the application is kept"
    );
    assert_eq!(proxy.metric("tulle_tls_handshakes_total", &[]), 1.0);
    // The first bytes tell the protocol of a connection without a protocol name.
    let mut unnamed = TlsClient::connect(address, Some(&certificate), TLS13, &[]).unwrap();
    assert_eq!(
        (unnamed.alpn(), unnamed.get("/").unwrap().status()),
        (None, 200)
    );
    // A protocol nobody knows is no reason to guess.
    let other = TlsClient::connect(address, Some(&certificate), TLS13, &["h3"]);
    assert!(other.is_err());
}

#[test]
fn a_server_of_http11_over_mutual_tls_is_called_on_kept_connections() {
    let mesh = Mesh::new();
    let certificate = mesh.ca.issue(&id(SERVER));
    for alpn in [&["http/1.1"][..], &[]] {
        let peer = TlsServer::http(&certificate, alpn, |request| {
            ok(request.target().as_bytes())
        });
        let config = outbound_config(peer.address());
        let proxy = Proxy::start(&mesh, CLIENT, config.file);
        let mut client = Client::connect(config.address);
        for number in 0..10 {
            let target = format!("/{number}");
            assert_eq!(client.get(&target).text(), target);
        }
        assert_eq!(peer.connections(), 1, "{alpn:?}");
        // Two at once need two connections, which are both kept.
        let mut second = Client::connect(config.address);
        client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx");
        assert_eq!(second.get("/b").text(), "/b");
        client.send("y");
        assert_eq!(client.response("POST").text(), "/a");
        for _ in 0..5 {
            assert_eq!(second.get("/c").text(), "/c");
        }
        assert_eq!(peer.connections(), 2, "{alpn:?}");
        let source = format!("destination_principal=\"{}\"", id(SERVER));
        let labels = ["connection_security_policy=\"mutual_tls\"", source.as_str()];
        proxy.await_metric("istio_requests_total", &labels, 17.0);
    }
}

#[test]
fn a_kept_connection_that_the_peer_closed_costs_no_request() {
    let mesh = Mesh::new();
    let peer = TlsServer::start(
        &mesh.ca.issue(&id(SERVER)),
        &["http/1.1"],
        |mut connection| {
            if connection.request().is_ok() {
                // An error is the proxy's business, which the test sees.
                let _ = connection.send(ok(b"once"));
            }
        },
    );
    let config = outbound_config(peer.address());
    let _proxy = Proxy::start(&mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    for _ in 0..20 {
        assert_eq!(client.get("/").text(), "once");
        pause("before the next request", Duration::from_millis(2));
    }
    assert_eq!(peer.connections(), 20);
}

/// A lost packet is enough for a peer's handshake to begin late: it is one all the same, and the
/// application gets none of its bytes.
#[test]
fn a_peer_whose_handshake_begins_late_is_served() {
    for (protocol, alpn) in [("detect", &["http/1.1"][..]), ("tcp", &[])] {
        let app = match protocol {
            "tcp" => echo(),
            _ => Server::echo(),
        };
        let (mesh, proxy, address) = inbound(&app, |c| {
            let c = c.set("/inbound/ports/0/protocol", protocol);
            c.set("/mesh/strictMtls", false)
                .set("/mesh/detectTimeoutMs", 1)
        });
        let certificate = mesh.ca.issue(&id(CLIENT));
        let config = client_config(Some(&certificate), TLS13, alpn);
        let silent = std::net::TcpStream::connect(address).unwrap();
        // Nothing is waited for any longer: the application may speak.
        proxy.await_metric("tulle_detect_timeouts_total", &[], 1.0);
        eventually("the application is connected", || app.connections() == 1);
        let mut client = TlsClient::over(silent, &config).unwrap();
        match protocol {
            "tcp" => {
                client.send(b"hello").unwrap();
                assert_eq!(client.read_exact(5).unwrap(), b"hello");
            }
            _ => {
                let answer = client.get("/").unwrap();
                assert_eq!(answer.status(), 200);
                assert!(answer.text().contains(&id(CLIENT)), "{}", answer.text());
            }
        }
        assert_eq!(proxy.metric("tulle_tls_handshakes_total", &[]), 1.0);
    }
}

/// If the application has spoken first, nobody can have both.
#[test]
fn a_handshake_after_the_application_has_spoken_is_refused_with_the_reason() {
    let app = greets();
    let (mesh, proxy, address) = inbound(&app, |c| {
        let c = c.set("/inbound/ports/0/protocol", "tcp");
        c.set("/mesh/strictMtls", false)
            .set("/mesh/detectTimeoutMs", 1)
    });
    let certificate = mesh.ca.issue(&id(CLIENT));
    let config = client_config(Some(&certificate), TLS13, &[]);
    let silent = std::net::TcpStream::connect(address).unwrap();
    eventually("the application has spoken", || {
        silent.peek(&mut [0]).is_ok_and(|n| n > 0)
    });
    assert!(TlsClient::over(silent, &config).is_err());
    let error = proxy.await_error("tls_failed");
    assert!(
        error["detail"]
            .as_str()
            .unwrap()
            .contains("protocolDetection"),
        "{error}"
    );
}
