//! The request's direction: from downstream to upstream.

use super::{End, KEEP_BYTES, Relay, Side, failed, upstream_error};
use crate::telemetry::reason::Reason;
use crate::upstream::link::Link;
use std::io;
use std::task::{Context, Poll, ready};
use tulle_net::Buf;

impl Relay {
    /// Sends the request.
    pub(super) fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        from_down: &mut Buf,
        up: &mut Link,
    ) -> Poll<Result<(), End>> {
        loop {
            let last = self.body.is_done() && !self.is_upgrade();
            let unsent = self.request.as_slice().get(self.sent..).unwrap_or_default();
            if !unsent.is_empty() {
                match up.poll_write(cx, unsent, last) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(count)) if count > 0 => self.sent += count,
                    Poll::Ready(Ok(_)) => return upstream_error(&io::ErrorKind::WriteZero.into()),
                    Poll::Ready(Err(error)) => return upstream_error(&error),
                }
                continue;
            }
            if !self.whole && !self.request.is_empty() && !self.keeps() {
                self.request.release();
                self.sent = 0;
                // Never to be sent again: what of the body comes later would be kept without its head, and be sent
                // as a request of the client's making.
                self.hold = None;
            }
            if self.ready_up > 0 {
                let ready = from_down
                    .as_slice()
                    .get(..self.ready_up)
                    .unwrap_or_default();
                match up.poll_write(cx, ready, last) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(count)) if count > 0 => {
                        from_down.consume(count);
                        self.ready_up -= count;
                        self.body_received += count as u64;
                    }
                    Poll::Ready(Ok(_)) => return upstream_error(&io::ErrorKind::WriteZero.into()),
                    Poll::Ready(Err(error)) => return upstream_error(&error),
                }
                continue;
            }
            if self.body.is_done() {
                return match up.poll_flush(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
                    Poll::Ready(Err(error)) => upstream_error(&error),
                };
            }
            let Poll::Ready(ready) = self.poll_body(cx, down, from_down) else {
                // The client may send no more before it hears of what it has sent.
                return match up.poll_flush(cx) {
                    Poll::Ready(Err(error)) => upstream_error(&error),
                    _ => Poll::Pending,
                };
            };
            self.ready_up = ready?;
            if self.keeps() {
                self.keep(from_down);
            }
        }
    }

    /// Returns how many of the next bytes from downstream belong to the body; they stay in place.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        from_down: &mut Buf,
    ) -> Poll<Result<usize, End>> {
        if from_down.is_empty() {
            match down.poll_read(cx, from_down) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => {
                    let text = "the client ended the connection inside a request body";
                    return failed(Side::Down, Reason::ClientClosed, text);
                }
            }
        }
        match self.body.advance(from_down.as_slice()) {
            Ok(count) => {
                if let Some(copies) = &mut self.copies {
                    let bytes = from_down.as_slice().get(..count).unwrap_or_default();
                    copies.extend(bytes, self.body.is_done());
                }
                Poll::Ready(Ok(count))
            }
            Err(bad) => {
                let text = format!("{}: {bad}", bad.reason());
                failed(Side::Down, Reason::BadRequest, text)
            }
        }
    }

    /// Receives more of the body before any byte is sent, until it is whole, there are `content` bytes of its
    /// content, or `bytes` with what frames it.
    pub fn poll_hold(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        from_down: &mut Buf,
        (content, bytes): (usize, usize),
    ) -> Poll<Result<(), End>> {
        while !self.body.is_done() && !self.has(content) && self.body_at_hand() < bytes {
            let count = ready!(self.poll_body(cx, down, from_down))?;
            let bytes = from_down.as_slice().get(..count).unwrap_or_default();
            self.request.extend_from_slice(bytes);
            from_down.consume(count);
            self.body_received += count as u64;
        }
        self.whole |= self.body.is_done();
        Poll::Ready(Ok(()))
    }

    /// Whether so many bytes of the content have come.
    pub fn has(&self, content: usize) -> bool {
        self.body.content() >= content as u64
    }

    /// Whether the request may be sent again, and is still short enough to be kept.
    fn keeps(&self) -> bool {
        self.hold.is_some() && self.request.len() < KEEP_BYTES
    }

    /// Keeps body bytes behind the head until a response comes.
    fn keep(&mut self, from_down: &mut Buf) {
        let bytes = from_down.as_slice().get(..self.ready_up);
        self.request.extend_from_slice(bytes.unwrap_or_default());
        from_down.consume(self.ready_up);
        self.body_received += self.ready_up as u64;
        self.ready_up = 0;
        self.whole = self.body.is_done();
    }

    /// Notices a reset stream while the upstream takes no body, so that no more of it is read. On a
    /// connection of its own the pending bytes hide an end; there the idle timeout ends the
    /// exchange.
    pub(super) fn watch_upload(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
    ) -> Poll<Result<(), End>> {
        match down.poll_reset(cx) {
            Poll::Ready(error) => failed(Side::Down, Reason::ClientClosed, error.to_string()),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Notices a client that leaves while the response is awaited. Bytes of a next request are
    /// kept; at most one buffer is read ahead.
    pub(super) fn watch(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        from_down: &mut Buf,
    ) -> Poll<Result<(), End>> {
        if !self.down_ended && from_down.is_empty() {
            match down.poll_read(cx, from_down) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(1..)) => {}
                // A client may half-close after its request and still wait for the answer.
                Poll::Ready(Ok(0)) => self.down_ended = true,
                Poll::Ready(Err(error)) => {
                    return failed(Side::Down, Reason::ClientClosed, error.to_string());
                }
            }
        }
        // The end of a multiplexed stream only means that the request is whole; a reset means that
        // nobody waits for the answer any more.
        self.watch_upload(cx, down)
    }
}
