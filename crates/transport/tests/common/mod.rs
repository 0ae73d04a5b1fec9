//! Shared by the tests: a handler that records everything, and frames made by hand from the
//! specification, so that a mistake in the crate's own writer shows.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part

use tulle_transport::{
    Config, Connection, ConnectionError, GoAwayCode, Handler, ResetCode, StreamId, StreamKind,
};

pub const DATA: u8 = 0;
pub const RESET: u8 = 1;
pub const CREDIT: u8 = 2;
pub const GO_AWAY: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 5;
pub const PONG: u8 = 6;
pub const WORKLOAD: u8 = 7;
pub const IGNORABLE: u8 = 0x80;

pub const END: u8 = 1;
pub const OPEN: u8 = 2;
pub const TCP: u8 = 4;
pub const HTTP2: u8 = 0x10;
pub const EXHAUSTED: u8 = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Open(u32, StreamKind),
    Data(u32, Vec<u8>),
    End(u32),
    Reset(u32, ResetCode),
    Credit(u32),
    GoAway(u32, GoAwayCode),
    Pong([u8; 8]),
    Workload(Vec<u8>),
}

/// Tokens are stream ids here, so each call's token can be checked.
#[derive(Debug, Default)]
pub struct Recorder {
    pub events: Vec<Event>,
}

impl Recorder {
    pub fn bytes_of(&self, stream: StreamId) -> Vec<u8> {
        let pieces = self.events.iter().filter_map(|event| match event {
            Event::Data(id, data) if *id == stream.value() => Some(data.as_slice()),
            _ => None,
        });
        pieces.collect::<Vec<_>>().concat()
    }

    pub fn saw(&self, event: &Event) -> bool {
        self.events.contains(event)
    }

    /// Neighbouring data of a stream as one event: the same for every split of the input.
    pub fn joined(&self) -> Vec<Event> {
        let mut joined: Vec<Event> = Vec::new();
        for event in &self.events {
            match (joined.last_mut(), event) {
                (Some(Event::Data(last, bytes)), Event::Data(id, more)) if last == id => {
                    bytes.extend_from_slice(more);
                }
                _ => joined.push(event.clone()),
            }
        }
        joined
    }
}

impl Handler for Recorder {
    fn on_open(&mut self, id: StreamId, kind: StreamKind) -> usize {
        self.events.push(Event::Open(id.value(), kind));
        id.value() as usize
    }
    fn on_data(&mut self, token: usize, id: StreamId, data: &[u8]) {
        assert_eq!(token, id.value() as usize);
        self.events.push(Event::Data(id.value(), data.to_vec()));
    }
    fn on_end(&mut self, token: usize, id: StreamId) {
        assert_eq!(token, id.value() as usize);
        self.events.push(Event::End(id.value()));
    }
    fn on_reset(&mut self, token: usize, id: StreamId, code: ResetCode) {
        assert_eq!(token, id.value() as usize);
        self.events.push(Event::Reset(id.value(), code));
    }
    fn on_credit(&mut self, token: usize, id: StreamId) {
        assert_eq!(token, id.value() as usize);
        self.events.push(Event::Credit(id.value()));
    }
    fn on_go_away(&mut self, last: u32, code: GoAwayCode) {
        self.events.push(Event::GoAway(last, code));
    }
    fn on_pong(&mut self, data: [u8; 8]) {
        self.events.push(Event::Pong(data));
    }
    fn on_workload(&mut self, description: &[u8]) {
        self.events.push(Event::Workload(description.to_vec()));
    }
}

/// One end with its output and the events it saw.
pub struct End {
    pub conn: Connection,
    pub out: Vec<u8>,
    pub seen: Recorder,
}

impl End {
    pub fn client(config: Config) -> Self {
        let mut out = Vec::new();
        let conn = Connection::client(config, &mut out);
        let seen = Recorder::default();
        Self { conn, out, seen }
    }

    pub fn server(config: Config) -> Self {
        let mut out = Vec::new();
        let conn = Connection::server(config, &mut out);
        let seen = Recorder::default();
        Self { conn, out, seen }
    }

    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.conn.receive(bytes, &mut self.seen, &mut self.out)
    }

    pub fn open(&mut self) -> Option<StreamId> {
        let id = self.conn.open(StreamKind::Http, 0)?;
        self.conn.set_token(id, id.value() as usize);
        Some(id)
    }

    pub fn send(&mut self, id: StreamId, data: &[u8], end: bool) -> usize {
        self.conn.send(id, data, end, &mut self.out).unwrap()
    }

    pub fn consumed(&mut self, id: StreamId, bytes: usize) {
        self.conn.consumed(id, bytes, &mut self.out);
    }
}

/// Moves the output of `from` to `to`.
pub fn carry(from: &mut End, to: &mut End) {
    let bytes = std::mem::take(&mut from.out);
    to.receive(&bytes).unwrap();
}

/// Carries bytes both ways until nothing is left.
pub fn settle(one: &mut End, other: &mut End) {
    while !one.out.is_empty() || !other.out.is_empty() {
        carry(one, other);
        carry(other, one);
    }
}

pub fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u16).to_be_bytes().to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(id.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub fn settings_payload(revision: u16, payload: u16, window: u32, streams: u32) -> Vec<u8> {
    let mut bytes = revision.to_be_bytes().to_vec();
    bytes.extend(payload.to_be_bytes());
    bytes.extend(words(&[window, streams]));
    bytes
}

/// SETTINGS that raise nothing.
pub fn settings() -> Vec<u8> {
    frame(SETTINGS, 0, 0, &settings_payload(1, 16_376, 65_536, 256))
}

/// A server that has the client's SETTINGS.
pub fn ready_server() -> End {
    let mut server = End::server(Config::default());
    server.receive(&settings()).unwrap();
    server.out.clear();
    server
}

/// A small generator (xorshift64*), so that a failure can be repeated from its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}
