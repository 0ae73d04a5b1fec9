//! The response's direction: from upstream to downstream.

use super::collect::Held;
use super::{End, MAX_INTERIM, Relay, Response, Side, failed, upstream_error};
use crate::config::head_limits;
use crate::http::reply::EDIT_BYTES;
use crate::telemetry::grpc_status;
use crate::telemetry::reason::Reason;
use crate::upstream::link::Link;
use std::io;
use std::task::{Context, Poll};
use std::time::Instant;
use tulle_http1::{Body, BodyLength, Method, Parsed, ResponseEdit, ResponseHead};
use tulle_net::buffer::{BUFFER_BYTES, SHORT_READ};

/// Longest read of a body's end while the client takes no content.
const END_BYTES: usize = 64;

/// Whether a proxy of the mesh says that it cannot reach its application.
fn says_unreached(head: &ResponseHead, bytes: &[u8]) -> bool {
    head.reason(bytes) == Some(Reason::ConnectFailed.code().as_bytes())
}

impl Relay {
    /// Receives the response and sends it on.
    pub(super) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        up: &mut Link,
    ) -> Poll<Result<(), End>> {
        loop {
            match self.poll_send(cx, down) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => {
                    return failed(Side::Down, Reason::ClientClosed, error.to_string());
                }
                Poll::Ready(Ok(())) => {}
            }
            if let Some(response) = &self.response {
                if response.switched || response.body.is_done() {
                    return match down.poll_flush(cx) {
                        Poll::Pending => Poll::Pending,
                        Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
                        Poll::Ready(Err(error)) => {
                            failed(Side::Down, Reason::ClientClosed, error.to_string())
                        }
                    };
                }
            } else if self.unparsed && self.take_head()? {
                continue;
            }
            if self.from_up.is_empty() || self.response.is_none() {
                let before = self.from_up.len();
                match self.poll_read_up(cx, down, up) {
                    Poll::Pending => return self.flush_partial(cx, down),
                    Poll::Ready(Ok(0)) => match self.end_of_upstream() {
                        Ok(()) => continue,
                        Err(end) => return Poll::Ready(Err(end)),
                    },
                    Poll::Ready(Ok(_)) => {
                        let limits = self.limits();
                        self.unparsed = self.held.is_some()
                            || head_limits::may_complete(self.from_up.as_slice(), before, &limits);
                    }
                    Poll::Ready(Err(error)) => return upstream_error(&error),
                }
            }
            if let Some(response) = &mut self.response {
                match response.body.advance(self.from_up.as_slice()) {
                    Ok(count) => self.ready_down = count,
                    Err(bad) => {
                        let text = format!("{}: {bad}", bad.reason());
                        return failed(Side::Up, Reason::BadResponse, text);
                    }
                }
            }
        }
    }

    /// Reads as much as the client takes now. The rest stays with the upstream: thousands of
    /// streams may wait for clients that do not read.
    fn poll_read_up(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        up: &mut Link,
    ) -> Poll<io::Result<usize>> {
        let room = match (down.poll_room(cx), &self.response) {
            (Poll::Ready(room), _) => room,
            // A head needs no credit.
            (Poll::Pending, None) => 0,
            (Poll::Pending, Some(_)) => return Poll::Pending,
        };
        match &self.response {
            _ if room >= BUFFER_BYTES => up.poll_read(cx, &mut self.from_up),
            None if room < SHORT_READ => up.poll_read_head(cx, &mut self.from_up),
            Some(response) if room == 0 && response.body.expects_content() => {
                down.wait_for_credit(cx);
                Poll::Pending
            }
            // The end of a body takes no credit either.
            _ => up.poll_read_up_to(cx, &mut self.from_up, room.max(END_BYTES)),
        }
    }

    fn flush_partial(&self, cx: &mut Context<'_>, down: &mut Link) -> Poll<Result<(), End>> {
        if let Poll::Ready(Err(error)) = down.poll_flush(cx) {
            return failed(Side::Down, Reason::ClientClosed, error.to_string());
        }
        Poll::Pending
    }

    /// Sends bytes that are ready: the edited head first, then body bytes in place.
    fn poll_send(&mut self, cx: &mut Context<'_>, down: &mut Link) -> Poll<io::Result<()>> {
        let done = self
            .response
            .as_ref()
            .is_some_and(|r| r.body.is_done() && !r.switched);
        if done && self.close {
            down.end_with_last();
        }
        let last = done && (self.single || self.close);
        while !self.to_down.is_empty() {
            match down.poll_write(cx, self.to_down.as_slice(), last && self.ready_down == 0) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.to_down.consume(count);
                    self.body_sent += count as u64;
                }
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        while self.ready_down > 0 {
            let ready = self
                .from_up
                .as_slice()
                .get(..self.ready_down)
                .unwrap_or_default();
            match down.poll_write(cx, ready, last) {
                Poll::Pending => {
                    if down.is_stream() {
                        self.from_up.shrink();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.from_up.consume(count);
                    self.ready_down -= count;
                    self.body_sent += count as u64;
                }
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes a response head if it is complete, or the body of one that is held; true if there are bytes to send.
    fn take_head(&mut self) -> Result<bool, End> {
        if let Some(held) = self.held.take() {
            return self.collect(held);
        }
        let parsed =
            tulle_http1::parse_response(self.from_up.as_slice(), &self.limits(), self.method);
        let head = match parsed {
            Ok(Parsed::Complete(head)) => head,
            Ok(Parsed::Partial) => {
                self.unparsed = false;
                return Ok(false);
            }
            Err(bad) => {
                let text = format!("{}: {bad}", bad.reason());
                return Err(End::Failed(Side::Up, Reason::BadResponse, text));
            }
        };
        let bytes = self.from_up.as_slice().get(..head.len).unwrap_or_default();
        if head.status < 200 && head.status != 101 {
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                let text = format!("more than {MAX_INTERIM} interim responses");
                return Err(End::Failed(Side::Up, Reason::BadResponse, text));
            }
            // RFC 9110 15.2: HTTP/1.0 knows no interim responses.
            if self.minor > 0 {
                let room = head.len + EDIT_BYTES;
                let edit = ResponseEdit {
                    strip_reason: !self.from_tulle,
                    ..Default::default()
                };
                head.write(bytes, &edit, self.to_down.storage_for(room));
            }
            self.from_up.consume(head.len);
            self.unparsed = !self.from_up.is_empty();
            return Ok(true);
        }
        if head.status == 101 && !self.upgrade || self.is_switch(&head) && !self.request_done {
            let text = "101 to a request that asked for no upgrade, or a switch before its end";
            return Err(End::Failed(Side::Up, Reason::BadResponse, text.to_owned()));
        }
        if self.minor == 0 && head.body == BodyLength::Chunked {
            let text = "a chunked response to an HTTP/1.0 request";
            return Err(End::Failed(Side::Up, Reason::BadResponse, text.to_owned()));
        }
        if self.elsewhere && self.can_repeat() && says_unreached(&head, bytes) {
            self.unparsed = false;
            return Err(End::Unreached);
        }
        if let Some(policy) = &self.hold
            && policy.holds(head.status, bytes)
        {
            self.unparsed = false;
            return Err(End::Withheld);
        }
        self.begin_response(&head)?;
        Ok(true)
    }

    /// Whether bytes both ways follow: after an upgrade, or in the tunnel of a CONNECT (RFC 9110,
    /// section 9.3.6).
    fn is_switch(&self, head: &ResponseHead) -> bool {
        let granted = (200..300).contains(&head.status);
        head.status == 101 || granted && self.method == Method::Connect
    }

    fn begin_response(&mut self, head: &ResponseHead) -> Result<(), End> {
        let switched = self.is_switch(head);
        let until_close = head.body == BodyLength::UntilClose;
        // A client that asked for a tunnel may be sending into it already. Only a client that is
        // asked for credentials has to come back on the same connection.
        let no_tunnel = self.method == Method::Connect && head.status != 407;
        self.close = !self.single
            && !switched
            && (until_close
                || no_tunnel
                || !self.keep_alive
                || !self.request_done && !self.body.is_done()
                || self.down_ended
                || self.draining);
        let added = self.add.as_deref().map(|(n, v)| (&**n, v.as_bytes()));
        let edit = ResponseEdit {
            add: added.as_slice(),
            close: self.close,
            keep_alive_1_0: self.minor == 0 && !self.close && !switched,
            strip_reason: !self.from_tulle,
        };
        let bytes = self.from_up.as_slice().get(..head.len).unwrap_or_default();
        if self.is_call {
            self.grpc_status = grpc_status::of_head(bytes);
        }
        // The buffer has room for the body that is at hand, too.
        let fields = self.add.as_ref().map_or(0, |a| a.0.len() + a.1.len());
        let room = self.from_up.len() + EDIT_BYTES + fields;
        head.write(bytes, &edit, self.to_down.storage_for(room));
        let mut status = head.status;
        let mut limit = 0;
        if let Some(edits) = &self.edits {
            let mut written = self.to_down.len();
            if edits.has_hooks() {
                let shown = edits.show(&mut self.to_down, written);
                (written, status) = shown.map_err(|failure| {
                    self.to_down.release();
                    // The upstream has done its part.
                    End::Failed(Side::Down, failure.reason, failure.detail)
                })?;
            }
            edits.apply(&mut self.to_down, written);
            limit = edits.body_limit();
        }
        self.from_up.consume(head.len);
        let mut response = Response {
            body: Body::new(head.body),
            keep_alive: head.keep_alive && !until_close,
            switched,
        };
        if limit > 0 && !switched && !response.body.is_done() {
            self.held = Some(Box::new(Held {
                message: std::mem::take(&mut self.to_down),
                response,
                status,
                taken: 0,
                limit,
            }));
            return Ok(());
        }
        if !self.from_up.is_empty() && !response.switched && !response.body.is_done() {
            // A small body leaves together with its head in one write.
            let count = response
                .body
                .advance(self.from_up.as_slice())
                .map_err(|bad| {
                    self.to_down.release();
                    let text = format!("{}: {bad}", bad.reason());
                    End::Failed(Side::Up, Reason::BadResponse, text)
                })?;
            let body = self.from_up.as_slice().get(..count).unwrap_or_default();
            self.to_down.extend_from_slice(body);
            self.from_up.consume(count);
        }
        self.start(response, status);
        Ok(())
    }

    /// Notes that a response begins, whose first bytes are to be sent.
    pub(super) fn start(&mut self, response: Response, status: u16) {
        self.status = status;
        if let Some(times) = &mut self.times {
            times.first_byte = Some(Instant::now());
        }
        self.response = Some(response);
        // The request cannot be sent again any more, so its bytes are not needed, but to say what failed.
        if self.sent >= self.request.len() && status < 500 {
            self.request.release();
            self.sent = 0;
        }
    }

    fn end_of_upstream(&mut self) -> Result<(), End> {
        let held = self.held.as_mut().map(|held| &mut held.response);
        self.unparsed |= held.is_some();
        let text = match self.response.as_mut().or(held) {
            None if self.from_up.is_empty() => {
                "the upstream ended the connection before a response".to_owned()
            }
            None => "the upstream ended the connection inside a response head".to_owned(),
            Some(response) => match response.body.end_of_stream() {
                Ok(()) => {
                    response.keep_alive = false;
                    return Ok(());
                }
                Err(bad) => format!("{}: {bad}", bad.reason()),
            },
        };
        Err(End::Failed(Side::Up, Reason::UpstreamReset, text))
    }
}
