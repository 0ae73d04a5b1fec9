//! UDP is none of the sidecar's business: it passes by, in and out, also DNS where the sidecar does
//! not answer it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use tests_local::{CLIENT, Host, Mesh, PATIENCE, Proxy, Yard, free_port, is_root, pattern};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Answers each datagram with the sender's address, as it sees it, and the datagram.
fn reflect(address: SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    // It ends with the test at the latest: nobody else sends to it.
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let answer = [format!("{from} ").as_bytes(), &buffer[..length]].concat();
            if length == 0 || socket.send_to(&answer, from).is_err() {
                return;
            }
        }
    });
}

/// Sends a datagram and expects the answer of `reflect` from the very address it was sent to.
fn ask(from: IpAddr, to: SocketAddr, bytes: &[u8]) {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(bytes, to).unwrap();
    let mut buffer = vec![0; 65536];
    let (length, by) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(by, to);
    let own = socket.local_addr().unwrap();
    let wanted = [format!("{own} ").as_bytes(), bytes].concat();
    assert!(buffer[..length] == wanted, "{to}");
}

#[test]
fn udp_passes_by_in_and_out() {
    if !is_root() {
        return;
    }
    let v4 = (ip("10.99.8.1"), ip("10.99.8.2"));
    let v6 = (ip("fd74:2::a"), ip("fd74:2::b"));
    let yard = Yard::new(&[v4, v6]);
    yard.redirect(|rules| rules);
    let mesh = Mesh::new();
    let listeners = serde_json::json!([
        { "address": "[::]:15001", "kind": "outbound" },
        { "address": "[::]:15006", "kind": "inbound" },
    ]);
    let config = serde_json::json!({
        "listeners": listeners,
        "mesh": { "allowEgress": true },
        "inbound": { "service": CLIENT, "ports": [] },
    });
    let proxy = yard.sidecar(Host::Client, || Proxy::start(&mesh, CLIENT, config));
    let port = free_port();
    // Also the numbers that mean something to the rules of TCP.
    let ports = [port, 53, 15001, 15006];
    for (client, server) in [v4, v6] {
        for port in ports {
            let (here, there) = ((client, port).into(), (server, port).into());
            if port != 15001 && port != 15006 {
                yard.sidecar(Host::Client, || reflect(here));
            }
            yard.sidecar(Host::Server, || reflect(there));
            yard.application(Host::Client, || {
                ask(client, there, b"hello");
                // The datagram comes in several fragments.
                ask(client, there, &pattern(9000));
            });
            if port != 15001 && port != 15006 {
                yard.application(Host::Server, || ask(server, here, b"and back"));
            }
        }
    }
    // Nothing of it was seen by the sidecar.
    yard.sidecar(Host::Client, || {
        assert_eq!(proxy.metric("tulle_connections_accepted_total", &[]), 0.0);
        assert_eq!(proxy.errors().len(), 0);
    });
    // A client of a port without a listener is told so, as without a mesh.
    yard.application(Host::Client, || {
        let socket = UdpSocket::bind((v4.0, 0)).unwrap();
        socket.connect((v4.1, port + 1)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        socket.send(b"anybody?").unwrap();
        let error = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}
