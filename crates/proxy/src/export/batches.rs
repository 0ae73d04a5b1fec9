//! Items that wait for a collector, and leave in batches.
//!
//! The collector may be away, slow or wrong: the queue is bounded, the oldest items are dropped and counted, and
//! tries become rarer.

use crate::export::collector::{Client, Signal};
use crate::telemetry::export_totals::ExportTotals;
use prost::bytes::Bytes;
use std::collections::VecDeque;
use std::collections::vec_deque::Iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tulle_model::resource::Collector;

/// Longest that an item waits while the collector works.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// Items of a batch.
pub(super) const BATCH: usize = crate::telemetry::export_totals::BATCH;
/// Items that wait while the collector does not work.
const WAITING: usize = 4 * BATCH;
/// Longest wait between tries.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The items of one signal.
pub(super) struct Batches<T> {
    signal: Signal,
    totals: Arc<ExportTotals>,
    waiting: VecDeque<T>,
    client: Option<Client>,
    backoff: Duration,
}

impl<T> Batches<T> {
    pub(super) fn new(signal: Signal, totals: Arc<ExportTotals>) -> Self {
        Self {
            signal,
            totals,
            waiting: VecDeque::new(),
            client: None,
            backoff: Duration::ZERO,
        }
    }

    /// How long until the next turn, unless a batch is full before.
    pub(super) fn pause(&self) -> Duration {
        self.backoff.max(INTERVAL)
    }

    /// Whether the collector took the last batch, so that a full one may follow at once.
    pub(super) fn is_served(&self) -> bool {
        self.backoff.is_zero()
    }

    /// Adds items. The oldest make room.
    pub(super) fn add(&mut self, items: impl IntoIterator<Item = T>) {
        self.waiting.extend(items);
        self.shorten(WAITING);
    }

    /// Drops everything and forgets the collector: nothing is to be sent any more.
    pub(super) fn stop(&mut self) {
        self.shorten(0);
        self.client = None;
        self.backoff = Duration::ZERO;
    }

    /// Sends all that wait; `encode` makes a message of some. What failed is logged and waits longer.
    pub(super) async fn send(
        &mut self,
        settings: &Collector,
        encode: &(dyn Fn(Iter<'_, T>) -> Bytes + Sync),
    ) {
        match self.try_send(settings, encode).await {
            Ok(()) => self.backoff = Duration::ZERO,
            Err(error) => {
                self.backoff = (self.backoff * 2).clamp(INTERVAL, MAX_BACKOFF);
                let (signal, waiting) = (self.signal, self.waiting.len());
                tracing::warn!(%error, ?signal, waiting, retry_in = ?self.backoff, "telemetry");
            }
        }
    }

    async fn try_send(
        &mut self,
        settings: &Collector,
        encode: &(dyn Fn(Iter<'_, T>) -> Bytes + Sync),
    ) -> Result<(), String> {
        while !self.waiting.is_empty() {
            let client = match self.client.take().filter(|client| client.is_for(settings)) {
                Some(client) => client,
                None => Client::new(settings)?,
            };
            let client = self.client.insert(client);
            let count = self.waiting.len().min(BATCH);
            let message = encode(self.waiting.range(..count));
            match client.send(self.signal, message).await {
                Ok(rejected) => {
                    let rejected = usize::try_from(rejected).unwrap_or(count);
                    self.forget(count, rejected.min(count));
                }
                Err(error) => {
                    if error.is_final {
                        self.forget(count, count);
                    }
                    return Err(error.why);
                }
            }
        }
        Ok(())
    }

    /// Drops the oldest items beyond `most`.
    fn shorten(&mut self, most: usize) {
        let lost = self.waiting.len().saturating_sub(most);
        if lost > 0 {
            self.forget(lost, lost);
        }
    }

    fn forget(&mut self, count: usize, lost: usize) {
        self.waiting.drain(..count);
        let totals = &self.totals;
        totals.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        let taken = (count - lost) as u64;
        totals.exported.fetch_add(taken, Ordering::Relaxed);
    }
}
