//! Two ends of a connection, or one end and raw frames.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses a part

use tulle_http2::{Config, Connection, ConnectionError, ErrorCode, Framing, Handler};

/// Events of one stream.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub head: String,
    pub framing: Option<Framing>,
    pub data: Vec<u8>,
    pub trailers: String,
    pub ended: bool,
    pub reset: Option<ErrorCode>,
    pub credits: usize,
}

/// Remembers all events, by key.
#[derive(Debug, Default)]
pub struct Owner {
    pub streams: Vec<Seen>,
    pub opened: Vec<usize>,
}

impl Owner {
    pub fn at(&mut self, key: usize) -> &mut Seen {
        if self.streams.len() <= key {
            self.streams.resize(key + 1, Seen::default());
        }
        &mut self.streams[key]
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Handler for Owner {
    fn on_open(&mut self, key: usize) {
        *self.at(key) = Seen::default();
        self.opened.push(key);
    }
    fn on_head(&mut self, key: usize, head: &[u8], framing: Framing) {
        let seen = self.at(key);
        seen.head.push_str(&text(head));
        seen.framing = Some(framing);
    }
    fn on_data(&mut self, key: usize, data: &[u8]) {
        self.at(key).data.extend_from_slice(data);
    }
    fn on_trailers(&mut self, key: usize, lines: &[u8]) {
        self.at(key).trailers.push_str(&text(lines));
    }
    fn on_end(&mut self, key: usize) {
        self.at(key).ended = true;
    }
    fn on_reset(&mut self, key: usize, code: ErrorCode) {
        self.at(key).reset = Some(code);
    }
    fn on_credit(&mut self, key: usize) {
        self.at(key).credits += 1;
    }
    fn on_connection_credit(&mut self) {}
}

/// One end with the events it has seen, its output, and bytes that are not a whole frame yet.
pub struct End {
    pub connection: Connection,
    pub owner: Owner,
    pub out: Vec<u8>,
    incoming: Vec<u8>,
}

impl End {
    pub fn server(config: Config) -> Self {
        let mut out = Vec::new();
        let connection = Connection::server(config, &mut out);
        Self::new(connection, out)
    }

    pub fn client(config: Config) -> Self {
        let mut out = Vec::new();
        let connection = Connection::client(config, &mut out);
        Self::new(connection, out)
    }

    fn new(connection: Connection, out: Vec<u8>) -> Self {
        Self {
            connection,
            owner: Owner::default(),
            out,
            incoming: Vec::new(),
        }
    }

    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.incoming.extend_from_slice(bytes);
        let (incoming, owner) = (&self.incoming, &mut self.owner);
        let taken = self.connection.receive(incoming, owner, &mut self.out)?;
        self.incoming.drain(..taken);
        Ok(())
    }

    pub fn write(&mut self, key: usize, bytes: &[u8]) -> usize {
        self.connection.write(key, bytes, &mut self.out).unwrap()
    }

    /// A server that has seen a client's preface and settings.
    pub fn greeted(config: Config) -> Self {
        let mut server = Self::server(config);
        server.receive(tulle_http2::PREFACE).unwrap();
        server.receive(&frame(4, 0, 0, &[])).unwrap();
        server.out.clear();
        server
    }
}

/// Carries bytes both ways until both are silent.
pub fn settle(a: &mut End, b: &mut End) {
    while !a.out.is_empty() || !b.out.is_empty() {
        let (from_a, from_b) = (std::mem::take(&mut a.out), std::mem::take(&mut b.out));
        b.receive(&from_a).unwrap();
        a.receive(&from_b).unwrap();
    }
}

/// A client and a server that have exchanged settings.
pub fn pair(config: Config) -> (End, End) {
    let (mut client, mut server) = (End::client(config), End::server(config));
    settle(&mut client, &mut server);
    (client, server)
}

pub fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut out = vec![length[1], length[2], length[3], kind, flags];
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A header block of literals.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "one byte of length");
            out.push(text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The fields of `GET /` at `a`, and more.
pub fn get(more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = vec![
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
    ];
    fields.extend_from_slice(more);
    block(&fields)
}

/// Types and stream ids of the frames in `bytes`, with their payload.
pub fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut all = Vec::new();
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let id = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
        all.push((bytes[3], bytes[4], id, bytes[9..9 + length].to_vec()));
        bytes = &bytes[9 + length..];
    }
    all
}
