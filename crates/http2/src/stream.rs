//! One stream, and the table that finds it.

use crate::chunks::Chunks;
use crate::head_in::Framing;
use crate::websocket;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use tulle_http1::Method;

/// How the owner's bytes become frames.
#[derive(Debug)]
pub(crate) enum Sending {
    /// A head is expected.
    Head,
    /// This many bytes of a body.
    Length(u64),
    /// A chunked body.
    Chunked(Chunks),
    /// Bytes as they are, until the owner ends them.
    Raw,
    /// END_STREAM was sent, or the stream was cut.
    Ended,
}

/// One stream as this end sees it. Peers decide how many there are: see `a_stream_is_small`.
#[derive(Debug)]
pub(crate) struct Stream {
    /// 0: not on the wire yet.
    pub(crate) id: u32,
    /// Whether the owner holds it.
    pub(crate) used: bool,
    pub(crate) sending: Sending,
    /// Whether the peer may still send.
    pub(crate) receiving: bool,
    /// Whether the peer's head (for a client: the final one) has come.
    pub(crate) head_seen: bool,
    /// Framing of the peer's message.
    pub(crate) framing: Framing,
    /// Bytes of DATA that must still come, if the peer said how many.
    pub(crate) left: Option<u64>,
    /// Method of the request.
    pub(crate) method: Method,
    /// Whether the request asks for a tunnel by extended CONNECT.
    pub(crate) extended: bool,
    /// Client: the answer that the WebSocket's client expects.
    pub(crate) accept: websocket::Text,
    /// The beginning of a head whose end the owner has not written yet.
    pub(crate) stash: Box<[u8]>,
    /// Bytes we may send; below 0 when the peer has made its window smaller.
    pub(crate) send_window: i64,
    /// Bytes the peer may send.
    pub(crate) receive_window: u32,
    /// Bytes we have promised to hold.
    pub(crate) window: u32,
    /// Delivered to the owner and not yet consumed.
    pub(crate) unread: u32,
    /// Consumed and not yet given back as credit.
    pub(crate) pending: u32,
    /// Tick in which it was opened.
    pub(crate) born: u32,
}

impl Stream {
    pub(crate) fn new() -> Self {
        Self {
            id: 0,
            used: false,
            sending: Sending::Ended,
            receiving: false,
            head_seen: false,
            framing: Framing::None,
            left: None,
            method: Method::Other,
            extended: false,
            accept: websocket::Text::default(),
            stash: Box::default(),
            send_window: 0,
            receive_window: 0,
            window: 0,
            unread: 0,
            pending: 0,
            born: 0,
        }
    }

    pub(crate) fn is_sending(&self) -> bool {
        !matches!(self.sending, Sending::Ended)
    }

    /// Whether a head without body was sent.
    pub(crate) fn sending_nothing(&self) -> bool {
        matches!(self.sending, Sending::Length(0))
    }

    /// Whether both directions have ended.
    pub(crate) fn finished(&self) -> bool {
        !self.receiving && !self.is_sending()
    }
}

/// The stream of a key that [`Connection::insert`](crate::Connection) gave.
#[expect(
    clippy::indexing_slicing,
    reason = "an owner's keys are looked up before, and there are never fewer streams"
)]
pub(crate) fn at(streams: &[Stream], key: usize) -> &Stream {
    &streams[key]
}

/// As `at`, for a change.
#[expect(clippy::indexing_slicing, reason = "see `at`")]
pub(crate) fn at_mut(streams: &mut [Stream], key: usize) -> &mut Stream {
    &mut streams[key]
}

/// Keys by id. The std table keeps its memory when entries go, so a steady flow of streams does not
/// allocate.
pub(crate) type Ids = HashMap<u32, usize, BuildHasherDefault<IdHasher>>;

/// One multiplication instead of SipHash. A peer may choose ids that collide, but it only slows
/// look-ups among its own few hundred live streams.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        // 2^64 / golden ratio: odd, so low bits stay a permutation; high bits mix for the tag.
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// The ids of the last streams that ended. A frame for one that the peer had ended breaks the
/// protocol; for one that we cut it may just have been on its way.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<u32>);

/// More than can be open at once, so that frames on their way are recognised.
const RECENT: usize = 256;

impl Recent {
    pub(crate) fn push(&mut self, id: u32) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back(id);
    }

    pub(crate) fn has(&self, id: u32) -> bool {
        self.0.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client may make a proxy hold 128 of them with each of its connections.
    #[test]
    fn a_stream_is_small() {
        assert!(size_of::<Stream>() <= 128, "{}", size_of::<Stream>());
    }
}
