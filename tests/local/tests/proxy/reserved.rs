//! Places that the port of health reserves for the node: the default gateway of its network.

use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tests_local::{
    Client, Gate, Host, Mesh, Proxy, SERVER, Server, Yard, eventually, get, inbound_config, is_root,
};

/// The places for everybody (`admin/mod.rs`).
const PLACES: u8 = 64;
const PORT: u16 = 15021;

/// An address of the client's host.
fn client(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 83, 1, number)
}

/// Each source holds one place with a check under way, so none has more than another and nobody gives way.
#[test]
fn the_node_is_answered_where_others_hold_every_place() {
    if !is_root() {
        return;
    }
    let pair = |number: u8| {
        let server = Ipv4Addr::new(10, 83, 1, 100 + number);
        (IpAddr::from(client(number)), IpAddr::from(server))
    };
    let pairs: Vec<_> = (1..=PLACES + 2).map(pair).collect();
    let yard = Yard::new(&pairs);
    let (node, address) = (client(1), SocketAddr::new(pairs[0].1, PORT));
    yard.default_route(Host::Server, node.into());
    let (mesh, answers) = (Mesh::new(), Arc::<Gate>::default());
    let waits = answers.clone();
    let (app, _proxy) = yard.sidecar(Host::Server, || {
        let app = Server::start(move |mut connection| {
            let _ = connection.request();
            waits.pass();
        });
        let check = json!({ "http": { "port": app.address().port(), "path": "/" } });
        let config = inbound_config(app.address())
            .set("/health", format!("0.0.0.0:{PORT}"))
            .set(
                "/probes",
                json!([{ "path": "/probe/a/liveness", "timeoutMs": 600_000, "check": check }]),
            );
        let proxy = Proxy::start(&mesh, SERVER, config.file);
        (app, proxy)
    });
    yard.sidecar(Host::Client, || {
        let ask = |number: u8, target: &str| {
            let mut client = Client::try_connect_from(client(number), address).unwrap();
            client.send(get(target));
            client
        };
        let held: Vec<_> = (2..2 + PLACES)
            .map(|number| ask(number, "/probe/a/liveness"))
            .collect();
        eventually("every place has a check under way", || {
            app.connections() == usize::from(PLACES)
        });
        let mut late = ask(2 + PLACES, "/live");
        assert!(
            late.try_response("GET").is_err(),
            "another source has no place"
        );
        assert_eq!(ask(1, "/live").response("GET").text(), "live\n");
        assert_eq!(ask(1, "/ready").response("GET").text(), "ready\n");
        drop(held);
    });
    answers.open();
}
