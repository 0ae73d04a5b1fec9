//! Hands lines of the access log to the task that sends them to a collector (`export`).
//!
//! A worker never waits for it: lines that find the queue full are dropped and counted.

use crate::telemetry::export_totals::ExportTotals;
use crate::telemetry::line_room::{LinePlace, LineRoom};
use hyper::body::Bytes;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Lines that wait for the exporter.
const QUEUE: usize = 4096;
/// Bytes of lines that the collector has not taken, those that the exporter holds among them.
const QUEUE_BYTES: usize = 8 * 1024 * 1024;

/// A line, and the room that it takes until the collector has it.
pub(crate) type Exported = (Bytes, LinePlace);

/// The way to the exporter, if there is one.
#[derive(Debug, Default)]
pub(crate) struct LogExport(Mutex<Option<Way>>);

#[derive(Debug)]
struct Way {
    lines: Sender<Exported>,
    room: Arc<LineRoom>,
    totals: Arc<ExportTotals>,
}

impl LogExport {
    /// Begins the export; dropping the receiver ends it.
    pub(crate) fn start(&self, totals: &Arc<ExportTotals>) -> Receiver<Exported> {
        let (lines, received) = channel(QUEUE);
        let way = Way {
            lines,
            room: LineRoom::new(QUEUE_BYTES),
            totals: totals.clone(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(way);
        received
    }

    /// Hands on a line.
    pub(crate) fn send(&self, line: &str) {
        let mut way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(to) = &*way else {
            return;
        };
        if to.lines.is_closed() {
            *way = None;
            return;
        }
        let place = to.room.take(line.len());
        let sent = place.is_some_and(|place| {
            let line = Bytes::copy_from_slice(line.as_bytes());
            to.lines.try_send((line, place)).is_ok()
        });
        if !sent {
            to.totals.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_exporter_misses_is_counted() {
        let export = LogExport::default();
        let totals = Arc::new(ExportTotals::default());
        export.send("before anybody asks\n");
        let mut lines = export.start(&totals);
        for _ in 0..QUEUE + 3 {
            export.send("line\n");
        }
        assert_eq!(lines.try_recv().unwrap().0, "line\n");
        assert_eq!(totals.dropped.load(Ordering::Relaxed), 3);
        drop(lines);
        export.send("after it has ended\n");
        assert!(export.0.lock().unwrap().is_none());
    }

    #[test]
    fn bytes_that_wait_for_the_collector_are_bounded() {
        let export = LogExport::default();
        let totals = Arc::new(ExportTotals::default());
        let mut lines = export.start(&totals);
        let long = "x".repeat(QUEUE_BYTES / 8);
        (0..10).for_each(|_| export.send(&long));
        assert_eq!(totals.dropped.load(Ordering::Relaxed), 2);
        // Room is free when the exporter has done with the line, not when it has taken it.
        let taken = lines.try_recv().unwrap();
        export.send(&long);
        assert_eq!(totals.dropped.load(Ordering::Relaxed), 3);
        drop(taken);
        export.send(&long);
        assert_eq!(totals.dropped.load(Ordering::Relaxed), 3);
    }
}
