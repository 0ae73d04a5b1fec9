//! The multiplexed transport over a socket: many streams, one mutual TLS connection.
//!
//! A stream's owner appends frames to `plain`; the driver seals and sends them once, at the end of
//! the event turn, so that k requests cost one TLS record and one `send`. The frames themselves,
//! credit and limits are `tulle-transport`'s.

use crate::context::WorkerContext;
use crate::context::admission::Carried;
use crate::context::peers::Connected;
use crate::upstream::tls_stream::TlsStream;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tulle_model::identity::SpiffeId;
use tulle_net::Buf;
use tulle_tls::{Opened, Session};
use tulle_transport::{Config, Connection, GoAwayCode, Handler, ResetCode, StreamId, StreamKind};

/// Frames waiting to be sealed beyond which streams wait.
const PLAIN_LIMIT: usize = 64 * 1024;
/// At most this many streams: their frames leave without waiting for more.
const FEW_STREAMS: usize = 4;
/// Frames waiting to be sent beyond which the driver stops reading.
const READ_STOP: usize = 256 * 1024;
/// Bytes one stream may send per turn, so that a large body does not delay the others.
const TURN_BYTES: usize = 16 * 1024;
/// A reader that takes more than this at once returns the credit for it when it asks for more.
/// Otherwise, if its own peer stalls, it would hold a window beside the one buffered here.
const LENT_BYTES: usize = 16 * 1024;
/// As `PLAIN_LIMIT`, while the peer does not read earlier records.
const BLOCKED_LIMIT: usize = 16 * 1024;
/// Room for a frame without payload, or for the framing of a payload.
const FRAME_BYTES: usize = 64;
/// A connection is replaced after this time, so that load spreads over new endpoints' workers and
/// peers are verified again.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// How long a server waits for streams that are on their way after it has announced its end, and
/// between further steps of an orderly end.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long whoever accepted a connection waits after its end for a peer of which nothing is heard, and how much it hears:
/// credit for what is still on its way.
const LINGER: Duration = Duration::from_secs(30);
const LINGER_BYTES: usize = 256 * 1024;
/// How often a busy connection's flood budget is refilled. Streams that live longer are not the
/// result of a flood.
const TICK: Duration = Duration::from_millis(100);

/// Limits of each connection: 256 streams of 64 KiB are at most 16 MiB of credit. Windows of bulk
/// streams grow while all together are below 8 MiB.
fn limits() -> Config {
    Config {
        window: 64 * 1024,
        max_window: 1024 * 1024,
        max_streams: 256,
        connection_budget: 8 * 1024 * 1024,
    }
}

const _: () =
    assert!(tulle_transport::MAX_WORKLOAD == tulle_model::resource::Workload::MAX_WIRE_BYTES);

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

/// Per-stream state, found by the transport's token.
#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    opened: Vec<(StreamId, StreamKind, usize)>,
    /// How the client describes its workload, until somebody takes it.
    description: Option<Box<[u8]>>,
}

#[derive(Default)]
struct Slot {
    received: Buf,
    reader: Option<Waker>,
    writer: Option<Waker>,
    ended: bool,
    reset: Option<ResetCode>,
    /// Whether it is in `waiting`; it stays so if the slot is reused meanwhile.
    queued: bool,
}

impl Slots {
    fn take(&mut self) -> usize {
        let key = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[key];
        slot.ended = false;
        slot.reset = None;
        key
    }

    fn give_back(&mut self, key: usize) {
        let slot = &mut self.slots[key];
        slot.received.release();
        slot.reader = None;
        slot.writer = None;
        self.free.push(key);
    }
}

impl Slot {
    fn wake(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}

impl Handler for Slots {
    fn on_open(&mut self, id: StreamId, kind: StreamKind) -> usize {
        let key = self.take();
        self.opened.push((id, kind, key));
        key
    }

    fn on_data(&mut self, token: usize, _: StreamId, data: &[u8]) {
        let slot = &mut self.slots[token];
        slot.received.extend_from_slice(data);
        if let Some(waker) = slot.reader.take() {
            waker.wake();
        }
    }

    fn on_end(&mut self, token: usize, _: StreamId) {
        let slot = &mut self.slots[token];
        slot.ended = true;
        if let Some(waker) = slot.reader.take() {
            waker.wake();
        }
    }

    fn on_reset(&mut self, token: usize, _: StreamId, code: ResetCode) {
        let slot = &mut self.slots[token];
        slot.reset = Some(code);
        slot.wake();
    }

    fn on_credit(&mut self, token: usize, _: StreamId) {
        if let Some(waker) = self.slots[token].writer.take() {
            waker.wake();
        }
    }

    fn on_go_away(&mut self, _: u32, _: GoAwayCode) {}

    fn on_pong(&mut self, _: [u8; 8]) {}

    fn on_workload(&mut self, description: &[u8]) {
        self.description = Some(description.into());
    }
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
    /// Starts the transport on a connection whose handshake agreed on `tulle/1`. The driver runs
    /// until the connection ends; `accept` gets the streams the peer opens (none on the dialling
    /// side).
    pub fn start<F>(
        context: &Rc<WorkerContext>,
        tls: TlsStream,
        dialled: bool,
        accept: F,
    ) -> Rc<Self>
    where
        F: Fn(MuxStream, StreamKind) + 'static,
    {
        let (connected, tcp, session, incoming) = tls.into_parts();
        let mut plain = Buf::new();
        let greeting = plain.storage_for(FRAME_BYTES);
        let transport = if dialled {
            let mut transport = Connection::client(limits(), greeting);
            let workload = context.snapshot().workload().and_then(|w| w.to_wire());
            if let Some(description) = workload {
                transport.tell_workload(description.as_bytes(), greeting);
            }
            transport
        } else {
            Connection::server(limits(), greeting)
        };
        let lifetime = session
            .peer_not_after()
            .duration_since(SystemTime::now())
            .unwrap_or_default()
            .min(MAX_AGE);
        let connection = Rc::new(Self {
            state: RefCell::new(State {
                transport,
                plain,
                blocked: false,
                slots: Slots::default(),
                driver: None,
                waiting: VecDeque::new(),
            }),
            peer: session.peer().clone(),
            peer_not_after: session.peer_not_after(),
            epoch: session.epoch(),
            closed: Cell::new(false),
            retired: Cell::new(false),
            used: Cell::new(0),
            shed: Cell::new(false),
        });
        let driver = Driver {
            context: context.clone(),
            connection: connection.clone(),
            _connected: connected,
            tcp,
            session,
            incoming,
            sealed: Buf::new(),
            accept,
            lifetime,
            dialled,
            last_words: false,
        };
        tokio::task::spawn_local(driver.run());
        connection
    }

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

/// One stream: an HTTP exchange or a TCP connection.
pub struct MuxStream {
    connection: Rc<MuxConnection>,
    id: StreamId,
    slot: usize,
    /// Bytes passed on for which the peer has no new credit yet.
    lent: usize,
    finished: bool,
    kind: StreamKind,
}

fn reset_error(code: ResetCode) -> io::Error {
    let kind = match code {
        ResetCode::Refused => io::ErrorKind::ConnectionRefused,
        ResetCode::Timeout => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::ConnectionReset,
    };
    io::Error::new(kind, format!("the peer reset the stream ({code:?})"))
}

fn closed_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the connection to the peer ended",
    )
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

/// Owns the socket of a connection: reads, opens and dispatches; seals and sends once per turn.
struct Driver<F> {
    context: Rc<WorkerContext>,
    connection: Rc<MuxConnection>,
    /// Dropped before the socket.
    _connected: Connected,
    tcp: TcpStream,
    session: Box<Session>,
    incoming: Buf,
    sealed: Buf,
    accept: F,
    lifetime: Duration,
    dialled: bool,
    /// The final GOAWAY has been sent: streams above its id are refused.
    last_words: bool,
}

enum Event {
    /// Frames are waiting.
    Seal,
    /// Bytes arrived.
    Received,
    /// The connection is too old, or a retired connection has nothing left to do.
    Expired,
    Finished,
    Broken(io::Error),
}

impl<F: Fn(MuxStream, StreamKind) + 'static> Driver<F> {
    async fn run(mut self) {
        let context = self.context.clone();
        let age = context.deadlines.register();
        age.arm(self.lifetime);
        let _open = context.connection_opened();
        let result = self.drive(&age).await;
        if let Err(error) = &result {
            tracing::debug!(peer = %self.connection.peer, %error, "connection to a sidecar ended");
        }
        self.connection.closed.set(true);
        // The transport's last frames (why the peer broke the protocol) may still leave.
        let _ = self.seal();
        {
            let state = &mut *self.connection.state.borrow_mut();
            state
                .transport
                .close(ResetCode::Cancelled, &mut state.slots);
            for slot in &mut state.slots.slots {
                slot.wake();
            }
        }
        let lingers = result.is_ok() && !self.dialled;
        let _ = self.close(lingers.then_some(&age)).await;
    }

    async fn drive(&mut self, age: &tulle_net::Deadline) -> io::Result<()> {
        self.dispatch()?;
        let mut ticked = Instant::now();
        loop {
            match poll_fn(|cx| self.poll_event(cx, age)).await {
                Event::Received => {
                    let passed = ticked.elapsed();
                    if passed >= TICK {
                        ticked = Instant::now();
                        self.connection.state.borrow_mut().transport.tick(passed);
                    }
                    self.dispatch()?;
                }
                Event::Seal => {
                    // The first stream that wrote woke this task, so it runs after all that were
                    // ready then. Under load it also waits for those that become ready now;
                    // otherwise each would cost a system call of its own.
                    if self.connection.active() > FEW_STREAMS {
                        tokio::task::yield_now().await;
                    }
                    self.seal()?;
                }
                Event::Expired => {
                    if !self.retire(age) {
                        return Ok(());
                    }
                }
                Event::Finished => return Ok(()),
                Event::Broken(error) => return Err(error),
            }
        }
    }

    /// Takes the next step of an orderly end; false when none is left. A client just takes no new
    /// streams. A server announces its end (GOAWAY), gives the streams on their way time to arrive,
    /// and then names the last one it took.
    fn retire(&mut self, age: &tulle_net::Deadline) -> bool {
        if !self.connection.retired.get() {
            self.connection.retire();
            if self.dialled {
                age.disarm();
            } else {
                age.arm(PATIENCE);
            }
            return true;
        }
        if !self.last_words {
            self.last_words = true;
            let state = &mut *self.connection.state.borrow_mut();
            state
                .transport
                .go_away(GoAwayCode::NoError, state.plain.storage());
            age.arm(PATIENCE);
            return true;
        }
        age.arm(PATIENCE);
        self.connection.active() > 0
    }

    /// Made with certificates that are no longer ours, better served by another context, or this
    /// proxy is about to end.
    fn is_outdated(&self) -> bool {
        self.connection.shed.get()
            || self.context.is_draining()
            || self.context.tls_epoch() != Some(self.connection.epoch)
    }

    fn poll_event(&mut self, cx: &mut Context<'_>, age: &tulle_net::Deadline) -> Poll<Event> {
        if !self.connection.retired.get() && self.is_outdated() {
            return Poll::Ready(Event::Expired);
        }
        while !self.sealed.is_empty() {
            match Pin::new(&mut self.tcp).poll_write(cx, self.sealed.as_slice()) {
                Poll::Pending => {
                    self.sealed.shrink();
                    break;
                }
                Poll::Ready(Ok(sent)) if sent > 0 => self.sealed.consume(sent),
                Poll::Ready(Ok(_)) => return Poll::Ready(Event::Broken(closed_error())),
                Poll::Ready(Err(error)) => return Poll::Ready(Event::Broken(error)),
            }
        }
        let mut state = self.connection.state.borrow_mut();
        state.blocked = !self.sealed.is_empty();
        if !state.blocked {
            if !state.plain.is_empty() {
                return Poll::Ready(Event::Seal);
            }
            let settled = self.dialled || self.last_words;
            if self.connection.retired.get() && settled && state.transport.active_streams() == 0 {
                return Poll::Ready(Event::Finished);
            }
        }
        match &state.driver {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => state.driver = Some(cx.waker().clone()),
        }
        // Frames we read may need answers, so reading stops while the peer does not take our
        // answers.
        let stalled = state.plain.len() > READ_STOP;
        drop(state);
        if age.poll_expired(cx) {
            return Poll::Ready(Event::Expired);
        }
        if stalled {
            return Poll::Pending;
        }
        match self.incoming.poll_fill(cx, &mut self.tcp) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(0)) => Poll::Ready(Event::Broken(closed_error())),
            Poll::Ready(Ok(_)) => Poll::Ready(Event::Received),
            Poll::Ready(Err(error)) => Poll::Ready(Event::Broken(error)),
        }
    }

    /// Opens the records that have arrived and passes their frames to the streams.
    fn dispatch(&mut self) -> io::Result<()> {
        while !self.incoming.is_empty() {
            let opened = self
                .session
                .open(self.incoming.as_mut_slice())
                .map_err(|error| {
                    self.session.abort(&error, self.sealed.storage());
                    io::Error::new(io::ErrorKind::InvalidData, error)
                });
            match opened? {
                Opened::NeedsMore => break,
                Opened::Nothing { consumed } => self.incoming.consume(consumed),
                Opened::Data {
                    consumed,
                    plaintext,
                } => {
                    let bytes = self.incoming.as_slice().get(plaintext).unwrap_or_default();
                    let state = &mut *self.connection.state.borrow_mut();
                    let State {
                        transport,
                        slots,
                        plain,
                        ..
                    } = state;
                    let received = transport.receive(bytes, slots, plain.storage_for(FRAME_BYTES));
                    if plain.is_empty() {
                        plain.release();
                    }
                    received.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                    self.incoming.consume(consumed);
                }
                Opened::Closed { .. } => return Err(closed_error()),
            }
        }
        self.accept_streams();
        let state = self.connection.state.borrow();
        if self.dialled && state.transport.is_draining() {
            self.connection.retired.set(true);
        }
        Ok(())
    }

    fn accept_streams(&mut self) {
        loop {
            let next = self.connection.state.borrow_mut().slots.opened.pop();
            let Some((id, kind, slot)) = next else { return };
            let connection = self.connection.clone();
            (self.accept)(
                MuxStream {
                    connection,
                    id,
                    slot,
                    lent: 0,
                    finished: false,
                    kind,
                },
                kind,
            );
        }
    }

    fn seal(&mut self) -> io::Result<()> {
        let state = &mut *self.connection.state.borrow_mut();
        let room = tulle_tls::sealed_bytes(state.plain.len());
        self.sealed.make_room(room);
        self.session
            .seal(state.plain.as_slice(), self.sealed.storage())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        state.plain.release();
        while let Some(key) = state.waiting.pop_front() {
            state.slots.slots[key].queued = false;
            if let Some(waker) = state.slots.slots[key].writer.take() {
                waker.wake();
            }
        }
        Ok(())
    }

    /// Sends the remaining frames and `close_notify`, and waits for no peer that does not read, unless there is a time to
    /// linger. Then the peer has read everything when it closes, as it does after its last stream. Closing earlier, with credit
    /// unread or on its way, would reset the connection, and the end of a response that the peer has not read yet be lost.
    async fn close(&mut self, linger: Option<&tulle_net::Deadline>) -> io::Result<()> {
        self.session.close_notify(self.sealed.storage());
        if let Some(linger) = linger {
            linger.arm(LINGER);
        }
        let (mut shut, mut heard) = (false, 0);
        poll_fn(|cx| {
            while !self.sealed.is_empty() {
                match Pin::new(&mut self.tcp).poll_write(cx, self.sealed.as_slice()) {
                    Poll::Ready(Ok(sent)) if sent > 0 => self.sealed.consume(sent),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending if linger.is_some() => break,
                    Poll::Ready(Ok(_)) | Poll::Pending => {
                        return Poll::Ready(Err(closed_error()));
                    }
                }
            }
            if self.sealed.is_empty() && !shut {
                ready!(Pin::new(&mut self.tcp).poll_shutdown(cx))?;
                shut = true;
            }
            let Some(linger) = linger else {
                return Poll::Ready(Ok(()));
            };
            loop {
                self.incoming.release();
                match self.incoming.poll_fill(cx, &mut self.tcp) {
                    Poll::Ready(Ok(count)) if count > 0 && heard < LINGER_BYTES => {
                        heard += count;
                        linger.arm(LINGER);
                    }
                    Poll::Ready(ended) => return Poll::Ready(ended.map(drop)),
                    Poll::Pending if linger.poll_expired(cx) => {
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }
}
