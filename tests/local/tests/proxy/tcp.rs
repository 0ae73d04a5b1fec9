//! Opaque TCP through both sidecars: the same bytes, the same ends, counted while they flow.

use serde_json::json;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tests_local::{
    CLIENT, Client, Connection, Gate, Mesh, Pair, Proxy, SERVER, Server, TLS13, TlsClient,
    TlsServer, eventually, id, inbound_config, ok, outbound_config, pattern, pause,
};

/// Repeats what it is sent, then ends as the client did.
pub(crate) fn echo() -> Server {
    Server::start(Connection::echo)
}

fn tcp(app: &Server) -> Pair {
    Pair::speaking(app.address(), "tcp")
}

/// A pair that finds out what is spoken; clients who say so have time, also on a busy machine.
fn detecting(app: &Server) -> Pair {
    Pair::with(app.address(), |client, server| {
        (
            client
                .set("/services/0/ports/0/protocol", "detect")
                .set("/mesh/detectTimeoutMs", 60_000),
            server
                .set("/inbound/ports/0/protocol", "detect")
                .set("/mesh/detectTimeoutMs", 60_000),
        )
    })
}

const BIG: usize = 10 * 1024 * 1024;

#[test]
fn ten_mebibytes_pass_unchanged_both_ways_at_once() {
    let app = echo();
    let pair = tcp(&app);
    let mut client = pair.connect();
    let bytes = pattern(BIG);
    let mut writer = client.stream().try_clone().unwrap();
    let sent = bytes.clone();
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &sent));
    assert!(client.read_exact(BIG) == bytes);
    writing.join().unwrap().unwrap();
    client.half_close();
    assert_eq!(client.read_to_end().unwrap(), b"");
    assert!(app.received()[0] == bytes);
}

/// It waits for a lock in a database, for instance, or is looked at in a debugger.
#[test]
fn a_server_that_reads_nothing_for_long_is_not_taken_for_dead() {
    // More than all sockets and sidecars hold.
    const BULK: usize = 64 * 1024 * 1024;
    let app = Server::start(|mut connection| {
        pause("bytes wait for it", Duration::from_secs(25));
        assert!(connection.read_exact(BULK).unwrap() == pattern(BULK));
        connection.send("done");
    });
    let pair = tcp(&app);
    let mut client = pair.connect();
    client.send(pattern(BULK));
    assert_eq!(client.read_exact(4), b"done");
}

#[test]
fn a_client_that_is_lost_after_its_last_byte_is_noticed() {
    let (ended, thinks) = (Arc::<Gate>::default(), Arc::<Gate>::default());
    let gates = (ended.clone(), thinks.clone());
    let app = Server::start(move |mut connection| {
        while connection.read_some().is_ok_and(|bytes| !bytes.is_empty()) {}
        gates.0.open();
        gates.1.pass();
    });
    let Pair {
        client: sidecar,
        server,
        address,
        mesh: _mesh,
        ..
    } = tcp(&app);
    let mut client = Client::connect(address);
    client.send("question");
    client.half_close();
    ended.pass();
    sidecar.kill();
    server.await_metric("istio_tcp_connections_closed_total", &[], 1.0);
    thinks.open();
}

/// "Too many connections", for instance, from a server that reads nothing more of what comes.
#[test]
fn the_last_bytes_of_a_server_arrive_before_its_reset() {
    let app = Server::start(|mut connection| {
        connection.read_exact(1).unwrap();
        connection.send("last words");
    });
    let pair = tcp(&app);
    for _ in 0..200 {
        let mut client = pair.connect();
        let mut writer = client.stream().try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            let more = [1; 2000];
            while std::io::Write::write_all(&mut writer, &more).is_ok() {}
        });
        assert_eq!(client.read_exact(10), b"last words");
        drop(client);
        writing.join().unwrap();
    }
}

#[test]
fn a_slow_reader_holds_the_sender_back_and_not_in_memory() {
    let app = Server::start(|mut connection| {
        let bytes = pattern(32 * 1024 * 1024);
        connection.send(&bytes);
    });
    let pair = tcp(&app);
    let mut client = pair.connect();
    let first = client.read_exact(1);
    pause("no more is taken", Duration::from_millis(500));
    for proxy in [&pair.client, &pair.server] {
        assert!(proxy.memory() < 64 * 1024 * 1024, "{}", proxy.memory());
        let held = proxy.metric("istio_tcp_sent_bytes_total", &[]);
        assert!(
            held < 24.0 * 1024.0 * 1024.0,
            "it was not held back: {held}"
        );
    }
    let rest = client.read_to_end().unwrap();
    assert!([first, rest].concat() == pattern(32 * 1024 * 1024));
}

#[test]
fn a_client_that_has_finished_still_hears_the_server() {
    let app = Server::start(|mut connection| {
        let mut all = Vec::new();
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() {
                break;
            }
            all.extend(bytes);
        }
        connection.send(format!("got {}", all.len()));
    });
    let pair = tcp(&app);
    let mut client = pair.connect();
    client.send("12345");
    client.half_close();
    assert_eq!(client.read_to_end().unwrap(), b"got 5");
}

#[test]
fn a_server_that_has_finished_still_hears_the_client() {
    let app = Server::start(|mut connection| {
        connection.send("bye");
        connection.half_close();
        while connection.read_some().is_ok_and(|bytes| !bytes.is_empty()) {}
    });
    let pair = tcp(&app);
    let mut client = pair.connect();
    assert_eq!(client.read_to_end().unwrap(), b"bye");
    client.send("still ");
    eventually("the first part arrives", || app.received_text() == "still ");
    client.send("here");
    client.half_close();
    eventually("the rest arrives", || app.received_text() == "still here");
    pair.server
        .await_metric("istio_tcp_connections_closed_total", &[], 1.0);
    assert_eq!(pair.server.metric("tulle_tcp_failures_total", &[]), 0.0);
}

#[test]
fn a_reset_of_the_server_reaches_the_client() {
    let arrived = Arc::<Gate>::default();
    let gate = arrived.clone();
    let app = Server::start(move |mut connection| {
        if connection.read_some().is_ok() {
            connection.send("half");
            gate.pass();
            connection.reset();
        }
    });
    let pair = tcp(&app);
    let mut client = pair.connect();
    client.send("x");
    assert_eq!(client.read_exact(4), b"half");
    arrived.open();
    let error = client
        .read_to_end()
        .expect_err("a cut must not look like the end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let reset = ["reason=\"upstream_reset\""];
    pair.server
        .await_metric("tulle_tcp_failures_total", &reset, 1.0);
    pair.client
        .await_metric("tulle_tcp_failures_total", &reset, 1.0);
}

#[test]
fn a_reset_of_the_client_reaches_the_server() {
    let (ends, ended) = std::sync::mpsc::channel();
    let ends = std::sync::Mutex::new(ends);
    let app = Server::start(move |mut connection| {
        let end = loop {
            match connection.read_some() {
                Ok(bytes) if !bytes.is_empty() => connection.send(bytes),
                Ok(_) => break None,
                Err(error) => break Some(error.kind()),
            }
        };
        // The test may have failed and gone.
        let _ = ends.lock().map(|ends| ends.send(end));
    });
    let pair = tcp(&app);
    let mut client = pair.connect();
    client.send("x");
    client.read_exact(1);
    rustix::net::sockopt::set_socket_linger(client.stream(), Some(Duration::ZERO)).unwrap();
    drop(client);
    let end = ended.recv_timeout(tests_local::PATIENCE).unwrap();
    assert_eq!(end, Some(ErrorKind::ConnectionReset));
    let gone = ["reason=\"client_closed\""];
    pair.server
        .await_metric("tulle_tcp_failures_total", &gone, 1.0);
}

/// A server that speaks first and repeats then.
pub(crate) fn greets() -> Server {
    Server::start(|mut connection| {
        connection.send("220 ready\r\n");
        connection.echo();
    })
}

#[test]
fn a_server_may_speak_first() {
    for protocol in ["tcp", "detect"] {
        let app = greets();
        let pair = Pair::speaking(app.address(), protocol);
        let mut client = pair.connect();
        assert_eq!(client.read_exact(11), b"220 ready\r\n", "{protocol}");
        client.send("EHLO a\r\n");
        assert_eq!(client.read_exact(8), b"EHLO a\r\n", "{protocol}");
        let waited = pair.client.metric("tulle_detect_timeouts_total", &[]);
        // Only where the protocol is not declared is there anything to wait for.
        assert_eq!(waited, if protocol == "tcp" { 0.0 } else { 1.0 });
        assert_eq!(pair.server.metric("tulle_detect_timeouts_total", &[]), 0.0);
    }
}

#[test]
fn the_limit_of_detection_is_as_configured() {
    let app = greets();
    let limit = |ms: u32| {
        Pair::with(app.address(), |client, server| {
            let client = client.set("/services/0/ports/0/protocol", "detect");
            let server = server.set("/inbound/ports/0/protocol", "tcp");
            (client.set("/mesh/detectTimeoutMs", ms), server)
        })
    };
    let patient = limit(600_000);
    let mut client = patient.connect();
    assert!(client.is_silent(Duration::from_millis(500)));
    assert_eq!(
        patient.client.metric("tulle_detect_timeouts_total", &[]),
        0.0
    );
    assert_eq!(app.connections(), 0);
    // Bytes that decide end the wait.
    client.send([0]);
    assert_eq!(client.read_exact(11), b"220 ready\r\n");
    let hasty = limit(1);
    assert_eq!(hasty.connect().read_exact(11), b"220 ready\r\n");
    assert_eq!(hasty.client.metric("tulle_detect_timeouts_total", &[]), 1.0);
}

#[test]
fn http_is_recognised_where_no_protocol_is_declared() {
    let app = Server::echo();
    let pair = detecting(&app);
    let mut client = pair.connect();
    assert_eq!(client.get("/one").status(), 200);
    // Byte by byte: it is decided as soon as it can be, and not before.
    let mut slow = pair.connect();
    for byte in tests_local::get("/two").bytes() {
        slow.send([byte]);
    }
    assert_eq!(slow.response("GET").status(), 200);
    for proxy in [&pair.client, &pair.server] {
        proxy.await_metric("istio_requests_total", &["response_code=\"200\""], 2.0);
        assert_eq!(proxy.metric("istio_tcp_connections_opened_total", &[]), 0.0);
    }
}

#[test]
fn bytes_that_are_not_http_pass_where_no_protocol_is_declared() {
    let app = echo();
    let pair = detecting(&app);
    let mut hello = vec![22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    hello.extend(pattern(194));
    let cases: [&[u8]; 6] = [
        b"*1\r\n$4\r\nPING\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"get key\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"\x05",
        // The application's own TLS, which is not ours to open.
        &hello,
    ];
    for (count, bytes) in cases.into_iter().enumerate() {
        let mut client = pair.connect();
        client.send(bytes);
        assert!(client.read_exact(bytes.len()) == bytes, "{bytes:?}");
        assert!(app.received()[count] == bytes);
    }
    let count = cases.len() as f64;
    let opened = "istio_tcp_connections_opened_total";
    assert_eq!(pair.client.metric(opened, &[]), count);
    assert_eq!(pair.server.metric(opened, &[]), count);
    assert_eq!(pair.client.metric("istio_requests_total", &[]), 0.0);
    assert_eq!(pair.client.metric("tulle_detect_timeouts_total", &[]), 0.0);
}

#[test]
fn a_beginning_that_could_be_http_is_waited_for_only_so_long() {
    let app = echo();
    let pair = Pair::speaking(app.address(), "detect");
    let mut client = pair.connect();
    client.send("HELLO");
    assert_eq!(client.read_exact(5), b"HELLO");
    assert_eq!(pair.client.metric("tulle_detect_timeouts_total", &[]), 1.0);
}

#[test]
fn the_policy_holds_for_tcp() {
    let app = echo();
    let allow = |who: &str| json!({ "rules": [{ "name": "r", "sources": [id(who)] }] });
    let pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/services/0/ports/0/protocol", "tcp"),
            server
                .set("/inbound/ports/0/protocol", "tcp")
                .set("/inbound/policy", allow("somebody-else")),
        )
    });
    // The sidecar may have taken the bytes before it heard of the refusal.
    assert!(Client::is_reset(pair.address, "secret"));
    assert_eq!(app.connections(), 0);
    let source = format!("source_principal=\"{}\"", id(CLIENT));
    let labels = ["reason=\"denied\"", source.as_str()];
    pair.server
        .await_metric("tulle_tcp_failures_total", &labels, 1.0);
    assert_eq!(pair.server.await_error("denied")["source"], id(CLIENT));

    // Allowed while it lasts; no longer allowed, it ends.
    let mut config = pair.server.config.clone();
    config["inbound"]["policy"] = allow(CLIENT);
    pair.server.reload(&config);
    let mut client = pair.connect();
    client.send("hello");
    assert_eq!(client.read_exact(5), b"hello");
    config["inbound"]["policy"] = allow("somebody-else");
    pair.server.reload(&config);
    assert!(client.read_to_end().is_err(), "it was cut");
    pair.server
        .await_metric("tulle_tcp_failures_total", &labels, 2.0);
}

#[test]
fn a_rule_about_http_requests_does_not_allow_tcp() {
    let app = echo();
    let rule = json!({ "rules": [{
        "name": "r", "sources": [id(CLIENT)], "matches": [{ "name": "get", "methods": ["GET"] }],
    }] });
    let pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/services/0/ports/0/protocol", "detect"),
            server
                .set("/inbound/ports/0/protocol", "detect")
                .set("/inbound/policy", rule),
        )
    });
    assert!(Client::is_reset(pair.address, [0, 1, 2]));
    pair.server.await_error("denied");
    assert_eq!(app.connections(), 0);
}

#[test]
fn bytes_are_counted_while_the_connection_lives() {
    let app = echo();
    let pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/services/0/ports/0/protocol", "tcp"),
            server
                .set("/inbound/ports/0/protocol", "tcp")
                .set("/mesh/accessLog", true),
        )
    });
    let mut client = pair.connect();
    client.send([7; 1000]);
    client.read_exact(1000);
    let (source, destination) = (id(CLIENT), id(SERVER));
    for (proxy, reporter) in [(&pair.client, "source"), (&pair.server, "destination")] {
        let labels = [
            format!("reporter=\"{reporter}\""),
            format!("source_principal=\"{source}\""),
            format!("destination_principal=\"{destination}\""),
            "destination_service=\"ratings\"".to_owned(),
            "connection_security_policy=\"mutual_tls\"".to_owned(),
            "request_protocol=\"tcp\"".to_owned(),
        ];
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        for (name, value) in [
            ("istio_tcp_received_bytes_total", 1000.0),
            ("istio_tcp_sent_bytes_total", 1000.0),
            ("istio_tcp_connections_opened_total", 1.0),
        ] {
            proxy.await_metric(name, &labels, value);
            assert_eq!(proxy.metric(name, &labels), value, "{name}");
        }
        let closed = proxy.metric("istio_tcp_connections_closed_total", &labels);
        assert_eq!(closed, 0.0);
    }
    assert!(pair.server.access_log().is_empty(), "it has not ended");
    client.send([7; 24]);
    client.half_close();
    assert_eq!(client.read_to_end().unwrap().len(), 24);
    for proxy in [&pair.client, &pair.server] {
        proxy.await_metric("istio_tcp_connections_closed_total", &[], 1.0);
        assert_eq!(proxy.metric("istio_tcp_received_bytes_total", &[]), 1024.0);
        assert_eq!(proxy.metric("istio_tcp_sent_bytes_total", &[]), 1024.0);
    }
    eventually("a line in the access log", || {
        !pair.server.access_log().is_empty()
    });
    let log = pair.server.access_log();
    assert_eq!(log.len(), 1);
    for (field, value) in [
        ("protocol", json!("TCP")),
        ("method", json!("-")),
        ("response_code", json!(0)),
        ("response_flags", json!("-")),
        ("bytes_received", json!(1024)),
        ("bytes_sent", json!(1024)),
        ("source_principal", json!(source)),
        ("destination_principal", json!(destination)),
        ("upstream_host", json!(app.address().to_string())),
        ("connection_security_policy", json!("mutual_tls")),
    ] {
        assert_eq!(log[0][field], value, "{field} in {:#}", log[0]);
    }
}

#[test]
fn an_endpoint_that_is_down_is_a_reset_with_a_reason() {
    let app = echo();
    let nobody = format!("127.0.0.1:{}", tests_local::free_port());
    let pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/services/0/ports/0/protocol", "tcp"),
            server
                .set("/inbound/ports/0/protocol", "tcp")
                .set("/inbound/ports/0/target", nobody)
                .set("/mesh/accessLog", true),
        )
    });
    assert!(Client::is_reset(pair.address, ""));
    pair.server.await_metric(
        "tulle_tcp_failures_total",
        &["reason=\"connect_failed\""],
        1.0,
    );
    pair.server.await_error("connect_failed");
    eventually("a line in the access log", || {
        !pair.server.access_log().is_empty()
    });
    assert_eq!(
        pair.server.access_log()[0]["response_flags"],
        "connect_failed"
    );
}

#[test]
fn many_connections_share_one_and_do_not_mix() {
    let app = echo();
    let pair = tcp(&app);
    let threads: Vec<_> = (0..20u8)
        .map(|number| {
            let address = pair.address;
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                for round in 0..20usize {
                    let bytes = vec![number; 100 * round + 1];
                    client.send(&bytes);
                    assert!(client.read_exact(bytes.len()) == bytes);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(pair.client.metric("tulle_tls_handshakes_total", &[]), 1.0);
}

#[test]
fn opaque_bytes_never_reach_a_peer_that_would_take_them_for_http() {
    let mesh = Mesh::new();
    let certificate = mesh.ca.issue(&id(SERVER));
    let peer = TlsServer::http(&certificate, &["http/1.1"], |_| ok(b"no"));
    let config = outbound_config(peer.address()).set("/services/0/ports/0/protocol", "tcp");
    let proxy = Proxy::start(&mesh, CLIENT, config.file);
    assert!(Client::is_reset(
        config.address,
        tests_local::get("/smuggled")
    ));
    proxy.await_metric("tulle_tcp_failures_total", &["reason=\"tls_failed\""], 1.0);
    assert_eq!(peer.received(), "");
}

#[test]
fn tcp_of_a_peer_without_a_protocol_name_passes() {
    let app = greets();
    let mesh = Mesh::new();
    let config = inbound_config(app.address()).set("/inbound/ports/0/protocol", "tcp");
    let proxy = Proxy::start(&mesh, SERVER, config.file);
    let certificate = mesh.ca.issue(&id(CLIENT));
    let mut client = TlsClient::connect(config.address, Some(&certificate), TLS13, &[]).unwrap();
    assert_eq!(client.read_exact(11).unwrap(), b"220 ready\r\n");
    let bytes = pattern(300_000);
    client.send(&bytes).unwrap();
    assert!(client.read_exact(bytes.len()).unwrap() == bytes);
    let source = format!("source_principal=\"{}\"", id(CLIENT));
    proxy.await_metric("istio_tcp_received_bytes_total", &[&source], 300_000.0);
}

#[test]
fn a_silent_connection_ends_by_the_idle_timeout() {
    let app = echo();
    let pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/services/0/ports/0/protocol", "tcp"),
            server
                .set("/inbound/ports/0/protocol", "tcp")
                .set("/mesh/idleTimeoutMs", 2000),
        )
    });
    let mut client = pair.connect();
    client.send("x");
    assert_eq!(client.read_exact(1), b"x");
    assert!(client.read_to_end().is_err(), "a reset, not an orderly end");
    let idle = ["reason=\"idle_timeout\""];
    pair.server
        .await_metric("tulle_tcp_failures_total", &idle, 1.0);
}
