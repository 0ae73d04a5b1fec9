//! The life of an HTTP/1.1 connection: read a head, decide, lease an upstream, relay, count.
//!
//! The order of the functions is the order of a request's phases. The bytes of a message are
//! forwarded unchanged but for the edits of its head (`tulle-http1`).

use crate::link::Link;
use crate::reason::{Failure, Reason};
use crate::relay::{End, Relay, Side};
use crate::reply;
use crate::scope::{Asks, Decision, Scope, Target};
use crate::upstream::Lease;
use crate::worker::{self, Config, Worker};
use crate::{access_log, forward_tcp};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tulle_http1::{Body, BodyLength, Limits, Method, Parsed, RequestEdit, RequestHead};
use tulle_net::{Buf, Deadline};
use tulle_transport::StreamKind;

/// Endpoints tried when a connection cannot be made.
const CONNECT_TRIES: usize = 3;
/// Times a request is sent again after a reused connection died before any byte of a response.
const REPLAYS: u32 = 2;

/// Serves a connection (or one stream) until it ends. `received` are bytes already read from it.
pub fn serve<'a>(
    worker: &'a Rc<Worker>,
    down: Link,
    received: Buf,
    scope: &'a Scope,
) -> impl Future<Output = ()> + 'a {
    // Outside of the block, which would keep the arguments beside what is made of them.
    let mut conversation = Conversation {
        worker,
        scope,
        single: matches!(down, Link::Mux(_)),
        down,
        received,
        deadline: worker.deadlines.register(),
        served: false,
        judged: None,
    };
    async move { conversation.run().await }
}

struct Conversation<'a> {
    worker: &'a Rc<Worker>,
    scope: &'a Scope,
    down: Link,
    /// Bytes from downstream that belong to no message yet.
    received: Buf,
    deadline: Deadline,
    /// A multiplexed stream: one exchange and no more.
    single: bool,
    /// At least one exchange is through.
    served: bool,
    /// Only of a request that asks for an upgrade.
    judged: Option<Box<Judged>>,
}

/// What the policy is asked about: the head, as it came and as it was forwarded.
struct Judged {
    head: RequestHead,
    bytes: Vec<u8>,
    forwarded: Vec<u8>,
}

/// What becomes of the downstream connection.
enum Next {
    /// Another request may come.
    Continue,
    /// Nothing more will be sent; the client is given time to read.
    Close,
    /// The response was cut: the client must not take it for complete.
    Abort,
    /// The protocol was switched: bytes flow both ways.
    Tunnel(Box<(Lease, Buf)>),
}

/// What is needed of a request after its bytes have moved on.
struct Asked {
    started: Instant,
    method: Method,
    minor: u8,
    keep_alive: bool,
    body: BodyLength,
    /// Only when the access log is on.
    line: Option<Box<reply::RequestLine>>,
}

/// A request that goes on.
struct Exchange {
    config: Rc<Config>,
    asked: Asked,
    decision: Decision,
    relay: Relay,
}

/// A request that does not.
struct Refused {
    config: Rc<Config>,
    asked: Asked,
    decision: Option<Decision>,
    failure: Failure,
    target: Vec<u8>,
}

impl Conversation<'_> {
    async fn run(&mut self) {
        loop {
            // An idle connection owns what the largest of these awaits keeps alive. So what is
            // rare is boxed, and the head ends before its request is relayed.
            let mut read = {
                let config = self.worker.config();
                match self.read_head(&config).await {
                    Ok(head) => Ok(head.map(|head| self.begin(&head))),
                    Err(bad) => Err(bad),
                }
            };
            let next = match &mut read {
                Ok(Some(Ok(exchange))) => self.relay(exchange).await,
                Ok(Some(Err(refused))) => Box::pin(self.refuse_begun(refused)).await,
                Ok(None) => Next::Close,
                Err((status, failure)) => Box::pin(self.refuse_unread(*status, failure)).await,
            };
            drop(read);
            match next {
                Next::Continue if self.single => return self.finish().await,
                Next::Continue => {
                    self.served = true;
                    self.judged = None;
                }
                Next::Close => return self.finish().await,
                Next::Abort => return self.down.abort(),
                Next::Tunnel(parts) => return Box::pin(self.tunnel(*parts)).await,
            }
        }
    }

    /// Reads until a whole head has come. `None`: the client has gone, or been idle too long,
    /// between requests.
    async fn read_head(&mut self, config: &Config) -> Result<Option<RequestHead>, (u16, Failure)> {
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
        poll_fn(|cx| {
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
                    if self.served {
                        return Poll::Ready(Ok(None));
                    }
                    // Who has just connected may have sent its request already.
                    if !std::mem::replace(&mut last_chance, true) {
                        self.deadline.arm(worker::FIRST_WORDS);
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
        .await
    }

    /// Decides about a request and writes it for the next hop.
    fn begin(&mut self, head: &RequestHead) -> Result<Exchange, Box<Refused>> {
        let worker = self.worker;
        // The connection may have waited for this request through many changes.
        let config = worker.config();
        let bytes = self.received.as_slice().get(..head.len).unwrap_or_default();
        let started = Instant::now();
        let asked = Asked {
            started,
            method: head.method,
            minor: head.minor,
            keep_alive: head.keep_alive,
            body: head.body,
            line: config
                .snapshot
                .mesh
                .access_log
                .then(|| reply::RequestLine::of(head, bytes)),
        };
        // Written before it is judged: policy and routes see the fields that are forwarded.
        let mut request = Buf::new();
        self.write_head(head, &mut request);
        let asks = Asks {
            head,
            bytes,
            forwarded: request.as_slice(),
        };
        let decision = match self.scope.decide(worker, &config, &asks) {
            Ok(decision) => decision,
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
        self.judged = head.upgrade.then(|| {
            Box::new(Judged {
                head: head.clone(),
                bytes: bytes.to_vec(),
                forwarded: request.as_slice().to_vec(),
            })
        });
        let mut body = Body::new(head.body);
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
        })
    }

    /// The head as it goes upstream.
    fn write_head(&self, head: &RequestHead, request: &mut Buf) {
        let bytes = self.received.as_slice().get(..head.len).unwrap_or_default();
        let mut id = [0; 36];
        let mut add: [(&str, &[u8]); 3] = [("", b""); 3];
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
        let edit = RequestEdit {
            add: add.get(..count).unwrap_or_default(),
            keep_forwarded_client_cert: false,
        };
        // Of the body, too, as much as is at hand will be there.
        let added: usize = edit.add.iter().map(|(n, v)| n.len() + v.len()).sum();
        let room = self.received.len() + added + reply::EDIT_BYTES;
        head.write(bytes, &edit, request.storage_for(room));
    }

    /// Leases an upstream and relays both messages; sends the request again where that is safe.
    async fn relay(&mut self, exchange: &mut Exchange) -> Next {
        let Exchange {
            config,
            asked,
            decision,
            relay,
        } = exchange;
        let mut replays = 0;
        loop {
            let mut lease = match self.lease(decision, replays > 0).await {
                Ok(lease) => lease,
                Err(failure) => {
                    let target = request_target(&relay.request);
                    let refusal = self.refuse(config, asked, Some(decision), &failure, &target);
                    return Box::pin(refusal).await;
                }
            };
            relay.timeout = Duration::from_millis(decision.timeout_ms.into());
            let outdated = self.scope.is_outdated(config);
            let end = poll_fn(|cx| {
                // The drain may begin while the response is awaited.
                relay.draining = outdated || self.worker.is_draining();
                relay.poll(
                    cx,
                    &mut self.down,
                    &mut self.received,
                    &mut lease.link,
                    &self.deadline,
                )
            })
            .await;
            let (side, reason, detail) = match end {
                End::Complete => return self.complete(asked, decision, relay, lease),
                End::Failed(side, reason, detail) => (side, reason, detail),
            };
            let refused = reason == Reason::Overload;
            if side == Side::Up
                && (lease.reused || refused)
                && replays < REPLAYS
                && relay.can_replay(asked.method, refused)
            {
                replays += 1;
                self.worker.metrics.internal(|i| i.replays += 1);
                relay.rewind();
                continue;
            }
            let address = lease.upstream().key.address;
            lease.link.abort();
            drop(lease);
            let failure = Failure::new(reason, format!("{detail} ({address})"));
            if relay.response_started() {
                let status = if relay.status == 0 {
                    reason.status()
                } else {
                    relay.status
                };
                self.count(asked, decision, status, &failure, relay);
                return Next::Abort;
            }
            if side == Side::Down && reason == Reason::ClientClosed {
                self.count(asked, decision, 499, &failure, relay);
                return Next::Abort;
            }
            let target = request_target(&relay.request);
            let refusal = self.refuse(config, asked, Some(decision), &failure, &target);
            let next = Box::pin(refusal).await;
            // What is left of the request's body cannot be told from the next request.
            return if relay.request_done() {
                next
            } else {
                Next::Close
            };
        }
    }

    async fn lease(&self, decision: &Decision, fresh: bool) -> Result<Lease, Failure> {
        let worker = self.worker;
        match &decision.target {
            Target::App(upstream) => {
                let known = (!fresh)
                    .then(|| upstream.checkout(worker, StreamKind::Http))
                    .flatten();
                match known {
                    Some(lease) => Ok(lease),
                    None => Box::pin(upstream.connect(worker, StreamKind::Http))
                        .await
                        .map_err(|f| of_application(&decision.series, f)),
                }
            }
            Target::Service(port) => {
                let mut tries = port.endpoint_count().min(CONNECT_TRIES);
                loop {
                    let upstream = port.pick(worker)?;
                    if let Some(lease) = upstream.checkout(worker, StreamKind::Http) {
                        return Ok(lease);
                    }
                    match Box::pin(upstream.connect(worker, StreamKind::Http)).await {
                        Ok(lease) => return Ok(lease),
                        // Nothing was sent, so another endpoint may be asked.
                        Err(failure) if tries <= 1 => return Err(failure),
                        Err(_) => tries -= 1,
                    }
                }
            }
        }
    }

    /// Both messages are through.
    fn complete(
        &mut self,
        asked: &Asked,
        decision: &Decision,
        relay: &mut Relay,
        lease: Lease,
    ) -> Next {
        let failure = Failure::new(Reason::Ok, String::new());
        let now = self.count(asked, decision, relay.status, &failure, relay);
        if relay.switched() {
            let rest = std::mem::take(&mut relay.from_up);
            return Next::Tunnel(Box::new((lease, rest)));
        }
        if relay.upstream_reusable() {
            lease.put_back(now);
        }
        if relay.close || !asked.keep_alive || !relay.request_done() {
            return Next::Close;
        }
        Next::Continue
    }

    fn count(
        &self,
        asked: &Asked,
        decision: &Decision,
        status: u16,
        failure: &Failure,
        relay: &Relay,
    ) -> Instant {
        let now = Instant::now();
        decision
            .series
            .request(status, failure.reason, asked.started, now);
        if failure.reason != Reason::Ok {
            let source = decision.series.labels.source.as_ref().map(|id| id.as_str());
            let service = &decision.series.labels.destination_service;
            self.worker.failed(
                source,
                service,
                &request_target(&relay.request),
                status,
                failure,
            );
        }
        if let Some(line) = &asked.line {
            let ended = reply::Ended {
                status,
                reason: failure.reason,
                started: asked.started,
                first_byte: relay.first_byte,
                now,
                received: relay.body_received,
                sent: relay.body_sent,
                upstream: decision.address(),
            };
            access_log::request(&self.worker.log, line, &ended, &decision.series.labels);
        }
        now
    }

    async fn refuse_begun(&mut self, refused: &Refused) -> Next {
        let decision = refused.decision.as_ref();
        let (config, asked) = (&refused.config, &refused.asked);
        self.refuse(config, asked, decision, &refused.failure, &refused.target)
            .await
    }

    /// Answers in place of the upstream.
    async fn refuse(
        &mut self,
        config: &Config,
        asked: &Asked,
        decision: Option<&Decision>,
        failure: &Failure,
        target: &[u8],
    ) -> Next {
        let status = failure.reason.status();
        let series = match decision {
            Some(decision) => decision.series.clone(),
            None => self.scope.series(self.worker, config),
        };
        let now = Instant::now();
        series.request(status, failure.reason, asked.started, now);
        let labels = &series.labels;
        let source = labels.source.as_ref().map(|id| id.as_str());
        self.worker
            .failed(source, &labels.destination_service, target, status, failure);
        if let Some(line) = &asked.line {
            let ended = reply::Ended {
                status,
                reason: failure.reason,
                started: asked.started,
                first_byte: Some(now),
                now,
                received: 0,
                sent: 0,
                upstream: None,
            };
            access_log::request(&self.worker.log, line, &ended, labels);
        }
        // A body that has not been read would be taken for the next request.
        let body_left = !Body::new(asked.body).is_done();
        let close = body_left || !asked.keep_alive || asked.minor == 0 || self.worker.is_draining();
        let mut out = Buf::new();
        reply::write(
            status,
            failure,
            close && !self.single,
            asked.method,
            out.storage(),
        );
        match self.send(out).await {
            Ok(()) if close => Next::Close,
            Ok(()) => Next::Continue,
            Err(_) => Next::Abort,
        }
    }

    /// Answers something that is not even a request.
    async fn refuse_unread(&mut self, status: u16, failure: &Failure) -> Next {
        let series = self.scope.series(self.worker, &self.worker.config());
        reply::refused_unread(self.worker, &series, status, failure);
        if failure.reason != Reason::ClientClosed {
            let mut out = Buf::new();
            reply::write(status, failure, !self.single, Method::Get, out.storage());
            // The client may be gone; there is nobody else to tell.
            let _ = self.send(out).await;
        }
        Next::Close
    }

    async fn send(&mut self, mut out: Buf) -> std::io::Result<()> {
        self.deadline.arm(Duration::from_secs(5));
        poll_fn(|cx| {
            loop {
                if self.deadline.poll_expired(cx) {
                    return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
                }
                if out.is_empty() {
                    return self.down.poll_flush(cx);
                }
                match self.down.poll_write(cx, out.as_slice(), self.single) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(count)) => out.consume(count),
                }
            }
        })
        .await
    }

    /// Ends the connection so that the client can read the last response: half-close, then read
    /// and drop what still comes, within bounds, because closing with unread bytes would reset
    /// the connection and could destroy the response on its way.
    async fn finish(&mut self) {
        const LIMIT: usize = 256 * 1024;
        self.received.release();
        self.deadline.arm(Duration::from_secs(2));
        let mut dropped = 0;
        let mut shut = false;
        poll_fn(|cx| {
            if !shut {
                match self.down.poll_shutdown(cx) {
                    Poll::Pending => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(())) => shut = true,
                }
            }
            if self.single {
                return Poll::Ready(());
            }
            loop {
                if self.deadline.poll_expired(cx) || dropped > LIMIT {
                    return Poll::Ready(());
                }
                match self.down.poll_read(cx, &mut self.received) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(count)) if count > 0 => {
                        dropped += count;
                        self.received.release();
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                }
            }
        })
        .await;
    }

    /// Bytes both ways after an upgrade. The upgrade itself was counted as a request. It may last
    /// for days, so the policy is asked about it again when the configuration has changed.
    async fn tunnel(&mut self, (mut lease, from_up): (Lease, Buf)) {
        let (worker, scope) = (self.worker, self.scope);
        let judged = self.judged.take();
        let allowed = || match (scope, &judged) {
            (Scope::Inbound(_), Some(judged)) => {
                let asks = Asks {
                    head: &judged.head,
                    bytes: &judged.bytes,
                    forwarded: &judged.forwarded,
                };
                scope.decide(worker, &worker.config(), &asks).map(drop)
            }
            _ => Ok(()),
        };
        let from_down = std::mem::take(&mut self.received);
        let idle = worker.config().snapshot.mesh.idle_timeout_ms;
        let mut pipe = forward_tcp::Pipe::new(from_down, from_up, idle);
        let ended = loop {
            let changed = worker.changed();
            if let Err(failure) = allowed() {
                let series = scope.series(worker, &worker.config());
                let source = series.labels.source.as_ref().map(|id| id.as_str());
                let target = judged
                    .as_ref()
                    .map_or(&b""[..], |j| j.head.target.of(&j.bytes));
                let service = &series.labels.destination_service;
                worker.failed(source, service, target, 0, &failure);
                break false;
            }
            let run = pipe.run(&mut self.down, &mut lease.link, &self.deadline, |_, _| {});
            tokio::select! {
                biased;
                result = run => break result.is_ok(),
                () = changed => {}
            }
        };
        if !ended {
            self.down.abort();
            lease.link.abort();
        }
    }
}

/// Limits of a head as configured.
pub fn head_limits(mesh: &tulle_model::resource::MeshSettings) -> Limits {
    Limits {
        head_bytes: usize::try_from(mesh.max_header_bytes).unwrap_or(usize::MAX),
        headers: usize::try_from(mesh.max_headers).unwrap_or(usize::MAX),
    }
}

/// The target of the request that stands in a buffer, for the operator.
fn request_target(request: &Buf) -> Vec<u8> {
    let line = request
        .as_slice()
        .split(|&b| b == b'\r')
        .next()
        .unwrap_or_default();
    line.split(|&b| b == b' ')
        .nth(1)
        .unwrap_or_default()
        .to_vec()
}

/// An address on loopback tells the operator of a mesh nothing; whose it is does.
fn of_application(series: &crate::metrics::Series, failure: Failure) -> Failure {
    let service = &series.labels.destination_service;
    let detail = format!(
        "the application of {service} cannot be reached: {}",
        failure.detail
    );
    Failure::new(failure.reason, detail)
}
