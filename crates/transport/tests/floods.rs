//! Frames that carry no work are bounded, and honest traffic is never mistaken for a flood.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod common;
use common::*;
use std::time::Duration;
use tulle_transport::{Config, ConnectionError};

/// Sends `make(i)` until the server gives up; returns how often that worked, and the error.
fn flood(make: impl Fn(u32) -> Vec<u8>) -> (u32, ConnectionError) {
    let mut server = ready_server();
    server.receive(&frame(DATA, OPEN, 1, b"x")).unwrap();
    for i in 0..1_000_000 {
        if let Err(error) = server.receive(&make(i)) {
            assert!(server.out.len() < 1024 * 1024, "replies are bounded, too");
            assert_eq!(server.conn.active_streams(), 1);
            return (i, error);
        }
    }
    panic!("a million frames and no end");
}

#[test]
fn each_flood_ends_the_connection() {
    let rapid_reset = |i: u32| {
        let mut bytes = frame(DATA, OPEN, i + 2, b"GET / HTTP/1.1\r\n\r\n");
        bytes.extend(frame(RESET, 0, i + 2, &words(&[1])));
        bytes
    };
    type Make = fn(u32) -> Vec<u8>;
    let floods: [(&str, u32, Make); 8] = [
        ("pings", 8192, |_| frame(PING, 0, 0, &[0; 8])),
        ("pongs", 8192, |_| frame(PONG, 0, 0, &[0; 8])),
        ("empty frames", 8192, |_| frame(DATA, 0, 1, b"")),
        ("unknown frames", 8192, |_| frame(99, 0x80, 0, b"")),
        ("unknown frames", 8192, |_| {
            frame(WORKLOAD, IGNORABLE, 0, b"w")
        }),
        ("credit frames", 8192, |_| frame(CREDIT, 0, 1, &words(&[1]))),
        ("go-aways", 8192, |_| frame(GO_AWAY, 0, 0, &[0; 8])),
        ("resets", 1024, rapid_reset),
    ];
    for (name, allowed, make) in floods {
        let (count, error) = flood(make);
        assert_eq!(error, ConnectionError::Flood { what: name });
        assert_eq!(count, allowed, "{name}");
    }
}

#[test]
fn streams_over_the_limit_are_refused_and_then_too_many() {
    let mut server = ready_server();
    for id in 1..=256 {
        server.receive(&frame(DATA, OPEN, id, b"x")).unwrap();
    }
    assert!(server.out.is_empty());
    server.receive(&frame(DATA, OPEN, 257, b"x")).unwrap();
    assert_eq!(server.out, frame(RESET, 0, 257, &words(&[2])));
    let error = (258..100_000).find_map(|id| server.receive(&frame(DATA, OPEN, id, b"x")).err());
    let what = "streams over the limit";
    assert_eq!(error, Some(ConnectionError::Flood { what }));
    assert_eq!(server.conn.active_streams(), 256);
    assert!(server.conn.promised_bytes() <= 256 * 65_536);
}

#[test]
fn rapid_reset_with_consumed_heads_is_still_a_flood() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let head = [b'a'; 400];
    for i in 0..10_000 {
        let id = client.open().unwrap();
        client.send(id, &head, false);
        let bytes = std::mem::take(&mut client.out);
        server.receive(&bytes).unwrap();
        server.consumed(id, head.len());
        client.conn.release(id, &mut client.out);
        let bytes = std::mem::take(&mut client.out);
        if server.receive(&bytes).is_err() {
            assert!(i < 1200, "{i}");
            return;
        }
    }
    panic!("ten thousand rapid resets and no end");
}

#[test]
fn ended_streams_whose_bytes_nobody_reads_are_bounded() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    for _ in 0..600 {
        let Some(id) = client.open() else { break };
        client.send(id, &[0; 60_000], true);
        carry(&mut client, &mut server);
        if server.conn.token(id).is_some() {
            server.send(id, b"", true); // answered without reading
        }
        carry(&mut server, &mut client);
    }
    assert!(server.conn.unread_bytes() <= 2 * 256 * 65_536);
    assert_eq!(server.conn.unread_bytes(), 512 * 60_000);
    assert_eq!(server.conn.active_streams(), 0);
    let refused = |event: &&Event| matches!(event, Event::Reset(..));
    assert_eq!(client.seen.events.iter().filter(refused).count(), 600 - 512);
}

#[test]
fn honest_traffic_never_runs_dry() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    for i in 0..50_000 {
        let id = client.open().unwrap();
        client.send(id, b"GET / HTTP/1.1\r\n\r\n", i % 3 != 0);
        client.conn.ping([0; 8], &mut client.out);
        carry(&mut client, &mut server);
        server.consumed(id, 18);
        if i % 3 == 0 {
            // A third of all requests is cancelled.
            client.conn.release(id, &mut client.out);
        } else {
            server.send(id, b"HTTP/1.1 204 No Content\r\n\r\n", true);
        }
        carry(&mut server, &mut client);
        client.consumed(id, 100);
        carry(&mut client, &mut server);
        if i % 1000 == 0 {
            client.seen.events.clear();
            server.seen.events.clear();
            client.conn.tick(Duration::from_secs(1));
            server.conn.tick(Duration::from_secs(1));
        }
    }
    assert_eq!(server.conn.active_streams(), 0);
}

/// Clients that give up on slow answers, and get none at all, are not a flood.
#[test]
fn streams_cut_after_a_while_or_when_answered_cost_nothing() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    for round in 0..100 {
        let ids: Vec<_> = (0..100)
            .map(|_| {
                let id = client.open().unwrap();
                client.send(id, b"GET / HTTP/1.1\r\n\r\n", true);
                id
            })
            .collect();
        carry(&mut client, &mut server);
        if round % 2 == 0 {
            server.conn.tick(Duration::ZERO);
        } else {
            for id in &ids {
                server.send(*id, b"HTTP/1.1 200 OK\r\n", false);
            }
        }
        for id in &ids {
            client.conn.release(*id, &mut client.out);
        }
        carry(&mut client, &mut server);
        carry(&mut server, &mut client);
    }
    assert_eq!(server.conn.active_streams(), 0);
}
