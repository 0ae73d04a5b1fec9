//! Opaque TCP: carries a connection to an endpoint for as long as it is allowed.

use super::account::Account;
use super::pipe::{Direction, Pipe};
use crate::balance::{self, EndpointHint, Port};
use crate::codec::detect::FirstLineReader;
use crate::context::memory_limit;
use crate::telemetry::metrics::RequestSeries;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::upstream::{Lease, Upstream};
use crate::worker::Worker;
use std::future::{pending, poll_fn};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Instant, SystemTime};
use tulle_net::{Buf, Deadline, clock};
use tulle_transport::StreamKind;

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
        .lease(worker, StreamKind::Tcp, &hint, None, wait_ms, pending())
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
