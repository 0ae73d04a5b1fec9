//! One exchange: the request up and the response down, both at once, in bounded memory.
//!
//! A state machine that is polled; it owns no connection and never waits by itself.

use crate::link::Link;
use crate::reason::Reason;
use crate::reply::EDIT_BYTES;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tulle_http1::{
    Body, BodyLength, Limits, Method, Parsed, RequestHead, ResponseEdit, ResponseHead,
};
use tulle_model::resource::MeshSettings;
use tulle_net::{Buf, Deadline};

/// Interim responses (1xx) accepted before the final one.
const MAX_INTERIM: u8 = 16;

/// Which side a failure came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Down,
    /// The upstream.
    Up,
}

/// How an exchange ended.
#[derive(Debug)]
pub enum End {
    /// The response is through.
    Complete,
    /// It was cut short.
    Failed(Side, Reason, String),
}

/// State of one exchange.
pub struct Relay {
    /// The edited head and what has come of the body; kept until a response begins when it is the
    /// whole request, so that it can be sent again.
    pub request: Buf,
    /// Bytes from upstream that have not been used.
    pub from_up: Buf,
    /// Status of the response; 0 before.
    pub status: u16,
    /// The downstream connection ends after this response.
    pub close: bool,
    /// From the end of the request to the response's head; zero: none.
    pub timeout: Duration,
    /// This proxy is about to end.
    pub draining: bool,
    /// When the response began; only the access log asks.
    pub first_byte: Option<Instant>,
    /// Body bytes from the client.
    pub body_received: u64,
    /// Bytes to the client.
    pub body_sent: u64,
    method: Method,
    minor: u8,
    keep_alive: bool,
    upgrade: bool,
    limits: Limits,
    idle: Duration,
    logged: bool,
    single: bool,
    sent: usize,
    whole: bool,
    body: Body,
    ready_up: usize,
    request_done: bool,
    down_ended: bool,
    response: Option<Response>,
    interim: u8,
    /// Bytes have come that may complete a head.
    unparsed: bool,
    to_down: Buf,
    ready_down: usize,
    armed: Armed,
}

struct Response {
    body: Body,
    keep_alive: bool,
    switched: bool,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Armed {
    Not,
    Idle,
    Response,
}

fn failed<T>(side: Side, reason: Reason, detail: impl Into<String>) -> Poll<Result<T, End>> {
    Poll::Ready(Err(End::Failed(side, reason, detail.into())))
}

fn upstream_error<T>(error: &io::Error) -> Poll<Result<T, End>> {
    // A refused stream was not processed: the reason tells that it may go elsewhere.
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => Reason::Overload,
        _ => Reason::UpstreamReset,
    };
    failed(Side::Up, reason, error.to_string())
}

impl Relay {
    /// An exchange whose request head has been edited into `request`, followed by `body_at_hand`
    /// bytes of the body.
    pub fn new(
        head: &RequestHead,
        request: Buf,
        body: Body,
        body_at_hand: usize,
        mesh: &MeshSettings,
        single: bool,
    ) -> Self {
        let whole = body.is_done();
        Self {
            body_received: body_at_hand as u64,
            request,
            from_up: Buf::new(),
            status: 0,
            close: false,
            timeout: Duration::ZERO,
            draining: false,
            first_byte: None,
            body_sent: 0,
            method: head.method,
            minor: head.minor,
            keep_alive: head.keep_alive,
            upgrade: head.upgrade,
            limits: crate::forward_http::head_limits(mesh),
            idle: Duration::from_millis(mesh.idle_timeout_ms.into()),
            logged: mesh.access_log,
            single,
            sent: 0,
            whole,
            body,
            ready_up: 0,
            request_done: false,
            down_ended: false,
            response: None,
            interim: 0,
            unparsed: false,
            to_down: Buf::new(),
            ready_down: 0,
            armed: Armed::Not,
        }
    }

    /// Whether the client has been sent anything that cannot be taken back.
    pub fn response_started(&self) -> bool {
        self.response.is_some() || self.interim > 0
    }

    /// The whole request has been sent.
    pub fn request_done(&self) -> bool {
        self.request_done
    }

    /// The connections now carry another protocol.
    pub fn switched(&self) -> bool {
        self.response.as_ref().is_some_and(|r| r.switched)
    }

    /// The upstream connection may carry another exchange.
    pub fn upstream_reusable(&self) -> bool {
        self.request_done
            && self.from_up.is_empty()
            && self.response.as_ref().is_some_and(|r| r.keep_alive)
    }

    /// Whether sending the request again is safe: nothing of a response has come, all of the
    /// request is at hand, and either doing it twice is the same as once (RFC 9110 9.2.2) or the
    /// upstream said that it did nothing.
    pub fn can_replay(&self, method: Method, refused: bool) -> bool {
        !self.response_started()
            && self.from_up.is_empty()
            && self.whole
            && !self.request.is_empty()
            && (refused || self.sent == 0 || method.is_idempotent())
    }

    /// Back to the beginning of the request.
    pub fn rewind(&mut self) {
        self.sent = 0;
        self.request_done = false;
        self.unparsed = false;
        self.armed = Armed::Not;
    }

    /// Goes on as far as possible.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        from_down: &mut Buf,
        up: &mut Link,
        deadline: &Deadline,
    ) -> Poll<End> {
        let moved = self.body_received + self.body_sent;
        let mut broken = None;
        if !self.request_done {
            match self.poll_request(cx, down, from_down, up) {
                Poll::Ready(Ok(())) => self.request_done = true,
                // An upstream may answer and close without reading everything: look for its
                // answer before giving up.
                Poll::Ready(Err(end @ End::Failed(Side::Up, ..))) => broken = Some(end),
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => {}
            }
        }
        match (self.poll_response(cx, down, up), broken) {
            (Poll::Ready(Ok(())), _) => return Poll::Ready(End::Complete),
            (Poll::Ready(Err(_)), Some(end)) => return Poll::Ready(end),
            (Poll::Ready(Err(end)), None) => return Poll::Ready(end),
            (Poll::Pending, Some(end)) if self.response.is_none() => return Poll::Ready(end),
            (Poll::Pending, _) => {}
        }
        if self.request_done
            && let Poll::Ready(Err(end)) = self.watch(cx, down, from_down)
        {
            return Poll::Ready(end);
        }
        self.poll_deadline(cx, deadline, self.body_received + self.body_sent != moved)
    }

    /// While the response is awaited only the time since the request's end counts; else silence.
    fn poll_deadline(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &Deadline,
        moved: bool,
    ) -> Poll<End> {
        let waiting = self.request_done && self.response.is_none() && !self.timeout.is_zero();
        let wanted = if waiting {
            Armed::Response
        } else {
            Armed::Idle
        };
        if self.armed != wanted || (moved && wanted == Armed::Idle) {
            self.armed = wanted;
            deadline.arm(if waiting { self.timeout } else { self.idle });
        }
        if !deadline.poll_expired(cx) {
            return Poll::Pending;
        }
        let (side, reason, text) = if waiting {
            let text = format!("no response within {:?}", self.timeout);
            (Side::Up, Reason::RequestTimeout, text)
        } else {
            let text = format!("nothing moved for {:?}", self.idle);
            match self.request_done {
                true => (Side::Up, Reason::RequestTimeout, text),
                false => (Side::Down, Reason::IdleTimeout, text),
            }
        };
        Poll::Ready(End::Failed(side, reason, text))
    }

    /// Sends the request.
    fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        from_down: &mut Buf,
        up: &mut Link,
    ) -> Poll<Result<(), End>> {
        loop {
            let last = self.body.is_done() && !self.upgrade;
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
            if !self.whole && !self.request.is_empty() {
                self.request.release();
                self.sent = 0;
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
                Ok(count) => self.ready_up = count,
                Err(bad) => {
                    let text = format!("{}: {bad}", bad.reason());
                    return failed(Side::Down, Reason::BadRequest, text);
                }
            }
        }
    }

    /// While the response is awaited: notices a client that goes away. Bytes of a next request
    /// are kept; no more than one buffer is read ahead.
    fn watch(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Link,
        from_down: &mut Buf,
    ) -> Poll<Result<(), End>> {
        if !self.down_ended && from_down.is_empty() {
            match down.poll_read(cx, from_down) {
                Poll::Pending | Poll::Ready(Ok(1..)) => return Poll::Pending,
                // A client may half-close after its request and still wait for the answer.
                Poll::Ready(Ok(0)) => self.down_ended = true,
                Poll::Ready(Err(error)) => {
                    return failed(Side::Down, Reason::ClientClosed, error.to_string());
                }
            }
        }
        {
            // A multiplexed stream says at its end that the request is whole; only a reset says
            // that nobody waits for the answer any more.
            match down.poll_reset(cx) {
                Poll::Ready(error) => failed(Side::Down, Reason::ClientClosed, error.to_string()),
                Poll::Pending => Poll::Pending,
            }
        }
    }

    /// Receives the response and sends it on.
    fn poll_response(
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
                match up.poll_read(cx, &mut self.from_up) {
                    Poll::Pending => return self.flush_partial(cx, down),
                    Poll::Ready(Ok(0)) => match self.end_of_upstream() {
                        Ok(()) => continue,
                        Err(end) => return Poll::Ready(Err(end)),
                    },
                    Poll::Ready(Ok(_)) => {
                        // As for requests: only a line's end can complete a head.
                        let new = self.from_up.as_slice().get(before..).unwrap_or_default();
                        self.unparsed = before == 0
                            || self.from_up.len() > self.limits.head_bytes
                            || memchr::memchr(b'\n', new).is_some();
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

    fn flush_partial(&self, cx: &mut Context<'_>, down: &mut Link) -> Poll<Result<(), End>> {
        if let Poll::Ready(Err(error)) = down.poll_flush(cx) {
            return failed(Side::Down, Reason::ClientClosed, error.to_string());
        }
        Poll::Pending
    }

    /// Sends what is ready: the edited head first, then body bytes where they are.
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
                Poll::Pending => return Poll::Pending,
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

    /// Takes a response head if it is complete; true if something is to be sent.
    fn take_head(&mut self) -> Result<bool, End> {
        let parsed =
            tulle_http1::parse_response(self.from_up.as_slice(), &self.limits, self.method);
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
                head.write(
                    bytes,
                    &ResponseEdit::default(),
                    self.to_down.storage_for(room),
                );
            }
            self.from_up.consume(head.len);
            self.unparsed = !self.from_up.is_empty();
            return Ok(true);
        }
        if head.status == 101 && !(self.upgrade && self.request_done) {
            let text = "101 to a request that asked for no upgrade, or before its end";
            return Err(End::Failed(Side::Up, Reason::BadResponse, text.to_owned()));
        }
        if self.minor == 0 && head.body == BodyLength::Chunked {
            let text = "a chunked response to an HTTP/1.0 request";
            return Err(End::Failed(Side::Up, Reason::BadResponse, text.to_owned()));
        }
        self.begin_response(&head)?;
        Ok(true)
    }

    fn begin_response(&mut self, head: &ResponseHead) -> Result<(), End> {
        let until_close = head.body == BodyLength::UntilClose;
        self.close = !self.single
            && (until_close
                || !self.keep_alive
                || !self.request_done && !self.body.is_done()
                || self.down_ended
                || self.draining);
        let edit = ResponseEdit {
            add: &[],
            close: self.close && head.status != 101,
            keep_alive_1_0: self.minor == 0 && !self.close,
        };
        let bytes = self.from_up.as_slice().get(..head.len).unwrap_or_default();
        // With the body that is at hand.
        let room = self.from_up.len() + EDIT_BYTES;
        head.write(bytes, &edit, self.to_down.storage_for(room));
        self.from_up.consume(head.len);
        let mut response = Response {
            body: Body::new(head.body),
            keep_alive: head.keep_alive && !until_close,
            switched: head.status == 101,
        };
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
        self.status = head.status;
        self.first_byte = self.logged.then(Instant::now);
        self.response = Some(response);
        // From here on the request cannot be sent again, so its bytes are not needed.
        if self.sent >= self.request.len() {
            self.request.release();
            self.sent = 0;
        }
        Ok(())
    }

    fn end_of_upstream(&mut self) -> Result<(), End> {
        let text = match &mut self.response {
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
