//! Two workers: each with its own listeners, pools and counters, and all of them heard of what
//! changes. Which worker serves a connection is seen at the application: each has a connection of
//! its own there, because workers share none.

use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use tests_local::{
    CLIENT, Client, Load, Mesh, Pair, Proxy, SERVER, Server, eventually, gateway_config, get, id,
    inbound_config, ok, outbound_config,
};

/// Enough that the kernel's hash leaves no worker out.
const CONNECTIONS: usize = 64;

/// A gateway of two workers; clients keep the mesh alive with it.
struct Gateway {
    proxy: Proxy,
    address: SocketAddr,
    _mesh: Mesh,
}

impl Gateway {
    fn start(app: &Server) -> Self {
        let mesh = Mesh::new();
        let config = gateway_config(app.address()).set("/workers", 2);
        Self {
            proxy: Proxy::start(&mesh, "edge", config.file),
            address: config.address,
            _mesh: mesh,
        }
    }

    fn clients(&self) -> Vec<Client> {
        let connections = 0..CONNECTIONS;
        connections.map(|_| Client::connect(self.address)).collect()
    }
}

/// An application that says its name and on which of its connections it was asked.
fn numbered(name: &'static str) -> Server {
    Server::start(move |mut connection| {
        let number = connection.number;
        while connection.request().is_ok() {
            connection.send(ok(format!("{name} {number}").as_bytes()));
        }
    })
}

/// One request after another on each connection: who answered.
fn ask(clients: &mut [Client]) -> Vec<String> {
    clients.iter_mut().map(|c| c.get("/").text()).collect()
}

fn pair(app: &Server) -> Pair {
    Pair::with(app.address(), |client, server| {
        (client.set("/workers", 2), server.set("/workers", 2))
    })
}

#[test]
fn both_serve_and_a_connection_stays_with_its_worker() {
    let app = numbered("app");
    let gateway = Gateway::start(&app);
    let mut clients = gateway.clients();
    let first = ask(&mut clients);
    let workers: BTreeSet<_> = first.iter().collect();
    assert_eq!(
        workers.len(),
        2,
        "both workers have connections: {workers:?}"
    );
    for worker in workers {
        let share = first.iter().filter(|w| *w == worker).count();
        assert!(share > CONNECTIONS / 8, "{worker} serves only {share}");
    }
    for _ in 0..3 {
        assert_eq!(
            ask(&mut clients),
            first,
            "a connection has changed its worker"
        );
    }
    assert_eq!(app.connections(), 2, "each worker keeps its own connection");

    // The counters of both are one.
    let proxy = &gateway.proxy;
    let requests = 4.0 * CONNECTIONS as f64;
    proxy.await_metric("istio_requests_total", &["response_code=\"200\""], requests);
    let count = "istio_request_duration_milliseconds_count";
    for (metric, expected) in [
        ("istio_requests_total", requests),
        (count, requests),
        ("tulle_workers", 2.0),
        ("tulle_connections_open", CONNECTIONS as f64),
        ("tulle_connections_accepted_total", CONNECTIONS as f64),
        ("tulle_connections_dialled_total", 2.0),
    ] {
        assert_eq!(proxy.metric(metric, &[]), expected, "{metric}");
    }
}

/// How many of the answers came from each worker.
fn shares(answers: &[String]) -> Vec<usize> {
    let mut shares = BTreeMap::new();
    for answer in answers {
        *shares.entry(answer).or_insert(0) += 1;
    }
    shares.into_values().collect()
}

#[test]
fn connections_spread_evenly() {
    let app = numbered("app");
    let gateway = Gateway::start(&app);
    // So few that by chance they would meet in one worker half of the time.
    for _ in 0..8 {
        let mut two: Vec<_> = (0..2).map(|_| Client::connect(gateway.address)).collect();
        assert_eq!(shares(&ask(&mut two)), [1, 1]);
        drop(two);
        eventually("both connections are closed", || {
            gateway.proxy.metric("tulle_connections_open", &[]) == 0.0
        });
    }
    let many = (0..200).map(|_| Client::connect(gateway.address));
    let shares = shares(&ask(&mut many.collect::<Vec<_>>()));
    assert!(shares.iter().all(|n| (60..=140).contains(n)), "{shares:?}");
}

#[test]
fn two_workers_of_a_client_keep_two_of_the_server_busy() {
    // If chance decided, their two connections would meet in one worker of the server half of the time.
    for _ in 0..6 {
        let app = numbered("app");
        let pair = pair(&app);
        let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| pair.connect()).collect();
        let shares = shares(&ask(&mut clients));
        assert_eq!(shares.len(), 2, "one worker serves all: {shares:?}");
        let few = CONNECTIONS * 3 / 10;
        assert!(shares.iter().all(|n| *n >= few), "{shares:?}");
        assert_eq!(pair.client.metric("tulle_tls_handshakes_total", &[]), 2.0);
    }
}

#[test]
fn a_worker_that_is_left_with_everything_gives_a_connection_away() {
    let app = numbered("app");
    let mesh = Mesh::new();
    let inbound = inbound_config(app.address()).set("/workers", 2);
    let server = Proxy::start(&mesh, SERVER, inbound.file);
    // Each with one connection to the server's sidecar.
    let mut sidecars: Vec<(Proxy, Client)> = (0..4)
        .map(|_| {
            let config = outbound_config(inbound.address);
            let proxy = Proxy::start(&mesh, CLIENT, config.file);
            (proxy, Client::connect(config.address))
        })
        .collect();
    let ask = |sidecars: &mut [(Proxy, Client)]| -> Vec<String> {
        sidecars
            .iter_mut()
            .map(|(_, c)| c.get("/").text())
            .collect()
    };
    let served = ask(&mut sidecars);
    assert_eq!(shares(&served), [2, 2], "{served:?}");
    // Those of one worker end.
    let mut left = served.iter();
    sidecars.retain(|_| left.next() == Some(&served[0]));
    eventually("a connection moves to the idle worker", || {
        shares(&ask(&mut sidecars)) == [1, 1]
    });
    let handshakes = server.metric("tulle_tls_handshakes_total", &[]);
    assert_eq!(handshakes, 5.0, "one connection was made again");
}

#[test]
fn many_at_once_are_all_answered_through_two_sidecars() {
    let app = Server::echo();
    let pair = pair(&app);
    let load = Load::start(pair.address, 32, "/");
    load.await_more(3000);
    let done = load.assert_no_failure();
    for proxy in [&pair.client, &pair.server] {
        let code = ["response_code=\"200\""];
        proxy.await_metric("istio_requests_total", &code, done as f64);
    }
}

#[test]
fn a_configuration_reaches_both() {
    let (one, two) = (numbered("one"), numbered("two"));
    let gateway = Gateway::start(&one);
    let mut clients = gateway.clients();
    assert_eq!(ask(&mut clients).iter().collect::<BTreeSet<_>>().len(), 2);
    let mut file = gateway.proxy.config.clone();
    file["services"][0]["ports"][0]["endpoints"][0]["address"] = json!(two.address().to_string());
    gateway.proxy.reload(&file);
    // The same connections, so that a worker that did not hear of it would still ask the first.
    eventually("both workers use the new endpoint", || {
        ask(&mut clients).iter().all(|who| who.starts_with("two"))
    });
    let workers: BTreeSet<_> = ask(&mut clients).into_iter().collect();
    assert_eq!(workers.len(), 2, "{workers:?}");

    // And a refusal, too: without routes nobody is asked.
    file["gateways"][0]["routes"] = json!([]);
    gateway.proxy.reload(&file);
    eventually("both workers have forgotten the route", || {
        clients.iter_mut().all(|c| c.get("/").status() == 404)
    });
}

/// Replaces certificate and key, not the authority's file: an unfinished set is refused, so the
/// change happens once.
fn renew(mesh: &Mesh, name: &str) {
    let issued = mesh.ca.issue(&id(name));
    for (file, text) in [("cert", issued.chain_pem), ("key", issued.key_pem)] {
        let path = mesh.path().join(name).join(file);
        std::fs::write(path.with_extension("new"), text).unwrap();
        std::fs::rename(path.with_extension("new"), path.with_extension("pem")).unwrap();
    }
}

#[test]
fn certificates_reach_both() {
    let app = Server::echo();
    let pair = pair(&app);
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| pair.connect()).collect();
    let handshakes = || pair.client.metric("tulle_tls_handshakes_total", &[]);
    let mut ask_all = || {
        for client in &mut clients {
            assert_eq!(client.get("/").status(), 200);
        }
    };
    ask_all();
    // Each worker has one connection to the other sidecar, made with the certificates it knows.
    assert_eq!(handshakes(), 2.0);
    let mut expected = 2.0;
    for (name, proxy) in [(CLIENT, &pair.client), (SERVER, &pair.server)] {
        proxy.reloads(|| renew(&pair.mesh, name));
        expected += 2.0;
        eventually("both workers have connected again", || {
            ask_all();
            handshakes() >= expected
        });
        ask_all();
        assert_eq!(
            handshakes(),
            expected,
            "after {name}'s certificate, once each"
        );
    }
}

#[test]
fn a_drain_waits_for_both_and_ends_both() {
    // Requests wait in the application until all are there and the proxy drains.
    let (release, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let arrived = Arc::new(Mutex::new(0));
    let seen = arrived.clone();
    let app = Server::http(move |_| {
        *seen.lock().unwrap() += 1;
        // Ends with an error when all are let through.
        let _ = gate.lock().unwrap().recv();
        ok(b"late")
    });
    let mut gateway = Gateway::start(&app);
    let mut clients = gateway.clients();
    for client in &mut clients {
        client.send(get("/"));
    }
    eventually("all requests are there", || {
        *arrived.lock().unwrap() == CONNECTIONS
    });
    gateway.proxy.terminate();
    eventually("nothing new is taken", || {
        std::net::TcpStream::connect(gateway.address).is_err()
    });
    assert!(!gateway.proxy.has_ended(), "requests are under way");
    drop(release);
    let mut statuses = BTreeMap::new();
    for client in &mut clients {
        let response = client.response("GET");
        *statuses.entry(response.status()).or_insert(0) += 1;
        assert_eq!(response.header("connection"), "close");
    }
    assert_eq!(statuses, BTreeMap::from([(200, CONNECTIONS)]));
    drop(clients);
    assert!(gateway.proxy.wait().success());
    assert!(
        gateway.proxy.log().contains("drained"),
        "{}",
        gateway.proxy.log()
    );
}
