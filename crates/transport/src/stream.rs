//! One stream's credit and state, and the table that finds it by id.

use crate::frame;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

/// The number of a stream on its connection: from 1, rising, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u32);

impl StreamId {
    pub(crate) fn new(value: u32) -> Self {
        Self(value)
    }

    /// The number on the wire.
    #[must_use]
    pub fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Content of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// One HTTP/1.1 request and its response.
    Http,
    /// One request that came as HTTP/2, and its response: the application may expect HTTP/2.
    Http2,
    /// One TCP connection.
    Tcp,
}

impl StreamKind {
    pub(crate) fn flags(self) -> u8 {
        match self {
            Self::Http => frame::FLAG_OPEN,
            Self::Http2 => frame::FLAG_OPEN | frame::FLAG_HTTP2,
            Self::Tcp => frame::FLAG_OPEN | frame::FLAG_TCP,
        }
    }
}

/// One stream as this end sees it.
///
/// While the peer may send: `window = credit the peer has + bytes of a frame under way + unread +
/// pending`. So memory for a stream never exceeds its window.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) token: usize,
    /// Bytes we may still send.
    pub(crate) send_credit: u32,
    /// Bytes the peer may still send.
    pub(crate) receive_credit: u32,
    /// Bytes we have promised to hold for this stream.
    pub(crate) window: u32,
    /// Delivered to the owner and not yet consumed.
    pub(crate) unread: u32,
    /// Consumed and not yet given back as credit.
    pub(crate) pending: u32,
    /// We may still send: no END sent.
    pub(crate) sending: bool,
    /// The peer may still send: no END received.
    pub(crate) receiving: bool,
    /// OPEN is on the wire.
    pub(crate) announced: bool,
    /// The peer ran out of credit since the window last grew.
    pub(crate) exhausted: bool,
    /// Whether we have sent any byte.
    pub(crate) answered: bool,
    pub(crate) kind: StreamKind,
    /// Tick in which it was opened.
    pub(crate) born: u32,
}

impl Stream {
    pub(crate) fn new(kind: StreamKind, token: usize, send_credit: u32, window: u32) -> Self {
        Self {
            token,
            send_credit,
            receive_credit: window,
            window,
            unread: 0,
            pending: 0,
            sending: true,
            receiving: true,
            announced: false,
            exhausted: false,
            answered: false,
            kind,
            born: 0,
        }
    }

    /// Whether both directions have ended: only unread bytes may keep it.
    pub(crate) fn finished(&self) -> bool {
        !self.sending && !self.receiving
    }

    /// Bytes that this stream may make its owner hold, now or later.
    pub(crate) fn promised(&self) -> u64 {
        u64::from(if self.receiving {
            self.window
        } else {
            self.unread
        })
    }
}

/// Streams by id. The std table keeps its memory when entries go, so a steady flow of streams does
/// not allocate.
pub(crate) type Streams = HashMap<u32, Stream, BuildHasherDefault<IdHasher>>;

/// One multiplication instead of SipHash. Ids rise from 1, so their products spread evenly over the
/// table. A peer may skip ids so that they collide, but it is authenticated and its live streams
/// are limited. It only slows look-ups among its own few hundred streams.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stays_small() {
        // Thousands of streams are open at once, so another field needs a decision.
        assert!(size_of::<Stream>() <= 40, "{}", size_of::<Stream>());
    }

    #[test]
    fn rising_ids_spread_over_the_table() {
        let mut buckets = [0; 256];
        for id in 1000..1256_u32 {
            let mut hasher = IdHasher::default();
            hasher.write_u32(id);
            buckets[(hasher.finish() & 255) as usize] += 1;
        }
        assert!(buckets.iter().all(|&n| n == 1));
    }
}
