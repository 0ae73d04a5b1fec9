//! Counters of one worker: plain numbers, merged with the other workers' when they are scraped.
//!
//! A series is looked up when a connection or a destination is set up, not per request; a request
//! then adds to numbers it already holds. Names and labels are Istio's. No label is ever taken
//! from a path or header, and the number of series is bounded.

mod internals;
mod labels;
mod osm;
mod series;
mod text;

pub use internals::Internals;
#[cfg(feature = "plugins")]
pub(crate) use internals::{add_plugin, add_plugin_count};
pub(crate) use labels::ServiceName;
pub use series::{BUCKETS_MS, Histogram, Labels, Reporter, RequestSeries, Sizes, StatusGroup};
pub use text::TrafficText;

use crate::telemetry::reason::Reason;
use internals::add_audit;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tulle_model::resource::MetricSettings;

/// Series a worker keeps; more are counted under unknown labels.
const MAX_SERIES: usize = 4096;
/// Series of one caller's identity; more are counted under an unknown workload, whose name is the caller's own
/// word.
const MAX_SERIES_OF_SOURCE: usize = 256;
/// A series that nobody holds and that did not change for this long is forgotten.
const EXPIRY: Duration = Duration::from_secs(900);

/// All series of one worker.
#[derive(Default)]
pub struct Metrics {
    settings: Cell<MetricSettings>,
    series: RefCell<HashMap<Labels, Rc<RequestSeries>>>,
    internals: RefCell<Internals>,
}

/// One worker's numbers, to be merged and shown.
#[derive(Default)]
pub struct WorkerReport {
    /// Requests by their answers.
    pub requests: HashMap<Labels, Vec<(StatusGroup, Reason, Histogram)>>,
    /// Sizes of the same, where they are counted.
    pub sizes: HashMap<Labels, Vec<(StatusGroup, Reason, Sizes)>>,
    /// TCP connections opened and closed, bytes sent and received.
    pub tcp: HashMap<Labels, [u64; 4]>,
    /// About the proxy itself.
    pub internals: Internals,
    workers: u64,
    pauses: u64,
}

impl Metrics {
    /// Takes over the settings of the mesh. When series are to be other ones, all begin anew: who counts
    /// looks its series up again, as with each configuration.
    pub fn set(&self, settings: MetricSettings) {
        let before = self.settings.replace(settings);
        let same = |of: fn(&MetricSettings) -> bool| of(&before) == of(&settings);
        if !same(|s| s.compact) || !same(|s| s.without_sizes) {
            self.series.borrow_mut().clear();
        }
    }

    /// The series with these labels.
    pub fn series(&self, mut labels: Labels) -> Rc<RequestSeries> {
        let settings = self.settings.get();
        if settings.compact {
            labels.shorten();
        }
        let mut all = self.series.borrow_mut();
        if let Some(series) = all.get(&labels) {
            return series.clone();
        }
        if all.len() >= MAX_SERIES {
            labels.source = None;
            labels.source_workload = None;
            labels.destination = None;
            labels.destination_workload = None;
        } else if labels.reporter == Reporter::Destination && labels.source_workload.is_some() {
            let same = all.keys().filter(|known| known.source == labels.source);
            if same.count() >= MAX_SERIES_OF_SOURCE {
                labels.source_workload = None;
            }
        }
        all.entry(labels.clone())
            .or_insert_with(|| RequestSeries::new(labels, !settings.without_sizes))
            .clone()
    }

    /// Changes a counter about the proxy itself.
    pub fn internal(&self, change: impl FnOnce(&mut Internals)) {
        change(&mut self.internals.borrow_mut());
    }

    /// Counts a match of an audit rule.
    pub fn audited(&self, rule: &Arc<str>) {
        add_audit(&mut self.internals.borrow_mut().audits, rule, 1);
    }

    /// Returns the present numbers. Forgets series that have expired.
    pub fn report(&self) -> WorkerReport {
        let mut report = WorkerReport {
            internals: self.internals.borrow().clone(),
            workers: 1,
            pauses: tulle_net::moderation::pauses(),
            ..WorkerReport::default()
        };
        self.series.borrow_mut().retain(|labels, series| {
            let outcomes = series.outcomes.borrow();
            let shown = outcomes
                .iter()
                .map(|o| (o.answer, o.reason, o.histogram.clone()));
            report.requests.insert(labels.clone(), shown.collect());
            let sized = outcomes.iter();
            let sized =
                sized.filter_map(|o| Some((o.answer, o.reason, Sizes::clone(o.sizes.as_deref()?))));
            let sized: Vec<_> = sized.collect();
            if !sized.is_empty() {
                report.sizes.insert(labels.clone(), sized);
            }
            let tcp = &series.tcp;
            if tcp.opened.get() > 0 {
                let counts = [&tcp.opened, &tcp.closed, &tcp.sent, &tcp.received].map(Cell::get);
                report.tcp.insert(labels.clone(), counts);
            }
            Rc::strong_count(series) > 1 || series.touched.get().elapsed() < EXPIRY
        });
        report
    }
}

impl WorkerReport {
    /// Adds another worker's numbers.
    pub fn merge(&mut self, other: Self) {
        merge(&mut self.requests, other.requests, |mine, other| {
            mine.merge(other)
        });
        merge(&mut self.sizes, other.sizes, |mine, other| {
            mine.merge(other)
        });
        for (labels, counts) in other.tcp {
            let mine = self.tcp.entry(labels).or_default();
            for (mine, theirs) in mine.iter_mut().zip(counts) {
                *mine += theirs;
            }
        }
        self.internals.merge(other.internals);
        self.workers += other.workers;
        self.pauses += other.pauses;
    }
}

/// Numbers by labels and answer.
type ByAnswer<T> = HashMap<Labels, Vec<(StatusGroup, Reason, T)>>;

/// Adds the numbers of another worker.
fn merge<T>(mine: &mut ByAnswer<T>, other: ByAnswer<T>, add: impl Fn(&mut T, &T)) {
    for (labels, outcomes) in other {
        let mine = mine.entry(labels).or_default();
        for (answer, reason, numbers) in outcomes {
            let mut known = mine.iter_mut();
            match known.find(|(a, r, _)| *a == answer && *r == reason) {
                Some((_, _, known)) => add(known, &numbers),
                None => mine.push((answer, reason, numbers)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
