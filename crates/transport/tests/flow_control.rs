//! Credit per stream: a slow stream stalls alone, and windows grow only within the budget.

mod common;
use common::*;
use tulle_transport::{Config, StreamId};

const MIB: usize = 1024 * 1024;

/// Sends `total` bytes on a stream; the reader consumes all that arrives. Credits come a round trip
/// late, as on a real link.
fn transfer(client: &mut End, server: &mut End, id: StreamId, total: usize) {
    let piece = vec![1; 16 * 1024];
    let (mut sent, mut stalls) = (0, 0);
    while sent < total {
        let taken = client.send(id, &piece[..piece.len().min(total - sent)], false);
        sent += taken;
        stalls = if taken == 0 { stalls + 1 } else { 0 };
        assert!(stalls < 3, "stalled at {sent}");
        if taken == 0 {
            let before = server.seen.events.len();
            carry(client, server);
            let arrived = server.seen.events.drain(before..);
            let bytes: usize = arrived
                .map(|event| match event {
                    Event::Data(stream, data) if stream == id.value() => data.len(),
                    _ => 0,
                })
                .sum();
            server.consumed(id, bytes);
            carry(server, client);
        }
    }
}

#[test]
fn a_slow_stream_stalls_nobody_else() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let slow: Vec<_> = (0..50).map(|_| client.open().unwrap()).collect();
    for &id in &slow {
        assert_eq!(client.send(id, &vec![0; MIB], false), 64 * 1024);
    }
    settle(&mut client, &mut server);
    let fast = client.open().unwrap();
    transfer(&mut client, &mut server, fast, 20 * MIB);
    assert_eq!(server.conn.unread_bytes(), 50 * 64 * 1024);
    for &id in &slow {
        assert_eq!(client.conn.credit(id), 0);
    }
    // The stream goes on as soon as its reader does.
    server.consumed(slow[7], 40_000);
    settle(&mut client, &mut server);
    assert_eq!(client.conn.credit(slow[7]), 40_000);
}

#[test]
fn credit_is_lazy() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let id = client.open().unwrap();
    client.send(id, &[0; 50_000], false);
    settle(&mut client, &mut server);
    server.consumed(id, 32_767);
    assert!(server.out.is_empty());
    server.consumed(id, 1);
    assert_eq!(server.out, frame(CREDIT, 0, 1, &words(&[32_768])));
    server.consumed(id, MIB); // more than there is: taken as all
    assert_eq!(server.conn.unread_bytes(), 0);
}

#[test]
fn a_window_grows_while_the_reader_keeps_up() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let id = client.open().unwrap();
    transfer(&mut client, &mut server, id, 8 * MIB);
    assert_eq!(server.conn.promised_bytes(), MIB as u64);
}

#[test]
fn growth_stops_at_the_connection_budget() {
    let config = Config {
        connection_budget: 300_000,
        ..Config::default()
    };
    let mut client = End::client(Config::default());
    let mut server = End::server(config);
    let ids: Vec<_> = (0..3).map(|_| client.open().unwrap()).collect();
    for &id in &ids {
        transfer(&mut client, &mut server, id, 2 * MIB);
    }
    // The first stream's window is available to others once it has ended.
    assert!(server.conn.promised_bytes() <= 300_000 + 2 * 65_536);
    let full = server.conn.promised_bytes();
    client.send(ids[0], b"", true);
    settle(&mut client, &mut server);
    assert!(server.conn.promised_bytes() < full);
}

#[test]
fn a_window_does_not_grow_for_a_slow_reader_or_a_slow_sender() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let slow_reader = client.open().unwrap();
    client.send(slow_reader, &vec![0; MIB], false);
    carry(&mut client, &mut server);
    server.consumed(slow_reader, 40_000); // 25,536 of 65,536 unread
    assert_eq!(server.conn.promised_bytes(), 65_536);
    let slow_sender = client.open().unwrap();
    for _ in 0..1000 {
        client.send(slow_sender, &[0; 1000], false);
        carry(&mut client, &mut server);
        server.consumed(slow_sender, 1000);
        carry(&mut server, &mut client);
    }
    assert_eq!(server.conn.promised_bytes(), 2 * 65_536);
}
