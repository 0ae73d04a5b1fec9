//! The life of an HTTP/1.1 connection: read a head, decide, lease an upstream, relay, count.
//!
//! The order of the functions is the order of a request's phases. Of these `again`, `begin`, `departure`,
//! `filters`, `refuse` and `tunnel` have files of their own. The bytes of a message are forwarded
//! unchanged except for the edits of its head (`tulle-http1`).

mod again;
mod begin;
mod departure;
mod filters;
mod http2;
mod outgoing;
mod refuse;
mod trace;
mod tunnel;

use crate::config::traffic::retry::Cause;
use crate::context::RequestFacts;
use crate::decision::ConnectionContext;
use crate::decision::request::{Decision, Target};
use crate::http::relay::{End, Relay};
use crate::telemetry::access_log;
use crate::telemetry::metrics::Reporter;
use crate::telemetry::reason::{Failure, Reason};
use crate::telemetry::span::Span;
use crate::upstream::link::Link;
use crate::upstream::{Lease, Upstream};
use crate::worker::{Worker, WorkerConfig};
use again::{REPLAYS, Tries};
use departure::departure;
use http2::CameAs;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tulle_http1::{Method, RequestHead};
use tulle_net::{Buf, Deadline};

/// Serves a connection (or one stream) until it ends. `received` are bytes already read from it.
pub fn serve<'a>(
    worker: &'a Rc<Worker>,
    down: Link,
    received: Buf,
    scope: &'a ConnectionContext,
) -> impl Future<Output = ()> + 'a {
    // Made outside of the async block, which would store the arguments beside it.
    let mut conversation = Conversation {
        worker,
        scope,
        single: down.is_one_exchange(),
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
    scope: &'a ConnectionContext,
    down: Link,
    /// Bytes from downstream that belong to no message yet.
    received: Buf,
    deadline: Deadline,
    /// Whether this is a multiplexed stream, which has only one exchange.
    single: bool,
    /// Whether at least one exchange is complete.
    served: bool,
    /// Set only for a request that asks for an upgrade or a tunnel.
    judged: Option<Box<Judged>>,
}

/// Input of the policy: the head, as it came and as it was forwarded.
struct Judged {
    head: RequestHead,
    bytes: Vec<u8>,
    forwarded: Vec<u8>,
}

/// The next state of the downstream connection.
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

/// Facts about a request that are needed after its bytes have moved on.
struct RequestInfo {
    started: Instant,
    method: Method,
    minor: u8,
    keep_alive: bool,
    has_body: bool,
    came_as: CameAs,
    /// Set only when the access log is on.
    line: Option<Box<access_log::RequestLine>>,
    /// Set only for a request that is recorded.
    span: Cell<Option<Box<Span>>>,
}

type Leased = Result<Lease, Failure>;
type Wait<'a> = Pin<Box<dyn Future<Output = Leased> + 'a>>;
/// End of a try, with its connection; a failure if no connection could be leased.
type Tried = Result<(Lease, End), Failure>;
/// Leads to the next step of a request, or to the next state of the connection.
type After<'a> = Pin<Box<dyn Future<Output = Option<Next>> + 'a>>;

/// A request that goes on.
struct Exchange {
    config: Rc<WorkerConfig>,
    asked: RequestInfo,
    decision: Decision,
    relay: Relay,
    tries: Tries,
}

/// A request that is refused.
struct RefusedRequest {
    config: Rc<WorkerConfig>,
    asked: RequestInfo,
    decision: Option<Decision>,
    failure: Failure,
    target: Vec<u8>,
}

/// Takes what plugins have for the access log.
fn note_tags(asked: &mut RequestInfo, relay: &Relay) {
    if let (Some(line), Some(edits)) = (&mut asked.line, &relay.edits) {
        line.fields.extend(edits.take_tags());
    }
}

impl Conversation<'_> {
    async fn run(&mut self) {
        loop {
            // An idle connection owns the state that the largest of these awaits keeps alive. So
            // rare branches are boxed, and the head ends before its request is relayed.
            let mut read = match self.read_head().await {
                Ok(head) => Ok(head.map(|head| self.begin(&head))),
                Err(bad) => Err(bad),
            };
            if let Err((_, failure)) = &read
                && self.speaks_http2(failure)
            {
                drop(read);
                return Box::pin(self.serve_http2()).await;
            }
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

    /// Takes the request through its filters, leases an upstream and relays both messages; sends
    /// the request again where that is safe.
    ///
    /// Rare branches are boxed, with all that they need: see `run`. For the same reason each step
    /// takes the connection whole: a value moved out of a `match` is stored twice.
    #[expect(clippy::manual_async_fn, reason = "smaller: see `Worker::handler`")]
    fn relay(&mut self, exchange: &mut Exchange) -> impl Future<Output = Next> {
        async move {
            if let Some(filtering) = self.filtering(exchange)
                && let Some(next) = filtering.await
            {
                return next;
            }
            loop {
                self.limit_try(exchange);
                let leased = match self.lease(exchange) {
                    Ok(leased) => leased,
                    Err(wait) => wait.await,
                };
                let tried = self.one_try(exchange, leased).await;
                match self.concluded(exchange, tried) {
                    Ok(next) => return next,
                    Err(after) => {
                        if let Some(next) = after.await {
                            return next;
                        }
                    }
                }
            }
        }
    }

    /// Relays both messages over a connection, if there is one.
    fn one_try(
        &mut self,
        exchange: &mut Exchange,
        mut leased: Leased,
    ) -> impl Future<Output = Tried> {
        if let Ok(lease) = &leased {
            self.apply_lease(exchange, lease);
        }
        exchange.relay.draining = self.scope.is_outdated(&exchange.config);
        poll_fn(move |cx| {
            let end = match &mut leased {
                Ok(lease) => ready!(self.poll_try(cx, exchange, lease)),
                Err(_) => End::Complete,
            };
            let nothing = Err(Failure::new(Reason::Ok, String::new()));
            let leased = std::mem::replace(&mut leased, nothing);
            Poll::Ready(leased.map(|lease| (lease, end)))
        })
    }

    fn poll_try(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        lease: &mut Lease,
    ) -> Poll<End> {
        loop {
            let relay = &mut exchange.relay;
            // The drain may begin while the response is awaited.
            relay.draining |= self.worker.is_draining();
            let end = ready!(relay.poll(
                cx,
                &mut self.down,
                &mut self.received,
                &mut lease.link,
                &self.deadline,
            ));
            if matches!(end, End::Withheld) && !self.may_try_again(exchange, Cause::Status) {
                exchange.relay.let_go();
                continue;
            }
            return Poll::Ready(end);
        }
    }

    /// Error: the try may not be the last.
    fn concluded<'a>(
        &'a mut self,
        exchange: &'a mut Exchange,
        tried: Tried,
    ) -> Result<Next, After<'a>> {
        match tried {
            Ok((lease, End::Complete)) => Ok(self.complete(exchange, lease)),
            tried => Err(Box::pin(self.after(exchange, tried))),
        }
    }

    /// Notes the endpoint, applies the port's rules for exchanges, and decides whether the client
    /// is told the endpoint's name.
    fn apply_lease(&self, exchange: &mut Exchange, lease: &Lease) {
        let Exchange {
            config,
            asked,
            decision,
            relay,
            tries,
        } = exchange;
        if let Some(span) = asked.span.get_mut() {
            span.upstream = Some(lease.upstream().key.address);
            span.sent += 1;
        }
        if let Some(line) = &mut asked.line {
            line.upstream = Some(lease.upstream().key.address);
        }
        if let Target::Service(port) = &decision.target
            && let Some(series) = port.series_of(lease.upstream())
        {
            decision.series = series.http.clone();
        }
        relay.from_mesh = lease.is_mesh();
        // Other sidecars pass on what their application says of itself.
        relay.from_tulle = relay.from_mesh && matches!(lease.link, Link::Mux(_));
        relay.elsewhere = relay.from_tulle
            && tries.replays < REPLAYS
            && matches!(&decision.target, Target::Service(port) if port.endpoint_count() > 1);
        if let Target::Service(port) = &decision.target
            && port.shared().is_some() | decision.affinity.is_some()
        {
            relay.set_idle_timeout(port.idle_timeout_ms(config.snapshot.mesh.idle_timeout_ms));
            if let Some(affinity) = &decision.affinity {
                let secure = self.scope.entry().0 == "https";
                let hint = &decision.hint;
                let name = port.name_for_client(self.worker, affinity, hint, lease, secure);
                relay.add = name.map(Box::new);
            }
        }
    }

    /// Leases an upstream. The error says what has to be waited for first.
    fn lease<'a>(&'a mut self, exchange: &'a Exchange) -> Result<Leased, Wait<'a>> {
        let worker = self.worker;
        let (decision, tries) = (&exchange.decision, &exchange.tries);
        let kind = exchange.asked.came_as.kind;
        let known = |upstream: &Rc<Upstream>| {
            let first = tries.replays == 0;
            first.then(|| upstream.checkout(worker, kind)).flatten()
        };
        match &decision.target {
            Target::App(upstream) => match known(upstream) {
                Some(lease) => Ok(Ok(lease)),
                None => Err(Box::pin(async move {
                    let lease = upstream.connect(worker, kind).await;
                    lease.map_err(|f| of_application(&decision.series, f))
                })),
            },
            Target::Nobody => Ok(Err(Failure::new(
                Reason::NoBackend,
                "the rule of the route has no backend with a weight above 0, and no filter answers",
            ))),
            Target::Outside(upstream) => match known(upstream) {
                Some(lease) => Ok(Ok(lease)),
                None => Err(Box::pin(upstream.connect(worker, kind))),
            },
            Target::Service(port) => {
                let (hint, wait_ms) = (&decision.hint, decision.timeout_ms);
                if let Some(failed) = &tries.failed {
                    let avoid = Some(failed.key.address);
                    let gone = departure(&mut self.down, &mut self.received);
                    let lease = port.lease(worker, kind, hint, avoid, wait_ms, gone);
                    return Err(Box::pin(lease));
                }
                match port.at_once(worker, kind, hint) {
                    Ok(Ok(lease)) => Ok(Ok(lease)),
                    Ok(Err(begun)) => {
                        let gone = departure(&mut self.down, &mut self.received);
                        let lease = port.later(worker, kind, hint, wait_ms, begun, gone);
                        Err(Box::pin(lease))
                    }
                    Err(failure) => Ok(Err(failure)),
                }
            }
        }
    }

    /// Ends an exchange whose messages are both complete.
    fn complete(&mut self, exchange: &mut Exchange, mut lease: Lease) -> Next {
        let Exchange {
            asked,
            decision,
            relay,
            ..
        } = exchange;
        if let Target::Service(port) = &decision.target {
            let answer = relay.response_status(relay.status, Reason::Ok);
            port.ended(&mut lease, answer.as_http(), asked.started);
        }
        note_tags(asked, relay);
        let failure = Failure::new(Reason::Ok, String::new());
        let now = self.count(asked, decision, relay.status, &failure, relay);
        if relay.switched() {
            let rest = std::mem::take(&mut relay.from_up);
            return Next::Tunnel(Box::new((lease, rest)));
        }
        if relay.upstream_reusable() {
            lease.put_back(now);
        }
        if relay.close
            || !asked.keep_alive
            || !relay.request_done()
            || relay.spoke_early(&mut self.down, &mut self.received)
        {
            return Next::Close;
        }
        Next::Continue
    }

    fn count(
        &self,
        asked: &RequestInfo,
        decision: &Decision,
        status: u16,
        failure: &Failure,
        relay: &Relay,
    ) -> Instant {
        let now = Instant::now();
        let answer = relay.response_status(status, failure.reason);
        decision.series.request(
            answer,
            failure.reason,
            (asked.started, now),
            (relay.body_received, relay.body_sent),
        );
        let labels = &decision.series.labels;
        // The caller's side tells of an answer of the application; both would tell the same.
        if failure.reason != Reason::Ok
            || (answer.as_http() >= 500 && labels.reporter == Reporter::Source)
        {
            let source = labels.source.as_ref().map(|id| id.as_str());
            let (method, target) = request_line(&relay.request);
            let facts = RequestFacts {
                method,
                target,
                upstream: decision.address(),
                grpc: answer.grpc,
            };
            let service = &labels.destination_service;
            self.worker
                .request_failed(source, service, &facts, status, failure);
        }
        self.end_span(asked, &decision.series.labels, answer, failure, now);
        if let Some(line) = &asked.line {
            let ended = access_log::ExchangeEnd {
                answer,
                reason: failure.reason,
                started: asked.started,
                first_byte: relay.first_byte(),
                now,
                received: relay.body_received,
                sent: relay.body_sent,
                upstream: line.upstream.or_else(|| decision.address()),
                upstream_time: relay.upstream_time(),
            };
            let lines = self.worker.log_rules();
            let labels = &decision.series.labels;
            self.worker
                .log
                .request(line, &ended, labels, lines.as_deref());
        }
        now
    }
}

/// Returns the target of the request in a buffer, for the operator.
fn request_target(request: &Buf) -> Vec<u8> {
    request_line(request).1.to_vec()
}

/// Returns method and target of the request in a buffer, for the operator.
fn request_line(request: &Buf) -> (&[u8], &[u8]) {
    let mut lines = request.as_slice().split(|&b| b == b'\r');
    let mut words = lines.next().unwrap_or_default().split(|&b| b == b' ');
    let mut word = || words.next().unwrap_or_default();
    (word(), word())
}

/// Replaces the address in a failure by the service's name: an address on loopback tells an
/// operator of the mesh nothing.
fn of_application(series: &crate::telemetry::metrics::RequestSeries, failure: Failure) -> Failure {
    let service = &series.labels.destination_service;
    let detail = format!(
        "the application of {service} cannot be reached: {}",
        failure.detail
    );
    Failure::new(failure.reason, detail)
}
