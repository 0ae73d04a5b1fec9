//! One end of a connection: the functions that the owner calls. `receive.rs` handles the peer's
//! frames.

use crate::flood::{self, FloodBudget};
use crate::frame;
use crate::head_in::HeadReader;
use crate::hpack::{self, Decoder};
use crate::stream::{Ids, Recent, Sending, Stream, at, at_mut};
use crate::{ConnectionError, ErrorCode, Framing};
use std::time::Duration;
use tulle_http1::Method;

/// Initial credit of a connection and of each stream.
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;
/// Most credit that is possible.
pub(crate) const MAX_WINDOW: u32 = i32::MAX as u32;
/// Credit of the connection. It is returned at once: senders are held back by their stream's
/// credit.
pub(crate) const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Pseudo-header fields of a request, which are not fields of its HTTP/1.1 form.
const PSEUDO: usize = 5;
/// Streams a server may be sent before its SETTINGS give a limit.
const UNKNOWN_MAX_STREAMS: u32 = 100;

/// Limits of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Bytes a peer may send on a new stream before any are consumed.
    pub window: u32,
    /// Bytes to which a stream's window may grow while its reader keeps up.
    pub max_window: u32,
    /// Streams open at once; at most 256.
    pub max_streams: u32,
    /// Windows grow only while all streams' windows together stay below this, in bytes.
    pub connection_budget: u32,
    /// Longest head in bytes, in its HTTP/1.1 form.
    pub head_bytes: usize,
    /// Most fields of a head.
    pub head_fields: usize,
    /// Whether a client's requests have the scheme `https`.
    pub secure: bool,
    /// Makes the keys of WebSocket handshakes differ.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64 * 1024,
            max_window: 1024 * 1024,
            max_streams: 128,
            connection_budget: 8 * 1024 * 1024,
            head_bytes: 64 * 1024,
            head_fields: 100,
            secure: false,
            seed: 0,
        }
    }
}

/// Events of a connection for its owner. Only [`Connection::receive`] and [`Connection::close`]
/// call it.
///
/// A stream is named by a key: a small number that is used again once the stream is
/// [released](Connection::release), so that the owner can keep its own state in a `Vec`.
pub trait Handler {
    /// A client opened a stream.
    fn on_open(&mut self, key: usize);
    /// A head in its HTTP/1.1 form. A response may have several; all but the last are interim.
    fn on_head(&mut self, key: usize, head: &[u8], framing: Framing);
    /// Bytes of the body. The owner holds them until [`Connection::consumed`].
    fn on_data(&mut self, key: usize, data: &[u8]);
    /// Trailers as lines of HTTP/1.1; the end follows.
    fn on_trailers(&mut self, key: usize, lines: &[u8]);
    /// The peer sends nothing more on this stream.
    fn on_end(&mut self, key: usize);
    /// The stream is over. Not called for streams that the owner reset.
    fn on_reset(&mut self, key: usize, code: ErrorCode);
    /// The stream has more credit, and perhaps can send.
    fn on_credit(&mut self, key: usize);
    /// Any stream perhaps can send.
    fn on_connection_credit(&mut self);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// A header block that is not complete.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) id: u32,
    pub(crate) end: bool,
    pub(crate) frames: u32,
    pub(crate) bytes: Vec<u8>,
}

/// One end of an HTTP/2 connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) role: Role,
    pub(crate) config: Config,
    pub(crate) decoder: Decoder,
    pub(crate) reader: HeadReader,
    pub(crate) streams: Vec<Stream>,
    pub(crate) free: Vec<usize>,
    pub(crate) ids: Ids,
    /// Streams that have not finished.
    pub(crate) active: usize,
    /// Sum of the windows of streams in use.
    pub(crate) promised: u64,
    pub(crate) flood: FloodBudget,
    /// Number of ticks so far.
    pub(crate) ticks: u32,
    /// Bytes of the preface received.
    pub(crate) preface: usize,
    pub(crate) settings_seen: bool,
    pub(crate) block: Option<Block>,
    pub(crate) peer_window: u32,
    pub(crate) peer_max_streams: u32,
    /// `None`: the peer's settings have not come.
    pub(crate) peer_tunnels: Option<bool>,
    pub(crate) send_window: i64,
    pub(crate) receive_window: u32,
    /// Highest id that the client used.
    pub(crate) highest: u32,
    /// Client: the id of the next stream on the wire.
    pub(crate) next_id: u32,
    /// Server: streams above this are refused.
    pub(crate) accepted_last: u32,
    pub(crate) draining: bool,
    pub(crate) error: Option<ConnectionError>,
    pub(crate) closed: bool,
    /// Streams ended by the peer.
    pub(crate) ended: Recent,
    /// Streams cut by us.
    pub(crate) cut: Recent,
    pub(crate) encoded: Vec<u8>,
    pub(crate) scratch: Vec<u8>,
    /// Whether our encoder has announced that it has no table.
    pub(crate) greeted: bool,
    pub(crate) nonce: u64,
    /// Bytes of DATA sent.
    pub(crate) data_sent: u64,
}

impl Connection {
    /// Creates the end that dialled. Appends the preface and SETTINGS to `out`.
    #[must_use]
    pub fn client(config: Config, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(crate::PREFACE);
        Self::new(Role::Client, config, out)
    }

    /// Creates the end that was dialled. Appends SETTINGS to `out`.
    #[must_use]
    pub fn server(config: Config, out: &mut Vec<u8>) -> Self {
        Self::new(Role::Server, config, out)
    }

    fn new(role: Role, config: Config, out: &mut Vec<u8>) -> Self {
        let window = config.window.clamp(1, MAX_WINDOW);
        let config = Config {
            window,
            max_window: config.max_window.clamp(window, MAX_WINDOW),
            max_streams: config.max_streams.clamp(1, 256),
            head_bytes: config.head_bytes.clamp(1024, 16 * 1024 * 1024),
            ..config
        };
        let list = (
            frame::MAX_HEADER_LIST_SIZE,
            u32::try_from(config.head_bytes).unwrap_or(u32::MAX),
        );
        let initial = (frame::INITIAL_WINDOW_SIZE, window);
        match role {
            Role::Server => {
                let streams = (frame::MAX_CONCURRENT_STREAMS, config.max_streams);
                let tunnels = (frame::ENABLE_CONNECT_PROTOCOL, 1);
                frame::write_settings(&[streams, initial, list, tunnels], out);
            }
            Role::Client => {
                frame::write_settings(&[(frame::ENABLE_PUSH, 0), initial, list], out);
            }
        }
        frame::write_window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW, out);
        Self {
            role,
            config,
            decoder: Decoder::new(),
            reader: HeadReader::new(config.head_bytes, config.head_fields.saturating_add(PSEUDO)),
            streams: Vec::new(),
            free: Vec::new(),
            ids: Ids::default(),
            active: 0,
            promised: 0,
            flood: FloodBudget::new(),
            ticks: 0,
            preface: 0,
            settings_seen: false,
            block: None,
            peer_window: DEFAULT_WINDOW,
            peer_max_streams: UNKNOWN_MAX_STREAMS,
            peer_tunnels: None,
            send_window: i64::from(DEFAULT_WINDOW),
            receive_window: CONNECTION_WINDOW,
            highest: 0,
            next_id: 1,
            accepted_last: MAX_WINDOW,
            draining: false,
            error: None,
            closed: false,
            ended: Recent::default(),
            cut: Recent::default(),
            encoded: Vec::new(),
            scratch: Vec::new(),
            greeted: false,
            nonce: config.seed,
            data_sent: 0,
        }
    }

    /// Opens a stream of a client and returns its key. No frame is written before its request.
    pub fn open(&mut self) -> Option<usize> {
        if !self.can_open() {
            return None;
        }
        Some(self.insert(0))
    }

    /// Whether [`Self::open`] would give a stream.
    #[must_use]
    pub fn can_open(&self) -> bool {
        self.role == Role::Client
            && !self.draining
            && self.usable()
            // Streams that wait for their id count, too.
            && self.next_id < MAX_WINDOW - 1024
            && !self.full(self.config.max_streams.min(self.peer_max_streams))
    }

    /// Whether the limit is reached. Finished streams that the owner still holds do not count as
    /// open, but they hold memory, so they have the same limit again.
    pub(crate) fn full(&self, max: u32) -> bool {
        let max = max as usize;
        self.active >= max || self.streams.len() - self.free.len() >= max.saturating_mul(2)
    }

    pub(crate) fn insert(&mut self, id: u32) -> usize {
        let key = self.free.pop().unwrap_or_else(|| {
            self.streams.push(Stream::new());
            self.streams.len() - 1
        });
        let window = self.config.window;
        let send_window = i64::from(self.peer_window);
        let stream = at_mut(&mut self.streams, key);
        stream.id = id;
        stream.used = true;
        stream.sending = Sending::Head;
        stream.receiving = true;
        stream.head_seen = false;
        stream.framing = Framing::None;
        stream.left = None;
        stream.method = Method::Other;
        stream.extended = false;
        stream.send_window = send_window;
        stream.receive_window = window;
        stream.window = window;
        stream.unread = 0;
        stream.pending = 0;
        stream.born = self.ticks;
        if id != 0 {
            self.ids.insert(id, key);
        }
        self.active += 1;
        self.promised += u64::from(window);
        key
    }

    /// Returns credit after the owner has read everything it was given: when half a window was
    /// consumed. The window grows if the peer used it up and the budget allows.
    pub fn consumed(&mut self, key: usize, out: &mut Vec<u8>) {
        let usable = self.usable();
        let Some(stream) = self.streams.get_mut(key).filter(|s| s.used) else {
            return;
        };
        let bytes = std::mem::take(&mut stream.unread);
        self.flood.earn(bytes);
        if !stream.receiving || !usable {
            return;
        }
        stream.pending += bytes;
        if stream.pending < stream.window / 2 {
            return;
        }
        let mut increment = std::mem::take(&mut stream.pending);
        if stream.receive_window < stream.window / 8 {
            let room = u64::from(self.config.connection_budget).saturating_sub(self.promised);
            let growth = stream
                .window
                .min(self.config.max_window - stream.window)
                .min(u32::try_from(room).unwrap_or(u32::MAX));
            stream.window += growth;
            self.promised += u64::from(growth);
            increment += growth;
        }
        stream.receive_window += increment;
        frame::write_window_update(stream.id, increment, out);
    }

    /// Cuts the stream in both directions. The owner gets no more events for it, but still holds
    /// it.
    pub fn reset(&mut self, key: usize, code: ErrorCode, out: &mut Vec<u8>) {
        let usable = self.usable();
        let Some(stream) = self.streams.get_mut(key).filter(|s| s.used) else {
            return;
        };
        if stream.finished() {
            return;
        }
        let receiving = std::mem::replace(&mut stream.receiving, false);
        stream.sending = Sending::Ended;
        self.active -= 1;
        let id = stream.id;
        if id == 0 {
            return;
        }
        if usable {
            frame::write_reset(id, code, out);
        }
        if receiving {
            // From here on its frames count as those of an unknown stream.
            self.ids.remove(&id);
            self.cut.push(id);
            self.flood.earn(2 * flood::JUNK);
        }
    }

    /// Releases the stream, so that its key may be used again. Resets it if it has not finished:
    /// with `NO_ERROR` when a server had sent its whole response, so that the client keeps it (RFC
    /// 9113, section 8.1).
    pub fn release(&mut self, key: usize, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get(key).filter(|s| s.used) else {
            return;
        };
        let answered = self.role == Role::Server && !stream.is_sending();
        let code = if answered {
            ErrorCode::NoError
        } else {
            ErrorCode::Cancel
        };
        self.reset(key, code, out);
        let stream = at_mut(&mut self.streams, key);
        stream.used = false;
        stream.accept = Box::default();
        stream.stash = Box::default();
        self.promised -= u64::from(stream.window);
        if self.ids.remove(&stream.id).is_some() {
            self.ended.push(stream.id);
        }
        self.free.push(key);
    }

    /// Asks the peer to open no more streams; those on their way are still taken.
    pub fn drain(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.draining, true) && self.usable() {
            let last = match self.role {
                Role::Server => MAX_WINDOW,
                Role::Client => 0,
            };
            frame::write_go_away(last, ErrorCode::NoError, out);
        }
    }

    /// Takes no more streams from now on; existing ones finish. To refuse none, call
    /// [`Self::drain`] first and this after a time.
    pub fn go_away(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        if !self.usable() || self.accepted_last != MAX_WINDOW {
            return;
        }
        self.draining = true;
        self.accepted_last = match self.role {
            Role::Server => self.highest,
            Role::Client => 0,
        };
        frame::write_go_away(self.accepted_last, code, out);
    }

    /// Whether no new streams are opened or taken any more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether this is the end that dialled.
    #[must_use]
    pub fn is_client(&self) -> bool {
        self.role == Role::Client
    }

    /// Returns the number of streams that have not finished.
    #[must_use]
    pub fn active_streams(&self) -> usize {
        self.active
    }

    /// Whether the peer is in the middle of a header block, or has not sent its SETTINGS.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.block.is_some() || !self.settings_seen
    }

    /// Whether the peer's initial window lets streams send next to nothing. A client that keeps
    /// many of these open makes us hold their output in memory.
    #[must_use]
    pub fn peer_grants_little(&self) -> bool {
        self.peer_window < 1024
    }

    /// Bytes of a body that a stream may send now.
    #[must_use]
    pub fn credit(&self, key: usize) -> usize {
        let stream = self.streams.get(key).map_or(0, |s| s.send_window);
        usize::try_from(stream.min(self.send_window)).unwrap_or_default()
    }

    /// Bytes of bodies sent on all streams so far.
    #[must_use]
    pub fn data_sent(&self) -> u64 {
        self.data_sent
    }

    /// Refills a part of the flood budget for the time since the last tick, or the beginning. A
    /// client that cuts a stream older than a tick is not flooding.
    pub fn tick(&mut self, passed: Duration) {
        self.ticks = self.ticks.wrapping_add(1);
        self.flood.pass(passed);
    }

    /// Tells every unfinished stream that the connection is gone, or is about to be. Streams that
    /// were never on the wire are refused, hence safe to retry.
    pub fn close(&mut self, handler: &mut impl Handler) {
        self.closed = true;
        self.draining = true;
        for (key, stream) in self.streams.iter_mut().enumerate() {
            if stream.used && !stream.finished() {
                stream.receiving = false;
                stream.sending = Sending::Ended;
                let code = match stream.id {
                    0 => ErrorCode::RefusedStream,
                    _ => ErrorCode::Internal,
                };
                handler.on_reset(key, code);
            }
        }
        self.ids.clear();
        self.active = 0;
    }

    /// Whether it has neither failed nor closed.
    pub(crate) fn usable(&self) -> bool {
        self.error.is_none() && !self.closed
    }

    /// Notes that one direction has ended.
    pub(crate) fn direction_ended(&mut self, key: usize) {
        if at(&self.streams, key).finished() {
            self.active -= 1;
            self.flood.earn(flood::CUT_STREAM);
        }
    }

    /// Begins a block, to be encoded into the buffer that it returns.
    pub(crate) fn begin_block(&mut self) -> Vec<u8> {
        let mut block = std::mem::take(&mut self.encoded);
        block.clear();
        if !std::mem::replace(&mut self.greeted, true) {
            block.push(hpack::NO_TABLE);
        }
        block
    }

    /// A number for a WebSocket's key.
    pub(crate) fn next_nonce(nonce: &mut u64) -> u128 {
        let mut next = || {
            // splitmix64
            *nonce = nonce.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (*nonce ^ (*nonce >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            u128::from(z ^ (z >> 31))
        };
        next() << 64 | next()
    }
}
