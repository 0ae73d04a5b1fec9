//! The rules of the specification, one frame at a time, and the answers to a peer that breaks them.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod common;
use common::*;
use tulle_transport::{
    Config, ConnectionError, GoAwayCode, MAX_PAYLOAD, ResetCode, StreamGone, StreamKind,
};

fn error_of(bytes: &[u8]) -> ConnectionError {
    let mut server = ready_server();
    let error = server.receive(bytes).unwrap_err();
    // The peer is told, no call works any more, and the error stays.
    let told = &server.out[server.out.len() - 16..];
    assert_eq!(told[2], GO_AWAY);
    assert!(server.conn.is_draining());
    assert_eq!(server.receive(b""), Err(error));
    error
}

fn client_error_of(bytes: &[u8]) -> ConnectionError {
    let mut client = End::client(Config::default());
    let id = client.open().unwrap();
    client.send(id, b"hello", true);
    client.receive(&settings()).unwrap();
    client.receive(bytes).unwrap_err()
}

#[test]
fn one_exchange_from_open_to_end() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let id = client.open().unwrap();
    assert_eq!(client.send(id, b"GET", false), 3);
    assert_eq!(client.send(id, b" /", true), 2);
    settle(&mut client, &mut server);
    let expected = [
        Event::Open(1, StreamKind::Http),
        Event::Data(1, b"GET /".to_vec()),
        Event::End(1),
    ];
    assert_eq!(server.seen.joined(), expected);
    server.send(id, b"200", true);
    settle(&mut client, &mut server);
    let expected = [Event::Data(1, b"200".to_vec()), Event::End(1)];
    assert_eq!(client.seen.joined(), expected);
    assert_eq!(client.conn.active_streams(), 0);
    assert_eq!(server.conn.active_streams(), 0);

    // Ended, but its bytes are still held: the stream can be found until they are consumed.
    assert_eq!(client.conn.token(id), Some(1));
    assert_eq!(client.conn.promised_bytes(), 3);
    client.consumed(id, 3);
    assert_eq!(client.conn.token(id), None);
    assert_eq!(client.conn.promised_bytes(), 0);
    let after = client.conn.send(id, b"x", false, &mut client.out);
    assert_eq!(after, Err(StreamGone));
}

#[test]
fn the_server_learns_that_a_request_came_as_http2() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let id = client.conn.open(StreamKind::Http2, 1).unwrap();
    client.send(id, b"GET", false);
    client.send(id, b" /", true);
    settle(&mut client, &mut server);
    assert_eq!(server.seen.events[0], Event::Open(1, StreamKind::Http2));
    assert_eq!(server.seen.bytes_of(id), b"GET /");
}

#[test]
fn tcp_stream_where_the_server_speaks_first() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let id = client.conn.open(StreamKind::Tcp, 1).unwrap();
    client.send(id, b"", false);
    client.send(id, b"", false); // announced once
    settle(&mut client, &mut server);
    assert_eq!(server.seen.events, [Event::Open(1, StreamKind::Tcp)]);
    server.send(id, b"220 ready", false);
    settle(&mut client, &mut server);
    assert_eq!(client.seen.bytes_of(id), b"220 ready");
}

#[test]
fn frames_are_cut_at_the_payload_limit_and_end_waits_for_the_last_byte() {
    let mut client = End::client(Config::default());
    client.out.clear();
    let id = client.open().unwrap();
    assert_eq!(client.send(id, &vec![7; 70_000], true), 65_536);
    let mut frames = Vec::new();
    let mut rest = client.out.as_slice();
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        frames.push((length, rest[3]));
        rest = &rest[8 + length..];
    }
    let full = MAX_PAYLOAD;
    let last = (65_536 - 4 * full, EXHAUSTED);
    assert_eq!(
        frames,
        [(full, OPEN), (full, 0), (full, 0), (full, 0), last]
    );
    client.out.clear();
    assert_eq!(client.conn.credit(id), 0);
    // An empty end needs no credit.
    assert_eq!(client.send(id, b"x", true), 0);
    assert!(client.out.is_empty());
    assert_eq!(client.send(id, b"", true), 0);
    assert_eq!(client.out, frame(DATA, END, 1, b""));
}

#[test]
fn ids_rise_on_the_wire_whatever_the_order_of_sending() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    let ids: Vec<_> = (0..4).map(|_| client.open().unwrap()).collect();
    client.conn.release(ids[1], &mut client.out); // given up before it was announced
    client.send(ids[3], b"d", true);
    client.send(ids[0], b"a", true);
    client.send(ids[2], b"c", true);
    settle(&mut client, &mut server);
    for (id, byte) in [(ids[0], b"a"), (ids[2], b"c"), (ids[3], b"d")] {
        assert_eq!(server.seen.bytes_of(id), byte);
    }
    assert!(!server.seen.saw(&Event::Open(2, StreamKind::Http)));
}

#[test]
fn settings_come_first_once_and_only_raise() {
    let missing = End::server(Config::default()).receive(&frame(PING, 0, 0, &[0; 8]));
    assert_eq!(missing, Err(ConnectionError::SettingsMissing));
    assert_eq!(error_of(&settings()), ConnectionError::SettingsRepeated);

    let with =
        |payload: &[u8]| End::client(Config::default()).receive(&frame(SETTINGS, 0, 0, payload));
    for (payload, field) in [
        (settings_payload(0, 16_376, 65_536, 256), "revision"),
        (settings_payload(1, 16_375, 65_536, 256), "longest payload"),
        (settings_payload(1, 16_376, 65_535, 256), "initial credit"),
        (settings_payload(1, 16_376, 1 << 31, 256), "initial credit"),
        (settings_payload(1, 16_376, 65_536, 255), "most streams"),
    ] {
        match with(&payload) {
            Err(ConnectionError::SettingsInvalid { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    // A later revision may append bytes, which are skipped.
    let mut later = settings_payload(2, 16_376, 65_536, 256);
    later.extend([0xFF; 40]);
    assert_eq!(with(&later), Ok(()));
    assert!(with(&later[..11]).is_err());
}

#[test]
fn streams_sent_before_the_servers_settings_profit_from_them() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config {
        window: 100_000,
        ..Config::default()
    });
    let id = client.open().unwrap();
    assert_eq!(client.send(id, &[1; 100_000], false), 65_536);
    settle(&mut client, &mut server);
    assert!(client.seen.saw(&Event::Credit(1)));
    assert_eq!(client.send(id, &[1; 100_000], false), 100_000 - 65_536);
    settle(&mut client, &mut server);
    assert_eq!(server.conn.unread_bytes(), 100_000);
}

#[test]
fn the_client_keeps_to_both_stream_limits() {
    let mut client = End::client(Config {
        max_streams: 300,
        ..Config::default()
    });
    let before = std::iter::from_fn(|| client.open()).count();
    assert_eq!(before, 256); // the protocol's default until the server says more
    let more = frame(SETTINGS, 0, 0, &settings_payload(1, 16_376, 65_536, 1000));
    client.receive(&more).unwrap();
    let after = std::iter::from_fn(|| client.open()).count();
    assert_eq!(after, 44); // then its own
}

#[test]
fn malformed_frames_end_the_connection() {
    let too_long = [&16_377_u16.to_be_bytes()[..], &[DATA, OPEN, 0, 0, 0, 1]].concat();
    let length = 16_377;
    assert_eq!(
        error_of(&too_long),
        ConnectionError::FrameTooLong { length }
    );
    for (bytes, expected) in [
        (frame(PING, 0, 0, &[0; 7]), "FrameLength"),
        (frame(PING, 0, 0, &[0; 9]), "FrameLength"),
        (frame(RESET, 0, 1, &[0; 5]), "FrameLength"),
        (frame(CREDIT, 0, 1, &[]), "FrameLength"),
        (frame(PING, 0, 3, &[0; 8]), "FrameStream"),
        (frame(RESET, 0, 0, &[0; 4]), "FrameStream"),
        (frame(DATA, OPEN, 0, b"x"), "FrameStream"),
        (frame(DATA, OPEN | 0x20, 1, b"x"), "FrameFlags"),
        (frame(DATA, OPEN | TCP | HTTP2, 1, b"x"), "FrameFlags"),
        (frame(DATA, HTTP2, 1, b"x"), "FrameFlags"),
        (frame(DATA, OPEN | 0x80, 1, b"x"), "FrameFlags"),
        (frame(DATA, TCP, 1, b"x"), "FrameFlags"),
        (frame(PING, 1, 0, &[0; 8]), "FrameFlags"),
        (frame(7, 0, 0, &[]), "FrameUnknown"),
        (frame(DATA, 0, 1, b"x"), "StreamUnknown"),
        (frame(RESET, 0, 1, &[0; 4]), "StreamUnknown"),
        (frame(CREDIT, 0, 1, &words(&[1])), "StreamUnknown"),
        (frame(DATA, OPEN, u32::MAX, b"x"), "OpenInvalid"),
        (frame(GO_AWAY, 0, 0, &words(&[1, 0])), "GoAwayInvalid"),
    ] {
        let error = format!("{:?}", error_of(&bytes));
        assert!(error.starts_with(expected), "{error} for {bytes:?}");
    }
}

#[test]
fn unknown_frames_marked_ignorable_are_skipped() {
    let mut server = ready_server();
    let mut bytes = frame(9, 0x80, 5, &[1; 100]);
    bytes.extend(frame(200, 0xFF, 0, &[]));
    bytes.extend(frame(DATA, OPEN, 1, b"x"));
    server.receive(&bytes).unwrap();
    assert_eq!(server.seen.events.len(), 2);
}

#[test]
fn a_client_describes_its_workload_once_and_briefly() {
    let told = |length: usize| frame(WORKLOAD, IGNORABLE, 0, &vec![b'w'; length]);
    let mut client = End::client(Config::default());
    client.out.clear();
    client.conn.tell_workload(b"web", &mut client.out);
    assert_eq!(client.out, frame(WORKLOAD, IGNORABLE, 0, b"web"));
    client.out.clear();
    client.conn.tell_workload(&[b'w'; 513], &mut client.out);
    assert!(client.out.is_empty());

    let mut server = ready_server();
    for passed_over in [
        told(0),
        told(513),
        told(MAX_PAYLOAD),
        frame(WORKLOAD, IGNORABLE, 1, b"of a stream"),
        frame(WORKLOAD, IGNORABLE | 1, 0, b"with a flag"),
    ] {
        server.receive(&passed_over).unwrap();
        assert_eq!(server.seen.events, []);
    }
    for _ in 0..2 {
        server.receive(&told(512)).unwrap();
        assert_eq!(server.seen.events, [Event::Workload(vec![b'w'; 512])]);
    }
    server.conn.tell_workload(b"server", &mut server.out);
    assert!(server.out.is_empty(), "a server tells nothing");
    let mut client = End::client(Config::default());
    client.receive(&[settings(), told(3)].concat()).unwrap();
    assert_eq!(client.seen.events, [], "and is not asked");
}

#[test]
fn ids_never_go_back() {
    let mut bytes = frame(DATA, OPEN, 5, b"");
    bytes.extend(frame(DATA, OPEN, 3, b""));
    assert_eq!(error_of(&bytes), ConnectionError::OpenInvalid { id: 3 });
    let mut again = frame(DATA, OPEN, 5, b"");
    again.extend(frame(DATA, OPEN, 5, b""));
    assert_eq!(error_of(&again), ConnectionError::OpenInvalid { id: 5 });
    let from_server = client_error_of(&frame(DATA, OPEN, 2, b""));
    assert_eq!(from_server, ConnectionError::OpenInvalid { id: 2 });
}

#[test]
fn data_after_end_is_an_error() {
    let mut bytes = frame(DATA, OPEN | END, 1, b"x");
    bytes.extend(frame(DATA, 0, 1, b"y"));
    assert_eq!(error_of(&bytes), ConnectionError::DataAfterEnd { id: 1 });
    let mut finished = frame(DATA, END, 1, b"");
    finished.extend(frame(DATA, 0, 1, b"y"));
    let error = client_error_of(&finished);
    assert_eq!(error, ConnectionError::DataAfterEnd { id: 1 });
}

#[test]
fn credit_is_exact() {
    let mut server = ready_server();
    let piece = vec![0; 16_000];
    server.receive(&frame(DATA, OPEN, 1, &piece)).unwrap();
    for _ in 0..3 {
        server.receive(&frame(DATA, 0, 1, &piece)).unwrap();
    }
    server.receive(&frame(DATA, 0, 1, &[0; 1536])).unwrap(); // 65,536 in all
    let over = server.receive(&frame(DATA, 0, 1, b"x"));
    assert_eq!(over, Err(ConnectionError::CreditOverrun { id: 1 }));
    assert_eq!(server.out[15], GoAwayCode::FlowControl as u8);

    let mut bytes = frame(DATA, OPEN, 1, b"");
    bytes.extend(frame(CREDIT, 0, 1, &words(&[0])));
    let increment = 0;
    assert_eq!(
        error_of(&bytes),
        ConnectionError::CreditInvalid { id: 1, increment }
    );
    let increment = i32::MAX as u32 - 65_536;
    let mut bytes = frame(DATA, OPEN, 1, b"");
    bytes.extend(frame(CREDIT, 0, 1, &words(&[increment])));
    ready_server().receive(&bytes).unwrap();
    bytes.extend(frame(CREDIT, 0, 1, &words(&[1])));
    let increment = 1;
    assert_eq!(
        error_of(&bytes),
        ConnectionError::CreditInvalid { id: 1, increment }
    );
}

#[test]
fn after_our_reset_the_peer_may_send_what_its_credit_allowed_and_no_more() {
    let mut server = ready_server();
    server.receive(&frame(DATA, OPEN, 1, &[0; 5536])).unwrap();
    let id = stream_of(&server);
    server.conn.reset(id, ResetCode::Overload, &mut server.out);
    assert_eq!(server.out, frame(RESET, 0, 1, &words(&[5])));
    let events = server.seen.events.len();
    for _ in 0..6 {
        server.receive(&frame(DATA, 0, 1, &[0; 10_000])).unwrap();
    }
    server.receive(&frame(CREDIT, 0, 1, &words(&[9]))).unwrap();
    server.receive(&frame(DATA, END, 1, b"")).unwrap();
    assert_eq!(server.seen.events.len(), events, "no events for it");
    assert_eq!(server.conn.promised_bytes(), 0);
    let more = server.receive(&frame(DATA, 0, 1, b"x"));
    assert_eq!(more, Err(ConnectionError::DataAfterEnd { id: 1 }));
}

/// Returns the id of the only stream, which only a connection can make.
fn stream_of(server: &End) -> tulle_transport::StreamId {
    let mut client = End::client(Config::default());
    let ids = std::iter::from_fn(|| client.open());
    ids.take(256)
        .find(|&id| server.conn.token(id).is_some())
        .unwrap()
}

#[test]
fn a_reset_in_the_middle_of_a_frame_swallows_the_rest() {
    let mut server = ready_server();
    let mut bytes = frame(DATA, OPEN | END, 1, b"abcdef");
    bytes.extend(frame(DATA, OPEN, 2, b"next"));
    server.receive(&bytes[..10]).unwrap();
    let id = stream_of(&server);
    server.conn.reset(id, ResetCode::Denied, &mut server.out);
    server.receive(&bytes[10..]).unwrap();
    assert_eq!(server.seen.bytes_of(id), b"ab");
    assert!(!server.seen.saw(&Event::End(1)));
    assert!(server.seen.saw(&Event::Data(2, b"next".to_vec())));
    assert_eq!(server.conn.unread_bytes(), 4);
}

#[test]
fn release_tells_why() {
    // The request was answered before it was complete: the answer is good.
    let mut server = ready_server();
    server.receive(&frame(DATA, OPEN, 1, b"x")).unwrap();
    let id = stream_of(&server);
    server.send(id, b"", true);
    server.out.clear();
    server.conn.release(id, &mut server.out);
    assert_eq!(server.out, frame(RESET, 0, 1, &words(&[0])));
    // The request was given up.
    let mut client = End::client(Config::default());
    let id = client.open().unwrap();
    client.send(id, b"x", true);
    let (one, two) = (client.open().unwrap(), client.open().unwrap());
    client.send(two, b"", false);
    client.out.clear();
    client.conn.release(two, &mut client.out);
    assert_eq!(client.out, frame(RESET, 0, 3, &words(&[1])));
    client.out.clear();
    client.conn.release(id, &mut client.out);
    assert_eq!(client.out, frame(RESET, 0, 1, &words(&[1])));
    client.conn.release(one, &mut client.out);
    client.conn.release(one, &mut client.out); // once
    assert_eq!(client.conn.active_streams(), 0);
}

#[test]
fn ping_is_answered_and_pong_is_told() {
    let mut client = End::client(Config::default());
    let mut server = End::server(Config::default());
    client.conn.ping(*b"01234567", &mut client.out);
    settle(&mut client, &mut server);
    assert_eq!(client.seen.events, [Event::Pong(*b"01234567")]);
}

#[test]
fn closing_tells_every_stream_and_which_are_safe_to_retry() {
    let mut client = End::client(Config::default());
    let sent = client.open().unwrap();
    client.send(sent, b"x", true);
    client.open().unwrap();
    client.conn.close(ResetCode::Internal, &mut client.seen);
    client.seen.events.sort_by_key(|event| format!("{event:?}"));
    let expected = [
        Event::Reset(1, ResetCode::Internal),
        Event::Reset(2, ResetCode::Refused),
    ];
    assert_eq!(client.seen.events, expected);
    assert!(client.open().is_none());
    assert_eq!(client.conn.active_streams(), 0);
}

#[test]
fn every_split_gives_the_same_events_and_replies() {
    let mut bytes = settings();
    bytes.extend(frame(WORKLOAD, IGNORABLE, 0, b"a workload"));
    bytes.extend(frame(DATA, OPEN, 1, b"hello"));
    bytes.extend(frame(PING, 0, 0, b"12345678"));
    bytes.extend(frame(DATA, OPEN | TCP | END, 4, b"world"));
    bytes.extend(frame(77, 0x80, 0, b"skipped"));
    bytes.extend(frame(DATA, 0, 1, &[9; 300]));
    bytes.extend(frame(CREDIT, 0, 4, &words(&[100])));
    bytes.extend(frame(RESET, 0, 1, &words(&[1])));
    bytes.extend(frame(GO_AWAY, 0, 0, &words(&[0, 0])));
    bytes.extend(frame(DATA, OPEN, 5, b"not allowed after go-away"));
    let run = |cut: &mut dyn FnMut() -> usize| {
        let mut server = End::server(Config::default());
        let mut rest = bytes.as_slice();
        let mut result = Ok(());
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(cut().min(rest.len()));
            result = server.receive(piece);
            rest = tail;
        }
        (server.seen.joined(), server.out, result)
    };
    let whole = run(&mut || usize::MAX);
    assert_eq!(whole.2, Err(ConnectionError::OpenAfterGoAway { id: 5 }));
    for size in 1..40 {
        assert_eq!(run(&mut || size), whole, "pieces of {size}");
    }
    for seed in 0..200 {
        let mut random = Random::new(seed);
        assert_eq!(run(&mut || random.below(30)), whole, "seed {seed}");
    }
}
