//! Hands lines of the access log to the task that sends them to a collector (`export`).
//!
//! A worker never waits for it: lines that find the queue full are dropped and counted.

use crate::telemetry::export_totals::ExportTotals;
use hyper::body::Bytes;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Lines that wait for the exporter.
const QUEUE: usize = 4096;

/// The way to the exporter, if there is one.
#[derive(Debug, Default)]
pub(crate) struct LogExport(Mutex<Option<Way>>);

#[derive(Debug)]
struct Way {
    lines: Sender<Bytes>,
    totals: Arc<ExportTotals>,
}

impl LogExport {
    /// Begins the export; dropping the receiver ends it.
    pub(crate) fn start(&self, totals: &Arc<ExportTotals>) -> Receiver<Bytes> {
        let (lines, received) = channel(QUEUE);
        let totals = totals.clone();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Way { lines, totals });
        received
    }

    /// Hands on a line.
    pub(crate) fn send(&self, line: &str) {
        let mut way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(to) = &*way else {
            return;
        };
        match to.lines.try_send(Bytes::copy_from_slice(line.as_bytes())) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                to.totals.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Err(TrySendError::Closed(_)) => *way = None,
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
        assert_eq!(lines.try_recv().unwrap(), "line\n");
        assert_eq!(totals.dropped.load(Ordering::Relaxed), 3);
        drop(lines);
        export.send("after it has ended\n");
        assert!(export.0.lock().unwrap().is_none());
    }
}
