//! Streams, credit, ends and floods: the rules of RFC 9113, sections 5 to 7, and the price of
//! breaking them.
#![allow(clippy::unwrap_used)]

mod common;
use common::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, End, HEADERS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, frames, get, pair, settle,
};
use proptest::prelude::*;
use std::time::Duration;
use tulle_http2::{Config, ErrorCode, WriteError};

const BOTH: u8 = END_HEADERS | END_STREAM;

fn setting(name: u16, value: u32) -> Vec<u8> {
    let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &payload)
}

fn update(id: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, id, &by.to_be_bytes())
}

/// Errors that end the connection, with the code for the peer.
#[test]
fn what_ends_the_connection() {
    use ErrorCode::{Compression, EnhanceYourCalm, FlowControl, FrameSize, Protocol, StreamClosed};
    let headers = |id, flags| frame(HEADERS, flags, id, &get(&[]));
    let cases: Vec<(Vec<u8>, ErrorCode)> = vec![
        (frame(DATA, 0, 0, b"x"), Protocol),
        (frame(DATA, 0, 1, b"x"), Protocol), // idle
        (headers(0, BOTH), Protocol),
        (headers(2, BOTH), Protocol),
        ([headers(5, BOTH), headers(3, BOTH)].concat(), Protocol),
        ([headers(1, BOTH), headers(1, BOTH)].concat(), StreamClosed),
        (
            [headers(1, BOTH), frame(DATA, 0, 1, b"x")].concat(),
            StreamClosed,
        ),
        (
            [
                headers(1, END_HEADERS),
                frame(RST_STREAM, 0, 1, &[0; 4]),
                frame(DATA, 0, 1, b"x"),
            ]
            .concat(),
            StreamClosed,
        ),
        (frame(RST_STREAM, 0, 1, &[0; 4]), Protocol),
        (
            [headers(1, BOTH), frame(RST_STREAM, 0, 1, &[0; 3])].concat(),
            FrameSize,
        ),
        (frame(PING, 0, 0, &[0; 7]), FrameSize),
        (frame(PING, 0, 1, &[0; 8]), Protocol),
        (frame(SETTINGS, 0, 1, &[]), Protocol),
        (frame(SETTINGS, 0, 0, &[0; 5]), FrameSize),
        (frame(SETTINGS, 1, 0, &[0; 6]), FrameSize),
        (setting(2, 2), Protocol),
        (setting(4, 1 << 31), FlowControl),
        (setting(5, 16_383), Protocol),
        (setting(8, 2), Protocol),
        (update(0, 0), Protocol),
        (update(0, i32::MAX as u32), FlowControl),
        (update(9, 1), Protocol), // idle
        (frame(CONTINUATION, END_HEADERS, 1, b""), Protocol),
        ([headers(1, 0), headers(3, BOTH)].concat(), Protocol),
        (
            [headers(1, 0), frame(PING, 0, 0, &[0; 8])].concat(),
            Protocol,
        ),
        (
            [headers(1, 0), frame(CONTINUATION, END_HEADERS, 3, b"")].concat(),
            Protocol,
        ),
        (frame(HEADERS, BOTH, 1, b"\x80"), Compression),
        (frame(HEADERS, BOTH | 0x08, 1, b"\x09abc"), Protocol), // padding
        (frame(5, 0, 1, b"\0\0\0\x02"), Protocol),              // PUSH_PROMISE
        (frame(2, 0, 1, &[0, 0, 0, 1, 0]), Protocol),           // depends on itself
        (frame(0x77, 0, 0, &[0; 16_385]), FrameSize),
        (
            [headers(1, 0), frame(CONTINUATION, 0, 1, b"").repeat(40)].concat(),
            EnhanceYourCalm,
        ),
        (
            [
                headers(1, 0),
                frame(CONTINUATION, 0, 1, &[0; 16_000]).repeat(8),
            ]
            .concat(),
            EnhanceYourCalm,
        ),
    ];
    for (at, (bytes, code)) in cases.into_iter().enumerate() {
        let mut server = End::greeted(Config::default());
        let error = server.receive(&bytes).unwrap_err();
        assert_eq!(error.code, code, "case {at}: {error}");
        let (kind, _, _, payload) = frames(&server.out).pop().unwrap();
        assert_eq!((kind, payload[7]), (7, code as u8), "case {at}");
        assert_eq!(server.receive(b""), Err(error), "it stays so");
    }
    let mut server = End::server(Config::default());
    assert!(server.receive(b"GET / HTTP/1.1\r\n\r\n").is_err());
    let mut server = End::server(Config::default());
    server.receive(tulle_http2::PREFACE).unwrap();
    assert!(server.receive(&frame(PING, 0, 0, &[0; 8])).is_err());
}

#[test]
fn credit_holds_back_and_lets_on() {
    let (mut client, mut server) = pair(Config::default());
    let stream = client.connection.open().unwrap();
    client.write(
        stream,
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n",
    );
    let body = vec![7; 200_000];
    let mut sent = 0;
    let push = |client: &mut End, sent: &mut usize| {
        while *sent < body.len() {
            let end = body.len().min(*sent + 16_384);
            match client.write(stream, &body[*sent..end]) {
                0 => return,
                count => *sent += count,
            }
        }
    };
    push(&mut client, &mut sent);
    settle(&mut client, &mut server);
    push(&mut client, &mut sent);
    settle(&mut client, &mut server);
    assert_eq!(sent, 64 * 1024, "nobody has read anything");
    let mut rounds = 0;
    while sent < body.len() {
        server.connection.consumed(0, &mut server.out);
        settle(&mut client, &mut server);
        push(&mut client, &mut sent);
        settle(&mut client, &mut server);
        rounds += 1;
        assert!(rounds < 10);
    }
    assert!(server.owner.at(0).ended);
    assert_eq!(server.owner.at(0).data, body);
    assert!(client.owner.at(stream).credits > 0);
}

#[test]
fn a_sender_beyond_its_credit_ends_the_connection() {
    let mut server = End::greeted(Config::default());
    server
        .receive(&frame(HEADERS, END_HEADERS, 1, &get(&[])))
        .unwrap();
    let data = frame(DATA, 0, 1, &[0; 16_384]);
    for _ in 0..4 {
        server.receive(&data).unwrap();
    }
    let error = server.receive(&data).unwrap_err();
    assert_eq!(error.code, ErrorCode::FlowControl);
}

#[test]
fn the_peers_window_is_kept_also_when_it_shrinks() {
    let mut server = End::greeted(Config::default());
    server.receive(&setting(4, 10)).unwrap();
    server.receive(&frame(HEADERS, BOTH, 1, &get(&[]))).unwrap();
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n";
    server.write(0, head);
    assert_eq!(server.write(0, &[1; 30]), 10);
    server.receive(&setting(4, 0)).unwrap();
    server.receive(&update(1, 5)).unwrap();
    assert_eq!(server.write(0, &[1; 20]), 0, "5 below 0 now");
    server.receive(&setting(4, 100)).unwrap();
    assert_eq!(server.write(0, &[1; 20]), 20);
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let config = Config {
        max_streams: 3,
        ..Config::default()
    };
    let mut server = End::greeted(config);
    for at in 0..4 {
        server
            .receive(&frame(HEADERS, END_HEADERS, at * 2 + 1, &get(&[])))
            .unwrap();
    }
    assert_eq!(server.owner.opened.len(), 3);
    assert_eq!(frames(&server.out), [(RST_STREAM, 0, 7, vec![0, 0, 0, 7])]);
    // DATA that was on its way is ignored.
    server.receive(&frame(DATA, END_STREAM, 7, b"x")).unwrap();
}

#[test]
fn a_client_keeps_the_servers_limit_and_its_ids_rise() {
    let config = Config {
        max_streams: 2,
        ..Config::default()
    };
    let (mut client, mut server) = pair(config);
    let a = client.connection.open().unwrap();
    let b = client.connection.open().unwrap();
    assert!(client.connection.open().is_none());
    // Opened first, written last.
    for key in [b, a] {
        client.write(key, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    settle(&mut client, &mut server);
    assert_eq!(server.owner.opened, [0, 1]);
    server.write(0, b"HTTP/1.1 204 x\r\n\r\n");
    settle(&mut client, &mut server);
    client.connection.release(b, &mut client.out);
    server.connection.release(0, &mut server.out);
    assert!(client.connection.open().is_some());
}

#[test]
fn go_away_refuses_what_was_not_taken() {
    let (mut client, mut server) = pair(Config::default());
    let [a, b, c] = [(); 3].map(|()| client.connection.open().unwrap());
    client.write(a, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    settle(&mut client, &mut server);
    server.connection.drain(&mut server.out);
    server
        .connection
        .go_away(ErrorCode::NoError, &mut server.out);
    // The request was on its way when the server said so.
    client.write(b, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    settle(&mut client, &mut server);
    assert_eq!(client.owner.at(a).reset, None);
    assert_eq!(client.owner.at(b).reset, Some(ErrorCode::RefusedStream));
    assert_eq!(client.owner.at(c).reset, Some(ErrorCode::RefusedStream));
    assert!(client.connection.open().is_none());
    server.write(0, b"HTTP/1.1 204 x\r\n\r\n");
    settle(&mut client, &mut server);
    assert!(client.owner.at(a).ended);
    let again = client.connection.write(b, b"x", &mut client.out);
    assert_eq!(again, Err(WriteError::Gone));
}

#[test]
fn a_whole_response_stands_though_the_request_was_not_read() {
    let (mut client, mut server) = pair(Config::default());
    let stream = client.connection.open().unwrap();
    client.write(
        stream,
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab",
    );
    settle(&mut client, &mut server);
    server.write(0, b"HTTP/1.1 400 x\r\ncontent-length: 1\r\n\r\nx");
    server.connection.release(0, &mut server.out);
    settle(&mut client, &mut server);
    let seen = client.owner.at(stream);
    assert_eq!((seen.data.as_slice(), seen.ended), (&b"x"[..], true));
    assert_eq!(seen.reset, Some(ErrorCode::NoError));
    client.connection.release(stream, &mut client.out);
    settle(&mut client, &mut server);
}

/// Each ends the connection after at most this many frames, and the answers are bounded.
#[test]
fn floods_run_out_of_budget() {
    let rapid = |id| {
        [
            frame(HEADERS, BOTH, id, &get(&[])),
            frame(RST_STREAM, 0, id, &[0; 4]),
        ]
        .concat()
    };
    let made_to_reset = |id| [frame(HEADERS, BOTH, id, &get(&[])), update(id, 0)].concat();
    let upper = |id| frame(HEADERS, BOTH, id, &get(&[("A", "b")]));
    type Make = Box<dyn Fn(u32) -> Vec<u8>>;
    let kinds: Vec<(&str, Make)> = vec![
        ("rapid reset", Box::new(rapid)),
        ("made to reset", Box::new(made_to_reset)),
        ("malformed", Box::new(upper)),
        ("settings", Box::new(|_| setting(4, 65_535))),
        ("pings", Box::new(|_| frame(PING, 0, 0, &[0; 8]))),
        ("priorities", Box::new(|id| frame(2, 0, id, &[0; 5]))),
        ("unknown", Box::new(|_| frame(0xee, 0, 0, b""))),
        ("credit", Box::new(|_| update(0, 1))),
    ];
    for (name, make) in kinds {
        let mut server = End::greeted(Config::default());
        let mut held = 0;
        let ended = (0..20_000).find(|at| {
            let result = server.receive(&make(at * 2 + 1));
            held = held.max(server.out.len());
            // The proxy, too, releases streams that were cut.
            for key in std::mem::take(&mut server.owner.opened) {
                server.connection.release(key, &mut server.out);
            }
            result.is_err()
        });
        let ended = ended.unwrap_or_else(|| panic!("{name} goes on"));
        assert!(ended < 4000, "{name}: {ended}");
        assert!(held < 256 * 1024, "{name}: {held} bytes of answers");
    }
}

/// Clients that give up on slow answers, and get none at all, are not a flood.
#[test]
fn streams_cut_after_a_while_or_when_answered_cost_nothing() {
    let mut server = End::greeted(Config::default());
    let mut id = 1;
    for round in 0..100 {
        let first = id;
        for _ in 0..100 {
            server
                .receive(&frame(HEADERS, BOTH, id, &get(&[])))
                .unwrap();
            id += 2;
        }
        let opened = std::mem::take(&mut server.owner.opened);
        if round % 2 == 0 {
            server.connection.tick(Duration::ZERO);
        } else {
            for key in &opened {
                server.write(*key, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n");
            }
        }
        for id in (first..id).step_by(2) {
            server
                .receive(&frame(RST_STREAM, 0, id, &[0, 0, 0, 8]))
                .unwrap();
        }
        for key in opened {
            server.connection.release(key, &mut server.out);
        }
        server.out.clear();
    }
    assert_eq!(server.connection.active_streams(), 0);
}

/// Compressed heads over a limit cost little to send.
#[test]
fn heads_over_the_limits_run_out_of_budget() {
    let crumbs: Vec<_> = (0..400).map(|_| ("cookie", "a")).collect();
    let many: Vec<_> = (0..200).map(|_| ("a", "")).collect();
    for fields in [crumbs, many] {
        let mut server = End::greeted(Config::default());
        let ended = (0..200).find(|at| {
            let head = frame(HEADERS, BOTH, at * 2 + 1, &get(&fields));
            if server.receive(&head).is_err() {
                return true;
            }
            let key = server.owner.opened.pop().unwrap();
            assert!(server.owner.at(key).head.len() > Config::default().head_bytes);
            server.write(key, b"HTTP/1.1 431 x\r\ncontent-length: 0\r\n\r\n");
            server.connection.release(key, &mut server.out);
            false
        });
        assert!(ended.is_some_and(|at| at > 10), "{ended:?}");
    }
}

/// A peer with windows of one byte makes us work for each.
#[test]
fn a_window_of_one_byte_runs_out_of_budget() {
    let mut server = End::greeted(Config::default());
    server.receive(&setting(4, 1)).unwrap();
    server.receive(&frame(HEADERS, BOTH, 1, &get(&[]))).unwrap();
    server.write(0, b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n");
    let ended = (0..10_000).find(|_| {
        server.write(0, &[0; 1000]);
        server.receive(&update(1, 1)).is_err()
    });
    assert!(ended.is_some());
}

/// A peer whose streams also do work is not taken for a flood.
#[test]
fn work_pays_for_what_comes_with_it() {
    let (mut client, mut server) = pair(Config::default());
    for round in 0..20_000 {
        let stream = client.connection.open().unwrap();
        client.write(stream, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        settle(&mut client, &mut server);
        let key = server.owner.opened.pop().unwrap();
        // One of two is cut by the client.
        if round % 2 == 0 {
            server.write(key, b"HTTP/1.1 200 x\r\ncontent-length: 1\r\n\r\nx");
            settle(&mut client, &mut server);
        }
        client.connection.release(stream, &mut client.out);
        settle(&mut client, &mut server);
        server.connection.release(key, &mut server.out);
        settle(&mut client, &mut server);
    }
    assert_eq!(server.connection.active_streams(), 0);
}

proptest! {
    /// Any split of the bytes has the same result: no event is lost or repeated.
    #[test]
    fn any_split_of_a_conversation(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 1..6),
        pieces in prop::collection::vec(1_usize..700, 1..40),
    ) {
        let (mut client, mut server) = pair(Config::default());
        let keys: Vec<_> = bodies.iter().map(|_| client.connection.open().unwrap()).collect();
        for (key, body) in keys.iter().zip(&bodies) {
            client.write(*key, b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
            for part in body.chunks(500) {
                client.write(*key, format!("{:x}\r\n", part.len()).as_bytes());
                prop_assert_eq!(client.write(*key, part), part.len());
                client.write(*key, b"\r\n");
            }
            client.write(*key, b"0\r\n\r\n");
        }
        let out = std::mem::take(&mut client.out);
        let mut rest = out.as_slice();
        for piece in pieces.iter().cycle() {
            if rest.is_empty() { break; }
            let (now, later) = rest.split_at(rest.len().min(*piece));
            server.receive(now).unwrap();
            rest = later;
        }
        for (key, body) in bodies.iter().enumerate() {
            prop_assert_eq!(&server.owner.at(key).data, body);
            prop_assert!(server.owner.at(key).ended);
        }
    }

    /// Arbitrary frames neither panic nor make us answer more than was sent.
    #[test]
    fn arbitrary_frames(
        sent in prop::collection::vec(
            (0_u8..11, any::<u8>(), 0_u32..8, prop::collection::vec(any::<u8>(), 0..60)),
            0..60,
        ),
        client_side in any::<bool>(),
    ) {
        let mut end = if client_side {
            let mut client = End::client(Config::default());
            for _ in 0..3 {
                let key = client.connection.open().unwrap();
                client.write(key, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            }
            client.receive(&frame(SETTINGS, 0, 0, &[])).unwrap();
            client
        } else {
            let mut server = End::greeted(Config::default());
            server.receive(&frame(HEADERS, END_HEADERS, 1, &get(&[]))).unwrap();
            server
        };
        end.out.clear();
        let mut bytes = 0;
        for (kind, flags, id, payload) in sent {
            bytes += 9 + payload.len();
            if end.receive(&frame(kind, flags, id, &payload)).is_err() {
                break;
            }
        }
        prop_assert!(end.out.len() <= 2 * bytes + 64);
        end.connection.close(&mut end.owner);
    }
}
