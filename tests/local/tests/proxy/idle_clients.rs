//! Clients that connect and say nothing, or never finish: whatever port they hold, everybody else is
//! served on every port.

use std::net::{Ipv4Addr, SocketAddr};
use tests_local::{
    Client, Mesh, Message, Pair, Proxy, SERVER, Server, free_port, gateway_config, get, one,
};
use tulle_net::socket::raise_descriptor_limit;

const SILENT: usize = 1000;
const SLOW: usize = 1000;

/// Half of them say nothing, the others begin a request.
fn hold(address: SocketAddr) -> Vec<Client> {
    let hold = |number| {
        let mut client = Client::connect(address);
        if number >= SILENT {
            // It may have had to go already.
            let _ = client.try_send("GET /ready HT");
        }
        client
    };
    (0..SILENT + SLOW).map(hold).collect()
}

fn ask(address: SocketAddr, target: &str) -> Message {
    let mut client = Client::connect(address);
    client.send(get(target));
    client.response("GET")
}

#[test]
fn idle_clients_of_any_port_keep_nobody_from_any_port() {
    raise_descriptor_limit();
    let app = Server::echo();
    let health: SocketAddr = (Ipv4Addr::LOCALHOST, free_port()).into();
    let pair = Pair::with(app.address(), |client, server| {
        (client, server.set("/health", health.to_string()))
    });
    let mesh = Mesh::new();
    let gateway = gateway_config(app.address());
    let gateway_address = gateway.address;
    let _gateway = Proxy::start(&mesh, SERVER, gateway.file);
    let admin = pair.server.config["admin"].as_str().unwrap();
    let admin: SocketAddr = admin.parse().unwrap();
    let metrics = pair.server.metrics_address();

    for held in [
        health,
        admin,
        metrics,
        pair.inbound,
        pair.address,
        gateway_address,
    ] {
        let clients = hold(held);
        assert_eq!(one(health, "/live").text(), "live\n", "{held} held");
        assert_eq!(one(health, "/ready").text(), "ready\n", "{held} held");
        assert_eq!(pair.server.admin("/live").status(), 200, "{held} held");
        assert_eq!(one(metrics, "/metrics").status(), 200, "{held} held");
        assert_eq!(pair.connect().get("/").status(), 200, "{held} held");
        assert_eq!(ask(gateway_address, "/").status(), 200, "{held} held");
        drop(clients);
    }
}
