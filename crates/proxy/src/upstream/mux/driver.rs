//! Owns the socket of a connection: reads for all streams, and seals and sends the frames they have appended.

use super::slots::Slots;
use super::{FRAME_BYTES, MuxConnection, MuxStream, State, closed_error};
use crate::context::WorkerContext;
use crate::context::peers::Connected;
use crate::upstream::tls_stream::TlsStream;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tulle_net::Buf;
use tulle_tls::{Opened, Session};
use tulle_transport::{Config, Connection, GoAwayCode, ResetCode, StreamKind};

/// At most this many streams: their frames leave without waiting for more.
const FEW_STREAMS: usize = 4;
/// Frames waiting to be sent beyond which the driver stops reading.
const READ_STOP: usize = 256 * 1024;
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
