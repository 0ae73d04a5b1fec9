//! Relays one exchange: the request up and the response down, both at once, in bounded memory.
//!
//! A state machine that is polled; it owns no connection and never waits by itself.

mod collect;
mod request;
mod response;

use crate::config::head_limits;
use crate::config::traffic::retry::Policy;
use crate::context::memory_limit;
use crate::filter::ResponseEdits;
use crate::filter::header_edit::Draft;
use crate::http::mirror_send::Copies;
use crate::telemetry::grpc_status::ResponseStatus;
use crate::telemetry::reason::Reason;
use crate::upstream::link::Link;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tulle_http1::{Body, Limits, Method, RequestHead};
use tulle_model::resource::MeshSettings;
use tulle_net::{Buf, Deadline};

/// A request that may be sent again is kept up to this length.
const KEEP_BYTES: usize = 64 * 1024;
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
    /// The response is complete.
    Complete,
    /// A response has come that `hold` covers. No byte of it has been sent on.
    Withheld,
    /// A proxy of the mesh answers that it cannot reach its application, so the request was not
    /// processed. No byte of the response has been sent on.
    Unreached,
    /// It was cut short.
    Failed(Side, Reason, String),
}

/// State of one exchange.
pub struct Relay {
    /// The edited head and the body received so far. It is kept until a response begins if it is
    /// the whole request, so that it can be sent again.
    pub request: Buf,
    /// Unused bytes from upstream.
    pub from_up: Buf,
    /// Status of the response; 0 before.
    pub status: u16,
    /// The downstream connection ends after this response.
    pub close: bool,
    /// Timeout from the end of the request to the response's head, in milliseconds; 0: none.
    pub timeout_ms: u32,
    /// Whether this proxy is about to end.
    pub draining: bool,
    /// Whether the upstream is a proxy of the mesh.
    pub from_mesh: bool,
    /// Whether it is one of ours, which says why it refuses, and passes on no such word of its application.
    pub from_tulle: bool,
    /// Whether there is another endpoint to ask if its application is unreachable.
    pub elsewhere: bool,
    /// Times for the access log; `None`: it needs none.
    pub times: Option<Box<Times>>,
    /// A field to add to the response's head.
    pub add: Option<Box<(String, String)>>,
    /// Body bytes from the client.
    pub body_received: u64,
    /// Bytes to the client.
    pub body_sent: u64,
    /// Whether it is a gRPC call, whose response has a status of its own.
    pub is_call: bool,
    /// The gRPC status, if the response's head has it.
    grpc_status: Option<u8>,
    /// Edits of the response's head.
    pub edits: Option<Box<ResponseEdits>>,
    /// Responses that may be tried again are held back, and the request is kept.
    pub hold: Option<Arc<Policy>>,
    /// Copies of the request for mirrors.
    pub copies: Option<Box<Copies>>,
    method: Method,
    minor: u8,
    keep_alive: bool,
    upgrade: bool,
    head_bytes: u32,
    head_fields: u32,
    idle_ms: u32,
    single: bool,
    sent: usize,
    whole: bool,
    body: Body,
    ready_up: usize,
    request_done: bool,
    down_ended: bool,
    response: Option<Response>,
    /// A response whose body is awaited whole.
    held: Option<Box<collect::Held>>,
    interim: u8,
    /// Whether new bytes may complete a head.
    unparsed: bool,
    to_down: Buf,
    ready_down: usize,
    armed: Armed,
}

/// When the parts of an exchange were there.
#[derive(Default)]
pub struct Times {
    /// The whole request had been sent.
    sent: Option<Instant>,
    /// The response began.
    first_byte: Option<Instant>,
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
    // A refused stream was not processed, so the request may go elsewhere.
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
            timeout_ms: 0,
            draining: false,
            from_mesh: false,
            from_tulle: false,
            elsewhere: false,
            times: None,
            add: None,
            body_sent: 0,
            is_call: false,
            grpc_status: None,
            edits: None,
            hold: None,
            copies: None,
            method: head.method,
            minor: head.minor,
            keep_alive: head.keep_alive,
            upgrade: head.upgrade,
            head_bytes: mesh.max_header_bytes,
            head_fields: mesh.max_headers,
            idle_ms: mesh.idle_timeout_ms,
            single,
            sent: 0,
            whole,
            body,
            ready_up: 0,
            request_done: false,
            down_ended: false,
            response: None,
            held: None,
            interim: 0,
            unparsed: false,
            to_down: Buf::new(),
            ready_down: 0,
            armed: Armed::Not,
        }
    }

    /// Returns the answer so far. `reason` says why it was cut, if it was.
    pub fn response_status(&self, status: u16, reason: Reason) -> ResponseStatus {
        if !self.is_call {
            return status.into();
        }
        let trailer = self.response.as_ref().and_then(|r| r.body.grpc_status());
        ResponseStatus::to_call(status, trailer.or(self.grpc_status), reason)
    }

    /// Returns the limits of the response's head.
    fn limits(&self) -> Limits {
        let fields = head_limits::fields(self.head_fields, self.from_mesh);
        head_limits::limits(self.head_bytes, fields)
    }

    /// Returns when the response began.
    pub fn first_byte(&self) -> Option<Instant> {
        self.times.as_ref()?.first_byte
    }

    /// Returns how long the upstream took for its response, if that began after the request's end.
    pub fn upstream_time(&self) -> Option<Duration> {
        let times = self.times.as_ref()?;
        times.first_byte?.checked_duration_since(times.sent?)
    }

    /// Whether the whole request is at hand.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether the request asks for another protocol, or for a tunnel.
    pub fn is_upgrade(&self) -> bool {
        self.upgrade || self.method == Method::Connect
    }

    /// Whether the client has sent bytes into a tunnel that it did not get. They must not be read
    /// as a request, since a third party may have chosen them.
    pub fn spoke_early(&self, down: &mut Link, from_down: &mut Buf) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.method == Method::Connect
            && (!from_down.is_empty() || down.poll_read(&mut cx, from_down).is_ready())
    }

    /// Returns the length of the body behind the head in `request`, before any byte has been sent.
    pub fn body_at_hand(&self) -> usize {
        usize::try_from(self.body_received).unwrap_or_default()
    }

    /// Returns the request to be edited, before any byte has been sent.
    pub fn draft(&mut self) -> Draft<'_> {
        let head = self.request.len() - self.body_at_hand();
        Draft::new(&mut self.request, head)
    }

    /// Notes that the body behind the head in `request` was replaced by one of this length.
    #[cfg(feature = "plugins")]
    pub fn replaced_body(&mut self, len: usize) {
        self.body_received = len as u64;
    }

    /// Sets the silence that ends the exchange.
    pub fn set_idle_timeout(&mut self, ms: u32) {
        self.idle_ms = ms;
    }

    /// Whether the client has been sent bytes that cannot be taken back.
    pub fn response_started(&self) -> bool {
        self.response.is_some() || self.interim > 0
    }

    /// Whether the whole request has been sent.
    pub fn request_done(&self) -> bool {
        self.request_done
    }

    /// Whether the connections now carry another protocol.
    pub fn switched(&self) -> bool {
        self.response.as_ref().is_some_and(|r| r.switched)
    }

    /// Whether the upstream connection may carry another exchange.
    pub fn upstream_reusable(&self) -> bool {
        self.request_done
            && self.from_up.is_empty()
            && self.response.as_ref().is_some_and(|r| r.keep_alive)
    }

    /// Whether sending the request again is safe: no byte of a response has come, the whole request
    /// is at hand, and either it is idempotent (RFC 9110 9.2.2) or the upstream said that it did
    /// not process it.
    pub fn can_replay(&self, method: Method, refused: bool) -> bool {
        !self.response_started()
            && self.held.is_none()
            && self.from_up.is_empty()
            && self.whole
            && !self.request.is_empty()
            && (refused || self.sent == 0 || method.is_idempotent())
    }

    /// Whether the whole request is at hand and no byte of a response has been sent on.
    pub fn can_repeat(&self) -> bool {
        !self.response_started() && self.whole && !self.request.is_empty()
    }

    /// Sends on the response that was held back.
    pub fn let_go(&mut self) {
        self.hold = None;
        self.unparsed = true;
    }

    /// Goes back to the beginning of the request.
    pub fn rewind(&mut self) {
        self.from_up.release();
        self.held = None;
        self.sent = 0;
        self.request_done = false;
        self.unparsed = false;
        self.armed = Armed::Not;
        if let Some(times) = &mut self.times {
            times.sent = None;
        }
    }

    /// Relays as much as possible.
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
                Poll::Ready(Ok(())) => {
                    self.request_done = true;
                    if let Some(times) = &mut self.times {
                        times.sent = Some(Instant::now());
                    }
                }
                // An upstream may answer and close without reading everything, so look for its
                // answer before giving up.
                Poll::Ready(Err(end @ End::Failed(Side::Up, ..))) => broken = Some(end),
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => {}
            }
        }
        match (self.poll_response(cx, down, up), broken) {
            (Poll::Ready(Ok(())), _) => return Poll::Ready(End::Complete),
            (Poll::Ready(Err(end @ (End::Withheld | End::Unreached))), _) => {
                return Poll::Ready(end);
            }
            (Poll::Ready(Err(_)), Some(end)) => return Poll::Ready(end),
            (Poll::Ready(Err(end)), None) => return Poll::Ready(end),
            // A socket that takes no more tells the event loop so, but the response may be there before that is heard.
            (Poll::Pending, Some(end))
                if self.response.is_none() && !matches!(up, Link::Tcp(_)) =>
            {
                return Poll::Ready(end);
            }
            (Poll::Pending, _) => {}
        }
        let gone = match self.request_done {
            true => self.watch(cx, down, from_down),
            false => self.watch_upload(cx, down),
        };
        if let Poll::Ready(Err(end)) = gone {
            return Poll::Ready(end);
        }
        self.poll_deadline(cx, deadline, self.body_received + self.body_sent != moved)
    }

    /// While the response is awaited the time since the request's end counts; otherwise silence.
    fn poll_deadline(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &Deadline,
        moved: bool,
    ) -> Poll<End> {
        let waiting = self.request_done && self.response.is_none() && self.timeout_ms > 0;
        let timeout = Duration::from_millis(self.timeout_ms.into());
        let idle = Duration::from_millis(self.idle_ms.into());
        let wanted = if waiting {
            Armed::Response
        } else {
            Armed::Idle
        };
        if self.armed != wanted || (moved && wanted == Armed::Idle) {
            self.armed = wanted;
            deadline.arm(if waiting { timeout } else { idle });
        }
        if !deadline.poll_expired(cx) {
            let held = !waiting && (!self.to_down.is_empty() || self.ready_down > 0);
            if held && memory_limit::gives_up(deadline, idle) {
                let text = memory_limit::STUCK.to_owned();
                return Poll::Ready(End::Failed(Side::Down, Reason::Overload, text));
            }
            return Poll::Pending;
        }
        let (side, reason, text) = if waiting {
            let text = format!("no response within {timeout:?}");
            (Side::Up, Reason::RequestTimeout, text)
        } else {
            let text = format!("nothing moved for {idle:?}");
            match self.request_done {
                true => (Side::Up, Reason::RequestTimeout, text),
                false => (Side::Down, Reason::IdleTimeout, text),
            }
        };
        Poll::Ready(End::Failed(side, reason, text))
    }
}
