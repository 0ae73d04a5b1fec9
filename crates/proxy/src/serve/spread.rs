//! Spreads connections over workers.
//!
//! The kernel chooses the worker by a hash of the addresses. That is even for hundreds of
//! connections, but chance for two. A sidecar's connections are few: each other sidecar has one for
//! each of its workers, which lives for an hour and carries everything. Two of them on one worker
//! would leave another idle. So a worker that accepts a connection while another has fewer hands it
//! over: once, before reading from it.

use crate::context::admission::AdmittedConnection;
use crate::upstream::mux::MuxConnection;
use std::cell::RefCell;
use std::net::TcpStream;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How often a worker checks whether it has too many: connections end, too, and those left may all
/// belong to one worker.
const LOOK: Duration = Duration::from_secs(10);

/// Connections from downstream that all workers and listeners of this process have.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// How many connections from downstream this process has.
pub fn open_in_all() -> usize {
    OPEN.load(Ordering::Relaxed)
}

/// One listener's connections, as all workers see them.
struct Spread {
    slots: Box<[Shared]>,
    /// If true, balance exactly: connections are few and long-lived. Otherwise hand over only when
    /// the kernel's hash is clearly uneven.
    exact: bool,
}

struct Shared {
    open: AtomicUsize,
    /// Receives connections from other workers; bounded by the process's descriptors.
    takes: UnboundedSender<TcpStream>,
}

/// One worker's part of one listener, before the worker runs.
pub struct SlotSeed {
    spread: Arc<Spread>,
    worker: usize,
    /// Connections that others hand over.
    handed: UnboundedReceiver<TcpStream>,
}

/// One worker's part of one listener.
pub struct WorkerSlot {
    spread: Arc<Spread>,
    worker: usize,
    multiplexed: RefCell<Vec<Weak<MuxConnection>>>,
}

/// Counts a connection until dropped.
pub struct ConnectionGuard {
    slot: Rc<WorkerSlot>,
    _held: AdmittedConnection,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.slot.mine().fetch_sub(1, Ordering::Relaxed);
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a connection that another sidecar carries in a stream, until dropped. It stays with the worker
/// that has the sidecar's connection, so workers do not compare how many they have.
pub struct CountedStream(#[expect(dead_code, reason = "it holds a place")] AdmittedConnection);

impl CountedStream {
    /// Counts it from now on.
    pub fn new(held: AdmittedConnection) -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self(held)
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns a seed of a slot for each worker at one listener.
pub fn slot_seeds(workers: usize, exact: bool) -> Vec<SlotSeed> {
    let (shared, received): (Vec<_>, Vec<_>) = (0..workers)
        .map(|_| {
            let (takes, handed) = unbounded_channel();
            let open = AtomicUsize::new(0);
            (Shared { open, takes }, handed)
        })
        .unzip();
    let slots = shared.into_boxed_slice();
    let spread = Arc::new(Spread { slots, exact });
    let seed = |(worker, handed)| SlotSeed {
        spread: spread.clone(),
        worker,
        handed,
    };
    received.into_iter().enumerate().map(seed).collect()
}

impl SlotSeed {
    /// Returns its slot, in the worker's thread, and the connections that others hand over to it.
    pub fn taken(self) -> (Rc<WorkerSlot>, UnboundedReceiver<TcpStream>) {
        let slot = Rc::new(WorkerSlot {
            spread: self.spread,
            worker: self.worker,
            multiplexed: RefCell::default(),
        });
        if slot.spread.exact && slot.spread.slots.len() > 1 {
            tokio::task::spawn_local(slot.clone().keep_even());
        }
        (slot, self.handed)
    }
}

impl WorkerSlot {
    fn mine(&self) -> &AtomicUsize {
        &self.spread.slots[self.worker].open
    }

    /// Returns the worker with the fewest connections, and their number.
    fn least(&self) -> Option<(&Shared, usize)> {
        let slots = self.spread.slots.iter();
        let counted = slots.map(|slot| (slot, slot.open.load(Ordering::Relaxed)));
        counted.min_by_key(|(_, open)| *open)
    }

    /// Returns another worker that should have the next connection.
    fn better(&self) -> Option<&Shared> {
        if self.spread.slots.len() < 2 {
            return None;
        }
        let (slot, least) = self.least()?;
        let slack = if self.spread.exact { 0 } else { least / 8 };
        (self.mine().load(Ordering::Relaxed) > least + slack).then_some(slot)
    }

    /// Hands an accepted connection over, or returns it if this worker is to serve it.
    pub fn accepted(&self, tcp: tokio::net::TcpStream) -> Option<tokio::net::TcpStream> {
        let Some(other) = self.better() else {
            return Some(tcp);
        };
        // Leaves this worker's epoll; after an error the connection is of no use to anybody.
        let tcp = tcp.into_std().ok()?;
        // Counts there already, so that the next one does not go there as well.
        other.open.fetch_add(1, Ordering::Relaxed);
        let Err(refused) = other.takes.send(tcp) else {
            return None;
        };
        // The other worker is draining, and so will this one.
        other.open.fetch_sub(1, Ordering::Relaxed);
        tokio::net::TcpStream::from_std(refused.0).ok()
    }

    /// Counts a connection that this worker serves.
    pub fn count(self: &Rc<Self>, held: AdmittedConnection) -> ConnectionGuard {
        self.mine().fetch_add(1, Ordering::Relaxed);
        self.count_handed(held)
    }

    /// Counts a connection that was handed over; the sender has counted it.
    pub fn count_handed(self: &Rc<Self>, held: AdmittedConnection) -> ConnectionGuard {
        OPEN.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard {
            slot: self.clone(),
            _held: held,
        }
    }

    /// Uncounts a connection that was handed over and is not served after all.
    pub fn uncount_handed(&self) {
        self.mine().fetch_sub(1, Ordering::Relaxed);
    }

    /// Remembers a connection from another sidecar, which can be asked to reconnect.
    pub fn remember(&self, connection: &Rc<MuxConnection>) {
        if self.spread.slots.len() > 1 {
            let mut all = self.multiplexed.borrow_mut();
            all.retain(|c| c.strong_count() > 0);
            all.push(Rc::downgrade(connection));
        }
    }

    /// Ends a connection from another sidecar, in order, when this worker has too many. The other
    /// sidecar reconnects, and the worker that accepts hands it to the one with fewest.
    async fn keep_even(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.multiplexed
                .borrow_mut()
                .retain(|c| c.strong_count() > 0);
            let least = self.least().map_or(0, |(_, least)| least);
            if self.mine().load(Ordering::Relaxed) > least + 1 + least / 8 {
                let multiplexed = self.multiplexed.borrow();
                let mut alive = multiplexed.iter().filter_map(Weak::upgrade);
                if let Some(one) = alive.find(|c| c.is_usable()) {
                    one.shed();
                }
            }
        }
    }
}

impl ConnectionGuard {
    /// Returns the slot that counts it.
    pub fn slot(&self) -> Rc<WorkerSlot> {
        self.slot.clone()
    }
}
