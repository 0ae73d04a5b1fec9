//! A proxy that reports: what it says of itself, and what it uses.

use super::{ToProxies, lock};
use crate::history::KEPT;
use crate::history::STEP;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tulle_api::v1;
use tulle_model::identity::SpiffeId;

/// Seconds of a step of what a proxy uses.
pub(crate) const SERIES_STEP: u32 = 15;
const SERIES: usize = (KEPT * STEP / SERIES_STEP) as usize;
/// Most endpoints that a proxy may call left out.
const MAX_LEFT_OUT: usize = 64;
/// Longest silence in seconds that a proxy may have.
const MAX_BEAT: u32 = 3600;
/// Most bytes of what a proxy says of itself.
const MAX_TEXT: usize = 128;

/// A proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// `<SPIFFE id>#<instance>`
    pub(crate) id: String,
    pub(crate) shared_id: Arc<str>,
    pub(crate) identity: SpiffeId,
    pub(crate) instance: String,
    pub(crate) version: String,
    pub(crate) kind: &'static str,
    pub(crate) host: String,
    pub(crate) started_at: i64,
    /// Seconds after which what it said last is no longer so.
    pub(crate) stale: f64,
    to: ToProxies,
    facts: Mutex<Facts>,
    /// Claims that were not its own.
    dropped: AtomicU64,
}

/// Resources that a proxy uses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Cores.
    pub(crate) cpu: Option<f64>,
    /// Bytes.
    pub(crate) memory: Option<u64>,
    pub(crate) connections: u64,
    /// Requests a second of the last report.
    pub(crate) rate: f64,
    pub(crate) log_level: String,
    /// Endpoints that it passes over.
    pub(crate) left_out: Vec<String>,
    /// Step, cores and KiB.
    pub(crate) series: VecDeque<(u32, f32, u32)>,
    /// When it reported last.
    pub(crate) at: f64,
}

/// Returns what a proxy says, cut and without anything that is not plain.
pub(crate) fn plain(text: &str) -> String {
    let plain = text.chars().filter(|c| c.is_ascii_graphic() && *c != '#');
    plain.take(MAX_TEXT).collect()
}

/// Longest silence of a proxy, as it says.
fn beat(reporter: &v1::Reporter) -> u32 {
    match reporter.beat_seconds {
        0 => 30,
        seconds => seconds.min(MAX_BEAT),
    }
}

impl Proxy {
    pub(super) fn new(identity: SpiffeId, reporter: v1::Reporter, to: ToProxies) -> Self {
        let instance = plain(&reporter.instance);
        let id = format!("{identity}#{instance}");
        Self {
            shared_id: id.as_str().into(),
            id,
            identity,
            instance,
            version: plain(&reporter.version),
            kind: match reporter.kind.as_str() {
                "gateway" => "gateway",
                "egress" => "egress",
                _ => "sidecar",
            },
            host: plain(&reporter.host),
            started_at: reporter.started_at_unix_seconds,
            stale: 2.0 * f64::from(beat(&reporter)) + 5.0,
            to,
            facts: Mutex::default(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Sends it a message; false if it does not take it.
    pub(super) fn send(&self, message: v1::ToProxy) -> bool {
        self.to.try_send(Ok(Box::new(message))).is_ok()
    }

    /// Returns what it uses, as it said last.
    pub(crate) fn facts(&self) -> Facts {
        lock(&self.facts).clone()
    }

    /// Notes what it used.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub(super) fn used(&self, interval: &v1::Interval, now: f64) {
        let seconds = f64::from(interval.milliseconds.max(1)) / 1000.0;
        let cpu = f64::from(interval.cpu_milliseconds) / 1000.0 / seconds;
        let counted = interval.edges.iter().flat_map(|edge| &edge.outcomes);
        let requests: u64 = counted.fold(0, |sum, o| sum.saturating_add(o.count));
        let mut facts = lock(&self.facts);
        facts.cpu = Some(cpu);
        facts.memory = Some(interval.resident_bytes).filter(|bytes| *bytes > 0);
        facts.connections = interval.connections.into();
        facts.rate = requests as f64 / seconds;
        facts.log_level = plain(&interval.log_level);
        let left_out = interval.left_out.iter().take(MAX_LEFT_OUT);
        facts.left_out = left_out.map(|address| plain(address)).collect();
        facts.at = now;
        let step = (now / f64::from(SERIES_STEP)) as u32;
        let kib = u32::try_from(interval.resident_bytes >> 10).unwrap_or(u32::MAX);
        match facts.series.back().map(|(last, ..)| *last) {
            Some(last) if last == step => drop(facts.series.pop_back()),
            // The clock was set: what was before is of no time that it could be drawn beside.
            Some(last) if step < last || (step - last) as usize > SERIES => facts.series.clear(),
            _ => {}
        }
        facts.series.push_back((step, cpu as f32, kib));
        if facts.series.len() > SERIES {
            facts.series.pop_front();
        }
    }

    /// Counts a claim that was not its own.
    pub(super) fn dropped(&self) {
        if self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                proxy = self.id,
                "it reports calls that are not its own; they are dropped"
            );
        }
    }

    /// How many claims were not its own.
    #[cfg(test)]
    pub(super) fn dropped_count(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
