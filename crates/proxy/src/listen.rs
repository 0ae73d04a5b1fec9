//! Accepting connections: one listener per worker and address, and who serves what comes in.

use crate::link::Link;
use crate::reason::{Failure, Reason};
use crate::spread::{Counted, Place, Seat};
use crate::worker::Worker;
use crate::{gateway, inbound, memory_limit, outbound, spread};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{fmt, io};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tulle_model::bootstrap::{Listener, ListenerKind};
use tulle_net::socket;

/// Wait when the process has no file descriptor left; connections stay in the kernel's queue.
const NO_DESCRIPTOR: Duration = Duration::from_millis(20);

/// At most so many descriptors are kept for what is not a connection from downstream: the way to
/// others, the controller, the operator.
const RESERVE: u64 = 256;

/// The operator is told at most so often that connections are shed.
const TELL: Duration = Duration::from_secs(1);

/// What is accepted on a listener, without the strings of the configuration.
#[derive(Clone)]
enum Kind {
    Outbound,
    Upstream(Arc<str>, u16),
    Inbound,
    InboundPort(u16),
    Gateway(Arc<str>, u16),
}

/// Binds a worker's listener.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(listener: &Listener) -> io::Result<TcpListener> {
    socket::listen(listener.address)
}

/// Whether each connection counts when they are spread over workers: those of other sidecars are few.
pub fn is_exact(listener: &Listener) -> bool {
    matches!(
        listener.kind,
        ListenerKind::Inbound | ListenerKind::InboundPort { .. }
    )
}

/// Accepts until the worker drains.
pub async fn accept(worker: Rc<Worker>, listener: TcpListener, configured: Listener, seat: Seat) {
    let kind = match configured.kind {
        ListenerKind::Outbound => Kind::Outbound,
        ListenerKind::Upstream { service, port } => Kind::Upstream(service.into(), port),
        ListenerKind::Inbound => Kind::Inbound,
        ListenerKind::InboundPort { port } => Kind::InboundPort(port),
        ListenerKind::Gateway { gateway, port } => Kind::Gateway(gateway.into(), port),
    };
    let (place, mut handed) = seat.taken();
    let mut spare = Spare::new();
    let mut shedding = Shedding::default();
    loop {
        if worker.is_draining() {
            // Who would hand over something from now on serves it itself.
            handed.close();
            while let Some(tcp) = handed.recv().await {
                serve_handed(&worker, tcp, &place, &kind);
            }
            // Clients whose connection the kernel has accepted already are served once more.
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready(Ok((tcp, _))) = listener.poll_accept(&mut cx) {
                serve(worker.clone(), tcp, kind.clone(), place.count());
            }
            return;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(tcp) = handed.recv() => {
                serve_handed(&worker, tcp, &place, &kind);
                continue;
            }
            () = worker.changed() => continue,
        };
        match accepted {
            Ok((tcp, _)) => {
                worker.metrics.internal(|i| i.accepted += 1);
                if let Some(why) = too_many(&worker) {
                    if matches!(why, TooMany::Memory) {
                        worker.end_stuck_clients();
                    }
                    shed(tcp);
                    shedding.tell(&worker, why);
                    continue;
                }
                if let Some(tcp) = place.accepted(tcp) {
                    serve(worker.clone(), tcp, kind.clone(), place.count());
                }
            }
            Err(error) if is_exhaustion(&error) => {
                worker.metrics.internal(|i| i.overloads += 1);
                while let Some(tcp) = spare.accept(&listener) {
                    shed(tcp);
                    shedding.tell(&worker, TooMany::Exhausted);
                }
                tokio::time::sleep(NO_DESCRIPTOR).await;
            }
            // The client was gone before it was accepted.
            Err(error) => tracing::debug!(%error, "accept"),
        }
    }
}

/// This process or the system can have no more sockets.
pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// A descriptor that is kept for when there is no other: given up for a moment, it lets a connection
/// be accepted and closed. Else clients would wait in the kernel's queue without being told.
struct Spare(Option<std::fs::File>);

impl Spare {
    fn new() -> Self {
        // Without it such clients wait.
        Self(std::fs::File::open("/dev/null").ok())
    }

    /// The next connection that waits, if there is one and a descriptor for it.
    fn accept(&mut self, listener: &TcpListener) -> Option<TcpStream> {
        if self.0.is_none() {
            self.0 = Self::new().0;
        }
        self.0.take()?;
        let mut cx = Context::from_waker(Waker::noop());
        let accepted = match listener.poll_accept(&mut cx) {
            Poll::Ready(Ok((tcp, _))) => Some(tcp),
            _ => None,
        };
        if accepted.is_none() {
            *self = Self::new();
        }
        accepted
    }
}

/// Why a connection is not served.
enum TooMany {
    /// As many as the mesh allows.
    Configured(u32),
    /// As many as leave descriptors for the rest.
    Descriptors(usize),
    /// There was no descriptor for it.
    Exhausted,
    /// As many as leave memory for the rest.
    Memory,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(most) => write!(
                f,
                "this proxy has {most} connections, as many as maxConnections of the mesh allows"
            ),
            Self::Descriptors(most) => write!(
                f,
                "this proxy has {most} connections, as many as its file descriptors allow; \
                 raise `ulimit -Hn`"
            ),
            Self::Memory => f.write_str(&memory_limit::refusal().detail),
            Self::Exhausted => f.write_str(
                "this proxy has no file descriptor for another connection; raise `ulimit -Hn`",
            ),
        }
    }
}

/// Whether the proxy has as many connections from downstream as it may have.
fn too_many(worker: &Worker) -> Option<TooMany> {
    let open = spread::open_in_all();
    let configured = worker.config().snapshot.mesh.max_connections;
    if configured > 0 && open >= usize::try_from(configured).unwrap_or(usize::MAX) {
        return Some(TooMany::Configured(configured));
    }
    if memory_limit::is_short() {
        return Some(TooMany::Memory);
    }
    let room = *ROOM.get_or_init(room);
    (open >= room).then_some(TooMany::Descriptors(room))
}

/// What the limit of this process allows, which is raised before the first connection comes.
static ROOM: OnceLock<usize> = OnceLock::new();

fn room() -> usize {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit - RESERVE.min(limit / 4)).unwrap_or(usize::MAX)
}

/// Ends a connection at once: a reset, so that nobody waits for an answer.
fn shed(tcp: TcpStream) {
    Link::Tcp(tcp).abort();
}

/// Counts what is shed, and says why, but not for each.
#[derive(Default)]
struct Shedding {
    told: Option<Instant>,
}

impl Shedding {
    fn tell(&mut self, worker: &Worker, why: TooMany) {
        worker.metrics.internal(|i| i.shed += 1);
        if self.told.is_some_and(|told| told.elapsed() < TELL) {
            return;
        }
        self.told = Some(Instant::now());
        let failure = Failure::new(Reason::Overload, why.to_string());
        tracing::warn!("new connections are closed: {}", failure.detail);
        worker.failed(None, "unknown", b"", 0, &failure);
    }
}

/// A connection that another worker has accepted.
fn serve_handed(worker: &Rc<Worker>, tcp: std::net::TcpStream, place: &Rc<Place>, kind: &Kind) {
    let counted = place.count_handed();
    // Without a descriptor in our epoll it cannot be served; the client sees that it is closed.
    let Ok(tcp) = TcpStream::from_std(tcp) else {
        return worker.metrics.internal(|i| i.overloads += 1);
    };
    serve(worker.clone(), tcp, kind.clone(), counted);
}

/// Starts a task for a connection, unless it is gone already. One kind of task for each kind of listener: a common one would
/// be as large as the largest.
fn serve(worker: Rc<Worker>, tcp: TcpStream, kind: Kind, counted: Counted) {
    if socket::prepare(&tcp).is_err() {
        return;
    }
    let open = worker.connection_opened();
    match kind {
        Kind::Outbound => spawn_local(async move {
            let _open = (open, counted);
            outbound::serve_redirected(worker, tcp).await;
        }),
        Kind::Upstream(service, port) => spawn_local(async move {
            let _open = (open, counted);
            outbound::serve(worker, tcp, service, port).await;
        }),
        Kind::Inbound => spawn_local(async move {
            let _open = open;
            inbound::serve_redirected(worker, tcp, counted).await;
        }),
        Kind::InboundPort(port) => spawn_local(async move {
            let _open = open;
            inbound::serve(worker, tcp, port, counted).await;
        }),
        Kind::Gateway(gateway, port) => spawn_local(async move {
            let _open = (open, counted);
            gateway::serve(worker, tcp, gateway, port).await;
        }),
    };
}
