//! Outlier ejection: an endpoint that fails several times in a row is not asked for a while, longer
//! each time.

use super::shared::EndpointState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tulle_model::resource;

/// When endpoints are ejected, and for how long; defaults are filled in.
#[derive(Debug, Clone)]
pub struct Outlier {
    consecutive: u32,
    base_ms: u64,
    max_ms: u64,
    max_percent: usize,
}

impl Outlier {
    /// Fills in the defaults of a configured rule.
    pub fn new(rule: &resource::Outlier) -> Self {
        let or = |value: u32, default| if value == 0 { default } else { value };
        let base_ms = u64::from(or(rule.base_ms, 30_000));
        Self {
            consecutive: or(rule.consecutive, 5),
            base_ms,
            max_ms: u64::from(or(rule.max_ms, 300_000)).max(base_ms),
            max_percent: or(rule.max_percent, 50).min(100) as usize,
        }
    }

    /// Records an answer or failure of an endpoint. Returns true if this ejects it.
    pub fn record(&self, all: &[Arc<EndpointState>], index: usize, now: u64, error: bool) -> bool {
        let Some(endpoint) = all.get(index) else {
            return false;
        };
        if !error {
            endpoint.failures.store(0, Ordering::Relaxed);
            // An endpoint that has been well for as long as it was ejected begins anew.
            let times = u64::from(endpoint.ejections.load(Ordering::Relaxed));
            let until = endpoint.ejected_until.load(Ordering::Relaxed);
            if times > 0 && now > until + self.time_out(times) {
                endpoint.ejections.store(0, Ordering::Relaxed);
            }
            return false;
        }
        let failures = endpoint.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures < self.consecutive || endpoint.is_ejected(now) || !self.may_eject(all, now) {
            return false;
        }
        endpoint.failures.store(0, Ordering::Relaxed);
        let times = u64::from(endpoint.ejections.fetch_add(1, Ordering::Relaxed)) + 1;
        endpoint.eject(now + self.time_out(times));
        true
    }

    fn time_out(&self, times: u64) -> u64 {
        self.base_ms.saturating_mul(times).min(self.max_ms)
    }

    /// If there are others, at least one endpoint may be ejected.
    fn may_eject(&self, all: &[Arc<EndpointState>], now: u64) -> bool {
        let most = (all.len() * self.max_percent / 100).max(1);
        all.len() > 1 && all.iter().filter(|e| e.is_ejected(now)).count() < most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_put_out_longer_each_time_and_never_too_many() {
        let rule = resource::Outlier {
            consecutive: 2,
            base_ms: 100,
            max_ms: 150,
            max_percent: 50,
        };
        let outlier = Outlier::new(&rule);
        let all: Vec<_> = (0..4).map(|_| Arc::<EndpointState>::default()).collect();
        let fails = |index, now| outlier.record(&all, index, now, true);
        let mut now = 1000;
        assert!(!fails(0, now));
        outlier.record(&all, 0, now, false);
        assert!(!fails(0, now), "not in a row");
        assert!(fails(0, now));
        assert!(all[0].is_ejected(now + 99) && !all[0].is_ejected(now + 100));
        now += 100;
        assert!(!fails(0, now));
        assert!(fails(0, now));
        assert!(all[0].is_ejected(now + 149) && !all[0].is_ejected(now + 150));
        assert!(!fails(1, now));
        assert!(fails(1, now));
        assert!(!fails(2, now));
        assert!(!fails(2, now), "half of them are out already");
        now += 1000;
        outlier.record(&all, 0, now, false);
        assert!(!fails(0, now));
        assert!(fails(0, now));
        assert!(!all[0].is_ejected(now + 100), "it began anew");
        let alone = [Arc::<EndpointState>::default()];
        assert!((0..10).all(|_| !outlier.record(&alone, 0, now, true)));
    }
}
