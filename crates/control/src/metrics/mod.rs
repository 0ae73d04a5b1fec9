//! Counts of the controller and its process, and the text in which Prometheus reads them.

mod counts;
pub(crate) mod process;
mod text;

pub(crate) use counts::Histogram;
pub use counts::{Counter, Tally};
pub use text::Text;

use std::sync::Arc;

/// Writes further metrics of the process that the controller is part of.
pub type More = Arc<dyn Fn(&mut Text) + Send + Sync>;

/// Counts since the controller started.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) pushes: Counter,
    pub(crate) nacks: Counter,
    /// Time from a change until a proxy has accepted the update about it.
    pub(crate) push_seconds: Histogram,
    pub(crate) certificates: Counter,
    /// Requests for certificates that were refused, by the code of the answer.
    pub(crate) certificates_refused: Tally<1>,
}
