//! HTTP CONNECT of a sidecar to an egress gateway, as the gateway serves it: it judges, looks the name
//! up and dials (`upstream/tunnel.rs` is the sidecar's part).

use crate::codec::host::Host;
use crate::config::egress_rule::Rule;
use crate::config::head_limits;
use crate::decision::inbound::InboundContext;
use crate::http::reply;
use crate::tcp::forward::{self, Opaque};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::upstream::tunnel::send;
use crate::upstream::{HttpVersion, Lease, UpstreamKey};
use crate::worker::{Worker, WorkerConfig};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Semaphore;
use tulle_http1::{Method, Parsed, split_authority};
use tulle_net::{Buf, Deadline};
use tulle_transport::StreamKind;

/// Addresses of a name that are tried.
const CONNECT_TRIES: usize = 3;
/// Names looked up at a time: each takes a thread of its own while the system's resolver works.
static LOOKUPS: Semaphore = Semaphore::const_new(16);
/// Look-ups that wait for a place.
static WAITING: Semaphore = Semaphore::const_new(512);

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// Serves one CONNECT of a peer: this proxy is an egress gateway.
pub async fn serve_gateway(
    worker: &Rc<Worker>,
    mut link: Link,
    mut received: Buf,
    scope: &InboundContext,
) {
    let deadline = worker.deadlines.register();
    let header = worker.config().snapshot.mesh.header_timeout_ms;
    deadline.arm(Duration::from_millis(header.into()));
    let asked = match read(worker, &mut link, &mut received, &deadline).await {
        Ok(Some(asked)) => asked,
        Ok(None) => return,
        Err((status, failure)) => {
            return refuse(worker, link, scope, status, &failure, &deadline, b"").await;
        }
    };
    let limit = worker.config().snapshot.mesh.connect_timeout_ms;
    let limit = Duration::from_millis(limit.into());
    let open = tokio::time::timeout(limit, open(worker, scope, &asked));
    let lease = open.await.unwrap_or_else(|_| {
        let text = format!("{} did not answer within {limit:?}", asked.authority);
        Err(Failure::new(Reason::ConnectTimeout, text))
    });
    let (lease, address) = match lease {
        Ok(lease) => lease,
        Err(failure) => {
            let status = failure.reason.status();
            let target = asked.authority.as_bytes();
            return refuse(worker, link, scope, status, &failure, &deadline, target).await;
        }
    };
    if send(&mut link, ESTABLISHED).await.is_err() {
        return link.abort();
    }
    drop(deadline);
    let series = scope.series(worker, &worker.config(), true);
    let allowed = || {
        let config = worker.config();
        let rules = judge(&config, worker, scope, &asked)?;
        let admitted = rules.iter().any(|rule| rule.admits(address.ip()));
        admitted.then_some(()).ok_or_else(|| {
            let text = format!("no Egress names {address} any more");
            Failure::new(Reason::EgressDenied, text)
        })
    };
    let opaque = Opaque {
        received,
        until: scope.peer_not_after(),
        ..Opaque::default()
    };
    let carry = forward::carry(worker, link, opaque, lease, &series, allowed);
    Box::pin(carry).await;
}

/// A well-formed CONNECT.
struct ConnectRequest {
    authority: String,
    host: String,
    port: u16,
    head: Vec<u8>,
}

/// Reads the request. `None`: the peer has gone.
async fn read(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
    deadline: &Deadline,
) -> Result<Option<ConnectRequest>, (u16, Failure)> {
    let limits = head_limits::of_mesh(&worker.config().snapshot.mesh, true);
    let bad = |status: u16, text: String| Err((status, Failure::new(Reason::BadRequest, text)));
    let mut parsed = 0;
    loop {
        let unparsed = head_limits::may_complete(received.as_slice(), parsed, &limits);
        parsed = received.len();
        let whole = match unparsed {
            true => tulle_http1::parse_request(received.as_slice(), &limits),
            false => Ok(Parsed::Partial),
        };
        match whole {
            Ok(Parsed::Complete(head)) => {
                if head.method != Method::Connect {
                    let text = "this port is an egress gateway's: it takes CONNECT only";
                    return bad(405, text.into());
                }
                let bytes = received.as_slice().get(..head.len).unwrap_or_default();
                let authority = head.authority.slice(bytes);
                let (_, port) = split_authority(authority);
                let text = String::from_utf8_lossy(authority).into_owned();
                let Some(port) = port.filter(|port| *port != 0) else {
                    return bad(400, format!("CONNECT to {text:?} names no port"));
                };
                let host = Host::from_authority(authority).to_text();
                let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
                let asked = ConnectRequest {
                    host: bare.unwrap_or(&host).to_owned(),
                    authority: text,
                    port,
                    head: bytes.to_vec(),
                };
                received.consume(head.len);
                return Ok(Some(asked));
            }
            Ok(Parsed::Partial) => {}
            Err(error) => {
                let text = format!("{}: {error}", error.reason());
                return bad(error.status(), text);
            }
        }
        let count = poll_fn(|cx| match deadline.poll_expired(cx) {
            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            false => link.poll_read(cx, received),
        });
        match count.await {
            Ok(count) if count > 0 => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let failure = Failure::new(Reason::HeaderTimeout, "no complete CONNECT in time");
                return Err((408, failure));
            }
            _ => return Ok(None),
        }
    }
}

/// Finds the rules that allow the peer this destination. The policy of this service is judged
/// first.
fn judge<'a>(
    config: &'a WorkerConfig,
    worker: &Worker,
    scope: &InboundContext,
    asked: &ConnectRequest,
) -> Result<Vec<&'a Rule>, Failure> {
    let peer = scope.admits_connect(worker, config, asked.authority.as_bytes(), &asked.head)?;
    let rules = config.snapshot.egress.as_deref();
    let rules = rules.map(|e| e.naming(peer, &asked.host, asked.port));
    match rules.unwrap_or_default() {
        rules if rules.is_empty() => {
            let text = format!("no Egress lets {peer} go to {:?}", asked.authority);
            Err(Failure::new(Reason::EgressDenied, text))
        }
        rules => Ok(rules),
    }
}

/// Looks the name up and dials one of its addresses that a rule admits.
async fn open(
    worker: &Rc<Worker>,
    scope: &InboundContext,
    asked: &ConnectRequest,
) -> Result<(Lease, SocketAddr), Failure> {
    // Judges before the look-up: a peer without permission must not cause one.
    judge(&worker.config(), worker, scope, asked)?;
    let all = resolve(&asked.host, asked.port).await?;
    let config = worker.config();
    let rules = judge(&config, worker, scope, asked)?;
    let admitted: Vec<_> = all
        .iter()
        .filter(|address| rules.iter().any(|rule| rule.admits(address.ip())))
        .take(CONNECT_TRIES)
        .collect();
    let mut failure = Failure::new(
        Reason::EgressDenied,
        format!(
            "{:?} is at {}, which its Egress does not allow: private and local \
             addresses must be in the rule's networks",
            asked.host,
            all.first()
                .map_or_else(|| "no address".into(), |a| a.ip().to_string())
        ),
    );
    drop(config);
    for address in admitted {
        let upstream = worker.upstream(UpstreamKey {
            address: *address,
            identities: None,
            http_version: HttpVersion::Http1,
            external: None,
            own: false,
        });
        match Box::pin(upstream.connect(worker, StreamKind::Tcp)).await {
            Ok(lease) => return Ok((lease, *address)),
            Err(next) => failure = next,
        }
    }
    Err(failure)
}

/// Resolves a host with the system's resolver, on threads of its own.
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let busy = || Failure::new(Reason::Overload, "too many names are being looked up");
    let _waiting = WAITING.try_acquire().map_err(|_| busy())?;
    let _place = LOOKUPS.acquire().await.map_err(|_| busy())?;
    let found = tokio::net::lookup_host((host, port)).await;
    let mut found: Vec<_> = found
        .map_err(|e| {
            let text = format!("{host:?} cannot be looked up: {e}");
            Failure::new(Reason::ConnectFailed, text)
        })?
        .collect();
    found.dedup();
    Ok(found)
}

async fn refuse(
    worker: &Rc<Worker>,
    mut link: Link,
    scope: &InboundContext,
    status: u16,
    failure: &Failure,
    deadline: &Deadline,
    target: &[u8],
) {
    let series = scope.series(worker, &worker.config(), false);
    let now = std::time::Instant::now();
    series.request(status.into(), failure.reason, (now, now), (0, 0));
    let source = series.labels.source.as_ref().map(|id| id.as_str());
    let service = &series.labels.destination_service;
    worker.failed(source, service, target, status, failure);
    let mut out = Buf::new();
    reply::write(status, failure, true, Method::Get, out.storage());
    deadline.arm(Duration::from_secs(5));
    poll_fn(|cx| {
        while !out.is_empty() {
            if deadline.poll_expired(cx) {
                return Poll::Ready(());
            }
            match link.poll_write(cx, out.as_slice(), true) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => out.consume(count),
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
        link.poll_shutdown(cx).map(drop)
    })
    .await;
}
