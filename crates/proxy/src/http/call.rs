//! A call of the proxy itself to a service of the mesh: a whole request, and an answer that is
//! small enough to be held. It is balanced and uses mutual TLS, as other requests do.

use crate::balance::{EndpointHint, Port};
use crate::codec::answered::{Answered, unchunk};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::Lease;
use crate::worker::Worker;
use std::future::{pending, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;
use tulle_http1::{Body, BodyLength, Limits, Method, Parsed, ResponseHead};
use tulle_net::Buf;
use tulle_transport::StreamKind;

/// Most interim responses (1xx) that are skipped.
const MAX_INTERIM: u8 = 16;
/// Bytes of an answer's body, with its framing, that are held.
const MAX_BODY: usize = 64 * 1024;

/// Sends `request`, a head of HTTP/1.1 whose method is `method`, to one of the endpoints of a port. What `may_repeat` is sent again
/// where nobody knows whether it has arrived.
///
/// # Errors
/// No endpoint is reachable, or the answer is invalid or too large to be held.
pub async fn call(
    worker: &Rc<Worker>,
    port: &Port,
    kind: StreamKind,
    method: Method,
    may_repeat: bool,
    request: &[u8],
) -> Result<Answered, Failure> {
    let started = Instant::now();
    // Like other requests it needs a place within the port's limits and a closed breaker.
    let mut lease = port
        .lease(worker, kind, &EndpointHint::default(), None, 0, pending())
        .await?;
    // An idle connection may have closed meanwhile, so the call is tried once more on another.
    let mut reuse = true;
    loop {
        let mut exchange = Exchange::new(method, request);
        let result = poll_fn(|cx| exchange.poll(cx, &mut lease)).await;
        match result {
            Ok(()) => {
                let status = exchange.head.as_ref().map_or(0, |(head, _)| head.status);
                port.ended(&mut lease, status, started);
                if exchange.reusable {
                    lease.put_back(Instant::now());
                } else {
                    lease.link.abort();
                }
                return exchange.answered();
            }
            Err(error) => {
                let silent = exchange.received.is_empty()
                    && exchange.head.is_none()
                    && exchange.interim == 0;
                let unseen = exchange.sent == 0 || error.kind() == io::ErrorKind::ConnectionRefused;
                let again = lease.reused && reuse && silent && (may_repeat || unseen);
                lease.link.abort();
                if !again {
                    port.ended(&mut lease, 0, started);
                    let address = lease.upstream().key.address;
                    let text = format!("{address}: {error}");
                    return Err(Failure::new(Reason::UpstreamReset, text));
                }
                reuse = false;
                let permit = lease.take_permit();
                let upstream = lease.upstream().clone();
                lease = upstream.connect(worker, kind).await?.with(permit);
            }
        }
    }
}

struct Exchange<'a> {
    method: Method,
    request: &'a [u8],
    sent: usize,
    received: Buf,
    interim: u8,
    head: Option<(ResponseHead, Vec<u8>)>,
    body: Body,
    content: Vec<u8>,
    reusable: bool,
}

fn bad(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

impl<'a> Exchange<'a> {
    fn new(method: Method, request: &'a [u8]) -> Self {
        Self {
            method,
            request,
            sent: 0,
            received: Buf::new(),
            interim: 0,
            head: None,
            body: Body::new(BodyLength::None),
            content: Vec::new(),
            reusable: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, lease: &mut Lease) -> Poll<io::Result<()>> {
        // Both directions at once: a server that answers early may wait for us to read.
        while self.sent < self.request.len() {
            let rest = self.request.get(self.sent..).unwrap_or_default();
            match lease.link.poll_write(cx, rest, true) {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) if count > 0 => self.sent += count,
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        if let Poll::Ready(Err(error)) = lease.link.poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        loop {
            if self.advance()? {
                return Poll::Ready(Ok(()));
            }
            match lease.link.poll_read(cx, &mut self.received) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) if self.head.is_none() => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Poll::Ready(Ok(0)) => {
                    self.reusable = false;
                    return Poll::Ready(self.body.end_of_stream().map_err(|e| bad(e.to_string())));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Parses the bytes received; true at the end.
    fn advance(&mut self) -> io::Result<bool> {
        while self.head.is_none() {
            let limits = Limits::default();
            let parsed =
                tulle_http1::parse_response(self.received.as_slice(), &limits, self.method);
            let Parsed::Complete(head) = parsed.map_err(|e| bad(e.to_string()))? else {
                return Ok(false);
            };
            let bytes = self.received.as_slice().get(..head.len).unwrap_or_default();
            let bytes = bytes.to_vec();
            self.received.consume(head.len);
            if head.upgrade {
                return Err(bad("it wants to switch protocols"));
            }
            if head.status < 200 {
                self.interim += 1;
                if self.interim > MAX_INTERIM {
                    return Err(bad("too many interim responses"));
                }
                continue;
            }
            self.body = Body::new(head.body);
            self.reusable = head.keep_alive && head.body != BodyLength::UntilClose;
            self.head = Some((head, bytes));
        }
        let count = self.body.advance(self.received.as_slice());
        let count = count.map_err(|e| bad(e.to_string()))?;
        let bytes = self.received.as_slice().get(..count).unwrap_or_default();
        if self.content.len() + bytes.len() > MAX_BODY {
            return Err(bad(format!("its answer is larger than {MAX_BODY} bytes")));
        }
        self.content.extend_from_slice(bytes);
        self.received.consume(count);
        let done = self.body.is_done();
        if done {
            self.reusable &= self.sent == self.request.len() && self.received.is_empty();
        }
        Ok(done)
    }

    fn answered(self) -> Result<Answered, Failure> {
        let Some((head, bytes)) = self.head else {
            return Err(Failure::new(Reason::BadResponse, "no response"));
        };
        let (body, trailers) = match head.body {
            BodyLength::Chunked => unchunk(&self.content),
            _ => (self.content, Vec::new()),
        };
        Ok(Answered {
            status: head.status,
            head: bytes,
            body,
            trailers,
        })
    }
}
