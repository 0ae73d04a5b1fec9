//! Owns the socket of a connection: reads for all streams and sends the frames they have appended.

use super::{FRAME_BYTES, Http2Connection, Http2Stream};
use crate::context::WorkerContext;
use crate::context::memory_limit;
use crate::upstream::link::Link;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tulle_http2::ErrorCode;
use tulle_net::{Buf, Deadline, clock};

/// Frames waiting to be sent beyond which the driver stops reading.
const READ_STOP: usize = 256 * 1024;
/// At most this many streams: their frames leave without waiting for more.
const FEW_STREAMS: usize = 4;
/// How long a server waits for streams that are on their way after it has announced its end.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest that a peer may accept none of the bytes that are ready for it.
const STALLED: Duration = Duration::from_secs(30);
/// A peer that grants its streams no credit at first has this long to grant some.
const NO_CREDIT: Duration = Duration::from_secs(10);
/// A connection to an application is closed when it was unused for this long.
const CLIENT_IDLE: Duration = Duration::from_secs(60);
/// How often a busy connection's flood budget is refilled. Streams that live longer are not the
/// result of a flood.
const TICK: Duration = Duration::from_millis(100);

pub(super) struct Driver {
    context: Rc<WorkerContext>,
    connection: Rc<Http2Connection>,
    link: Link,
    incoming: Buf,
    /// Frames on their way to the socket; without storage when all are written.
    sending: Buf,
    dialled: bool,
    /// The final GOAWAY has been sent: streams above its id are refused.
    last_words: bool,
    deadline: Deadline,
    waits: Waits,
    data_sent: u64,
}

/// Purpose of a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Nothing,
    /// The preface with SETTINGS, or the rest of a header block.
    Block,
    /// The peer to take bytes.
    Output,
    /// The peer to let any stream send.
    Credit,
    /// A first or a next stream.
    Idle,
    /// Streams on their way, after a GOAWAY.
    Patience,
}

enum Event {
    Send,
    Received,
    /// Time to accept no more streams.
    Retire,
    Finished,
    Broken(io::Error),
}

fn broken(text: &'static str) -> Poll<Event> {
    Poll::Ready(Event::Broken(io::Error::new(
        io::ErrorKind::ConnectionAborted,
        text,
    )))
}

impl Driver {
    pub(super) fn new(
        context: &Rc<WorkerContext>,
        connection: Rc<Http2Connection>,
        link: Link,
        incoming: Buf,
        dialled: bool,
    ) -> Self {
        Self {
            deadline: context.deadlines.register(),
            context: context.clone(),
            connection,
            link,
            incoming,
            sending: Buf::new(),
            dialled,
            last_words: false,
            waits: Waits::Nothing,
            data_sent: 0,
        }
    }

    pub(super) async fn run(mut self, accept: impl Fn(Http2Stream), outdated: impl Fn() -> bool) {
        let result = self.drive(&accept, &outdated).await;
        let orderly = result.is_ok();
        if let Err(error) = result {
            tracing::debug!(%error, "HTTP/2 connection ended");
            *self.connection.fault.borrow_mut() = Some(error.to_string().into());
        }
        self.connection.closed.set(true);
        {
            let state = &mut *self.connection.state.borrow_mut();
            state.codec.close(&mut state.slots);
            state.slots.wake_all();
        }
        Box::pin(self.close(orderly)).await;
    }

    async fn drive(
        &mut self,
        accept: &impl Fn(Http2Stream),
        outdated: &impl Fn() -> bool,
    ) -> io::Result<()> {
        self.dispatch(accept)?;
        let mut ticked = Instant::now();
        loop {
            match poll_fn(|cx| self.poll_event(cx, outdated)).await {
                Event::Received => {
                    let passed = ticked.elapsed();
                    if passed >= TICK {
                        ticked = Instant::now();
                        self.connection.state.borrow_mut().codec.tick(passed);
                    }
                    self.dispatch(accept)?;
                }
                Event::Send => {
                    // The first stream that wrote woke this task, so it runs after all that were
                    // ready then. Under load it also waits for those that become ready now.
                    if self.connection.active() > FEW_STREAMS {
                        tokio::task::yield_now().await;
                    }
                    self.take_frames();
                }
                Event::Retire => {
                    if !self.retire() {
                        return Ok(());
                    }
                }
                Event::Finished => return Ok(()),
                Event::Broken(error) => return Err(error),
            }
        }
    }

    /// Takes the next step of an orderly end; false when none is left. A server announces its end,
    /// gives the streams on their way time to arrive, and then names the last one it took.
    fn retire(&mut self) -> bool {
        if !self.connection.retired.get() {
            self.connection.retire();
            return true;
        }
        if !self.last_words && !self.dialled {
            self.last_words = true;
            let state = &mut *self.connection.state.borrow_mut();
            state.codec.go_away(ErrorCode::NoError, state.out.storage());
            return true;
        }
        self.connection.active() > 0
    }

    fn poll_event(&mut self, cx: &mut Context<'_>, outdated: &impl Fn() -> bool) -> Poll<Event> {
        let retired = self.connection.retired.get();
        if !retired && !self.dialled && (self.context.is_draining() || outdated()) {
            return Poll::Ready(Event::Retire);
        }
        let mut moved = match self.poll_send(cx) {
            Ok(moved) => moved,
            Err(error) => return Poll::Ready(Event::Broken(error)),
        };
        let mut state = self.connection.state.borrow_mut();
        let data_sent = state.codec.data_sent();
        moved |= std::mem::replace(&mut self.data_sent, data_sent) != data_sent;
        if moved {
            self.connection.moved_at.set(clock::monotonic());
        }
        if self.connection.stuck.get() {
            return broken(memory_limit::STUCK);
        }
        let unsent = !self.sending.is_empty();
        state.blocked = unsent;
        if !unsent {
            if !state.out.is_empty() {
                return Poll::Ready(Event::Send);
            }
            let settled = self.dialled || self.last_words;
            if retired && settled && state.codec.active_streams() == 0 {
                return Poll::Ready(Event::Finished);
            }
        }
        match &state.driver {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => state.driver = Some(cx.waker().clone()),
        }
        // Frames we read may need answers, so reading stops while the peer does not take our
        // answers.
        let stopped = state.out.len() > READ_STOP;
        let waits = if unsent {
            Waits::Output
        } else if retired && !self.dialled && !self.last_words {
            Waits::Patience
        } else if state.codec.is_waiting() {
            Waits::Block
        } else if state.codec.active_streams() == 0 {
            Waits::Idle
        } else if state.codec.peer_grants_little() && state.slots.any_waits_for_credit() {
            Waits::Credit
        } else {
            Waits::Nothing
        };
        drop(state);
        self.wait_for(waits, moved);
        if self.deadline.poll_expired(cx) {
            // A deadline stays expired, also where nothing is waited for from now on.
            self.deadline.disarm();
            return match std::mem::replace(&mut self.waits, Waits::Nothing) {
                Waits::Block => broken("the peer did not finish a header block, or its preface"),
                Waits::Output => broken("the peer read none of the bytes sent to it"),
                Waits::Credit => broken("the peer gives no stream credit"),
                _ => Poll::Ready(Event::Retire),
            };
        }
        if stopped {
            return Poll::Pending;
        }
        match ready!(self.link.poll_read(cx, &mut self.incoming)) {
            Ok(0) => broken("the peer closed it"),
            Ok(_) => Poll::Ready(Event::Received),
            Err(error) => Poll::Ready(Event::Broken(error)),
        }
    }

    fn wait_for(&mut self, waits: Waits, moved: bool) {
        let needs_progress = matches!(waits, Waits::Output | Waits::Credit);
        if self.waits == waits && !(moved && needs_progress) {
            return;
        }
        self.waits = waits;
        let snapshot = self.context.snapshot();
        let mesh = &snapshot.mesh;
        let millis = |ms: u32| Duration::from_millis(ms.into());
        match waits {
            Waits::Nothing => self.deadline.disarm(),
            Waits::Block => self.deadline.arm(millis(mesh.header_timeout_ms)),
            Waits::Output => self.deadline.arm(STALLED),
            Waits::Credit => self.deadline.arm(NO_CREDIT),
            Waits::Patience => self.deadline.arm(PATIENCE),
            Waits::Idle if self.dialled => self.deadline.arm(CLIENT_IDLE),
            Waits::Idle => self.deadline.arm(millis(mesh.idle_timeout_ms)),
        }
    }

    /// Sends the frames that are ready; true if any bytes went out.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        while !self.sending.is_empty() {
            match self.link.poll_write(cx, self.sending.as_slice(), false) {
                Poll::Pending => {
                    self.sending.shrink();
                    return Ok(moved);
                }
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    self.sending.consume(count);
                    moved = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        match self.link.poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(moved),
        }
    }

    /// Takes the frames that streams have appended since the last time, and wakes streams that wait
    /// for room.
    fn take_frames(&mut self) {
        let state = &mut *self.connection.state.borrow_mut();
        self.sending = std::mem::take(&mut state.out);
        while let Some(key) = state.waiting.pop_front() {
            let slot = state.slots.at(key);
            slot.queued = false;
            if let Some(waker) = slot.writer.take() {
                waker.wake();
            }
        }
    }

    /// Hands the frames that have arrived to their streams.
    fn dispatch(&mut self, accept: &impl Fn(Http2Stream)) -> io::Result<()> {
        if !self.incoming.is_empty() {
            let state = &mut *self.connection.state.borrow_mut();
            let bytes = self.incoming.as_slice();
            let taken =
                state
                    .codec
                    .receive(bytes, &mut state.slots, state.out.storage_for(FRAME_BYTES));
            if state.out.is_empty() {
                state.out.release();
            }
            let taken = taken.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            self.incoming.consume(taken);
        }
        let opened = std::mem::take(&mut self.connection.state.borrow_mut().slots.opened);
        for &key in &opened {
            let stream = Http2Stream::new(self.connection.clone(), key);
            let reset = self.connection.state.borrow_mut().slots.at(key).reset;
            // A client that opens and resets a stream at once must not cost us a handler.
            if reset.is_none() {
                accept(stream);
            }
        }
        let state = &mut *self.connection.state.borrow_mut();
        state.slots.opened = opened;
        state.slots.opened.clear();
        if self.dialled && state.codec.is_draining() {
            self.connection.retired.set(true);
        }
        Ok(())
    }

    /// Sends the remaining frames, such as why the peer broke the protocol, and reads incoming
    /// bytes, within bounds. Closing with unread bytes would reset the connection and could destroy
    /// the last frames.
    async fn close(mut self, orderly: bool) {
        const LIMIT: usize = 256 * 1024;
        let last = std::mem::take(&mut self.connection.state.borrow_mut().out);
        self.sending.extend_from_slice(last.as_slice());
        self.deadline.arm(if orderly {
            PATIENCE
        } else {
            Duration::from_secs(1)
        });
        let mut shut = false;
        let mut dropped = 0;
        poll_fn(|cx| {
            loop {
                if self.deadline.poll_expired(cx) || dropped > LIMIT {
                    return Poll::Ready(());
                }
                if !shut {
                    if self.poll_send(cx).is_err() {
                        return Poll::Ready(());
                    }
                    if self.sending.is_empty() {
                        match self.link.poll_shutdown(cx) {
                            Poll::Ready(Ok(())) => shut = true,
                            Poll::Ready(Err(_)) => return Poll::Ready(()),
                            Poll::Pending => {}
                        }
                    }
                    if self.dialled && shut {
                        return Poll::Ready(());
                    }
                }
                self.incoming.release();
                match self.link.poll_read(cx, &mut self.incoming) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(count)) if count > 0 => {
                        dropped += count;
                        // Whoever grants credit still reads what was sent.
                        if orderly {
                            self.deadline.arm(PATIENCE);
                        }
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                }
            }
        })
        .await;
    }
}
