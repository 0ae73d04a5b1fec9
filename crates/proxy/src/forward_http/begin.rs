//! The beginning of an exchange: a request's head is read, judged, and written for the next hop.

use super::again::Tries;
use super::http2::CameAs;
use super::{Asked, Conversation, Exchange, Judged, Refused, head_limits, request_target};
use crate::memory_limit;
use crate::reason::{Failure, Reason};
use crate::relay::Relay;
use crate::reply;
use crate::scope::Asks;
use crate::trace_context::{self, Fields, Onward};
use crate::worker;
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};
use tulle_http1::{Body, Method, Parsed, RequestEdit, RequestHead};
use tulle_net::Buf;

/// A head, if one came; else the status that says why not.
type Read = Result<Option<RequestHead>, (u16, Failure)>;

impl Conversation<'_> {
    /// Reads until a whole head has come. `None`: the client has gone, or been idle too long,
    /// between requests.
    pub(super) fn read_head(&mut self) -> impl Future<Output = Read> {
        let config = self.worker.config();
        let mesh = &config.snapshot.mesh;
        let limits = head_limits(mesh);
        let idle = Duration::from_millis(mesh.idle_timeout_ms.into());
        let header = Duration::from_millis(mesh.header_timeout_ms.into());
        let begun = !self.received.is_empty();
        // A multiplexed stream is opened for a request that is there already.
        self.deadline
            .arm(if begun || self.single { header } else { idle });
        let mut unparsed = begun;
        let mut last_chance = false;
        poll_fn(move |cx| {
            loop {
                if unparsed {
                    match tulle_http1::parse_request(self.received.as_slice(), &limits) {
                        Ok(Parsed::Complete(head)) => return Poll::Ready(Ok(Some(head))),
                        Ok(Parsed::Partial) => unparsed = false,
                        Err(bad) => {
                            let text = format!("{}: {bad}", bad.reason());
                            let failure = Failure::new(Reason::BadRequest, text);
                            return Poll::Ready(Err((bad.status(), failure)));
                        }
                    }
                }
                let empty = self.received.is_empty();
                if empty && self.worker.is_draining() {
                    if self.served && !self.scope.is_gateway() {
                        return Poll::Ready(Ok(None));
                    }
                    // Who has just connected may have sent its request already; and who is far away
                    // the next one, before it hears that this connection ends.
                    if !std::mem::replace(&mut last_chance, true) {
                        self.deadline.arm(worker::LAST_CHANCE);
                    }
                }
                if self.deadline.poll_expired(cx) {
                    if empty {
                        return Poll::Ready(Ok(None));
                    }
                    let text = format!("no complete request head within {header:?}");
                    let failure = Failure::new(Reason::HeaderTimeout, text);
                    return Poll::Ready(Err((408, failure)));
                }
                let before = self.received.len();
                match self.down.poll_read(cx, &mut self.received) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(0)) if empty => return Poll::Ready(Ok(None)),
                    Poll::Ready(Ok(count)) if count > 0 => {
                        if empty {
                            self.deadline.arm(header);
                        }
                        // Only a line's end can complete a head: a client that drips single
                        // bytes must not make us parse the same bytes again and again.
                        let new = self.received.as_slice().get(before..).unwrap_or_default();
                        unparsed = empty
                            || self.received.len() > limits.head_bytes
                            || memchr::memchr(b'\n', new).is_some();
                    }
                    Poll::Ready(_) if empty => return Poll::Ready(Ok(None)),
                    Poll::Ready(_) => {
                        let text = "the client ended the connection inside a request head";
                        let failure = Failure::new(Reason::ClientClosed, text);
                        return Poll::Ready(Err((400, failure)));
                    }
                }
            }
        })
    }

    /// Decides about a request and writes it for the next hop.
    pub(super) fn begin(&mut self, head: &RequestHead) -> Result<Exchange, Box<Refused>> {
        let worker = self.worker;
        // The connection may have waited for this request through many changes.
        let config = worker.config();
        let bytes = self.received.as_slice().get(..head.len).unwrap_or_default();
        let started = Instant::now();
        let mut asked = Asked {
            started,
            method: head.method,
            minor: head.minor,
            keep_alive: head.keep_alive,
            has_body: !Body::new(head.body).is_done(),
            came_as: match self.down.came_as_http2() {
                true => self.came_as_http2(bytes),
                false => CameAs::HTTP1,
            },
            line: worker
                .log
                .wanted(config.snapshot.mesh.access_log)
                .then(|| reply::RequestLine::of(head, bytes, self.scope.forwarded_for())),
            span: Cell::default(),
        };
        let onward = match &config.snapshot.mesh.tracing {
            Some(tracing) => self.trace(tracing, head, bytes, &mut asked),
            None => None,
        };
        // Written before it is judged: policy and routes see the fields that are forwarded.
        let mut request = Buf::new();
        let claims = self.scope.claim_headers(&config);
        self.write_head(head, onward, claims, &mut request);
        let asks = Asks {
            head,
            bytes,
            forwarded: request.as_slice(),
        };
        if let Some(line) = &mut asked.line {
            line.policy_audit = self.scope.audited(worker, &config, &asks);
        }
        let decided = match memory_limit::is_short() {
            false => self.scope.decide(worker, &config, &asks),
            true => {
                worker.end_stuck_clients();
                Err(memory_limit::refusal())
            }
        };
        let decision = match decided {
            Ok(mut decision) => {
                decision.aim(asks.forwarded, self.scope);
                decision
            }
            Err(failure) => {
                let target = head.target.of(bytes).to_vec();
                self.received.consume(head.len);
                return Err(Box::new(Refused {
                    config,
                    asked,
                    decision: None,
                    failure,
                    target,
                }));
            }
        };
        let switches = head.upgrade || head.method == Method::Connect;
        self.judged = switches.then(|| {
            Box::new(Judged {
                head: head.clone(),
                bytes: bytes.to_vec(),
                forwarded: request.as_slice().to_vec(),
            })
        });
        let mut body = Body::new(head.body);
        if !claims.is_empty() {
            body = body.without_trailers();
        }
        self.received.consume(head.len);
        let mut at_hand = 0;
        if !self.received.is_empty() && !body.is_done() {
            match body.advance(self.received.as_slice()) {
                Ok(count) => {
                    let bytes = self.received.as_slice().get(..count).unwrap_or_default();
                    request.extend_from_slice(bytes);
                    self.received.consume(count);
                    at_hand = count;
                }
                Err(bad) => {
                    let failure =
                        Failure::new(Reason::BadRequest, format!("{}: {bad}", bad.reason()));
                    return Err(Box::new(Refused {
                        target: request_target(&request),
                        config,
                        asked,
                        decision: Some(decision),
                        failure,
                    }));
                }
            }
        }
        let mesh = &config.snapshot.mesh;
        let relay = Relay::new(head, request, body, at_hand, mesh, self.single);
        Ok(Exchange {
            config,
            asked,
            decision,
            relay,
            tries: Tries::default(),
        })
    }

    /// The head as it goes upstream. Every request passes here, however it came in, and this is the
    /// one place where what proxies say of identities is removed and set: `x-forwarded-client-cert`
    /// and `x-tulle-…` always (`tulle_http1`), what tokens say where it is said (`claims`; the
    /// filter that checks tokens adds it anew).
    fn write_head(
        &self,
        head: &RequestHead,
        onward: Option<Onward>,
        claims: &[String],
        request: &mut Buf,
    ) {
        let bytes = self.received.as_slice().get(..head.len).unwrap_or_default();
        let mut id = [0; 36];
        let mut add: [(&str, &[u8]); 5 + trace_context::FIELDS] = Default::default();
        let mut count = 0;
        if head.request_id.is_empty() {
            reply::request_id(self.worker.random(), self.worker.random(), &mut id);
            add[count] = ("x-request-id", &id);
            count += 1;
        }
        if let Some(certificate) = self.scope.forwarded_client_cert() {
            add[count] = ("x-forwarded-client-cert", certificate);
            count += 1;
        }
        if let Some(client) = self.scope.forwarded_for() {
            add[count] = ("x-forwarded-for", client);
            count += 1;
        }
        let scheme = self.scope.forwarded_scheme();
        if let Some(scheme) = scheme {
            add[count] = ("x-forwarded-proto", scheme);
            count += 1;
            // HTTP/1.0 may come without.
            if !head.authority.is_empty() {
                add[count] = ("x-forwarded-host", head.authority.of(bytes));
                count += 1;
            }
        }
        let fields = onward.map(|onward| onward.fields());
        for field in fields.iter().flat_map(Fields::iter) {
            add[count] = field;
            count += 1;
        }
        let edit = RequestEdit {
            add: add.get(..count).unwrap_or_default(),
            drop_forwarded_origin: scheme.is_some(),
            drop: onward.map_or(&[], |onward| onward.replaces()),
            forged: claims,
            ..Default::default()
        };
        // Of the body, too, as much as is at hand will be there.
        let added: usize = edit.add.iter().map(|(n, v)| n.len() + v.len()).sum();
        let room = self.received.len() + added + reply::EDIT_BYTES;
        head.write(bytes, &edit, request.storage_for(room));
    }
}
