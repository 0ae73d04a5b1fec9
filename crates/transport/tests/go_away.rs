//! GOAWAY: no stream is lost, none is answered twice, and refused ones are reported.

mod common;
use common::*;
use tulle_transport::{Config, ConnectionError, GoAwayCode, ResetCode, StreamGone, StreamKind};

fn pair() -> (End, End) {
    let client = End::client(Config::default());
    let server = End::server(Config::default());
    (client, server)
}

#[test]
fn drain_refuses_nothing_that_is_under_way() {
    let (mut client, mut server) = pair();
    let early = client.open().unwrap();
    client.send(early, b"early", true);
    settle(&mut client, &mut server);
    server.conn.drain(&mut server.out);
    let crossing = client.open().unwrap();
    client.send(crossing, b"crossing", true);
    carry(&mut client, &mut server);
    settle(&mut server, &mut client);
    assert!(client.open().is_none());
    assert!(client.conn.is_draining() && server.conn.is_draining());
    for id in [early, crossing] {
        server.send(id, b"answer", true);
        settle(&mut server, &mut client);
        assert_eq!(client.seen.bytes_of(id), b"answer");
    }
    assert_eq!(client.conn.active_streams(), 0);
    assert_eq!(server.conn.active_streams(), 0);
}

#[test]
fn go_away_splits_streams_into_taken_and_refused() {
    for taken in 0..10 {
        let (mut client, mut server) = pair();
        let mut ids = Vec::new();
        for i in 0..10 {
            if i == taken {
                carry(&mut client, &mut server);
                server.conn.go_away(GoAwayCode::NoError, &mut server.out);
            }
            let id = client.open().unwrap();
            // The last stream is opened but never announced.
            if i < 9 {
                client.send(id, b"request", i % 2 == 0);
            }
            ids.push(id);
        }
        settle(&mut client, &mut server);
        let last = client.seen.events.pop();
        assert_eq!(last, Some(Event::GoAway(taken, GoAwayCode::NoError)));
        assert_eq!(client.conn.active_streams(), taken as usize);
        for (i, &id) in ids.iter().enumerate() {
            let opened = Event::Open(id.value(), StreamKind::Http);
            let refused = Event::Reset(id.value(), ResetCode::Refused);
            assert_eq!(server.seen.saw(&opened), i < taken as usize);
            assert_eq!(client.seen.saw(&refused), i >= taken as usize);
        }
        // The streams taken are answered.
        for (i, &id) in ids.iter().take(taken as usize).enumerate() {
            if i % 2 != 0 {
                client.send(id, b"", true);
            }
            server.send(id, b"answer", true);
        }
        settle(&mut client, &mut server);
        assert_eq!(client.conn.active_streams(), 0);
        assert_eq!(server.conn.active_streams(), 0);
        assert!(!client.conn.can_open());
    }
}

#[test]
fn drain_then_go_away() {
    let (mut client, mut server) = pair();
    let id = client.open().unwrap();
    client.send(id, b"x", true);
    carry(&mut client, &mut server);
    server.conn.drain(&mut server.out);
    server.conn.drain(&mut server.out);
    server.conn.go_away(GoAwayCode::NoError, &mut server.out);
    server.conn.go_away(GoAwayCode::NoError, &mut server.out);
    settle(&mut client, &mut server);
    let expected = [
        Event::GoAway(u32::MAX, GoAwayCode::NoError),
        Event::GoAway(1, GoAwayCode::NoError),
    ];
    assert_eq!(client.seen.events, expected);
    assert_eq!(client.conn.active_streams(), 1);
}

#[test]
fn drain_refuses_what_was_opened_but_never_announced() {
    let (mut client, mut server) = pair();
    let sent = client.open().unwrap();
    let unsent = client.open().unwrap();
    client.send(sent, b"x", true);
    carry(&mut client, &mut server);
    server.conn.drain(&mut server.out);
    settle(&mut client, &mut server);
    let expected = [
        Event::Reset(unsent.value(), ResetCode::Refused),
        Event::GoAway(u32::MAX, GoAwayCode::NoError),
    ];
    assert_eq!(client.seen.events, expected);
    let gone = client.conn.send(unsent, b"y", true, &mut client.out);
    assert_eq!(gone, Err(StreamGone));
    assert!(client.out.is_empty());
}

#[test]
fn a_draining_client_keeps_the_streams_it_opened() {
    let (mut client, mut server) = pair();
    let id = client.open().unwrap();
    client.conn.drain(&mut client.out);
    assert!(client.open().is_none());
    client.send(id, b"late", true);
    settle(&mut client, &mut server);
    assert_eq!(server.seen.bytes_of(id), b"late");
    assert!(server.conn.is_draining());
}

#[test]
fn a_failing_server_says_what_it_took() {
    let (mut client, mut server) = pair();
    let id = client.open().unwrap();
    client.send(id, b"x", true);
    carry(&mut client, &mut server);
    let failed = server.receive(&frame(DATA, 0, 99, b"?"));
    assert_eq!(failed, Err(ConnectionError::StreamUnknown { id: 99 }));
    let crossing = client.open().unwrap();
    client.send(crossing, b"y", true);
    carry(&mut server, &mut client);
    assert!(client.seen.saw(&Event::Reset(2, ResetCode::Refused)));
    assert!(client.seen.saw(&Event::GoAway(1, GoAwayCode::Protocol)));
}

#[test]
fn an_answered_stream_cannot_be_disowned() {
    let mut client = End::client(Config::default());
    for _ in 0..2 {
        let id = client.open().unwrap();
        client.send(id, b"x", true);
    }
    client.receive(&settings()).unwrap();
    client.receive(&frame(DATA, 0, 2, b"answer")).unwrap();
    let disowned = client.receive(&frame(GO_AWAY, 0, 0, &words(&[1, 0])));
    assert_eq!(disowned, Err(ConnectionError::GoAwayInvalid { last: 1 }));

    let mut client = End::client(Config::default());
    let id = client.open().unwrap();
    client.send(id, b"x", true);
    client.receive(&settings()).unwrap();
    client
        .receive(&frame(GO_AWAY, 0, 0, &words(&[0, 0])))
        .unwrap();
    let raised = client.receive(&frame(GO_AWAY, 0, 0, &words(&[1, 0])));
    assert_eq!(raised, Err(ConnectionError::GoAwayInvalid { last: 1 }));
}
