//! Counts what became of items for a collector. Workers and the task that sends them share it.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Items of a batch.
pub const BATCH: usize = 512;

/// Counters of one signal.
#[derive(Debug, Default)]
pub struct ExportTotals {
    /// Items that a collector has accepted.
    pub exported: AtomicU64,
    /// Items that were lost.
    pub dropped: AtomicU64,
    /// Wakes the exporter when a batch is full.
    pub batch: Notify,
}

impl ExportTotals {
    /// Writes the counters as Prometheus text: `tulle_<signal>_exported_total` and `…_dropped_total`.
    pub fn metrics(&self, signal: &str, items: &str) -> String {
        let row = |what: &str, help: &str, count: &AtomicU64| {
            let name = format!("tulle_{signal}_{what}_total");
            let count = count.load(Ordering::Relaxed);
            format!("# HELP {name} {items} {help}\n# TYPE {name} counter\n{name} {count}\n")
        };
        row("exported", "that the collector has taken.", &self.exported)
            + &row(
                "dropped",
                "lost: the collector was away, slow or refused them.",
                &self.dropped,
            )
    }
}
