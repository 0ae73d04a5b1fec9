//! Accepting connections: one listener per worker and address, and who serves what comes in.

use crate::admission::Displaced;
use crate::link::Link;
use crate::mux::Cutter;
use crate::reason::{Failure, Reason};
use crate::spread::{Counted, CountedStream, Place, Seat};
use crate::worker::Worker;
use crate::{gateway, inbound, memory_limit, outbound, spread};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
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

/// Event turns in which a connection that was displaced may come to its end before the next one is taken.
const TURNS: usize = 4;

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
            while let Poll::Ready(Ok((tcp, peer))) = listener.poll_accept(&mut cx) {
                serve_accepted(&worker, tcp, peer, &place, &kind);
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
            Ok((tcp, peer)) => {
                worker.metrics.internal(|i| i.accepted += 1);
                if let Some(why) = too_many(&worker, &tcp) {
                    if matches!(why, TooMany::Memory) {
                        worker.end_stuck_clients();
                    }
                    if !makes_room(&worker, &tcp, peer.ip(), &why, &mut shedding).await {
                        shed(tcp);
                        continue;
                    }
                }
                if let Some(tcp) = place.accepted(tcp) {
                    serve_accepted(&worker, tcp, peer, &place, &kind);
                }
            }
            Err(error) if is_exhaustion(&error) => {
                worker.metrics.internal(|i| i.overloads += 1);
                while let Some((tcp, peer)) = spare.accept(&listener) {
                    let displaced = worker.admission.make_room(peer.ip());
                    shedding.tell(&worker, &TooMany::Exhausted, displaced);
                    match displaced {
                        Some(_) => serve_accepted(&worker, tcp, peer, &place, &kind),
                        None => shed(tcp),
                    }
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
    fn accept(&mut self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
        if self.0.is_none() {
            self.0 = Self::new().0;
        }
        self.0.take()?;
        let mut cx = Context::from_waker(Waker::noop());
        let accepted = match listener.poll_accept(&mut cx) {
            Poll::Ready(Ok(accepted)) => Some(accepted),
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

/// Whether the proxy has no room for another connection from downstream.
fn too_many(worker: &Worker, tcp: &TcpStream) -> Option<TooMany> {
    let configured = worker.config().snapshot.mesh.max_connections;
    if exceeds(configured) {
        return Some(TooMany::Configured(configured));
    }
    if memory_limit::is_short() {
        return Some(TooMany::Memory);
    }
    let room = Room::get();
    (number(tcp) >= room.most).then_some(TooMany::Descriptors(room.most))
}

fn exceeds(configured: u32) -> bool {
    configured > 0 && spread::open_in_all() >= usize::try_from(configured).unwrap_or(usize::MAX)
}

/// Makes room for a connection of this address, if that is fair. One that has been displaced closes in
/// the next event turns.
#[cold]
async fn makes_room(
    worker: &Worker,
    tcp: &TcpStream,
    source: IpAddr,
    why: &TooMany,
    shedding: &mut Shedding,
) -> bool {
    let displaced = worker.admission.make_room(source);
    shedding.tell(worker, why, displaced);
    if displaced.is_none() {
        return false;
    }
    let room = Room::get();
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
        let has_room = match *why {
            TooMany::Configured(most) => !exceeds(most),
            TooMany::Descriptors(_) | TooMany::Exhausted | TooMany::Memory => true,
        };
        if has_room {
            return number(tcp) < room.hard;
        }
    }
    false
}

/// Counts a connection that a sidecar at this address carries in a stream. What has no room takes the place of
/// others as a connection of its own does.
///
/// # Errors
/// That would be unfair to them.
pub fn enter_stream(
    worker: &Worker,
    source: IpAddr,
    stream: Cutter,
) -> Result<CountedStream, Failure> {
    let configured = worker.config().snapshot.mesh.max_connections;
    let room = Room::get();
    // The application's side of each stream takes a descriptor, perhaps only soon.
    let open = spread::open_in_all();
    let descriptors = match open < room.most / 4 {
        true => 0,
        false => descriptors().max(open + OWN),
    };
    let why = match exceeds(configured) {
        true => Some(TooMany::Configured(configured)),
        false if memory_limit::is_short() => Some(TooMany::Memory),
        false => (descriptors >= room.most).then_some(TooMany::Descriptors(room.most)),
    };
    if let Some(why) = why {
        worker.metrics.internal(|i| i.shed += 1);
        if descriptors >= room.hard || worker.admission.make_room(source).is_none() {
            return Err(Failure::new(Reason::Overload, why.to_string()));
        }
    }
    let held = worker.admission.enter_stream(source, stream);
    Ok(CountedStream::new(held))
}

/// How many descriptors the process has at the least, where no new one is at hand.
fn descriptors() -> usize {
    let probe = std::fs::File::open("/dev/null");
    probe.map_or(usize::MAX, |probe| number(&probe))
}

/// How many descriptors the process has at the least: the kernel gives the lowest number that is free.
fn number(descriptor: &impl AsRawFd) -> usize {
    usize::try_from(descriptor.as_raw_fd()).unwrap_or(usize::MAX)
}

/// Descriptors that are nobody's connection: listeners, event queues, files.
const OWN: usize = 32;

/// How many descriptors may be in use when a connection is served.
#[derive(Clone, Copy)]
struct Room {
    /// Without another connection being displaced.
    most: usize,
    /// Until those that were displaced are closed.
    hard: usize,
}

/// What the limit of this process allows, which is raised before the first connection comes.
static ROOM: OnceLock<Room> = OnceLock::new();

impl Room {
    fn get() -> Self {
        *ROOM.get_or_init(|| {
            use rustix::process::{Resource, getrlimit};
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let reserve = RESERVE.min(limit / 4);
            let within = |reserve| usize::try_from(limit - reserve).unwrap_or(usize::MAX);
            Self {
                most: within(reserve),
                hard: within(reserve / 2),
            }
        })
    }
}

/// Ends a connection at once: a reset, so that nobody waits for an answer.
fn shed(tcp: TcpStream) {
    Link::Tcp(tcp).abort();
}

/// Counts what is shed, and says why, but not for each.
#[derive(Default)]
struct Shedding {
    told: Option<Instant>,
    told_displaced: Option<Instant>,
}

impl Shedding {
    /// A connection is closed: another that was displaced, or the new one.
    fn tell(&mut self, worker: &Worker, why: &TooMany, displaced: Option<Displaced>) {
        worker.metrics.internal(|i| i.shed += 1);
        let told = match displaced {
            Some(_) => &mut self.told_displaced,
            None => &mut self.told,
        };
        if told.is_some_and(|told| told.elapsed() < TELL) {
            return;
        }
        *told = Some(Instant::now());
        let source = displaced.map(|displaced| displaced.source.to_string());
        let detail = match displaced {
            Some(Displaced { source, .. }) => format!(
                "{why}; connections of {source}, which has most, are closed for clients that have fewer"
            ),
            None => why.to_string(),
        };
        let failure = Failure::new(Reason::Overload, detail);
        match displaced {
            Some(_) => tracing::warn!("connections are displaced: {}", failure.detail),
            None => tracing::warn!("new connections are closed: {}", failure.detail),
        }
        worker.failed(source.as_deref(), "unknown", b"", 0, &failure);
    }
}

/// A connection that another worker has accepted.
fn serve_handed(worker: &Rc<Worker>, tcp: std::net::TcpStream, place: &Rc<Place>, kind: &Kind) {
    let Ok(peer) = tcp.peer_addr() else {
        // It is gone already.
        return place.uncount_handed();
    };
    // Without a descriptor in our epoll it cannot be served; the client sees that it is closed.
    let Ok(tcp) = TcpStream::from_std(tcp) else {
        place.uncount_handed();
        return worker.metrics.internal(|i| i.overloads += 1);
    };
    let counted = place.count_handed(worker.admission.enter(&tcp, peer));
    serve(worker.clone(), tcp, kind.clone(), counted);
}

/// A connection that this worker has accepted.
fn serve_accepted(
    worker: &Rc<Worker>,
    tcp: TcpStream,
    peer: SocketAddr,
    place: &Rc<Place>,
    kind: &Kind,
) {
    let counted = place.count(worker.admission.enter(&tcp, peer));
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
