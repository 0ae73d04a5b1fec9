//! One stream of a connection, as its owner reads, writes and ends it.

use super::{FRAME_BYTES, MuxConnection, closed_error};
use crate::context::admission::Carried;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::SystemTime;
use tulle_net::Buf;
use tulle_transport::{Handler, ResetCode, StreamId, StreamKind};

/// Bytes one stream may send per turn, so that a large body does not delay the others.
const TURN_BYTES: usize = 16 * 1024;
/// A reader that takes more than this at once returns the credit for it when it asks for more.
/// Otherwise, if its own peer stalls, it would hold a window beside the one buffered here.
const LENT_BYTES: usize = 16 * 1024;

/// One stream: an HTTP exchange or a TCP connection.
pub struct MuxStream {
    pub(super) connection: Rc<MuxConnection>,
    pub(super) id: StreamId,
    pub(super) slot: usize,
    /// Bytes passed on for which the peer has no new credit yet.
    pub(super) lent: usize,
    pub(super) finished: bool,
    pub(super) kind: StreamKind,
}

fn reset_error(code: ResetCode) -> io::Error {
    let kind = match code {
        ResetCode::Refused => io::ErrorKind::ConnectionRefused,
        ResetCode::Timeout => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::ConnectionReset,
    };
    io::Error::new(kind, format!("the peer reset the stream ({code:?})"))
}

/// Cuts a stream from outside of the task that serves it. It keeps nothing alive.
struct Cutter {
    connection: Weak<MuxConnection>,
    id: StreamId,
    slot: usize,
}

impl Carried for Cutter {
    fn is_there(&self) -> bool {
        let connection = self.connection.upgrade();
        connection.is_some_and(|c| c.state.borrow().transport.token(self.id) == Some(self.slot))
    }

    fn cut(&self) {
        if self.is_there()
            && let Some(connection) = self.connection.upgrade()
        {
            let state = &mut *connection.state.borrow_mut();
            state
                .slots
                .on_reset(self.slot, self.id, ResetCode::Cancelled);
        }
    }
}

impl MuxStream {
    /// Returns what resets this stream from outside.
    pub fn cutter(&self) -> Rc<dyn Carried> {
        Rc::new(Cutter {
            connection: Rc::downgrade(&self.connection),
            id: self.id,
            slot: self.slot,
        })
    }

    /// Whether it was opened for a whole connection, not for one exchange.
    pub fn is_tcp(&self) -> bool {
        self.kind == StreamKind::Tcp
    }

    /// Returns when the peer's certificate expires.
    pub fn peer_not_after(&self) -> SystemTime {
        self.connection.peer_not_after
    }

    /// The connection it belongs to.
    pub fn connection(&self) -> &Rc<MuxConnection> {
        &self.connection
    }

    /// Whether the request came as HTTP/2 where it entered the mesh.
    pub fn came_as_http2(&self) -> bool {
        self.kind == StreamKind::Http2
    }

    /// Receives bytes; 0 when the peer has ended its side.
    ///
    /// # Errors
    /// The stream was reset (`ConnectionRefused`: not processed, safe to send again) or its
    /// connection ended.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
        if self.lent > 0 {
            self.return_credit();
        }
        let state = &mut *self.connection.state.borrow_mut();
        let slot = &mut state.slots.slots[self.slot];
        let count = slot.received.len();
        if count > 0 {
            if buf.is_empty() {
                std::mem::swap(buf, &mut slot.received);
            } else {
                buf.extend_from_slice(slot.received.as_slice());
            }
            slot.received.release();
            if count > LENT_BYTES {
                self.lent = count;
                return Poll::Ready(Ok(count));
            }
            state.write(FRAME_BYTES, |transport, out| {
                transport.consumed(self.id, count, out);
            });
            return Poll::Ready(Ok(count));
        }
        // An end that comes before a reset: everything has arrived, and the peer wants nothing
        // more.
        if slot.ended {
            return Poll::Ready(Ok(0));
        }
        if let Some(code) = slot.reset {
            return Poll::Ready(Err(reset_error(code)));
        }
        if self.connection.closed.get() {
            return Poll::Ready(Err(closed_error()));
        }
        match &slot.reader {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => slot.reader = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns the credit for bytes whose reader has used them.
    #[cold]
    fn return_credit(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        let state = &mut *self.connection.state.borrow_mut();
        state.write(FRAME_BYTES, |transport, out| {
            transport.consumed(self.id, lent, out);
        });
    }

    /// Ready when the peer has reset the stream or its connection has ended.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let slot = &mut self.connection.state.borrow_mut().slots.slots[self.slot];
        if let Some(code) = slot.reset {
            return Poll::Ready(reset_error(code));
        }
        if self.connection.closed.get() {
            return Poll::Ready(closed_error());
        }
        match &slot.reader {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => slot.reader = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns the bytes that the peer lets this stream send. Pending: earlier frames have to leave
    /// first.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let state = &mut *self.connection.state.borrow_mut();
        if state.is_full() {
            state.write_later(self.slot, cx);
            return Poll::Pending;
        }
        Poll::Ready(state.transport.credit(self.id))
    }

    /// Wakes the task when the peer lets this stream send more.
    pub fn wait_for_credit(&mut self, cx: &mut Context<'_>) {
        let state = &mut *self.connection.state.borrow_mut();
        state.slots.slots[self.slot].writer = Some(cx.waker().clone());
    }

    /// Sends bytes as far as credit and the connection's turn allow.
    ///
    /// # Errors
    /// As `poll_read`.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
        last: bool,
    ) -> Poll<io::Result<usize>> {
        if self.connection.closed.get() {
            return Poll::Ready(Err(closed_error()));
        }
        let state = &mut *self.connection.state.borrow_mut();
        let slot = &mut state.slots.slots[self.slot];
        if let Some(code) = slot.reset {
            return Poll::Ready(Err(reset_error(code)));
        }
        if state.is_full() {
            state.write_later(self.slot, cx);
            return Poll::Pending;
        }
        let turn = data.get(..TURN_BYTES).unwrap_or(data);
        let end = last && turn.len() == data.len();
        let room = turn.len() + FRAME_BYTES;
        let Ok(taken) = state.write(room, |transport, out| {
            transport.send(self.id, turn, end, out)
        }) else {
            return Poll::Ready(Err(closed_error()));
        };
        if taken == 0 && !data.is_empty() {
            state.slots.slots[self.slot].writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(taken))
    }

    /// Ends our side of the stream; does nothing if it has ended already.
    ///
    /// # Errors
    /// The connection ended.
    pub fn poll_shutdown(&mut self) -> Poll<io::Result<()>> {
        if self.connection.closed.get() {
            return Poll::Ready(Err(closed_error()));
        }
        let state = &mut *self.connection.state.borrow_mut();
        // The stream has ended or was reset already, which is the goal.
        let _ = state.write(FRAME_BYTES, |transport, out| {
            transport.send(self.id, &[], true, out)
        });
        Poll::Ready(Ok(()))
    }

    /// Resets the stream, which tells the peer that it was cut.
    pub fn reset(&mut self) {
        self.finish(Some(ResetCode::Cancelled));
    }

    /// Refuses the stream, which tells the peer that the request was not processed and may go
    /// elsewhere.
    pub fn refuse(&mut self) {
        self.finish(Some(ResetCode::Refused));
    }

    fn finish(&mut self, code: Option<ResetCode>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        if self.lent > 0 {
            self.return_credit();
        }
        let state = &mut *self.connection.state.borrow_mut();
        state.write(FRAME_BYTES, |transport, out| {
            if let Some(code) = code {
                transport.reset(self.id, code, out);
            }
            transport.release(self.id, out);
        });
        state.slots.give_back(self.slot);
        if self.connection.retired.get() {
            state.wake_driver();
        }
    }
}

impl Drop for MuxStream {
    fn drop(&mut self) {
        self.finish(None);
    }
}
