//! Sends spans, metrics and log records to collectors (OTLP). Each has a task on the main thread.

mod batches;
mod collector;
mod logs;
mod metrics;
mod own;
mod spans;

pub(crate) use metrics::Page;

use crate::control::publish::Current;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::export_totals::ExportTotals;
use crate::worker::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Where telemetry comes from.
pub(crate) struct Sources {
    /// The configuration in force: it says what is sent where.
    pub(crate) current: Current,
    /// The workload beside this proxy, among those of its service.
    pub(crate) instance: String,
    /// The workers, who have spans.
    pub(crate) workers: Vec<UnboundedSender<Command>>,
    pub(crate) spans: Arc<ExportTotals>,
    /// The page of all metrics.
    pub(crate) page: Page,
    pub(crate) log: AccessLog,
    pub(crate) logs: Arc<ExportTotals>,
}

/// The tasks.
pub(crate) struct Exports {
    end: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Sources {
    /// Starts the tasks. While the Mesh wants nothing, they sleep.
    pub(crate) fn start(self) -> Exports {
        let (end, ended) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let exporter = spans::Exporter::new(
            self.current.clone(),
            self.workers,
            self.spans,
            self.instance.clone(),
        );
        tasks.spawn(exporter.run(ended.clone()));
        tasks.spawn(metrics::run(
            self.current.clone(),
            self.instance.clone(),
            self.page,
            ended.clone(),
        ));
        tasks.spawn(logs::run(
            self.current,
            self.log,
            self.logs,
            self.instance,
            ended,
        ));
        Exports { end, tasks }
    }
}

impl Exports {
    /// Sends what is left, and waits for that so long.
    pub(crate) async fn end(mut self, limit: Duration) {
        // The tasks are running unless they have panicked.
        let _ = self.end.send(true);
        let sent = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(limit, sent).await;
    }
}
