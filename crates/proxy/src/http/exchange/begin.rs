//! The beginning of an exchange: a request's head is read, judged, and written for the next hop.

use super::again::Tries;
use super::http2::CameAs;
use super::outgoing::Outgoing;
use super::{Conversation, Exchange, Judged, RefusedRequest, RequestInfo, request_target};
use crate::config::head_limits;
use crate::context;
use crate::context::memory_limit;
use crate::decision::between::Between;
use crate::decision::request::RequestView;
use crate::http::relay::Relay;
use crate::http::reply;
use crate::telemetry::access_log;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::worker::WorkerConfig;
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};
use tulle_http1::{Body, Method, Parsed, RequestHead};
use tulle_net::{Buf, moderation};

/// A head, if one came; otherwise the status and failure to answer with.
type Read = Result<Option<RequestHead>, (u16, Failure)>;

impl Conversation<'_> {
    /// Reads until a whole head has come. `None`: the client has gone, or been idle too long,
    /// between requests.
    pub(super) fn read_head(&mut self) -> impl Future<Output = Read> {
        let config = self.worker.config();
        let mesh = &config.snapshot.mesh;
        let limits = head_limits::of_mesh(mesh, self.scope.peer_not_after().is_some());
        let idle = Duration::from_millis(mesh.idle_timeout_ms.into());
        let header = Duration::from_millis(mesh.header_timeout_ms.into());
        let begun = !self.received.is_empty();
        // A multiplexed stream is opened only when its request is there.
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
                // A client may send its next request before it learns that this connection ends. The answer to
                // that request tells the client.
                if empty && self.worker.is_draining() && !std::mem::replace(&mut last_chance, true)
                {
                    self.deadline.arm(context::LAST_CHANCE);
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
                        unparsed =
                            head_limits::may_complete(self.received.as_slice(), before, &limits);
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
    pub(super) fn begin(&mut self, head: &RequestHead) -> Result<Exchange, Box<RefusedRequest>> {
        let worker = self.worker;
        if !matches!(self.down, Link::Mux(_)) {
            moderation::requested();
        }
        // The configuration may have changed often while the connection waited for this request.
        let config = worker.config();
        let bytes = self.received.as_slice().get(..head.len).unwrap_or_default();
        let started = Instant::now();
        let mut id = [0; 36];
        if head.request_id.is_empty() {
            reply::request_id(worker.random(), worker.random(), &mut id);
        }
        let mut asked = RequestInfo {
            started,
            method: head.method,
            minor: head.minor,
            keep_alive: head.keep_alive,
            has_body: !Body::new(head.body).is_done(),
            came_as: match self.down.came_as_http2() {
                true => self.came_as_http2(bytes),
                false => CameAs::HTTP1,
            },
            line: self.line(&config, head, bytes, &id),
            span: Cell::default(),
        };
        let onward = match &config.snapshot.mesh.tracing {
            Some(tracing) => self.trace(tracing, head, bytes, &mut asked),
            None => None,
        };
        // The head is written before it is judged: policy and routes see the fields that are
        // forwarded.
        let outgoing = Outgoing {
            request_id: &id,
            client_cert: self.scope.forwarded_client_cert(),
            forwarded_for: self.scope.forwarded_for(),
            scheme: self.scope.forwarded_scheme(),
            onward,
            claims: self.scope.claim_headers(&config),
        };
        let mut request = Buf::new();
        outgoing.write(head, bytes, |added| {
            // The buffer has room for the part of the body that is at hand, too.
            request.storage_for(self.received.len() + added + reply::EDIT_BYTES)
        });
        let parties = Between::new(self.scope, &config);
        let view = RequestView {
            head,
            bytes,
            forwarded: request.as_slice(),
            parties: &parties,
        };
        if let Some(line) = &mut asked.line {
            line.policy_audit = self.scope.audited(worker, &config, &view);
            if let Some(lines) = &config.snapshot.access_log {
                line.fields = lines.fields(&view.values());
            }
        }
        let decided = match memory_limit::is_short() {
            false => self.scope.decide(worker, &config, &view),
            true => {
                worker.end_stuck_clients();
                Err(memory_limit::refusal())
            }
        };
        let decision = match decided {
            Ok(mut decision) => {
                decision.aim(view.forwarded, || self.scope.source());
                decision
            }
            Err(failure) => {
                let target = head.target.slice(bytes).to_vec();
                self.received.consume(head.len);
                return Err(Box::new(RefusedRequest {
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
        let mut body = outgoing.body(head);
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
                    return Err(Box::new(RefusedRequest {
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
        let mut relay = Relay::new(head, request, body, at_hand, mesh, self.single);
        relay.is_call = asked.came_as.grpc;
        relay.times = asked.line.is_some().then(Box::default);
        Ok(Exchange {
            config,
            asked,
            decision,
            relay,
            tries: Tries::default(),
        })
    }

    /// Notes what the access log has of a request, if it has it or somebody watches. `id` is the request's where it came
    /// without one.
    fn line(
        &self,
        config: &WorkerConfig,
        head: &RequestHead,
        bytes: &[u8],
        id: &[u8],
    ) -> Option<Box<access_log::RequestLine>> {
        let id = match head.request_id.slice(bytes) {
            [] => id,
            own => own,
        };
        let lines = config.snapshot.access_log.as_ref();
        let sampled = lines.is_some_and(|lines| lines.samples(id));
        self.worker.log.wanted(sampled).then(|| {
            let client = self.scope.forwarded_for();
            let http2 = self.down.came_as_http2();
            let mut line = access_log::RequestLine::new(head, bytes, client, http2);
            line.request_id = String::from_utf8_lossy(id).into_owned();
            line.server_name = self.scope.server_name().unwrap_or_default().to_owned();
            line.sampled = sampled;
            line
        })
    }
}
