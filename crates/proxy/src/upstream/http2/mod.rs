//! HTTP/2 over a socket: an application's connection, or one to an application, and its streams.
//!
//! A stream reads and writes as HTTP/1.1 (`tulle-http2`), so all code behind a `link` is the same
//! for both versions. Streams append frames to `out`; the driver sends them at the end of the event
//! turn, and reads for all of them.

mod driver;
mod slots;

use crate::context::WorkerContext;
use crate::context::memory_limit;
use crate::upstream::link::Link;
use slots::Slots;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tulle_http2::{Config, Connection, ErrorCode};
use tulle_model::resource::MeshSettings;
use tulle_net::{Buf, clock};

/// Frames waiting to be sent beyond which streams wait.
const OUT_LIMIT: usize = 64 * 1024;
/// The same limit while the peer does not read earlier frames.
const BLOCKED_LIMIT: usize = 16 * 1024;
/// Room for a frame without content, or for the framing of content.
const FRAME_BYTES: usize = 64;
/// Bytes one stream may send per turn, so that a large body does not delay the others.
const TURN_BYTES: usize = 16 * 1024;

/// The first bytes that tell HTTP/2 from any HTTP/1.x request.
const PREFACE_START: &[u8] = b"PRI * HTTP/2";

/// One connection shared by many streams.
pub struct Http2Connection {
    state: RefCell<State>,
    /// Epoch of the certificates the connection was made with; 0: plaintext.
    pub epoch: u64,
    closed: Cell<bool>,
    retired: Cell<bool>,
    /// Why it ended.
    fault: RefCell<Option<Box<str>>>,
    /// When the peer last accepted bytes, by the coarse clock.
    moved_at: Cell<Duration>,
    /// Memory is short, and the peer accepts no bytes.
    stuck: Cell<bool>,
}

struct State {
    codec: Connection,
    /// Frames that wait to be sent; without storage when there are none.
    out: Buf,
    /// The peer did not accept the last bytes at once.
    blocked: bool,
    slots: Slots,
    driver: Option<Waker>,
    /// Streams that wait for room in `out`.
    waiting: VecDeque<usize>,
}

impl State {
    /// Appends frames of at most about `room` bytes, and wakes the driver if they are the first
    /// since its last send.
    fn write<T>(
        &mut self,
        room: usize,
        frames: impl FnOnce(&mut Connection, &mut Vec<u8>) -> T,
    ) -> T {
        let idle = self.out.is_empty();
        self.out.make_room(room);
        let written = frames(&mut self.codec, self.out.storage());
        if self.out.is_empty() {
            self.out.release();
        } else if idle {
            self.wake_driver();
        }
        written
    }

    /// Whether streams have to wait until frames have left.
    fn is_full(&self) -> bool {
        let limit = match self.blocked {
            true => BLOCKED_LIMIT,
            false => OUT_LIMIT,
        };
        self.out.len() >= limit
    }

    /// Wakes the task when frames have left.
    fn write_later(&mut self, key: usize, cx: &Context<'_>) {
        let slot = self.slots.at(key);
        slot.writer = Some(cx.waker().clone());
        if !std::mem::replace(&mut slot.queued, true) {
            self.waiting.push_back(key);
        }
    }

    fn wait_for_credit(&mut self, key: usize, cx: &Context<'_>) {
        self.slots.at(key).writer = Some(cx.waker().clone());
        if self.codec.peer_grants_little() {
            // The driver limits how long this lasts.
            self.wake_driver();
        }
    }

    fn wake_driver(&mut self) {
        if let Some(waker) = self.driver.take() {
            waker.wake();
        }
    }
}

/// Whether the first bytes of a connection are those of an HTTP/2 client. It needs as few bytes as
/// the parser of HTTP/1.1 needs to refuse them.
pub fn is_preface(received: &[u8]) -> bool {
    received.starts_with(PREFACE_START)
}

/// Limits of a connection. `peer`: the other side is a proxy of the mesh.
fn limits(context: &WorkerContext, mesh: &MeshSettings, secure: bool, peer: bool) -> Config {
    let fields = crate::config::head_limits::fields(mesh.max_headers, peer);
    Config {
        // 128 streams of 64 KiB are at most 8 MiB of credit. Windows grow while all together are
        // below it.
        window: 64 * 1024,
        max_window: 1024 * 1024,
        max_streams: 128,
        connection_budget: 8 * 1024 * 1024,
        head_bytes: usize::try_from(mesh.max_header_bytes).unwrap_or(usize::MAX),
        head_fields: usize::try_from(fields).unwrap_or(usize::MAX),
        secure,
        seed: context.random(),
    }
}

/// Serves a client's connection until it ends; `received` was already read from it. `accept` gets
/// its streams, `outdated` says whether the client should come back with another connection, `began` is told the connection.
pub async fn serve(
    context: &Rc<WorkerContext>,
    link: Link,
    received: Buf,
    accept: impl Fn(Http2Stream),
    outdated: impl Fn() -> bool,
    began: impl FnOnce(&Rc<Http2Connection>),
) {
    let peer = link.peer_not_after().is_some();
    let config = limits(context, &context.snapshot().mesh, false, peer);
    let mut out = Vec::new();
    let codec = Connection::server(config, &mut out);
    let connection = Http2Connection::new(codec, &out, 0);
    began(&connection);
    driver::Driver::new(context, connection, link, received, false)
        .run(accept, outdated)
        .await;
}

/// Starts a connection to an application (or to a peer that does not speak `tulle/1`).
pub fn start(context: &Rc<WorkerContext>, link: Link, epoch: u64) -> Rc<Http2Connection> {
    let secure = matches!(link, Link::Tls(_) | Link::Outside(_));
    let peer = link.peer_not_after().is_some();
    let config = limits(context, &context.snapshot().mesh, secure, peer);
    let mut out = Vec::new();
    let codec = Connection::client(config, &mut out);
    let connection = Http2Connection::new(codec, &out, epoch);
    let driver = driver::Driver::new(context, connection.clone(), link, Buf::new(), true);
    tokio::task::spawn_local(async move { driver.run(drop, || false).await });
    connection
}

impl Http2Connection {
    fn new(codec: Connection, greeting: &[u8], epoch: u64) -> Rc<Self> {
        let mut out = Buf::new();
        out.extend_from_slice(greeting);
        Rc::new(Self {
            state: RefCell::new(State {
                codec,
                out,
                blocked: false,
                slots: Slots::default(),
                driver: None,
                waiting: VecDeque::new(),
            }),
            epoch,
            closed: Cell::new(false),
            retired: Cell::new(false),
            fault: RefCell::default(),
            moved_at: Cell::new(clock::monotonic()),
            stuck: Cell::new(false),
        })
    }

    /// Ends the connection if the peer has accepted no bytes for a while; returns whether it did.
    pub fn end_if_stuck(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        let waits = state.blocked || state.slots.any_waits_for_credit();
        let since = clock::monotonic().saturating_sub(self.moved_at.get());
        let stuck = waits && since >= memory_limit::PATIENCE && !self.closed.get();
        if stuck && !self.stuck.replace(true) {
            state.wake_driver();
            return true;
        }
        false
    }

    /// Opens a stream, or returns `None` if this connection takes no more now.
    pub fn open(self: &Rc<Self>) -> Option<Http2Stream> {
        if self.closed.get() || self.retired.get() {
            return None;
        }
        let state = &mut *self.state.borrow_mut();
        let key = state.codec.open()?;
        state.slots.begin(key);
        Some(Http2Stream::new(self.clone(), key))
    }

    /// Whether it takes new streams, now or when one of its streams has ended.
    pub fn is_usable(&self) -> bool {
        !self.closed.get() && !self.retired.get() && !self.state.borrow().codec.is_draining()
    }

    /// Stops taking new streams; the connection ends with its last stream.
    pub fn retire(&self) {
        if !self.retired.replace(true) {
            let state = &mut *self.state.borrow_mut();
            state.codec.drain(state.out.storage());
            state.wake_driver();
        }
    }

    /// Streams under way.
    pub fn active(&self) -> usize {
        self.state.borrow().codec.active_streams()
    }

    #[cold]
    fn closed_error(&self) -> io::Error {
        let text = match &*self.fault.borrow() {
            Some(fault) => format!("the HTTP/2 connection ended: {fault}"),
            None => "the HTTP/2 connection ended".to_owned(),
        };
        io::Error::new(io::ErrorKind::ConnectionAborted, text)
    }
}

#[cold]
fn reset_error(code: ErrorCode) -> io::Error {
    let kind = match code {
        ErrorCode::RefusedStream => io::ErrorKind::ConnectionRefused,
        _ => io::ErrorKind::ConnectionReset,
    };
    io::Error::new(kind, format!("the HTTP/2 stream was reset ({code:?})"))
}

/// One stream: an exchange, or a tunnel that a request asked for.
pub struct Http2Stream {
    connection: Rc<Http2Connection>,
    key: usize,
}

impl Http2Stream {
    fn new(connection: Rc<Http2Connection>, key: usize) -> Self {
        Self { connection, key }
    }

    /// Returns why the stream or its connection ended.
    fn fault(&self, reset: Option<ErrorCode>) -> Option<io::Error> {
        match reset {
            // Streams get this code when the connection ends.
            Some(ErrorCode::Internal) if self.connection.closed.get() => {
                Some(self.connection.closed_error())
            }
            Some(code) => Some(reset_error(code)),
            None if self.connection.closed.get() => Some(self.connection.closed_error()),
            None => None,
        }
    }

    /// Makes the connection take no new streams and end with its last one.
    pub fn retire_connection(&self) {
        self.connection.retire();
    }

    /// Receives bytes of an HTTP/1.1 message; 0 when the peer has ended its side.
    ///
    /// # Errors
    /// The stream was reset (`ConnectionRefused`: not processed, safe to send again) or its
    /// connection ended.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
        let state = &mut *self.connection.state.borrow_mut();
        let slot = state.slots.at(self.key);
        let before = buf.len();
        if slot.take(buf) {
            state.write(FRAME_BYTES, |codec, out| codec.consumed(self.key, out));
        }
        let slot = state.slots.at(self.key);
        if buf.len() > before {
            return Poll::Ready(Ok(buf.len() - before));
        }
        // An end that comes before a reset: everything has arrived, and the peer wants nothing
        // more.
        if slot.ended {
            return Poll::Ready(Ok(0));
        }
        if let Some(error) = self.fault(slot.reset) {
            return Poll::Ready(Err(error));
        }
        slot.read_later(cx);
        Poll::Pending
    }

    /// Ready when the peer has reset the stream or its connection has ended.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let slot = self.connection.state.borrow_mut();
        let mut state = slot;
        let slot = state.slots.at(self.key);
        if let Some(error) = self.fault(slot.reset) {
            return Poll::Ready(error);
        }
        slot.read_later(cx);
        Poll::Pending
    }

    /// Returns the bytes that the peer lets this stream send. Pending: earlier frames have to leave
    /// first.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let state = &mut *self.connection.state.borrow_mut();
        if state.is_full() {
            state.write_later(self.key, cx);
            return Poll::Pending;
        }
        Poll::Ready(state.codec.credit(self.key))
    }

    /// Wakes the task when the peer lets this stream send more.
    pub fn wait_for_credit(&mut self, cx: &mut Context<'_>) {
        self.connection
            .state
            .borrow_mut()
            .wait_for_credit(self.key, cx);
    }

    /// Sends bytes of an HTTP/1.1 message as far as credit and the connection's turn allow.
    ///
    /// # Errors
    /// As `poll_read`, or the peer supports no tunnel.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.connection.state.borrow_mut();
        let slot = state.slots.at(self.key);
        if let Some(error) = self.fault(slot.reset) {
            return Poll::Ready(Err(error));
        }
        if state.is_full() {
            state.write_later(self.key, cx);
            return Poll::Pending;
        }
        let turn = data.get(..TURN_BYTES).unwrap_or(data);
        let room = turn.len() + FRAME_BYTES;
        match state.write(room, |codec, out| codec.write(self.key, turn, out)) {
            Ok(0) if !data.is_empty() => {
                state.wait_for_credit(self.key, cx);
                Poll::Pending
            }
            Ok(taken) => Poll::Ready(Ok(taken)),
            Err(error) => Poll::Ready(Err(io::Error::other(error))),
        }
    }

    /// Ends our side of the stream; does nothing if it has ended already.
    ///
    /// # Errors
    /// The connection ended.
    pub fn poll_shutdown(&mut self) -> Poll<io::Result<()>> {
        if self.connection.closed.get() {
            return Poll::Ready(Err(self.connection.closed_error()));
        }
        let state = &mut *self.connection.state.borrow_mut();
        state.write(FRAME_BYTES, |codec, out| codec.shutdown(self.key, out));
        Poll::Ready(Ok(()))
    }

    /// Resets the stream, which tells the peer that the message was cut.
    pub fn reset(&mut self) {
        let state = &mut *self.connection.state.borrow_mut();
        state.write(FRAME_BYTES, |codec, out| {
            let code = match codec.is_client() {
                true => ErrorCode::Cancel,
                false => ErrorCode::Internal,
            };
            codec.reset(self.key, code, out);
        });
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        let state = &mut *self.connection.state.borrow_mut();
        state.write(FRAME_BYTES, |codec, out| codec.release(self.key, out));
        state.slots.end(self.key);
        if self.connection.retired.get() {
            state.wake_driver();
        }
    }
}
