//! How a proxy ends: in order when it is told to, and without lasting harm when it is not.

use serde_json::json;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tests_local::{
    CLIENT, Client, Config, Load, Mesh, PATIENCE, Pair, Proxy, SERVER, Server, TlsClient, Wire,
    eventually, gateway_config, get, id, inbound_config, ok, one, outbound_config, pattern, pause,
    post,
};

/// An application that answers `/slow` only when told to, and everything else at once.
fn gated() -> (Server, Sender<()>) {
    let (open, gate) = channel();
    let gate = Arc::new(Mutex::new(gate));
    let app = Server::http(move |request| {
        if request.target() == "/slow" {
            // The test may have failed and gone.
            let _ = gate.lock().map(|gate| gate.recv_timeout(PATIENCE));
        }
        ok(request.target().as_bytes())
    });
    (app, open)
}

fn await_request(app: &Server, target: &str) {
    let line = format!(" {target} HTTP/1.1");
    eventually("the request arrives", || {
        app.received_text().contains(&line)
    });
}

fn is_refused(address: SocketAddr) -> bool {
    match Client::try_connect(address) {
        Err(_) => true,
        // Accepted by the kernel at the last moment: ended without an answer.
        Ok(mut client) => client.try_send(get("/")).is_err() || client.try_response("GET").is_err(),
    }
}

fn await_draining(proxy: &Proxy) {
    eventually("it drains", || proxy.admin("/ready").status() == 503);
}

/// Like [`await_draining`], and waits until the worker, who hears of it later, knows, too.
fn await_closed(proxy: &Proxy, address: SocketAddr) {
    await_draining(proxy);
    eventually("nothing new is taken", || {
        Client::try_connect(address).is_err()
    });
}

#[test]
fn a_request_in_flight_ends_well_and_nothing_new_is_taken() {
    let (app, open) = gated();
    let mut pair = Pair::start(app.address());
    let mut slow = pair.connect();
    slow.send(get("/slow"));
    await_request(&app, "/slow");
    let mut idle = pair.connect();
    assert_eq!(idle.get("/idle").status(), 200);

    pair.client.terminate();
    await_draining(&pair.client);
    let ready = pair.client.admin("/ready");
    assert_eq!(
        (ready.status(), ready.text().as_str()),
        (503, "not ready: draining\n")
    );
    assert_eq!(pair.client.admin("/live").status(), 200, "it still lives");
    assert!(idle.is_ended(), "an idle connection ends");
    assert!(is_refused(pair.address), "nothing new is taken");
    assert!(!pair.client.has_ended(), "it waits for the request");

    open.send(()).unwrap();
    let response = slow.response("GET");
    assert_eq!(
        (response.status(), response.text().as_str()),
        (200, "/slow")
    );
    assert!(slow.is_ended());
    assert_eq!(pair.client.wait().code(), Some(0));
}

#[test]
fn a_server_sidecar_finishes_what_it_was_sent() {
    let (app, open) = gated();
    let mut pair = Pair::start(app.address());
    let mut slow = pair.connect();
    slow.send(get("/slow"));
    await_request(&app, "/slow");
    pair.server.terminate();
    await_draining(&pair.server);
    open.send(()).unwrap();
    assert_eq!(slow.response("GET").text(), "/slow");
    assert_eq!(pair.server.wait().code(), Some(0));
    // The client's own connection has not suffered.
    let response = slow.get("/after");
    assert_eq!(
        (response.status(), response.header("x-tulle-reason")),
        (503, "connect_failed")
    );
}

#[test]
fn long_bodies_that_are_under_way_arrive_whole() {
    let app = Server::start(|mut connection| {
        let Ok(request) = connection.request() else {
            return;
        };
        // Slowly, and whole.
        let body = pattern(2_000_000);
        let length = body.len() + request.body.len();
        connection.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
        ));
        for part in body.chunks(100_000) {
            connection.send(part);
            pause("between parts of a response", Duration::from_millis(20));
        }
        connection.send(&request.body);
    });
    let mut pair = Pair::start(app.address());
    let mut client = pair.connect();
    let upload = pattern(1_000_000);
    let (first, rest) = upload.split_at(400_000);
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        upload.len()
    ));
    client.send(first);
    eventually("a part arrives", || app.received_text().len() > 1000);
    for proxy in [&pair.client, &pair.server] {
        proxy.terminate();
        await_draining(proxy);
    }
    for part in rest.chunks(100_000) {
        client.send(part);
        pause("between parts of an upload", Duration::from_millis(20));
    }
    let response = client.response("POST");
    assert_eq!(response.status(), 200);
    assert!(response.body == [pattern(2_000_000), upload].concat());
    assert_eq!(pair.client.wait().code(), Some(0));
    assert_eq!(pair.server.wait().code(), Some(0));
}

#[test]
fn a_response_says_that_the_connection_ends() {
    let (app, open) = gated();
    let mesh = Mesh::new();
    let config = gateway_config(app.address());
    let mut proxy = Proxy::start(&mesh, "edge", config.file);
    let mut client = Client::connect(config.address);
    client.send(get("/slow"));
    await_request(&app, "/slow");
    proxy.terminate();
    await_closed(&proxy, config.address);
    // A second request behind the first has to go elsewhere: it is not taken.
    client.send(post("/late", b"x"));
    open.send(()).unwrap();
    let response = client.response("GET");
    assert_eq!(
        (response.text().as_str(), response.header("connection")),
        ("/slow", "close")
    );
    assert!(client.is_ended());
    assert_eq!(proxy.wait().code(), Some(0));
    assert!(!app.received_text().contains("/late"));
}

/// Time that a proxy leaves clients for one more request.
const LAST_CHANCE: Duration = Duration::from_secs(2);

/// Ends a proxy while two clients keep a connection each. One of them sends one more request meanwhile, which is
/// answered. `None`: the machine stood still for too long to prove anything.
fn last_request(proxy: &mut Proxy, address: SocketAddr, clients: [Client; 2]) -> Option<()> {
    let [mut late, mut idle] = clients;
    for client in [&mut late, &mut idle] {
        assert_eq!(client.get("/").status(), 200);
    }
    let begin = Instant::now();
    proxy.terminate();
    await_closed(proxy, address);
    let sent = late.try_send(get("/late"));
    let response = sent.and_then(|()| late.try_response("GET"));
    let has_ended = proxy.has_ended();
    if begin.elapsed() >= LAST_CHANCE {
        return None;
    }
    let response = response.unwrap();
    assert_eq!(
        (response.status(), response.header("connection")),
        (200, "close")
    );
    assert!(late.is_ended());
    assert!(!has_ended, "it waits for the other one");
    assert!(idle.is_ended());
    assert_eq!(proxy.wait().code(), Some(0));
    assert!(proxy.log().contains("\"drained\""), "{}", proxy.log());
    Some(())
}

/// A client's next request may be on its way while a gateway begins to end.
#[test]
fn a_gateway_answers_once_more_on_a_kept_connection() {
    let app = Server::echo();
    let mesh = Mesh::new();
    eventually("the request is sent in time", || {
        let config = gateway_config(app.address()).set("/drainTimeoutMs", 600_000);
        let mut proxy = Proxy::start(&mesh, "edge", config.file);
        let clients = [(), ()].map(|()| Client::connect(config.address));
        last_request(&mut proxy, config.address, clients).is_some()
    });
}

/// An application's next request may be on its way to its own sidecar, or a caller's without one to another's.
#[test]
fn a_sidecar_answers_once_more_on_a_kept_connection() {
    let app = Server::echo();
    eventually("the application's request is sent in time", || {
        let mut pair = Pair::with(app.address(), |client, server| {
            (client.set("/drainTimeoutMs", 600_000), server)
        });
        let clients = [pair.connect(), pair.connect()];
        last_request(&mut pair.client, pair.address, clients).is_some()
    });
    eventually("the request in plaintext is sent in time", || {
        let mut pair = Pair::with(app.address(), |client, server| {
            let server = server.set("/mesh/strictMtls", false);
            (client, server.set("/drainTimeoutMs", 600_000))
        });
        let clients = [(), ()].map(|()| Client::connect(pair.inbound));
        last_request(&mut pair.server, pair.inbound, clients).is_some()
    });
}

/// A drain waits for connections alone.
#[test]
fn a_proxy_without_connections_ends_at_once() {
    let app = Server::echo();
    // A proxy that waits does so for longer.
    eventually("it ends without a pause", || {
        let mut pair = Pair::start(app.address());
        assert_eq!(one(pair.address, "/").status(), 200);
        let begin = Instant::now();
        pair.client.terminate();
        assert_eq!(pair.client.wait().code(), Some(0));
        begin.elapsed() < LAST_CHANCE
    });
}

#[test]
fn idle_connections_of_every_kind_do_not_hold_the_end_up() {
    let app = Server::echo();
    // Far longer than the test waits.
    let mut pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/drainTimeoutMs", 600_000),
            server.set("/drainTimeoutMs", 600_000),
        )
    });
    let mut plain = pair.connect();
    assert_eq!(plain.get("/").status(), 200);
    let mut tls = TlsClient::http(pair.inbound, &pair.mesh.ca.issue(&id(CLIENT)));
    assert_eq!(tls.get("/").unwrap().status(), 200);
    let mut never = pair.connect();
    let mut silent = Client::connect(pair.inbound);
    for proxy in [&pair.client, &pair.server] {
        proxy.terminate();
    }
    assert!(plain.is_ended());
    eventually("the TLS connection ends", || tls.get("/").is_err());
    for proxy in [&mut pair.client, &mut pair.server] {
        assert_eq!(proxy.wait().code(), Some(0));
    }
    assert!(never.is_ended() && silent.is_ended());
    for log in [pair.client.log(), pair.server.log()] {
        assert!(log.contains("\"drained\""), "{log}");
    }
}

#[test]
fn the_drain_limit_ends_what_does_not_end() {
    let (app, _open) = gated();
    let mut pair = Pair::with(app.address(), |client, server| {
        (client.set("/drainTimeoutMs", 500), server)
    });
    let mut slow = pair.connect();
    slow.send(get("/slow"));
    await_request(&app, "/slow");
    pair.client.terminate();
    assert_eq!(pair.client.wait().code(), Some(0));
    assert!(slow.try_response("GET").is_err());
    assert!(
        pair.client.log().contains("are cut"),
        "{}",
        pair.client.log()
    );
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let (app, _open) = gated();
    let mut pair = Pair::with(app.address(), |client, server| {
        (client.set("/drainTimeoutMs", 600_000), server)
    });
    let mut slow = pair.connect();
    slow.send(get("/slow"));
    await_request(&app, "/slow");
    pair.client.terminate();
    await_draining(&pair.client);
    pair.client.terminate();
    assert_eq!(pair.client.wait().code(), Some(0));
    assert!(slow.try_response("GET").is_err());
}

#[test]
fn a_tcp_connection_that_ends_in_time_is_not_cut() {
    let app = Server::start(|mut connection| {
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() {
                return;
            }
            connection.send(bytes);
        }
    });
    let mut pair = Pair::speaking(app.address(), "tcp");
    let mut client = pair.connect();
    client.send("one");
    assert_eq!(client.read_exact(3), b"one");
    for proxy in [&pair.client, &pair.server] {
        proxy.terminate();
        await_draining(proxy);
    }
    client.send("two");
    assert_eq!(client.read_exact(3), b"two");
    client.half_close();
    assert_eq!(client.read_to_end().unwrap(), b"");
    assert_eq!(pair.client.wait().code(), Some(0));
    assert_eq!(pair.server.wait().code(), Some(0));
}

/// Two sidecars of the same service and a client's sidecar that knows both.
struct Two {
    _client: Proxy,
    address: SocketAddr,
    servers: [Option<Proxy>; 2],
    files: [serde_json::Value; 2],
    mesh: Mesh,
    _app: Server,
}

impl Two {
    fn start(serve: impl Fn(Config) -> Config) -> Self {
        let mesh = Mesh::new();
        let app = Server::http(|request| {
            pause("the application works", Duration::from_millis(3));
            ok(request.target().as_bytes())
        });
        let configs = [(), ()].map(|()| serve(inbound_config(app.address())));
        let addresses = configs.each_ref().map(|c| c.address);
        let files = configs.map(|c| c.file);
        let servers = files
            .each_ref()
            .map(|f| Some(Proxy::start(&mesh, SERVER, f.clone())));
        let endpoints = addresses.map(|a| json!({ "address": a.to_string() }));
        let config =
            outbound_config(addresses[0]).set("/services/0/ports/0/endpoints", json!(endpoints));
        Self {
            _client: Proxy::start(&mesh, CLIENT, config.file),
            address: config.address,
            servers,
            files,
            mesh,
            _app: app,
        }
    }

    fn restart(&mut self, which: usize) {
        self.servers[which] = Some(Proxy::start(&self.mesh, SERVER, self.files[which].clone()));
    }

    /// Waits until a server's sidecar has had requests.
    fn await_use(&self, which: usize) {
        if let Some(server) = &self.servers[which] {
            server.await_metric("istio_requests_total", &["response_code=\"200\""], 20.0);
        }
    }
}

#[test]
fn server_sidecars_restart_one_after_another_without_a_failed_request() {
    // Two workers: each has listeners, shared connections and a drain of its own.
    let mut two = Two::start(|c| c.set("/workers", 2));
    let load = Load::start(two.address, 8, "/");
    for round in 0..4 {
        let which = round % 2;
        two.await_use(which);
        if let Some(server) = &mut two.servers[which] {
            server.terminate();
            assert_eq!(server.wait().code(), Some(0));
            assert!(server.log().contains("\"drained\""), "{}", server.log());
        }
        load.await_more(100);
        two.restart(which);
        // Its peers find back to it.
        two.await_use(which);
    }
    load.assert_no_failure();
}

#[test]
fn a_killed_server_sidecar_costs_only_what_was_under_way() {
    let mut two = Two::start(|c| c);
    let load = Load::start(two.address, 8, "/");
    two.await_use(0);
    if let Some(server) = two.servers[0].take() {
        server.kill();
    }
    load.await_more(300);
    let failures = load.failures();
    // Eight at once: one each was under way, and of these only the POSTs cannot be sent again.
    assert!(failures.len() <= 8, "{failures:#?}");
    for failure in &failures {
        assert!(
            failure.contains("POST") && failure.contains("upstream_reset"),
            "{failure}"
        );
    }
    // It comes back and is used again.
    let load = Load::start(two.address, 8, "/");
    two.restart(0);
    two.await_use(0);
    load.assert_no_failure();
}

#[test]
fn the_only_server_sidecar_killed_is_used_again_when_it_is_back() {
    let (mesh, app) = (Mesh::new(), Server::echo());
    let inbound = inbound_config(app.address());
    let server = Proxy::start(&mesh, SERVER, inbound.file.clone());
    let config = outbound_config(inbound.address);
    let _client = Proxy::start(&mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    assert_eq!(client.get("/").status(), 200);
    server.kill();
    eventually("the loss is noticed", || client.get("/").status() == 503);
    let response = one(config.address, "/");
    assert_eq!(response.header("x-tulle-reason"), "connect_failed");
    let _again = Proxy::start(&mesh, SERVER, inbound.file);
    eventually("it is used again", || client.get("/").status() == 200);
}

/// The last bytes are still on their way when the server's sidecar has sent them, and the client's grants credit for them.
#[test]
fn the_end_of_a_response_arrives_over_a_slow_line() {
    const LENGTH: usize = 12_000_000;
    let app = Server::start(|mut connection| {
        if connection.request().is_ok() {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
            connection.send(head);
            connection.send(pattern(LENGTH));
        }
    });
    let mut pair = Pair::with(app.address(), |client, server| {
        let wire = Wire::slow(server.address).address.to_string();
        let place = "/services/0/ports/0/endpoints/0/address";
        (client.set(place, wire), server)
    });
    let mut client = pair.connect();
    client.send(get("/"));
    await_request(&app, "/");
    pair.server.terminate();
    await_draining(&pair.server);
    let response = client.response("GET");
    assert!(response.body == pattern(LENGTH), "{}", response.body.len());
    assert_eq!(pair.server.wait().code(), Some(0));
}
