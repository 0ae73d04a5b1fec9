//! Ports of rules. Istio's are those of the pods.

use crate::import::imported::Imported;
use crate::import::services::Service;
use std::collections::BTreeSet;

pub(super) const PORT: &str = "destination.port";

/// Surroundings in which rules are translated.
pub(super) struct Place<'s> {
    /// The Service whose ports the rules name.
    pub(super) service: Option<&'s Service>,
    /// Ports of pods that the Services of the policy lead to.
    pub(super) led: &'s BTreeSet<u64>,
    /// Whether a rule that names no callers allows those without a certificate, too.
    pub(super) anybody: bool,
}

impl Place<'_> {
    /// Returns ports of the Service by one of the pods. `Some(None)`: the Service certainly does not lead there, though
    /// another one does. `None`: nobody knows.
    #[expect(
        clippy::option_option,
        reason = "a port that is not there is not the same as one that is not known"
    )]
    fn ports(&self, target: &str) -> Option<Option<&BTreeSet<u64>>> {
        let target: u64 = target.parse().ok()?;
        let service = self.service?;
        match service.ports.get(&target) {
            None if !self.led.contains(&target) || service.has_named_targets() => None,
            found => Some(found),
        }
    }
}

/// Ports of the Service that lead to these: theirs are the pods'. One that it certainly does not lead to is left out: nothing
/// comes there by this Service.
pub(super) fn of_service(
    id: &str,
    at: &str,
    theirs: &[String],
    place: &Place<'_>,
    imported: &mut Imported,
) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for text in theirs {
        match place.ports(text) {
            Some(own) => found.extend(own.into_iter().flatten()),
            None => imported.lose(
                id,
                at,
                &format!("no port of the Service leads to {text} by number"),
                "give the Service such a port, or write the policy anew",
            ),
        }
    }
    found
}
