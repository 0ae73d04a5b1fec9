//! Ports of rules. Istio's are those of the pods. `to.ports` has those of the Service, and the pods' own where no Service of the
//! pods has a port of that number. In a condition `destination.port` is the pods' own, and 0 is any that nobody declares.

use crate::import::POLICY;
use crate::import::imported::Imported;
use crate::import::services::Service;
use std::collections::BTreeSet;

pub(super) const PORT: &str = "destination.port";
/// Value of `destination.port` at a port that nobody declares.
const UNDECLARED: u64 = 0;

/// Surroundings in which rules are translated.
pub(super) struct Place<'s> {
    /// The Service that a policy is about. None: there is none.
    pub(super) service: Option<&'s Service>,
    /// All Services among the objects.
    pub(super) services: &'s [Service],
    pub(super) denies: bool,
    /// Whether a rule may allow callers by their addresses alone, who then need no certificate.
    pub(super) plaintext: bool,
}

/// How a rule says which ports it is about.
pub(super) enum Wanted {
    /// Numbers for `to.ports`.
    Ports(BTreeSet<u64>),
    Condition(String),
}

impl Place<'_> {
    /// Says that a rule is about these ports of the pods.
    pub(super) fn wanted(&self, pods: &BTreeSet<u64>) -> Wanted {
        let mut ports = BTreeSet::new();
        for number in pods {
            match self.service.and_then(|s| s.ports.get(number)) {
                Some(own) => ports.extend(own),
                None if self.is_free(*number) => {
                    ports.insert(*number);
                }
                // A Service has the number for another port, or for one by name that only the pods know.
                None => return Wanted::Condition(self.condition(pods)),
            }
        }
        Wanted::Ports(ports)
    }

    /// A port that nobody declares could be one of these: a denial is about it, too, and nothing is allowed there.
    fn condition(&self, pods: &BTreeSet<u64>) -> String {
        let mut all = pods.clone();
        if self.denies {
            all.insert(UNDECLARED);
        }
        format!("{PORT} in {:?}", Vec::from_iter(all))
    }

    /// Returns conditions that keep a rule from these ports of the pods.
    pub(super) fn unwanted(&self, pods: &BTreeSet<u64>) -> Vec<String> {
        // A port that a Service leads to is declared.
        let is_declared = |number: &u64| self.service.is_some_and(|s| s.ports.contains_key(number));
        let mut all = pods.clone();
        if !self.denies && !pods.iter().all(is_declared) {
            all.insert(UNDECLARED);
        }
        let each = all.iter();
        each.map(|number| format!("{PORT} != {number}")).collect()
    }

    /// Whether no Service that may have the same pods has a port of this number.
    fn is_free(&self, number: u64) -> bool {
        self.service.is_some_and(|service| {
            let mut all = self.services.iter();
            !all.any(|other| other.has_port(number) && other.may_share_pods(service))
        })
    }
}

/// Reads ports. None: none is named, so it is about any.
pub(super) fn numbers(
    id: &str,
    at: &str,
    texts: &[String],
    imported: &mut Imported,
) -> Option<BTreeSet<u64>> {
    let mut numbers = BTreeSet::new();
    for text in texts {
        match text.parse::<u16>() {
            Ok(number) if number > 0 => {
                numbers.insert(number.into());
            }
            _ => imported.lose(id, at, &format!("`{text}` is no port"), POLICY),
        }
    }
    (!texts.is_empty()).then_some(numbers)
}

/// Returns the ports that both are about.
pub(super) fn both(
    one: Option<BTreeSet<u64>>,
    other: Option<BTreeSet<u64>>,
) -> Option<BTreeSet<u64>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(&one & &other),
        (one, other) => one.or(other),
    }
}
