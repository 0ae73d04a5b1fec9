//! One source that opens more connections than a proxy has room for: whatever it does with them,
//! clients elsewhere are served, and those they had before are kept.

use crate::descriptors::{FILES, with_few_files};
use crate::tcp::echo;
use serde_json::json;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use tests_local::{
    CLIENT, Client, Config, Mesh, Proxy, SERVER, Server, eventually, gateway_config, get,
    inbound_config, ok, outbound_config,
};

/// Where the flood comes from.
const CROWD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Where another client is.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// More than fit.
const MANY: usize = 2 * FILES;

/// The manner in which the source uses its connections.
#[derive(Debug, Clone, Copy)]
enum Manner {
    Silent,
    /// It begins a request.
    Slow,
    /// It waits for an answer, and keeps the connection.
    Served,
}

/// The connections of one source, as long as it is let.
fn crowd(address: SocketAddr, manner: Manner) -> Vec<Client> {
    let connect = |_| {
        let mut client = Client::try_connect_from(CROWD, address).ok()?;
        // It may have had to go already.
        match manner {
            Manner::Silent => Ok(()),
            Manner::Slow => client.try_send("GET / HT"),
            Manner::Served => {
                let sent = client.try_send(get("/"));
                sent.and_then(|()| client.try_response("GET").map(drop))
            }
        }
        .ok()?;
        Some(client)
    };
    (0..MANY).filter_map(connect).collect()
}

/// Whether a client from elsewhere gets an answer. Returns it.
fn is_served(address: SocketAddr) -> Option<Client> {
    let mut client = Client::try_connect_from(OTHER, address).ok()?;
    client.try_send(get("/")).ok()?;
    let answer = client.try_response("GET").ok()?;
    (answer.status() == 200).then_some(client)
}

fn keeps_nobody_out(proxy: &Proxy, address: SocketAddr, check: impl Fn()) {
    // A connection that was there before, idle all the time.
    let mut before = Client::try_connect_from(OTHER, address).unwrap();
    assert_eq!(before.get("/").status(), 200);
    for manner in [Manner::Silent, Manner::Slow, Manner::Served] {
        let clients = crowd(address, manner);
        println!(
            "{} of {MANY} {manner:?} connections are held",
            clients.len()
        );
        let mut others = Vec::new();
        for number in 0..20 {
            let other = is_served(address);
            others
                .push(other.unwrap_or_else(|| {
                    panic!("{manner:?}: client {number}: {:?}", proxy.errors())
                }));
        }
        check();
        for other in others.iter_mut().chain([&mut before]) {
            assert_eq!(other.get("/").status(), 200, "{manner:?}");
        }
        drop(clients);
    }
    let errors = proxy.errors();
    let told = errors.iter().find(|e| e["source"] == json!("127.0.0.2"));
    let told = told.unwrap_or_else(|| panic!("{errors:?}"));
    assert_eq!(told["reason"], json!("overload"));
    let detail = told["detail"].to_string();
    assert!(detail.contains("clients that have fewer"), "{detail}");
}

#[test]
fn a_crowd_at_a_gateway_keeps_nobody_out() {
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let config = gateway_config(app.address());
    let gateway = Proxy::start_binary(&with_few_files(&mesh), &mesh, SERVER, config.file);
    keeps_nobody_out(&gateway, config.address, || {});
}

#[test]
fn a_crowd_at_two_workers_keeps_nobody_out() {
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let config = gateway_config(app.address()).set("/workers", 2);
    let gateway = Proxy::start_binary(&with_few_files(&mesh), &mesh, SERVER, config.file);
    keeps_nobody_out(&gateway, config.address, || {});
}

#[test]
fn a_crowd_at_a_sidecar_keeps_no_member_out() {
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let inbound = inbound_config(app.address()).set("/mesh/strictMtls", false);
    let outbound = outbound_config(inbound.address);
    let server = Proxy::start_binary(&with_few_files(&mesh), &mesh, SERVER, inbound.file);
    let member = Proxy::start(&mesh, CLIENT, outbound.file.clone());
    let first = || assert_eq!(Client::connect(outbound.address).get("/").status(), 200);
    first();
    keeps_nobody_out(&server, inbound.address, first);
    // Its connection was there before and carried everything.
    assert_eq!(member.metric("tulle_connections_dialled_total", &[]), 1.0);
}

#[test]
fn more_than_the_mesh_allows_make_room_for_others_too() {
    const MOST: usize = 50;
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let config = gateway_config(app.address()).set("/mesh/maxConnections", MOST);
    let gateway = Proxy::start(&mesh, SERVER, config.file);
    keeps_nobody_out(&gateway, config.address, || {
        let open = gateway.metric("tulle_connections_open", &[]);
        assert!(open <= MOST as f64, "{open}");
    });
}

/// A sidecar of an application that repeats what it hears, and another sidecar that calls it. Both carry
/// bytes that nobody reads.
fn echoing(app: &Server) -> (Config, Config) {
    let inbound = inbound_config(app.address())
        .set("/inbound/ports/0/protocol", "tcp")
        .set("/mesh/strictMtls", false);
    let outbound = outbound_config(inbound.address).set("/services/0/ports/0/protocol", "tcp");
    (inbound, outbound)
}

/// Opens connections that another sidecar carries in streams; each says something, unless it has been displaced before.
fn streams(address: SocketAddr, count: usize) -> Vec<Client> {
    let connect = |_| {
        let mut client = Client::connect(address);
        let _ = client.try_send("x");
        client
    };
    (0..count).map(connect).collect()
}

/// Whether a client from elsewhere hears what it says. Returns it.
fn hears(address: SocketAddr) -> Option<Client> {
    let mut client = Client::try_connect_from(OTHER, address).ok()?;
    client.try_send("x").ok()?;
    let mut heard = [0];
    let read = client.stream().read(&mut heard);
    (read.ok()? == 1 && heard == *b"x").then_some(client)
}

#[test]
fn a_member_with_many_streams_in_one_connection_keeps_nobody_out() {
    /// As many as take the descriptors that are not in reserve, and fewer than a connection may have.
    const STREAMS: usize = 220;
    let app = echo();
    let mesh = Mesh::new();
    let (inbound, outbound) = echoing(&app);
    let server = Proxy::start_binary(&with_few_files(&mesh), &mesh, SERVER, inbound.file);
    let member = Proxy::start(&mesh, CLIENT, outbound.file);
    let mut first = streams(outbound.address, 1);
    assert_eq!(first[0].read_exact(1), b"x");
    let flood = streams(outbound.address, STREAMS);
    let open = || {
        let all = std::fs::read_dir(format!("/proc/{}/fd", server.pid()));
        all.unwrap().count()
    };
    // A quarter is in reserve, and some are taken to be nobody's.
    eventually("the streams have taken the descriptors", || {
        open() >= FILES / 2 + FILES / 8
    });
    let mut others = Vec::new();
    for number in 0..20 {
        let other = hears(inbound.address);
        others.push(other.unwrap_or_else(|| panic!("client {number}: {:?}", server.errors())));
    }
    for other in &mut others {
        other.send("y");
        assert_eq!(other.read_exact(1), b"y");
    }
    // Single streams have ended, and not the connection that carries them.
    let kept = flood.iter().filter(|client| {
        let mut heard = [0];
        client
            .stream()
            .read(&mut heard)
            .is_ok_and(|count| count == 1)
    });
    assert!(kept.count() > STREAMS / 2);
    assert_eq!(member.metric("tulle_connections_dialled_total", &[]), 1.0);
}

#[test]
fn streams_are_among_the_connections_that_the_mesh_allows() {
    const MOST: usize = 50;
    let app = echo();
    let mesh = Mesh::new();
    let (inbound, outbound) = echoing(&app);
    let inbound = inbound.set("/mesh/maxConnections", MOST);
    let server = Proxy::start(&mesh, SERVER, inbound.file);
    let _member = Proxy::start(&mesh, CLIENT, outbound.file);
    let mut clients = streams(outbound.address, 2 * MOST);
    let served = clients.iter_mut().filter(|client| {
        let mut heard = [0];
        client
            .stream()
            .read(&mut heard)
            .is_ok_and(|count| count == 1)
    });
    // The connection that carries them is one itself.
    assert_eq!(served.count(), MOST - 1);
    let errors = server.errors();
    let overload = |e: &&serde_json::Value| e["reason"] == json!("overload");
    let told = errors.iter().find(overload);
    let told = told.unwrap_or_else(|| panic!("{errors:?}"));
    assert!(
        told["detail"].to_string().contains("maxConnections"),
        "{told}"
    );
    // Another source has a place all the same.
    assert!(hears(inbound.address).is_some(), "{:?}", server.errors());
}
