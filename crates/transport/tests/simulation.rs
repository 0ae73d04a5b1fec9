//! Two ends, random operations, random splits: every byte arrives in order, no promise is exceeded,
//! every stream ends. A failure names its seed.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod common;
use common::Random;
use std::collections::HashSet;
use tulle_transport::{Config, Connection, GoAwayCode, Handler, ResetCode, StreamId, StreamKind};

/// Generates a stream's bytes, so that the receiver can check them on its own.
fn byte(id: StreamId, from_client: bool, at: usize) -> u8 {
    let mixed = u64::from(id.value()) * 31 + at as u64 * 7 + u64::from(from_client) * 101;
    (mixed ^ (mixed >> 8)) as u8
}

struct Stream {
    id: StreamId,
    to_send: usize,
    sent: usize,
    end_sent: bool,
    got: usize,
    unread: usize,
    /// Bytes the peer's message had in all, known when it ended.
    got_end: bool,
    /// Never reads until the last phase.
    slow: bool,
    over: Option<ResetCode>,
}

struct Model {
    client: bool,
    lengths: Random,
    streams: Vec<Stream>,
    pongs: usize,
}

impl Model {
    fn add(&mut self, id: StreamId) -> usize {
        self.streams.push(Stream {
            id,
            to_send: match self.lengths.below(4) {
                0 => 0,
                1 if self.lengths.below(3) == 0 => self.lengths.below(250_000),
                _ => self.lengths.below(5000),
            },
            sent: 0,
            end_sent: false,
            got: 0,
            unread: 0,
            got_end: false,
            slow: self.lengths.below(8) == 0,
            over: None,
        });
        self.streams.len() - 1
    }
}

impl Handler for Model {
    fn on_open(&mut self, id: StreamId, _: StreamKind) -> usize {
        assert!(!self.client);
        assert!(self.streams.iter().all(|stream| stream.id < id));
        self.add(id)
    }
    fn on_data(&mut self, token: usize, id: StreamId, data: &[u8]) {
        let stream = &mut self.streams[token];
        assert!(stream.id == id && !stream.got_end && stream.over.is_none());
        for &found in data {
            assert_eq!(found, byte(id, !self.client, stream.got));
            stream.got += 1;
        }
        stream.unread += data.len();
        assert!(stream.unread <= 200_000, "more than its largest window");
    }
    fn on_end(&mut self, token: usize, id: StreamId) {
        let stream = &mut self.streams[token];
        assert!(stream.id == id && !stream.got_end && stream.over.is_none());
        stream.got_end = true;
    }
    fn on_reset(&mut self, token: usize, id: StreamId, code: ResetCode) {
        let stream = &mut self.streams[token];
        assert!(stream.id == id && stream.over.is_none());
        stream.over = Some(code);
    }
    fn on_credit(&mut self, token: usize, id: StreamId) {
        assert_eq!(self.streams[token].id, id);
    }
    fn on_go_away(&mut self, _: u32, _: GoAwayCode) {
        assert!(self.client);
    }
    fn on_pong(&mut self, _: [u8; 8]) {
        self.pongs += 1;
    }
}

struct End {
    conn: Connection,
    out: Vec<u8>,
    model: Model,
}

impl End {
    fn send(&mut self, token: usize, most: usize) {
        let client = self.model.client;
        let stream = &mut self.model.streams[token];
        if stream.over.is_some() || stream.end_sent {
            return;
        }
        let credit = self.conn.credit(stream.id);
        let left = (stream.to_send - stream.sent).min(most).min(credit + 100);
        let data: Vec<u8> = (0..left)
            .map(|i| byte(stream.id, client, stream.sent + i))
            .collect();
        let end = stream.sent + left == stream.to_send;
        let taken = self
            .conn
            .send(stream.id, &data, end, &mut self.out)
            .unwrap();
        assert_eq!(taken, left.min(credit));
        stream.sent += taken;
        stream.end_sent = end && taken == left;
    }

    fn consume(&mut self, token: usize, most: usize) {
        let stream = &mut self.model.streams[token];
        let bytes = stream.unread.min(most);
        stream.unread -= bytes;
        self.conn.consumed(stream.id, bytes, &mut self.out);
    }

    fn reset(&mut self, token: usize) {
        let stream = &mut self.model.streams[token];
        if stream.over.is_none() && !(stream.end_sent && stream.got_end) {
            stream.over = Some(ResetCode::Cancelled);
            self.conn.release(stream.id, &mut self.out);
        }
    }

    /// Takes a random share of the other's output, in two random pieces.
    fn receive(&mut self, from: &mut Vec<u8>, random: &mut Random, all: bool) {
        let share = if all {
            from.len()
        } else {
            random.below(from.len() + 1)
        };
        let bytes: Vec<u8> = from.drain(..share).collect();
        let (one, two) = bytes.split_at(random.below(share + 1));
        for piece in [one, two] {
            let result = self.conn.receive(piece, &mut self.model, &mut self.out);
            result.unwrap();
        }
        assert!(self.conn.unread_bytes() <= self.conn.promised_bytes());
        assert!(self.conn.promised_bytes() <= 2 * 256 * 65_536 + 2_000_000);
    }
}

fn run(seed: u64, resets: bool, leave: bool) {
    let random = &mut Random::new(seed);
    let config = Config {
        max_window: 200_000,
        connection_budget: 2_000_000,
        window: 65_536 + random.below(2) as u32 * 10_000,
        max_streams: 256,
    };
    let end = |client, conn, out| End {
        conn,
        out,
        model: Model {
            client,
            lengths: Random::new(seed + u64::from(client)),
            streams: Vec::new(),
            pongs: 0,
        },
    };
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let conn = Connection::client(config, &mut to_server);
    let mut client = end(true, conn, to_server);
    let conn = Connection::server(Config::default(), &mut to_client);
    let mut server = end(false, conn, to_client);
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let mut pings = 0;

    for step in 0..3000 {
        match random.below(100) {
            0..10 => {
                let token = client.model.streams.len();
                if let Some(id) = client.conn.open(StreamKind::Http, token) {
                    assert_eq!(client.model.add(id), token);
                }
            }
            10..90 => {
                let side = if random.below(2) == 0 {
                    &mut client
                } else {
                    &mut server
                };
                // Mostly recent streams, as old ones have ended.
                let count = side.model.streams.len();
                let token = count.saturating_sub(1 + random.below(count.min(40)));
                if count == 0 {
                    continue;
                }
                match random.below(8) {
                    0..4 => side.send(token, random.below(30_000)),
                    4..7 if !side.model.streams[token].slow => {
                        side.consume(token, random.below(60_000));
                    }
                    _ if resets && random.below(8) == 0 => side.reset(token),
                    _ => {}
                }
            }
            90..91 => {
                client.conn.ping([1; 8], &mut client.out);
                pings += 1;
            }
            _ => {
                to_server.append(&mut client.out);
                to_client.append(&mut server.out);
                server.receive(&mut to_server, random, false);
                client.receive(&mut to_client, random, false);
            }
        }
        if leave && step == 1500 {
            server.conn.drain(&mut server.out);
        }
        if leave && step == 2000 {
            server.conn.go_away(GoAwayCode::NoError, &mut server.out);
        }
    }

    // No new streams; everything is sent, carried and read until nothing moves.
    for round in 0.. {
        assert!(round < 1000, "seed {seed}: streams do not end");
        for side in [&mut client, &mut server] {
            for token in 0..side.model.streams.len() {
                side.consume(token, usize::MAX);
                side.send(token, 16 * 1024);
            }
        }
        to_server.append(&mut client.out);
        to_client.append(&mut server.out);
        if to_server.is_empty() && to_client.is_empty() && round > 2 {
            break;
        }
        server.receive(&mut to_server, random, true);
        client.receive(&mut to_client, random, true);
    }
    check(&client, &server);
    assert_eq!(client.model.pongs, pings);
    assert!(!leave || !client.conn.can_open());
}

fn check(client: &End, server: &End) {
    for side in [client, server] {
        assert_eq!(side.conn.active_streams(), 0);
        assert_eq!(side.conn.promised_bytes(), 0);
        assert_eq!(side.conn.unread_bytes(), 0);
    }
    let taken: HashSet<_> = server
        .model
        .streams
        .iter()
        .map(|stream| stream.id)
        .collect();
    for stream in &client.model.streams {
        let refused = stream.over == Some(ResetCode::Refused);
        assert!(
            !(refused && taken.contains(&stream.id)),
            "refused and taken"
        );
        let Some(other) = server.model.streams.iter().find(|s| s.id == stream.id) else {
            assert!(stream.over.is_some(), "lost without a word");
            continue;
        };
        for (from, to) in [(stream, other), (other, stream)] {
            let complete = to.got_end && to.got == from.to_send;
            assert!(complete || stream.over.is_some() || other.over.is_some());
            assert!(to.got <= from.sent);
        }
    }
}

#[test]
fn all_streams_end_with_all_their_bytes() {
    for seed in 0..20 {
        run(seed, false, false);
    }
}

#[test]
fn resets_disturb_no_other_stream() {
    for seed in 100..120 {
        run(seed, true, false);
    }
}

#[test]
fn leaving_loses_and_repeats_nothing() {
    for seed in 200..220 {
        run(seed, seed % 2 == 0, true);
    }
}
