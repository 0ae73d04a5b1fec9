//! One end of a connection: the functions that the owner calls. `receive.rs` handles the peer's
//! frames.

use crate::flood::{self, FloodBudget};
use crate::frame;
use crate::receive::Reader;
use crate::stream::{Stream, Streams};
use crate::{
    ConnectionError, DEFAULT_MAX_STREAMS, DEFAULT_WINDOW, GoAwayCode, MAX_PAYLOAD, MAX_WORKLOAD,
    ResetCode, StreamGone, StreamId, StreamKind,
};
use std::time::Duration;

/// Most credit a direction of a stream can have.
pub(crate) const MAX_CREDIT: u32 = i32::MAX as u32;
/// The last id that can be opened; the one above means "all" in GOAWAY.
const LAST_ID: u32 = u32::MAX - 1;

/// Limits of one end. Values below what the protocol guarantees are raised to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Bytes a peer may send on a new stream before we consume any; at least [`DEFAULT_WINDOW`].
    pub window: u32,
    /// Bytes to which a stream's window may grow while its reader keeps up; at least `window`.
    pub max_window: u32,
    /// Streams open at once. A server offers this many, at least [`DEFAULT_MAX_STREAMS`]; a client
    /// opens at most this many, and no more than the server offers.
    pub max_streams: u32,
    /// Windows grow only while all streams' windows together stay below this, in bytes.
    pub connection_budget: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: DEFAULT_WINDOW,
            max_window: 1024 * 1024,
            max_streams: DEFAULT_MAX_STREAMS,
            connection_budget: 16 * 1024 * 1024,
        }
    }
}

/// Events of a connection for its owner. Only [`Connection::receive`] and [`Connection::close`]
/// call it.
///
/// `token` is the owner's own mark of a stream: given to [`Connection::open`] by a client, returned
/// by `on_open` at a server.
pub trait Handler {
    /// A client opened a stream; returns the stream's token. Refuse it after `receive` with
    /// [`Connection::reset`].
    fn on_open(&mut self, id: StreamId, kind: StreamKind) -> usize;
    /// Bytes of the stream, in order. The owner holds them until [`Connection::consumed`].
    fn on_data(&mut self, token: usize, id: StreamId, data: &[u8]);
    /// The peer sends nothing more on this stream.
    fn on_end(&mut self, token: usize, id: StreamId);
    /// The stream is over. Not called for streams that this end reset or that have finished.
    fn on_reset(&mut self, token: usize, id: StreamId, code: ResetCode);
    /// The stream has more credit.
    fn on_credit(&mut self, token: usize, id: StreamId);
    /// The peer takes no streams above `last`; `on_reset` with [`ResetCode::Refused`] came first
    /// for each of them. `u32::MAX`: all opened so far are taken, open no more.
    fn on_go_away(&mut self, last: u32, code: GoAwayCode);
    /// The answer to [`Connection::ping`].
    fn on_pong(&mut self, data: [u8; 8]);
    /// The client describes its workload, at most once and in at most [`MAX_WORKLOAD`] bytes. They are the
    /// client's own words and prove nothing.
    fn on_workload(&mut self, _description: &[u8]) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// A client's description of its workload.
#[derive(Debug)]
pub(crate) enum Workload {
    /// It may still come.
    Awaited,
    /// A part has come.
    Begun(Vec<u8>),
    /// The owner has it. Another would be skipped.
    Told,
}

/// One end of a `tulle/1` connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) role: Role,
    pub(crate) config: Config,
    pub(crate) reader: Reader,
    pub(crate) streams: Streams,
    /// Streams that have not finished; the table also has finished ones with unread bytes.
    pub(crate) active: usize,
    /// Sum of [`Stream::promised`].
    pub(crate) promised: u64,
    pub(crate) unread: u64,
    pub(crate) flood: FloodBudget,
    /// Server: the client's description of its workload, as far as it has come.
    pub(crate) workload: Workload,
    /// Number of ticks so far.
    ticks: u32,
    /// Bytes the peer may still send on streams we reset: the credit it had then.
    pub(crate) discardable: u64,
    /// Credit the peer gives a new stream.
    pub(crate) peer_window: u32,
    /// Streams the peer lets us open.
    pub(crate) peer_max_streams: u32,
    /// Highest id whose OPEN is on the wire (client: sent, server: received).
    pub(crate) highest: u32,
    /// Client: the id of the next stream.
    pub(crate) next_id: u32,
    /// Client: highest id on which the server sent DATA.
    pub(crate) answered: u32,
    /// Server: streams above this were not accepted.
    pub(crate) accepted_last: u32,
    /// The peer's GOAWAY: lowest last id so far.
    pub(crate) peer_go_away: Option<u32>,
    /// No new streams: GOAWAY sent or received, or ids used up.
    pub(crate) draining: bool,
    pub(crate) error: Option<ConnectionError>,
    closed: bool,
}

impl Connection {
    /// Creates the end that dialled. Appends SETTINGS to `out`; streams may be opened at once.
    #[must_use]
    pub fn client(config: Config, out: &mut Vec<u8>) -> Self {
        Self::new(Role::Client, config, out)
    }

    /// Creates the end that was dialled. Appends SETTINGS to `out`.
    #[must_use]
    pub fn server(config: Config, out: &mut Vec<u8>) -> Self {
        Self::new(Role::Server, config, out)
    }

    fn new(role: Role, config: Config, out: &mut Vec<u8>) -> Self {
        let window = config.window.clamp(DEFAULT_WINDOW, MAX_CREDIT);
        let max_streams = match role {
            // Half of the id space, so that twice as many still fits.
            Role::Server => config.max_streams.clamp(DEFAULT_MAX_STREAMS, MAX_CREDIT),
            Role::Client => config.max_streams.clamp(1, MAX_CREDIT),
        };
        let config = Config {
            window,
            max_window: config.max_window.clamp(window, MAX_CREDIT),
            max_streams,
            connection_budget: config.connection_budget,
        };
        // A client accepts no streams, so it offers none.
        let offered = if role == Role::Server { max_streams } else { 0 };
        frame::write_settings(&config, offered, out);
        Self {
            role,
            config,
            reader: Reader::new(),
            streams: Streams::default(),
            active: 0,
            promised: 0,
            unread: 0,
            flood: FloodBudget::new(),
            workload: Workload::Awaited,
            ticks: 0,
            discardable: 0,
            peer_window: DEFAULT_WINDOW,
            peer_max_streams: DEFAULT_MAX_STREAMS,
            highest: 0,
            next_id: 1,
            answered: 0,
            accepted_last: u32::MAX,
            peer_go_away: None,
            draining: false,
            error: None,
            closed: false,
        }
    }

    /// Tells the server, which may pass over it, what workload the client is. Only a client does so, once
    /// and before its first stream. A description of more than [`MAX_WORKLOAD`] bytes is not told.
    pub fn tell_workload(&mut self, description: &[u8], out: &mut Vec<u8>) {
        if self.role == Role::Client && self.usable() && description.len() <= MAX_WORKLOAD {
            frame::write_workload(description, out);
        }
    }

    /// Opens a stream; only a client can. Nothing is written until the first [`Self::send`], which
    /// may be empty to announce a stream on which the server speaks first.
    ///
    /// `None`: no more streams now, because the limit is reached, the connection drains or failed,
    /// or its ids are used up (then it drains, too).
    pub fn open(&mut self, kind: StreamKind, token: usize) -> Option<StreamId> {
        if !self.can_open() {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        if id == LAST_ID {
            self.draining = true;
        }
        self.insert(
            id,
            Stream::new(kind, token, self.peer_window, self.config.window),
        );
        Some(StreamId::new(id))
    }

    /// Whether [`Self::open`] would give a stream.
    #[must_use]
    pub fn can_open(&self) -> bool {
        self.role == Role::Client
            && !self.draining
            && self.usable()
            && !self.full(self.config.max_streams.min(self.peer_max_streams))
    }

    /// Whether the limit is reached. Finished streams with unread bytes do not count as open, or
    /// the peer's allowed streams would be refused. They hold memory, though, so they have the same
    /// limit again.
    pub(crate) fn full(&self, max_streams: u32) -> bool {
        let max = max_streams as usize;
        self.active >= max || self.streams.len() >= max.saturating_mul(2)
    }

    /// Appends frames to `out` with as much of `data` as the stream's credit allows and returns how
    /// many bytes were taken. `end` goes out with the last byte, and only when all was taken.
    ///
    /// # Errors
    /// The stream or its connection is over, or `end` was sent before.
    pub fn send(
        &mut self,
        id: StreamId,
        data: &[u8],
        end: bool,
        out: &mut Vec<u8>,
    ) -> Result<usize, StreamGone> {
        if !self.usable() {
            return Err(StreamGone);
        }
        if self.role == Role::Client && id.value() > self.highest {
            self.announce_before(id.value(), out);
        }
        let stream = self.streams.get_mut(&id.value()).ok_or(StreamGone)?;
        if !stream.sending {
            return Err(StreamGone);
        }
        let mut flags = 0;
        if !stream.announced {
            stream.announced = true;
            self.highest = id.value();
            flags = stream.kind.flags();
        }
        let taken = data.len().min(stream.send_credit as usize);
        let end = end && taken == data.len();
        let (mut rest, _) = data.split_at(taken);
        loop {
            let (piece, tail) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            // At most the credit, which is a u32.
            stream.send_credit -= piece.len() as u32;
            if tail.is_empty() && end {
                flags |= frame::FLAG_END;
            } else if stream.send_credit == 0 && !piece.is_empty() {
                flags |= frame::FLAG_EXHAUSTED;
            }
            if !piece.is_empty() || flags != 0 {
                frame::write(frame::DATA, flags, id.value(), piece, out);
            }
            flags = 0;
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        self.flood.earn(taken as u32);
        stream.answered |= taken > 0;
        if end {
            self.ended(id.value(), |stream| stream.sending = false);
        }
        Ok(taken)
    }

    /// Opens the streams below `id` with empty frames: ids must rise on the wire, but streams may
    /// send in another order than they were opened. A stream that was given up before just leaves a
    /// gap.
    fn announce_before(&mut self, id: u32, out: &mut Vec<u8>) {
        // `open` gave `id` out, so this visits each id once in the connection's life.
        for below in self.highest + 1..id.min(self.next_id) {
            if let Some(stream) = self.streams.get_mut(&below) {
                stream.announced = true;
                frame::write(frame::DATA, stream.kind.flags(), below, &[], out);
            }
            self.highest = below;
        }
    }

    /// Returns the bytes that [`Self::send`] would take now; 0 when the stream is over.
    #[must_use]
    pub fn credit(&self, id: StreamId) -> usize {
        match self.streams.get(&id.value()) {
            Some(stream) if stream.sending => stream.send_credit as usize,
            _ => 0,
        }
    }

    /// Notes that the owner has used `bytes` of the data it got. Credit is returned when half a
    /// window was consumed; the window grows if the peer used it up, the reader keeps up and the
    /// budget allows. It does nothing for a stream that is over.
    pub fn consumed(&mut self, id: StreamId, bytes: usize, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(&id.value()) else {
            return;
        };
        let bytes = bytes.min(stream.unread as usize) as u32;
        stream.unread -= bytes;
        self.unread -= u64::from(bytes);
        self.flood.earn(bytes);
        if !stream.receiving {
            self.promised -= u64::from(bytes);
            if stream.finished() && stream.unread == 0 {
                self.streams.remove(&id.value());
            }
            return;
        }
        stream.pending += bytes;
        if stream.pending < stream.window / 2 || self.error.is_some() {
            return;
        }
        let mut increment = stream.pending;
        if stream.exhausted && stream.unread <= stream.window / 4 {
            let room = u64::from(self.config.connection_budget).saturating_sub(self.promised);
            let growth = stream
                .window
                .min(self.config.max_window - stream.window)
                .min(u32::try_from(room).unwrap_or(u32::MAX));
            stream.window += growth;
            stream.exhausted = false;
            self.promised += u64::from(growth);
            increment += growth;
        }
        stream.pending = 0;
        stream.receive_credit += increment;
        frame::write_credit(id.value(), increment, out);
    }

    /// Cuts the stream in both directions. The owner gets no more events for it.
    pub fn reset(&mut self, id: StreamId, code: ResetCode, out: &mut Vec<u8>) {
        let Some(stream) = self.remove(id.value()) else {
            return;
        };
        if stream.finished() || !stream.announced || !self.usable() {
            return;
        }
        if stream.receiving {
            self.discardable = self
                .discardable
                .saturating_add(u64::from(stream.receive_credit));
        }
        // An END, RESET or CREDIT of the peer may cross with this reset.
        self.flood.earn(2 * flood::JUNK);
        frame::write_reset(id, code, out);
    }

    /// Releases a stream that the owner no longer wants, with its unread bytes. Resets it if it has
    /// not finished: with [`ResetCode::Done`] when a server had sent its whole HTTP response, so
    /// that the client keeps it, otherwise with [`ResetCode::Cancelled`].
    pub fn release(&mut self, id: StreamId, out: &mut Vec<u8>) {
        let answered = |stream: &Stream| stream.kind != StreamKind::Tcp && !stream.sending;
        let code = match self.streams.get(&id.value()) {
            Some(stream) if self.role == Role::Server && answered(stream) => ResetCode::Done,
            _ => ResetCode::Cancelled,
        };
        self.reset(id, code, out);
    }

    /// Asks the peer to open no more streams. A server still takes open ones, so none is refused;
    /// the client closes the connection after its last stream.
    pub fn drain(&mut self, out: &mut Vec<u8>) {
        if !self.draining && self.usable() {
            let last = match self.role {
                Role::Server => u32::MAX,
                Role::Client => self.announce_all(out),
            };
            self.draining = true;
            frame::write_go_away(last, GoAwayCode::NoError, out);
        }
    }

    /// Takes no more streams from now on; existing ones finish. A server's peer learns which of its
    /// streams were refused and may retry those. To refuse none, call [`Self::drain`] first and
    /// this after a time.
    pub fn go_away(&mut self, code: GoAwayCode, out: &mut Vec<u8>) {
        if !self.usable() || self.accepted_last != u32::MAX {
            return;
        }
        self.draining = true;
        self.accepted_last = match self.role {
            Role::Server => self.highest,
            Role::Client => self.announce_all(out),
        };
        frame::write_go_away(self.accepted_last, code, out);
    }

    /// Sends OPEN for all streams given out by `open`, since a client's GOAWAY allows none after
    /// it. Returns the last id it accepts: none, as a server opens no streams.
    fn announce_all(&mut self, out: &mut Vec<u8>) -> u32 {
        self.announce_before(self.next_id, out);
        0
    }

    /// Whether no new streams are opened or taken any more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Streams that have not finished.
    #[must_use]
    pub fn active_streams(&self) -> usize {
        self.active
    }

    /// Bytes delivered and not yet consumed, over all streams.
    #[must_use]
    pub fn unread_bytes(&self) -> u64 {
        self.unread
    }

    /// Returns the bytes the peer may make the owner hold, over all streams. It is never above 2 ×
    /// `max_streams` × `window`, or that plus `connection_budget` when windows grew.
    #[must_use]
    pub fn promised_bytes(&self) -> u64 {
        self.promised
    }

    /// Changes the owner's mark of a stream.
    pub fn set_token(&mut self, id: StreamId, token: usize) {
        if let Some(stream) = self.streams.get_mut(&id.value()) {
            stream.token = token;
        }
    }

    /// The owner's mark of a stream; `None` when the stream is over.
    #[must_use]
    pub fn token(&self, id: StreamId) -> Option<usize> {
        self.streams.get(&id.value()).map(|stream| stream.token)
    }

    /// Asks the peer for a sign of life; see [`Handler::on_pong`].
    pub fn ping(&mut self, data: [u8; 8], out: &mut Vec<u8>) {
        if self.usable() {
            frame::write(frame::PING, 0, 0, &data, out);
        }
    }

    /// Refills a part of the flood budget for the time since the last tick, or the beginning. A
    /// client that cuts a stream older than a tick is not flooding.
    pub fn tick(&mut self, passed: Duration) {
        self.ticks = self.ticks.wrapping_add(1);
        self.flood.pass(passed);
    }

    /// Tells every unfinished stream that the connection is gone, or is about to be. Streams that
    /// were never announced are [`ResetCode::Refused`], hence safe to retry; the others get `code`.
    pub fn close(&mut self, code: ResetCode, handler: &mut impl Handler) {
        self.closed = true;
        self.draining = true;
        for (id, stream) in self.streams.drain() {
            if !stream.finished() {
                let code = if stream.announced {
                    code
                } else {
                    ResetCode::Refused
                };
                handler.on_reset(stream.token, StreamId::new(id), code);
            }
        }
        self.active = 0;
        self.promised = 0;
        self.unread = 0;
    }

    /// Whether it has neither failed nor closed.
    pub(crate) fn usable(&self) -> bool {
        self.error.is_none() && !self.closed
    }

    pub(crate) fn insert(&mut self, id: u32, mut stream: Stream) {
        stream.born = self.ticks;
        self.active += 1;
        self.promised += stream.promised();
        self.streams.insert(id, stream);
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        self.forget(&stream);
        Some(stream)
    }

    /// Whether the peer cuts the stream sooner than it could have been answered.
    pub(crate) fn is_rapid(&self, stream: &Stream) -> bool {
        !stream.answered && stream.born == self.ticks
    }

    /// Subtracts a removed stream from the sums.
    pub(crate) fn forget(&mut self, stream: &Stream) {
        self.promised -= stream.promised();
        self.unread -= u64::from(stream.unread);
        if !stream.finished() {
            self.active -= 1;
        }
    }

    /// Ends one direction. A finished stream is removed, at the latest when its bytes are consumed.
    pub(crate) fn ended(&mut self, id: u32, close: impl FnOnce(&mut Stream)) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let before = stream.promised();
        close(stream);
        self.promised = self.promised - before + stream.promised();
        if stream.finished() {
            self.active -= 1;
            self.flood.earn(flood::CUT_STREAM);
            if stream.unread == 0 {
                self.streams.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_drains_when_its_ids_are_used_up() {
        let mut out = Vec::new();
        let mut client = Connection::client(Config::default(), &mut out);
        client.next_id = LAST_ID;
        client.highest = LAST_ID - 1;
        let id = client.open(StreamKind::Http, 0);
        assert_eq!(id, Some(StreamId::new(LAST_ID)));
        assert!(client.is_draining() && !client.can_open());
        assert_eq!(client.open(StreamKind::Http, 0), None);
        let id = StreamId::new(LAST_ID);
        assert_eq!(client.send(id, b"last", true, &mut out), Ok(4));
        // GOAWAY with no stream left to announce must not overflow.
        client.go_away(GoAwayCode::NoError, &mut out);
        assert_eq!(client.active_streams(), 1);
    }

    #[test]
    fn a_configuration_below_the_guarantees_is_raised() {
        let mut out = Vec::new();
        let config = Config {
            window: 1,
            max_window: 0,
            max_streams: 0,
            connection_budget: 0,
        };
        let server = Connection::server(config, &mut out);
        assert_eq!(server.config.window, DEFAULT_WINDOW);
        assert_eq!(server.config.max_window, DEFAULT_WINDOW);
        assert_eq!(server.config.max_streams, DEFAULT_MAX_STREAMS);
        assert!(Connection::client(config, &mut out).can_open());
    }
}
