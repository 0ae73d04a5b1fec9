//! The controller's metrics of the cluster: watches, webhooks, who leads.
//!
//! The counters belong to the process, as its log does, because watches begin in many places.

use crate::kinds::Missing;
use std::collections::BTreeMap;
use tokio::sync::watch::Receiver;
use tulle_control::metrics::{Tally, Text};

/// Lists with which a watch began, by kind.
pub(crate) static WATCHES_BEGUN: Tally<1> = Tally::new();
/// Errors of watches, by kind.
pub(crate) static WATCHES_FAILED: Tally<1> = Tally::new();
/// Reviews, by webhook and how they ended.
pub(crate) static REVIEWS: Tally<2> = Tally::new();

/// How many objects of each kind have no effect.
pub type RefusedObjects = BTreeMap<&'static str, usize>;

/// The present state, which is read when a scrape comes.
pub struct Present {
    /// Whether this replica writes.
    pub leads: Receiver<bool>,
    /// The kinds of objects that are not known yet.
    pub missing: Receiver<Missing>,
    /// Objects without effect.
    pub refused: Receiver<RefusedObjects>,
}

/// Writes all of it.
pub fn write(text: &mut Text, present: &Present) {
    let is = u8::from(*present.leads.borrow());
    let help = "1 on the replica that writes to the API server, else 0.";
    text.single("tulle_controller_leader", "gauge", help, is);
    let missing = present.missing.borrow().len();
    let help = "Kinds of objects that are not listed yet; 0 when the controller is ready.";
    text.single("tulle_controller_kinds_missing", "gauge", help, missing);
    let name = "tulle_controller_objects_refused";
    text.metric(
        name,
        "gauge",
        "Objects of the cluster that cannot be read, by kind.",
    );
    for (kind, count) in present.refused.borrow().iter() {
        text.sample(name, &[("kind", kind)], count);
    }
    WATCHES_BEGUN.write(
        text,
        "tulle_controller_watches_begun_total",
        ["kind"],
        "Lists with which a watch of the API server began, by kind.",
    );
    WATCHES_FAILED.write(
        text,
        "tulle_controller_watch_errors_total",
        ["kind"],
        "Watches of the API server that were interrupted, by kind.",
    );
    REVIEWS.write(
        text,
        "tulle_controller_webhook_reviews_total",
        ["webhook", "result"],
        "Reviews that the API server asked of the webhooks, by result.",
    );
}
