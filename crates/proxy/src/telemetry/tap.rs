//! Shows requests as they end to watchers, over administration, and to the exporter for a collector: the lines of
//! the access log.
//!
//! Bounded: a few watchers, with a queue for each. A watcher misses lines that it does not read in
//! time; those that the exporter misses are counted. While nobody watches it costs the look at one flag.

use crate::telemetry::export_totals::ExportTotals;
use hyper::body::{Body, Bytes, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Sleep, sleep};

/// Watchers at a time.
const WATCHERS: usize = 4;
/// Lines that wait for one watcher.
const QUEUE: usize = 256;
/// Lines that wait for the exporter.
const EXPORT_QUEUE: usize = 4096;
/// A watch ends by itself, before its connection would be cut; a watcher that wants more asks
/// again.
const LIFETIME: Duration = Duration::from_secs(50);

/// The watchers.
#[derive(Debug, Default)]
pub struct Taps {
    watched: AtomicBool,
    watchers: Mutex<Vec<Sender<Bytes>>>,
    exporter: Mutex<Option<Exporter>>,
}

/// Where lines for a collector go.
#[derive(Debug)]
struct Exporter {
    lines: Sender<Bytes>,
    totals: Arc<ExportTotals>,
}

impl Taps {
    /// Whether anybody watches.
    pub fn are_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Adds a watcher; `None` if there are too many.
    pub fn watch(self: &Arc<Self>) -> Option<Tap> {
        let mut watchers = self.watchers();
        watchers.retain(|w| !w.is_closed());
        if watchers.len() >= WATCHERS {
            return None;
        }
        let (sender, lines) = channel(QUEUE);
        watchers.push(sender);
        self.watched.store(true, Ordering::Relaxed);
        Some(Tap {
            taps: self.clone(),
            lines,
            end: Box::pin(sleep(LIFETIME)),
        })
    }

    /// Shows a line to all watchers.
    pub fn show(&self, line: &str) {
        let line = Bytes::copy_from_slice(line.as_bytes());
        for watcher in self.watchers().iter() {
            // A watcher that does not keep up misses the line.
            let _ = watcher.try_send(line.clone());
        }
        let mut exporter = self.exporter();
        let sent = exporter.as_ref().map(|e| e.lines.try_send(line));
        match (sent, exporter.as_ref()) {
            (Some(Err(TrySendError::Full(_))), Some(exporter)) => {
                exporter.totals.dropped.fetch_add(1, Ordering::Relaxed);
            }
            (Some(Err(TrySendError::Closed(_))), _) => {
                *exporter = None;
                drop(exporter);
                self.look_again(&self.watchers());
            }
            _ => {}
        }
    }

    /// Shows all lines to the exporter, until it drops them.
    pub fn export(&self, totals: &Arc<ExportTotals>) -> Receiver<Bytes> {
        let (lines, received) = channel(EXPORT_QUEUE);
        let totals = totals.clone();
        *self.exporter() = Some(Exporter { lines, totals });
        self.watched.store(true, Ordering::Relaxed);
        received
    }

    fn look_again(&self, watchers: &[Sender<Bytes>]) {
        let watched = !watchers.is_empty() || self.exporter().is_some();
        self.watched.store(watched, Ordering::Relaxed);
    }

    fn exporter(&self) -> MutexGuard<'_, Option<Exporter>> {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Sender<Bytes>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lines for one watcher, as the body of an answer.
pub struct Tap {
    taps: Arc<Taps>,
    lines: Receiver<Bytes>,
    end: Pin<Box<Sleep>>,
}

impl Body for Tap {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        let line = self.lines.poll_recv(context);
        line.map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.lines.close();
        let mut watchers = self.taps.watchers();
        watchers.retain(|w| !w.is_closed());
        self.taps.look_again(&watchers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_go_to_who_watches_and_cost_nothing_else() {
        let taps = Arc::new(Taps::default());
        assert!(!taps.are_watched());
        let mut watching: Vec<Tap> = (0..WATCHERS).map(|_| taps.watch().unwrap()).collect();
        assert!(taps.watch().is_none(), "more than are taken");
        // More than the queue holds: the rest is dropped, nobody waits.
        for _ in 0..2 * QUEUE {
            taps.show("line\n");
        }
        let first = &mut watching[0];
        for _ in 0..QUEUE {
            assert_eq!(first.lines.try_recv().unwrap(), "line\n");
        }
        assert!(first.lines.try_recv().is_err());
        watching.clear();
        assert!(!taps.are_watched());
    }

    #[tokio::test]
    async fn the_exporter_gets_all_lines_and_what_it_misses_is_counted() {
        let taps = Arc::new(Taps::default());
        let totals = Arc::new(ExportTotals::default());
        let mut lines = taps.export(&totals);
        drop(taps.watch().unwrap());
        assert!(
            taps.are_watched(),
            "a watcher that leaves takes nobody along"
        );
        for _ in 0..EXPORT_QUEUE + 3 {
            taps.show("line\n");
        }
        assert_eq!(lines.try_recv().unwrap(), "line\n");
        assert_eq!(totals.dropped.load(Ordering::Relaxed), 3);
        drop(lines);
        taps.show("line\n");
        assert!(!taps.are_watched());
    }
}
