//! Carries bytes both ways between two links, each direction closed by itself; between two plain connections a bulk stream is
//! spliced.

use crate::codec::detect::{Detected, FirstLineReader};
use crate::context::memory_limit;
use crate::telemetry::reason::Reason;
use crate::upstream::link::Link;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tulle_net::{Buf, Deadline, splice};

/// A read of this size or more is a full one.
const FULL_READ: usize = 16 * 1024;
/// Full reads in a row that show a bulk stream. Between two plain connections it is then spliced.
/// Small messages cost more that way, and quiet connections need no pipes.
const BULK: u8 = 4;
/// Most bytes that one direction may splice per turn, so that other connections have theirs.
const TURN_BYTES: usize = 1024 * 1024;

/// Both directions of a connection.
pub struct Pipe {
    pub(super) up: Direction,
    pub(super) down: Direction,
    idle: Duration,
}

#[derive(Default)]
pub(super) struct Direction {
    pub(super) buf: Buf,
    splicing: Splicing,
    /// See [`Opaque::watch`](super::forward::Opaque::watch).
    pub(super) watch: Option<FirstLineReader>,
    /// See [`Opaque::tls_may_begin`](super::forward::Opaque::tls_may_begin).
    pub(super) tls_may_begin: bool,
    /// Bytes moved since the owner was last told.
    moved: u64,
    ended: bool,
    shut: bool,
}

/// State of moving a direction's bytes without a copy.
#[derive(Default)]
struct Splicing {
    /// Holds bytes that come before all that is still to be read; `None`: there are none.
    pipe: Option<splice::SplicePipe>,
    /// Full reads in a row, up to `BULK`.
    full: u8,
    /// The last piece was all there was, so a read asks for more, at no more cost. Only a read sees
    /// the end, too: splicing stops before urgent data as if that were the end.
    view: bool,
    refused: bool,
}

impl Splicing {
    /// Returns an empty pipe for the next piece, if splicing is worth it.
    fn pipe(&self) -> Option<splice::SplicePipe> {
        if self.full < BULK || self.view || self.refused {
            return None;
        }
        splice::SplicePipe::take()
    }

    fn spliced(&mut self, pipe: splice::SplicePipe, count: usize) {
        self.view = count < splice::PIPE_BYTES;
        if count < FULL_READ {
            self.full = 0;
        }
        self.pipe = Some(pipe);
    }

    fn copied(&mut self, count: usize) {
        self.view = false;
        if self.full < BULK {
            self.full = if count < FULL_READ { 0 } else { self.full + 1 };
        }
    }
}

/// Which end of a direction broke.
enum Broken {
    From,
    To,
    /// A request or handshake has begun; its bytes are still here.
    Request,
}

impl Direction {
    fn new(buf: Buf) -> Self {
        Self {
            buf,
            ..Self::default()
        }
    }

    /// Whether bytes wait to be sent.
    fn holds(&self) -> bool {
        !self.buf.is_empty() || self.splicing.pipe.is_some()
    }

    /// Moves the bytes that are there; ready when this direction has ended, or with the end that
    /// broke.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Link,
        to: &mut Link,
    ) -> Poll<Result<(), Broken>> {
        let before = self.moved;
        loop {
            if let (Some(pipe), Link::Tcp(to)) = (&mut self.splicing.pipe, &mut *to) {
                while !pipe.is_empty() {
                    match ready!(pipe.poll_drain(cx, to)) {
                        Ok(count) if count > 0 => self.moved += count as u64,
                        _ => return Poll::Ready(Err(Broken::To)),
                    }
                }
                self.splicing.pipe = None;
                if self.moved - before >= TURN_BYTES as u64 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            if self.tls_may_begin && self.is_hello() {
                return Poll::Ready(Err(Broken::Request));
            }
            while !self.buf.is_empty() && !self.tls_may_begin {
                match ready!(to.poll_write(cx, self.buf.as_slice(), false)) {
                    Ok(count) if count > 0 => {
                        self.buf.consume(count);
                        self.moved += count as u64;
                    }
                    _ => return Poll::Ready(Err(Broken::To)),
                }
            }
            if self.ended {
                if !self.shut {
                    ready!(to.poll_shutdown(cx)).map_err(|_| Broken::To)?;
                    self.shut = true;
                }
                return Poll::Ready(Ok(()));
            }
            match self.poll_receive(cx, from, to) {
                Poll::Pending => {
                    ready!(to.poll_flush(cx)).map_err(|_| Broken::To)?;
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) => {
                    self.ended = count == 0;
                    if self.watch.is_some() && self.is_request() {
                        return Poll::Ready(Err(Broken::Request));
                    }
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::From)),
            }
        }
    }

    /// Whether the first bytes, which are in the buffer, are those of a TLS handshake.
    #[cold]
    fn is_hello(&mut self) -> bool {
        let hello = tulle_tls::is_client_hello(self.buf.as_slice());
        self.tls_may_begin = hello.unwrap_or(!self.ended);
        hello == Some(true)
    }

    /// Whether the new bytes in the buffer, with those before, make a request.
    #[cold]
    fn is_request(&mut self) -> bool {
        let Some(watch) = &mut self.watch else {
            return false;
        };
        let detected = match self.ended {
            true => watch.end(),
            false => watch.read(self.buf.as_slice()),
        };
        if detected == Detected::Opaque {
            self.watch = None;
        }
        detected == Detected::Http
    }

    /// Receives into the buffer or, in a bulk stream between two plain connections, into a pipe.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Link,
        to: &Link,
    ) -> Poll<io::Result<usize>> {
        let plain = match (&*from, to) {
            (Link::Tcp(from), Link::Tcp(_)) if self.watch.is_none() => Some(from),
            _ => None,
        };
        if let Some(from) = plain
            && let Some(mut pipe) = self.splicing.pipe()
        {
            match ready!(pipe.poll_fill(cx, from)) {
                Err(error) if splice::is_refused(&error) => self.splicing.refused = true,
                Ok(count) if count > 0 => {
                    self.splicing.spliced(pipe, count);
                    return Poll::Ready(Ok(count));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let count = ready!(from.poll_read(cx, &mut self.buf))?;
        self.splicing.copied(count);
        Poll::Ready(Ok(count))
    }
}

impl Pipe {
    /// A pipe with bytes already received from either side.
    pub fn new(from_down: Buf, from_up: Buf, idle_timeout_ms: u32) -> Self {
        Self {
            up: Direction::new(from_down),
            down: Direction::new(from_up),
            idle: Duration::from_millis(idle_timeout_ms.into()),
        }
    }

    /// Carries bytes until both sides have ended, and reports to `count` how many went up and down.
    /// It may be dropped and called again.
    ///
    /// # Errors
    /// A side broke, no byte moved for the idle timeout, a request began ([`Reason::BadRequest`]),
    /// or memory is short and a side reads nothing ([`Reason::Overload`]).
    pub async fn run(
        &mut self,
        down: &mut Link,
        up: &mut Link,
        deadline: &Deadline,
        mut count: impl FnMut(u64, u64),
    ) -> Result<(), Reason> {
        deadline.arm(self.idle);
        poll_fn(|cx| {
            let upward = self.up.poll(cx, down, up);
            let downward = self.down.poll(cx, up, down);
            let moved = (
                std::mem::take(&mut self.up.moved),
                std::mem::take(&mut self.down.moved),
            );
            if moved != (0, 0) {
                count(moved.0, moved.1);
            }
            // A side that takes nothing any more may have sent its last bytes just before: reading goes on to its end, unless
            // the other side is slow to take them.
            let client_is_read = upward.is_ready() || self.up.holds();
            let server_is_read = downward.is_ready() || self.down.holds();
            match (upward, downward) {
                (Poll::Ready(Err(Broken::Request)), _) => {
                    return Poll::Ready(Err(Reason::BadRequest));
                }
                (Poll::Ready(Err(Broken::From)), _) => {
                    return Poll::Ready(Err(Reason::ClientClosed));
                }
                (_, Poll::Ready(Err(Broken::To))) if client_is_read => {
                    return Poll::Ready(Err(Reason::ClientClosed));
                }
                (_, Poll::Ready(Err(Broken::From))) => {
                    return Poll::Ready(Err(Reason::UpstreamReset));
                }
                (Poll::Ready(Err(Broken::To)), _) if server_is_read => {
                    return Poll::Ready(Err(Reason::UpstreamReset));
                }
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(Ok(())),
                _ => {}
            }
            // After its last byte a client is not read any more, and may still be cut off.
            if self.up.shut && down.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Reason::ClientClosed));
            }
            if moved != (0, 0) {
                deadline.arm(self.idle);
            }
            if deadline.poll_expired(cx) {
                return Poll::Ready(Err(Reason::IdleTimeout));
            }
            let held = self.up.holds() || self.down.holds();
            if held && memory_limit::gives_up(deadline, self.idle) {
                return Poll::Ready(Err(Reason::Overload));
            }
            Poll::Pending
        })
        .await
    }
}
