//! Records what came of requests: for the endpoint's latency, the port's breaker and its outlier detection.

use super::Port;
use crate::config::traffic::shared;
use crate::upstream::permit::Permit;
use crate::upstream::{Lease, Upstream};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Port {
    /// Counts a failed request: no endpoint was reachable.
    pub(super) fn unreachable(&self, permit: Option<Box<Permit>>) {
        if let Some(breaker) = self.shared.as_ref().and_then(|s| s.breaker.as_ref()) {
            let probe = permit.and_then(|mut p| p.take_probe());
            breaker.record(shared::now(), true, 0, probe);
        }
    }

    /// Records the end of an exchange, by its status, or 0 if the upstream gave none.
    pub fn ended(&self, lease: &mut Lease, status: u16, started: Instant) {
        if self.observed {
            self.note(lease, status, started.elapsed());
        }
    }

    fn note(&self, lease: &mut Lease, status: u16, took: Duration) {
        let error = status == 0 || status >= 500;
        let upstream = lease.upstream().clone();
        self.count(&upstream, error, took);
        if let Some(breaker) = self.shared.as_ref().and_then(|s| s.breaker.as_ref()) {
            let probe = lease.permit().and_then(|p| p.take_probe());
            let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            breaker.record(shared::now(), error, ms, probe);
        }
    }

    /// Counts an answer or failure of an endpoint.
    pub(super) fn count(&self, upstream: &Rc<Upstream>, error: bool, took: Duration) {
        let now = shared::now();
        let ms = took.as_secs_f64() * 1000.0;
        match error {
            true => upstream.latency().failed(ms, now),
            false => upstream.latency().observe(ms, now),
        }
        let Some(shared) = &self.shared else { return };
        let Some(outlier) = &shared.outlier else {
            return;
        };
        let member = self.members().find(|(u, _)| Rc::ptr_eq(u, upstream));
        if let Some((_, index)) = member
            && outlier.record(&shared.endpoints, index, now, error)
        {
            shared.ejections.fetch_add(1, Ordering::Relaxed);
            let ms = shared.endpoints[index].ejected_for(now);
            let address = upstream.key.address;
            tracing::warn!(service = &*self.service, port = self.number, %address, ms, "ejected");
        }
    }
}
