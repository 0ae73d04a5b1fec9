//! Opaque TCP: bytes both ways, each direction closed by itself.

use crate::balance::{self, EndpointHint, Port};
use crate::codec::detect::{Detected, FirstLineReader};
use crate::context::memory_limit;
use crate::telemetry::access_log::{ConnectionLine, ExchangeEnd};
use crate::telemetry::metrics::RequestSeries;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::upstream::{Lease, Upstream};
use crate::worker::Worker;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};
use tulle_net::{Buf, Deadline, clock, splice};
use tulle_transport::StreamKind;

/// A read of this size or more is a full one.
const FULL_READ: usize = 16 * 1024;
/// Full reads in a row that show a bulk stream. Between two plain connections it is then spliced.
/// Small messages cost more that way, and quiet connections need no pipes.
const BULK: u8 = 4;
/// Most bytes that one direction may splice per turn, so that other connections have theirs.
const TURN_BYTES: usize = 1024 * 1024;

/// A connection that is taken for opaque bytes.
#[derive(Default)]
pub struct Opaque {
    /// Bytes received so far.
    pub received: Buf,
    /// Reads on until it is certain that no request begins; `None`: it is certain, or does not
    /// matter.
    pub watch: Option<FirstLineReader>,
    /// The first bytes are still to come and may be those of a peer's handshake, delayed by a lost
    /// packet. The application must not get them.
    pub tls_may_begin: bool,
    /// The client that the access log names.
    pub client: Option<IpAddr>,
    /// The server name in the client's TLS, for the access log.
    pub server_name: Option<Box<str>>,
    /// When the client's certificate expires; the connection ends then.
    pub until: Option<SystemTime>,
}

/// Carries a connection to one of a service's endpoints, as long as it stays `allowed`. Gives it
/// back if its first bytes come late and are a request's (or TLS, where it may begin), and no side
/// has been sent anything.
pub async fn to_service(
    worker: &Rc<Worker>,
    mut down: Link,
    opaque: Opaque,
    port: &Port,
    allowed: impl Fn() -> Result<(), Failure>,
) -> Option<(Link, Buf)> {
    let started = Instant::now();
    let config = worker.config();
    let wait_ms = config.snapshot.mesh.connect_timeout_ms;
    let idle = port.idle_timeout_ms(config.snapshot.mesh.idle_timeout_ms);
    drop(config);
    let client = opaque.client;
    let hint = match port.is_hashed() {
        true => port.hint(None, b"", balance::hash_of_client(client)),
        false => EndpointHint::default(),
    };
    match port
        .lease(worker, StreamKind::Tcp, &hint, None, wait_ms)
        .await
    {
        Ok(mut lease) => {
            // For opaque bytes only the connection attempt shows the health of the endpoint.
            port.ended(&mut lease, 200, started);
            let series = port.series_of(lease.upstream());
            let series = series.map_or(&port.tcp, |series| &series.tcp);
            let account = Account::open(worker, series, client);
            run(worker, down, opaque, lease, account, idle, allowed).await
        }
        Err(failure) => {
            refuse_named(worker, &mut down, &failure, &port.tcp, opaque);
            None
        }
    }
}

/// Carries a connection to one endpoint, as long as it stays `allowed`: the policy is asked again
/// when the configuration has changed, because the connection may last for days. Gives it back as
/// [`to_service`] does.
pub async fn to_endpoint(
    worker: &Rc<Worker>,
    mut down: Link,
    opaque: Opaque,
    upstream: &Rc<Upstream>,
    series: &Rc<RequestSeries>,
    allowed: impl Fn() -> Result<(), Failure>,
) -> Option<(Link, Buf)> {
    let idle = worker.config().snapshot.mesh.idle_timeout_ms;
    match lease(worker, upstream).await {
        Ok(lease) => {
            let account = Account::open(worker, series, opaque.client);
            run(worker, down, opaque, lease, account, idle, allowed).await
        }
        Err(failure) => {
            refuse_named(worker, &mut down, &failure, series, opaque);
            None
        }
    }
}

async fn lease(worker: &Rc<Worker>, upstream: &Rc<Upstream>) -> Result<Lease, Failure> {
    match upstream.checkout(worker, StreamKind::Tcp) {
        Some(lease) => Ok(lease),
        None => upstream.connect(worker, StreamKind::Tcp).await,
    }
}

/// Carries a connection over a lease, as long as it stays `allowed`.
pub async fn carry(
    worker: &Rc<Worker>,
    down: Link,
    opaque: Opaque,
    lease: Lease,
    series: &Rc<RequestSeries>,
    allowed: impl Fn() -> Result<(), Failure>,
) {
    let account = Account::open(worker, series, opaque.client);
    let idle = worker.config().snapshot.mesh.idle_timeout_ms;
    run(worker, down, opaque, lease, account, idle, allowed).await;
}

/// Ends a connection that is refused.
pub fn refuse(
    worker: &Rc<Worker>,
    down: &mut Link,
    failure: &Failure,
    series: &RequestSeries,
    client: Option<IpAddr>,
) {
    Account::open(worker, series, client).close(failure);
    down.abort();
}

/// The same for one of which more is known.
pub fn refuse_named(
    worker: &Rc<Worker>,
    down: &mut Link,
    failure: &Failure,
    series: &RequestSeries,
    opaque: Opaque,
) {
    let mut account = Account::open(worker, series, opaque.client);
    account.server_name = opaque.server_name;
    account.close(failure);
    down.abort();
}

/// Sets a deadline for the first certificate of either peer to expire; `None`: there is none.
pub fn expiry(worker: &Worker, down: Option<SystemTime>, up: &Lease) -> Option<Deadline> {
    let until = down.into_iter().chain(up.link.peer_not_after()).min()?;
    let left = until.duration_since(clock::time_of_day());
    let deadline = worker.deadlines.register();
    deadline.arm(left.unwrap_or_default());
    Some(deadline)
}

/// Waits for the deadline. Returns why the connection ends: a peer with a new certificate connects
/// anew.
pub async fn expired(deadline: Option<&Deadline>) -> Failure {
    poll_fn(|cx| match deadline {
        Some(deadline) if deadline.poll_expired(cx) => Poll::Ready(()),
        _ => Poll::Pending,
    })
    .await;
    let text = "a peer's certificate has expired since the connection was made";
    Failure::new(Reason::TlsFailed, text)
}

async fn run(
    worker: &Rc<Worker>,
    mut down: Link,
    opaque: Opaque,
    mut lease: Lease,
    mut account: Account<'_>,
    idle: u32,
    allowed: impl Fn() -> Result<(), Failure>,
) -> Option<(Link, Buf)> {
    let address = lease.upstream().key.address;
    account.upstream = Some(address);
    account.server_name = opaque.server_name;
    let deadline = worker.deadlines.register();
    let mut pipe = Pipe::new(opaque.received, Buf::new(), idle);
    pipe.up.watch = opaque.watch;
    pipe.up.tls_may_begin = opaque.tls_may_begin;
    let expiry = expiry(worker, opaque.until, &lease);
    let failure = loop {
        let changed = worker.changed();
        // The configuration may have changed between the decision and this line.
        if let Err(failure) = allowed() {
            break failure;
        }
        let run = pipe.run(&mut down, &mut lease.link, &deadline, |up, down| {
            account.moved(up, down);
        });
        tokio::select! {
            biased;
            result = run => match result {
                Ok(()) => break Failure::new(Reason::Ok, String::new()),
                Err(Reason::BadRequest) if account.is_silent() && pipe.down.buf.is_empty() => {
                    // The server has received and sent nothing, so the request can be judged.
                    lease.link.abort();
                    account.close(&Failure::new(Reason::Ok, String::new()));
                    return Some((down, pipe.up.buf));
                }
                Err(Reason::BadRequest) => break late(&pipe.up),
                Err(Reason::Overload) => {
                    worker.metrics.internal(|i| i.shed += 1);
                    break Failure::new(Reason::Overload, memory_limit::STUCK);
                }
                Err(reason) => break Failure::new(reason, format!("{reason} ({address})")),
            },
            () = changed => {}
            failure = expired(expiry.as_ref()) => break failure,
        }
    };
    if failure.reason != Reason::Ok {
        // A reset on one side becomes a reset on the other, so that no side takes a cut for an end.
        down.abort();
        lease.link.abort();
    }
    account.close(&failure);
    None
}

/// The failure of a server that has spoken first.
#[cold]
fn late(up: &Direction) -> Failure {
    if up.tls_may_begin {
        let text = "a peer's TLS handshake began after the application had spoken: it came later \
                    than the Mesh's timeouts.protocolDetection";
        return Failure::new(Reason::TlsFailed, text);
    }
    let text = "a request began in a connection that had been taken for opaque TCP; declare what \
                the port speaks (appProtocol: http, or tcp to carry anything unread)";
    Failure::new(Reason::BadRequest, text)
}

/// One connection as counters, `/errors` and the access log see it.
struct Account<'a> {
    worker: &'a Worker,
    series: &'a RequestSeries,
    started: Instant,
    client: Option<IpAddr>,
    server_name: Option<Box<str>>,
    upstream: Option<SocketAddr>,
    received: u64,
    sent: u64,
}

impl<'a> Account<'a> {
    fn open(worker: &'a Worker, series: &'a RequestSeries, client: Option<IpAddr>) -> Self {
        series.tcp_opened();
        Self {
            worker,
            series,
            started: Instant::now(),
            client,
            server_name: None,
            upstream: None,
            received: 0,
            sent: 0,
        }
    }

    /// No byte has gone to either side.
    fn is_silent(&self) -> bool {
        (self.received, self.sent) == (0, 0)
    }

    /// Counts while the connection lasts: it may live longer than anyone watches its counters.
    fn moved(&mut self, up: u64, down: u64) {
        self.received += up;
        self.sent += down;
        self.series.tcp_bytes(up, down);
    }

    fn close(self, failure: &Failure) {
        self.series.tcp_closed(failure.reason);
        let labels = &self.series.labels;
        if failure.reason != Reason::Ok {
            let source = labels.source.as_ref().map(|id| id.as_str());
            self.worker
                .failed(source, &labels.destination_service, b"", 0, failure);
        }
        if self.worker.logs() {
            let ended = ExchangeEnd {
                answer: 0.into(),
                reason: failure.reason,
                started: self.started,
                first_byte: None,
                now: Instant::now(),
                received: self.received,
                sent: self.sent,
                upstream: self.upstream,
                upstream_time: None,
            };
            let client = self.client.map(|client| client.to_string());
            let line = ConnectionLine {
                client: client.as_deref(),
                server_name: self.server_name.as_deref(),
            };
            let lines = self.worker.log_rules_at_random();
            self.worker
                .log
                .connection(&line, &ended, labels, lines.as_deref());
        }
    }
}

/// Both directions of a connection.
pub struct Pipe {
    up: Direction,
    down: Direction,
    idle: Duration,
}

#[derive(Default)]
struct Direction {
    buf: Buf,
    splicing: Splicing,
    /// See [`Opaque::watch`].
    watch: Option<FirstLineReader>,
    /// See [`Opaque::tls_may_begin`].
    tls_may_begin: bool,
    /// Bytes moved since the owner was last told.
    moved: u64,
    ended: bool,
    shut: bool,
}

/// State of moving a direction's bytes without a copy.
#[derive(Default)]
struct Splicing {
    /// Holds bytes that come before all that is still to be read; `None`: there are none.
    pipe: Option<splice::SplicePipe>,
    /// Full reads in a row, up to `BULK`.
    full: u8,
    /// The last piece was all there was, so a read asks for more, at no more cost. Only a read sees
    /// the end, too: splicing stops before urgent data as if that were the end.
    view: bool,
    refused: bool,
}

impl Splicing {
    /// Returns an empty pipe for the next piece, if splicing is worth it.
    fn pipe(&self) -> Option<splice::SplicePipe> {
        if self.full < BULK || self.view || self.refused {
            return None;
        }
        splice::SplicePipe::take()
    }

    fn spliced(&mut self, pipe: splice::SplicePipe, count: usize) {
        self.view = count < splice::PIPE_BYTES;
        if count < FULL_READ {
            self.full = 0;
        }
        self.pipe = Some(pipe);
    }

    fn copied(&mut self, count: usize) {
        self.view = false;
        if self.full < BULK {
            self.full = if count < FULL_READ { 0 } else { self.full + 1 };
        }
    }
}

/// Which end of a direction broke.
enum Broken {
    From,
    To,
    /// A request or handshake has begun; its bytes are still here.
    Request,
}

impl Direction {
    fn new(buf: Buf) -> Self {
        Self {
            buf,
            ..Self::default()
        }
    }

    /// Whether bytes wait to be sent.
    fn holds(&self) -> bool {
        !self.buf.is_empty() || self.splicing.pipe.is_some()
    }

    /// Moves the bytes that are there; ready when this direction has ended, or with the end that
    /// broke.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Link,
        to: &mut Link,
    ) -> Poll<Result<(), Broken>> {
        let before = self.moved;
        loop {
            if let (Some(pipe), Link::Tcp(to)) = (&mut self.splicing.pipe, &mut *to) {
                while !pipe.is_empty() {
                    match ready!(pipe.poll_drain(cx, to)) {
                        Ok(count) if count > 0 => self.moved += count as u64,
                        _ => return Poll::Ready(Err(Broken::To)),
                    }
                }
                self.splicing.pipe = None;
                if self.moved - before >= TURN_BYTES as u64 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            if self.tls_may_begin && self.is_hello() {
                return Poll::Ready(Err(Broken::Request));
            }
            while !self.buf.is_empty() && !self.tls_may_begin {
                match ready!(to.poll_write(cx, self.buf.as_slice(), false)) {
                    Ok(count) if count > 0 => {
                        self.buf.consume(count);
                        self.moved += count as u64;
                    }
                    _ => return Poll::Ready(Err(Broken::To)),
                }
            }
            if self.ended {
                if !self.shut {
                    ready!(to.poll_shutdown(cx)).map_err(|_| Broken::To)?;
                    self.shut = true;
                }
                return Poll::Ready(Ok(()));
            }
            match self.poll_receive(cx, from, to) {
                Poll::Pending => {
                    ready!(to.poll_flush(cx)).map_err(|_| Broken::To)?;
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) => {
                    self.ended = count == 0;
                    if self.watch.is_some() && self.is_request() {
                        return Poll::Ready(Err(Broken::Request));
                    }
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::From)),
            }
        }
    }

    /// Whether the first bytes, which are in the buffer, are those of a TLS handshake.
    #[cold]
    fn is_hello(&mut self) -> bool {
        let hello = tulle_tls::is_client_hello(self.buf.as_slice());
        self.tls_may_begin = hello.unwrap_or(!self.ended);
        hello == Some(true)
    }

    /// Whether the new bytes in the buffer, with those before, make a request.
    #[cold]
    fn is_request(&mut self) -> bool {
        let Some(watch) = &mut self.watch else {
            return false;
        };
        let detected = match self.ended {
            true => watch.end(),
            false => watch.read(self.buf.as_slice()),
        };
        if detected == Detected::Opaque {
            self.watch = None;
        }
        detected == Detected::Http
    }

    /// Receives into the buffer or, in a bulk stream between two plain connections, into a pipe.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Link,
        to: &Link,
    ) -> Poll<io::Result<usize>> {
        let plain = match (&*from, to) {
            (Link::Tcp(from), Link::Tcp(_)) if self.watch.is_none() => Some(from),
            _ => None,
        };
        if let Some(from) = plain
            && let Some(mut pipe) = self.splicing.pipe()
        {
            match ready!(pipe.poll_fill(cx, from)) {
                Err(error) if splice::is_refused(&error) => self.splicing.refused = true,
                Ok(count) if count > 0 => {
                    self.splicing.spliced(pipe, count);
                    return Poll::Ready(Ok(count));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let count = ready!(from.poll_read(cx, &mut self.buf))?;
        self.splicing.copied(count);
        Poll::Ready(Ok(count))
    }
}

impl Pipe {
    /// A pipe with bytes already received from either side.
    pub fn new(from_down: Buf, from_up: Buf, idle_timeout_ms: u32) -> Self {
        Self {
            up: Direction::new(from_down),
            down: Direction::new(from_up),
            idle: Duration::from_millis(idle_timeout_ms.into()),
        }
    }

    /// Carries bytes until both sides have ended, and reports to `count` how many went up and down.
    /// It may be dropped and called again.
    ///
    /// # Errors
    /// A side broke, no byte moved for the idle timeout, a request began ([`Reason::BadRequest`]),
    /// or memory is short and a side reads nothing ([`Reason::Overload`]).
    pub async fn run(
        &mut self,
        down: &mut Link,
        up: &mut Link,
        deadline: &Deadline,
        mut count: impl FnMut(u64, u64),
    ) -> Result<(), Reason> {
        deadline.arm(self.idle);
        poll_fn(|cx| {
            let upward = self.up.poll(cx, down, up);
            let downward = self.down.poll(cx, up, down);
            let moved = (
                std::mem::take(&mut self.up.moved),
                std::mem::take(&mut self.down.moved),
            );
            if moved != (0, 0) {
                count(moved.0, moved.1);
            }
            // A side that takes nothing any more may have sent its last bytes just before: reading goes on to its end, unless
            // the other side is slow to take them.
            let client_is_read = upward.is_ready() || self.up.holds();
            let server_is_read = downward.is_ready() || self.down.holds();
            match (upward, downward) {
                (Poll::Ready(Err(Broken::Request)), _) => {
                    return Poll::Ready(Err(Reason::BadRequest));
                }
                (Poll::Ready(Err(Broken::From)), _) => {
                    return Poll::Ready(Err(Reason::ClientClosed));
                }
                (_, Poll::Ready(Err(Broken::To))) if client_is_read => {
                    return Poll::Ready(Err(Reason::ClientClosed));
                }
                (_, Poll::Ready(Err(Broken::From))) => {
                    return Poll::Ready(Err(Reason::UpstreamReset));
                }
                (Poll::Ready(Err(Broken::To)), _) if server_is_read => {
                    return Poll::Ready(Err(Reason::UpstreamReset));
                }
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(Ok(())),
                _ => {}
            }
            // After its last byte a client is not read any more, and may still be cut off.
            if self.up.shut && down.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Reason::ClientClosed));
            }
            if moved != (0, 0) {
                deadline.arm(self.idle);
            }
            if deadline.poll_expired(cx) {
                return Poll::Ready(Err(Reason::IdleTimeout));
            }
            let held = self.up.holds() || self.down.holds();
            if held && memory_limit::gives_up(deadline, self.idle) {
                return Poll::Ready(Err(Reason::Overload));
            }
            Poll::Pending
        })
        .await
    }
}
