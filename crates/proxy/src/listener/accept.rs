//! Accepts connections, with one listener per worker and address, and decides which worker serves
//! each.

use crate::context::admission::Displaced;
use crate::context::is_exhaustion;
use crate::serve::gateway;
use crate::serve::inbound;
use crate::serve::outbound;
use crate::serve::room::{Room, TooMany, exceeds, number, too_many};
use crate::serve::spread::{ConnectionGuard, SlotSeed, WorkerSlot};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::worker::{Closing, Worker};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tulle_model::bootstrap::{Listener, ListenerKind};
use tulle_net::socket;

/// Wait when the process has no file descriptor left; connections stay in the kernel's queue.
const NO_DESCRIPTOR: Duration = Duration::from_millis(20);

/// Event turns in which a displaced connection may close before the next one is accepted.
const TURNS: usize = 4;

/// Shortest time between two reports of shed connections.
const TELL: Duration = Duration::from_secs(1);

/// Kind of connections that a listener accepts, without the strings of the configuration.
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

/// Whether connections are spread exactly over workers: those of other sidecars are few.
pub fn is_exact(listener: &Listener) -> bool {
    matches!(
        listener.kind,
        ListenerKind::Inbound | ListenerKind::InboundPort { .. }
    )
}

/// Starts to accept in this worker. The listener is closed by what is returned.
pub fn start(
    worker: &Rc<Worker>,
    listener: Rc<TcpListener>,
    configured: Listener,
    seed: SlotSeed,
) -> Closing {
    let closing = Closing::default();
    let accept = accept(worker.clone(), listener, configured, seed, closing.clone());
    spawn_local(accept);
    closing
}

/// Accepts until the worker drains, or until `closing` is set and the worker notified.
async fn accept(
    worker: Rc<Worker>,
    listener: Rc<TcpListener>,
    configured: Listener,
    seed: SlotSeed,
    closing: Closing,
) {
    let kind = match configured.kind {
        ListenerKind::Outbound => Kind::Outbound,
        ListenerKind::Upstream { service, port } => Kind::Upstream(service.into(), port),
        ListenerKind::Inbound => Kind::Inbound,
        ListenerKind::InboundPort { port } => Kind::InboundPort(port),
        ListenerKind::Gateway { gateway, port } => Kind::Gateway(gateway.into(), port),
    };
    let (slot, mut handed) = seed.taken();
    let mut spare = Spare::new();
    let mut shedding = Shedding::default();
    loop {
        if worker.is_draining() || closing.get().is_some() {
            // A worker that would hand a connection over from now on serves it itself.
            handed.close();
            while let Some(tcp) = handed.recv().await {
                serve_handed(&worker, tcp, &slot, &kind);
            }
            // Serves clients whose connection the kernel has accepted already.
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready(Ok((tcp, peer))) = listener.poll_accept(&mut cx) {
                serve_accepted(&worker, tcp, peer, &slot, &kind);
            }
            return;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(tcp) = handed.recv() => {
                serve_handed(&worker, tcp, &slot, &kind);
                continue;
            }
            () = worker.changed() => continue,
        };
        match accepted {
            Ok((tcp, peer)) => {
                worker.metrics.internal(|i| i.accepted += 1);
                if let Some(why) = too_many(&worker, number(&tcp)) {
                    if matches!(why, TooMany::Memory) {
                        worker.end_stuck_clients();
                    }
                    if !makes_room(&worker, &tcp, peer.ip(), &why, &mut shedding).await {
                        shed(tcp);
                        continue;
                    }
                }
                if let Some(tcp) = slot.accepted(tcp) {
                    serve_accepted(&worker, tcp, peer, &slot, &kind);
                }
            }
            Err(error) if is_exhaustion(&error) => {
                worker.metrics.internal(|i| i.overloads += 1);
                while let Some((tcp, peer)) = spare.accept(&listener) {
                    let displaced = worker.admission.make_room(peer.ip());
                    shedding.tell(&worker, &TooMany::Exhausted, displaced);
                    match displaced {
                        Some(_) => serve_accepted(&worker, tcp, peer, &slot, &kind),
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

/// A spare descriptor for when there is no other: given up for a moment, it lets a connection be
/// accepted and closed. Otherwise clients would wait in the kernel's queue without an answer.
struct Spare(Option<std::fs::File>);

impl Spare {
    fn new() -> Self {
        // Without it clients wait when there is no descriptor.
        Self(std::fs::File::open("/dev/null").ok())
    }

    /// Returns the next waiting connection, if there is one and a descriptor for it.
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

/// Makes room for a connection of this address, if that is fair. A displaced connection closes in
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

/// Resets a connection, so that its client does not wait for an answer.
fn shed(tcp: TcpStream) {
    Link::Tcp(tcp).abort();
}

/// Counts shed connections and logs the reason, but not for each.
#[derive(Default)]
struct Shedding {
    told: Option<Instant>,
    told_displaced: Option<Instant>,
}

impl Shedding {
    /// Reports a closed connection: one that was displaced, or the new one.
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

/// Serves a connection that another worker has accepted.
fn serve_handed(worker: &Rc<Worker>, tcp: std::net::TcpStream, slot: &Rc<WorkerSlot>, kind: &Kind) {
    let Ok(peer) = tcp.peer_addr() else {
        // The client has gone already.
        return slot.uncount_handed();
    };
    // Without a place in our epoll it cannot be served; the client sees that it is closed.
    let Ok(tcp) = TcpStream::from_std(tcp) else {
        slot.uncount_handed();
        return worker.metrics.internal(|i| i.overloads += 1);
    };
    let guard = slot.count_handed(worker.admission.enter(&tcp, peer));
    serve(worker.clone(), tcp, kind.clone(), guard);
}

/// Serves a connection that this worker has accepted.
fn serve_accepted(
    worker: &Rc<Worker>,
    tcp: TcpStream,
    peer: SocketAddr,
    slot: &Rc<WorkerSlot>,
    kind: &Kind,
) {
    let guard = slot.count(worker.admission.enter(&tcp, peer));
    serve(worker.clone(), tcp, kind.clone(), guard);
}

/// Starts a task for a connection, unless its client has gone. Each kind of listener has its own
/// kind of task: a common one would be as large as the largest.
fn serve(worker: Rc<Worker>, tcp: TcpStream, kind: Kind, guard: ConnectionGuard) {
    if socket::prepare(&tcp).is_err() {
        return;
    }
    let open = worker.connection_opened();
    match kind {
        Kind::Outbound => spawn_local(async move {
            let _open = (open, guard);
            outbound::serve_redirected(worker, tcp).await;
        }),
        Kind::Upstream(service, port) => spawn_local(async move {
            let _open = (open, guard);
            outbound::serve(worker, tcp, service, port).await;
        }),
        Kind::Inbound => spawn_local(async move {
            let _open = open;
            inbound::serve_redirected(worker, tcp, guard).await;
        }),
        Kind::InboundPort(port) => spawn_local(async move {
            let _open = open;
            inbound::serve(worker, tcp, port, guard).await;
        }),
        Kind::Gateway(gateway, port) => spawn_local(async move {
            let _open = (open, guard);
            gateway::serve(worker, tcp, gateway, port).await;
        }),
    };
}
