//! The multiplexed transport over a socket: many streams, one mutual TLS connection.
//!
//! A stream's owner (`stream`) appends frames to `plain`; the driver seals and sends them once, at
//! the end of the event turn, so that k requests cost one TLS record and one `send`. The frames
//! themselves, credit and limits are `tulle-transport`'s.

mod driver;
mod slots;
mod stream;

pub use stream::MuxStream;

use slots::Slots;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::SystemTime;
use tulle_model::identity::SpiffeId;
use tulle_net::Buf;
use tulle_transport::{Connection, StreamKind};

/// Frames waiting to be sealed beyond which streams wait.
const PLAIN_LIMIT: usize = 64 * 1024;
/// As `PLAIN_LIMIT`, while the peer does not read earlier records.
const BLOCKED_LIMIT: usize = 16 * 1024;
/// Room for a frame without payload, or for the framing of a payload.
const FRAME_BYTES: usize = 64;

/// One connection shared by many streams.
pub struct MuxConnection {
    state: RefCell<State>,
    /// The identity of the peer.
    pub peer: SpiffeId,
    /// When the peer's certificate expires.
    peer_not_after: SystemTime,
    /// Epoch of the certificates the connection was made with; an older one takes no new streams.
    pub epoch: u64,
    closed: Cell<bool>,
    retired: Cell<bool>,
    shed: Cell<bool>,
    /// Streams so far, where a port limits them.
    pub used: Cell<u32>,
}

struct State {
    transport: Connection,
    /// Frames that wait to be sealed; without storage when there are none.
    plain: Buf,
    /// The peer did not accept the last records at once.
    blocked: bool,
    slots: Slots,
    driver: Option<Waker>,
    waiting: VecDeque<usize>,
}

impl State {
    /// Appends frames of at most about `room` bytes, and wakes the driver if they are the first
    /// since its last seal.
    fn write<T>(
        &mut self,
        room: usize,
        frames: impl FnOnce(&mut Connection, &mut Vec<u8>) -> T,
    ) -> T {
        let idle = self.plain.is_empty();
        self.plain.make_room(room);
        let written = frames(&mut self.transport, self.plain.storage());
        if self.plain.is_empty() {
            self.plain.release();
        } else if idle {
            self.wake_driver();
        }
        written
    }

    /// Whether streams have to wait until frames have left.
    fn is_full(&self) -> bool {
        let limit = match self.blocked {
            true => BLOCKED_LIMIT,
            false => PLAIN_LIMIT,
        };
        self.plain.len() >= limit
    }

    /// Wakes the task when frames have left.
    fn write_later(&mut self, key: usize, cx: &Context<'_>) {
        let slot = &mut self.slots.slots[key];
        slot.writer = Some(cx.waker().clone());
        if !std::mem::replace(&mut slot.queued, true) {
            self.waiting.push_back(key);
        }
    }

    fn wake_driver(&mut self) {
        if let Some(waker) = self.driver.take() {
            waker.wake();
        }
    }
}

impl MuxConnection {
    /// Opens a stream, or returns `None` if this connection takes no more now.
    pub fn open(self: &Rc<Self>, kind: StreamKind) -> Option<MuxStream> {
        if self.closed.get() || self.retired.get() {
            return None;
        }
        let state = &mut *self.state.borrow_mut();
        let slot = state.slots.take();
        let Some(id) = state.transport.open(kind, slot) else {
            state.slots.give_back(slot);
            return None;
        };
        if kind == StreamKind::Tcp {
            // The peer has to learn of the stream even if our side sends nothing: its server may
            // speak first.
            let _ = state.write(FRAME_BYTES, |transport, out| {
                transport.send(id, &[], false, out)
            });
        }
        Some(MuxStream {
            connection: self.clone(),
            id,
            slot,
            lent: 0,
            finished: false,
            kind,
        })
    }

    /// Whether it takes new streams, now or when one of its streams has ended.
    pub fn is_usable(&self) -> bool {
        !self.closed.get() && !self.retired.get() && !self.state.borrow().transport.is_draining()
    }

    /// Stops taking new streams; the connection ends with its last stream.
    pub fn retire(&self) {
        if !self.retired.replace(true) {
            let state = &mut *self.state.borrow_mut();
            state.transport.drain(state.plain.storage());
            state.wake_driver();
        }
    }

    /// Asks the peer to continue on another connection.
    pub fn shed(&self) {
        self.shed.set(true);
        self.state.borrow_mut().wake_driver();
    }

    /// Takes out how the client describes its workload; `None`: it has not, or somebody has taken it.
    pub fn take_description(&self) -> Option<Box<[u8]>> {
        self.state.borrow_mut().slots.description.take()
    }

    /// Streams under way.
    pub fn active(&self) -> usize {
        self.state.borrow().transport.active_streams()
    }
}

fn closed_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the connection to the peer ended",
    )
}
