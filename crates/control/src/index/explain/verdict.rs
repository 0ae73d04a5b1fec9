//! Turns what is found at each destination into one answer.

use super::Call;
use std::collections::BTreeMap;
use tulle_api::v1;
use tulle_model::manifest::NO_ENDPOINT;

/// Where a call may go.
#[derive(Default)]
pub(super) struct Way {
    /// Services and their ports.
    pub(super) destinations: Vec<(String, u16)>,
    /// The route or split that names them; empty: it is the service that is called.
    pub(super) by: String,
    /// An HTTP route names them, so that a missing one is answered with 500.
    pub(super) by_rule: bool,
}

impl Way {
    /// The way that leads to the service itself.
    pub(super) fn straight(service: &str, port: u16) -> Self {
        Self {
            destinations: vec![(service.to_owned(), port)],
            ..Self::default()
        }
    }
}

/// The outcome of a call at one destination.
pub(super) struct Found {
    /// `service:port`.
    pub(super) place: String,
    /// Raw TCP: nobody could read a status.
    pub(super) opaque: bool,
    /// Somebody is ready to answer there.
    pub(super) answers: bool,
    pub(super) outcome: Outcome,
}

/// The decision of a destination's policies, or why none decides.
pub(super) enum Outcome {
    /// The rule that allows it; empty: a permissive mesh does.
    Allowed(String),
    /// The rule that denies it.
    Denied(String),
    /// Plaintext, and mutual TLS is strict.
    Plaintext,
    /// No rule matches. `about`: some policy is about the destination.
    Unmentioned { about: bool },
    /// This service, port or backend does not exist.
    Missing(String),
    /// The service has no workload.
    Nobody,
}

impl Found {
    /// Says how a refusal looks to the client: `answered with 403`.
    fn answered(&self, status: &str) -> String {
        match self.opaque {
            true => "the connection is reset".into(),
            false => format!("answered with {status}"),
        }
    }

    /// Says why it fails; `None`: it does not.
    fn failure(&self, way: &Way) -> Option<String> {
        Some(match &self.outcome {
            Outcome::Allowed(_) => return None,
            Outcome::Denied(rule) => format!("{rule} denies it: {}", self.answered("403")),
            Outcome::Plaintext => {
                let refused = match self.opaque {
                    true => "the connection is reset (plaintext_refused)",
                    false => "refused with 403 (plaintext_refused)",
                };
                format!(
                    "it has no sidecar and calls in plaintext, and mutual TLS is strict: {refused}"
                )
            }
            Outcome::Unmentioned { about } => {
                let nobody = match about {
                    true => "no policy allows it",
                    false if way.destinations.len() > 1 => "no policy is about it",
                    false => "no policy is about this destination",
                };
                match self.opaque {
                    true => format!("{nobody}: denied, the connection is reset"),
                    false => format!("{nobody}: denied with 403"),
                }
            }
            Outcome::Nobody => {
                format!("it has no workload: {} (no_endpoint)", self.answered("503"))
            }
            Outcome::Missing(what) => {
                let (status, reason) = match (way.by_rule, way.by.is_empty()) {
                    (true, _) => ("500", "no_backend"),
                    (false, false) => ("502", "no_service"),
                    (false, true) => ("404", "no_port"),
                };
                let by = match way.by.as_str() {
                    "" => String::new(),
                    by => format!("{by}: "),
                };
                format!("{by}{what}: {} ({reason})", self.answered(status))
            }
        })
    }
}

/// Writes what was found into the answer. `permissive`: the mesh lets identities of it call.
pub(super) fn sum_up(
    found: &[Found],
    way: &Way,
    call: &Call<'_>,
    permissive: bool,
    answer: &mut v1::Explanation,
) {
    let several = found.len() > 1;
    answer.destinations = found.iter().map(|f| f.place.clone()).collect();
    let mut failures = Vec::new();
    for at in found {
        let Some(text) = at.failure(way) else {
            continue;
        };
        let named = several && !matches!(at.outcome, Outcome::Missing(_));
        failures.push(match named {
            true => format!("backend {}: {text}", at.place),
            false => text,
        });
        if let (Outcome::Denied(rule), true) = (&at.outcome, answer.policy.is_empty()) {
            answer.policy.clone_from(rule);
        }
    }
    answer.allowed = !found.is_empty() && failures.is_empty();
    if !failures.is_empty() {
        answer.reason = failures.join("; ");
        return;
    }
    if !answer.allowed {
        return; // whoever found no destination said why
    }
    if permissive {
        answer.policy = "Mesh/permissiveMode".into();
        answer.reason = match call.source {
            None => "it has no sidecar and calls in plaintext, which a permissive mesh lets in",
            Some(_) => "the mesh is permissive: any identity of it may call",
        }
        .into();
    } else {
        let mut rules = found.iter().filter_map(|f| match &f.outcome {
            Outcome::Allowed(rule) if !rule.is_empty() => Some(rule),
            _ => None,
        });
        answer.policy = rules.next().cloned().unwrap_or_default();
        answer.reason = format!("{} allows it", answer.policy);
    }
    nobody_ready(found, answer);
}

/// Names the destinations where nobody is ready to answer.
fn nobody_ready(found: &[Found], answer: &mut v1::Explanation) {
    let silent: Vec<&Found> = found.iter().filter(|f| !f.answers).collect();
    let Some(first) = silent.first() else { return };
    let answered = first.answered("503");
    let text = match silent.len() == found.len() {
        true => format!("no workload of the destination is ready ({NO_ENDPOINT}): {answered}"),
        false => {
            let places: Vec<&str> = silent.iter().map(|f| f.place.as_str()).collect();
            let places = places.join(" and ");
            let share = match first.opaque {
                true => "its connections are reset",
                false => "its share is answered with 503",
            };
            format!("no workload of {places} is ready ({NO_ENDPOINT}): {share}")
        }
    };
    answer.reason.push_str(&format!(", but {text}"));
}

/// A policy that was looked at, and for which destination.
pub(super) struct Considered {
    pub(super) place: String,
    pub(super) applied: v1::Applied,
}

/// Lists each policy once for each thing that it says. Where it says different things of several
/// destinations, each is named.
pub(super) fn listed(considered: Vec<Considered>, destinations: usize) -> Vec<v1::Applied> {
    // An outcome and the places it holds for.
    type Said = Vec<(String, Vec<String>)>;
    let mut order: Vec<(String, String)> = Vec::new();
    let mut said: BTreeMap<(String, String), Said> = BTreeMap::new();
    for Considered { place, applied } in considered {
        let key = (applied.kind, applied.name);
        let outcomes = said.entry(key.clone()).or_insert_with(|| {
            order.push(key);
            Vec::new()
        });
        match outcomes.iter_mut().find(|(o, _)| *o == applied.outcome) {
            Some((_, places)) if places.contains(&place) => {}
            Some((_, places)) => places.push(place),
            None => outcomes.push((applied.outcome, vec![place])),
        }
    }
    let mut listed = Vec::new();
    for key in order {
        let outcomes = said.remove(&key).unwrap_or_default();
        let alike = outcomes.len() == 1;
        for (outcome, places) in outcomes {
            let outcome = match alike || destinations < 2 {
                true => outcome,
                false => format!("{outcome} ({})", places.join(", ")),
            };
            listed.push(v1::Applied {
                kind: key.0.clone(),
                name: key.1.clone(),
                outcome,
            });
        }
    }
    listed
}
