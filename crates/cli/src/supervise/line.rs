//! The line from a joined host to its controller, as everybody here knows it: whether it is there, whether it has become
//! another, and whether the controller has something to say that has to be asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Notify, watch};

/// The line. On the controller's own host nothing happens to it.
#[derive(Debug, Default)]
pub(crate) struct Line {
    ask: Notify,
    is_told: AtomicBool,
    changes: watch::Sender<u64>,
    failures: watch::Sender<u64>,
    away: watch::Sender<bool>,
}

impl Line {
    /// The controller, or what became of it, has to be asked about this host's certificate.
    pub(crate) fn ask(&self) {
        self.ask.notify_one();
    }

    /// Notes that the controller says when to ask it.
    pub(crate) fn told(&self) {
        self.is_told.store(true, Ordering::Relaxed);
        self.ask();
    }

    /// Whether the controller says when to ask it. One of an earlier version does not.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }

    /// Waits until the controller is to be asked.
    pub(crate) async fn asked(&self) {
        self.ask.notified().await;
    }

    /// Notes whether the controller has been silent for a while.
    pub(crate) fn set_away(&self, away: bool) {
        self.away
            .send_if_modified(|known| std::mem::replace(known, away) != away);
    }

    /// Whether the controller has been silent for a while.
    pub(crate) fn is_away(&self) -> bool {
        *self.away.borrow()
    }

    /// Waits until the controller is there.
    pub(crate) async fn back(&self) {
        // It fails only when this is gone.
        let _ = self.away.subscribe().wait_for(|away| !away).await;
    }

    /// Follows whether the controller is away.
    pub(crate) fn away(&self) -> watch::Receiver<bool> {
        self.away.subscribe()
    }

    /// This host's address on the line is another now: connections from the one before lead nowhere.
    pub(crate) fn change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Returns a future that is ready when the line has become another than it is now.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        next(&self.changes)
    }

    /// No connection could be made. Of the requests that wait for one only the first is told so; the others wait for
    /// the next try.
    pub(crate) fn fail(&self) {
        self.failures.send_modify(|failures| *failures += 1);
    }

    /// Returns a future that is ready when from now on no connection could be made.
    pub(crate) fn failed(&self) -> impl Future<Output = ()> + Send + 'static {
        next(&self.failures)
    }
}

/// Waits for the next of what is counted.
fn next(counted: &watch::Sender<u64>) -> impl Future<Output = ()> + Send + 'static {
    let mut counted = counted.subscribe();
    async move {
        if counted.changed().await.is_err() {
            std::future::pending().await
        }
    }
}
