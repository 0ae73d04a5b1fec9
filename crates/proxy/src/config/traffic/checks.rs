//! Whether and how the endpoints of a port are checked, and what the checks have found in a row.

use super::shared::{EndpointState, now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tulle_model::resource;

/// A port without requests for this many intervals, and for this long, is not in use.
const UNUSED_INTERVALS: u64 = 6;
const UNUSED_MS: u64 = 60_000;

/// The checks of one port.
#[derive(Debug)]
pub struct Checks {
    rule: resource::HealthCheck,
    running: AtomicBool,
    used: AtomicU64,
}

impl Checks {
    /// Creates checks that do not run yet. Defaults are filled in.
    pub fn new(rule: &resource::HealthCheck) -> Arc<Self> {
        let or = |value: u32, default| if value == 0 { default } else { value };
        let mut rule = rule.clone();
        rule.interval_ms = or(rule.interval_ms, 10_000);
        rule.timeout_ms = or(rule.timeout_ms, 1_000);
        rule.healthy = or(rule.healthy, 2);
        rule.unhealthy = or(rule.unhealthy, 3);
        Arc::new(Self {
            rule,
            running: AtomicBool::new(false),
            used: AtomicU64::new(0),
        })
    }

    /// The port is in use. Returns the right to ask its endpoints for all workers, unless one of them has it.
    pub fn used(self: &Arc<Self>, now: u64) -> Option<Running> {
        self.used.store(now, Ordering::Relaxed);
        if self.running.load(Ordering::Relaxed) || self.running.swap(true, Ordering::AcqRel) {
            return None;
        }
        Some(Running(self.clone()))
    }

    /// The rule, with its defaults filled in.
    pub fn rule(&self) -> &resource::HealthCheck {
        &self.rule
    }

    /// Whether nobody has asked anything of the port for a while.
    pub fn is_unused(&self) -> bool {
        let most = UNUSED_MS.max(u64::from(self.rule.interval_ms) * UNUSED_INTERVALS);
        now().saturating_sub(self.used.load(Ordering::Relaxed)) > most
    }

    /// Counts the outcome of a check: several alike in a row decide how the endpoint is.
    pub fn record(&self, endpoint: &EndpointState, good: bool) {
        let (same, other) = match good {
            true => (&endpoint.good, &endpoint.bad),
            false => (&endpoint.bad, &endpoint.good),
        };
        other.store(0, Ordering::Relaxed);
        let row = same.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let enough = match good {
            true => self.rule.healthy,
            false => self.rule.unhealthy,
        };
        if row >= enough {
            endpoint.set_healthy(good);
        }
    }
}

/// The right to ask the endpoints of a port, until dropped.
pub struct Running(Arc<Checks>);

impl Running {
    /// Where and how endpoints are checked.
    pub fn checks(&self) -> &Arc<Checks> {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_in_a_row_turn_an_endpoint() {
        let checks = Checks::new(&resource::HealthCheck::default());
        let endpoint = EndpointState::default();
        let turns = |answers: &[bool]| {
            answers
                .iter()
                .for_each(|good| checks.record(&endpoint, *good));
            endpoint.is_unhealthy()
        };
        assert!(!turns(&[false, false, true, false, false]));
        assert!(turns(&[false]));
        assert!(turns(&[true, false, true]));
        assert!(!turns(&[true]));
    }
}
