//! State of a port that all workers of the proxy share: the health of its endpoints, its limits and
//! its breaker. Only ports with a traffic policy have it.
//!
//! It is made with the snapshot and handed on from one to the next, so that a change of the
//! configuration keeps all state that is still true.

use super::breaker::Breaker;
use super::checks::Checks;
use super::limits::PortLimits;
use super::outlier::Outlier;
use super::retry::Policy;
use super::ring::Ring;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tulle_model::resource::{self, Affinity, Balancer, Traffic};
use tulle_net::clock;

/// State of a port that the workers share.
pub struct Shared {
    /// The traffic policy.
    pub traffic: Arc<Traffic>,
    /// Its endpoints, in the order of the resource.
    pub endpoints: Vec<Arc<EndpointState>>,
    /// Limits of requests and connections.
    pub limits: Option<Arc<PortLimits>>,
    /// Circuit breaker of the whole port.
    pub breaker: Option<Arc<Breaker>>,
    /// Ejection of single endpoints.
    pub outlier: Option<Outlier>,
    /// Active health checks.
    pub checks: Option<Arc<Checks>>,
    /// The ring, for a balancer that hashes.
    pub ring: Option<Ring>,
    /// Retry policy.
    pub retry: Option<Arc<Policy>>,
    /// Session affinity.
    pub affinity: Option<Arc<Affinity>>,
    /// How often an endpoint was ejected.
    pub ejections: Arc<AtomicU64>,
    /// An endpoint was chosen. Before that, no endpoint has traffic that newcomers could take from
    /// it.
    asked: AtomicBool,
}

/// State of an endpoint. Times are milliseconds of the coarse clock; 0: never.
#[derive(Debug, Default)]
pub struct EndpointState {
    pub(super) ejected_until: AtomicU64,
    pub(super) ejections: AtomicU32,
    pub(super) failures: AtomicU32,
    pub(super) unhealthy: AtomicBool,
    pub(super) good: AtomicU32,
    pub(super) bad: AtomicU32,
    since: AtomicU64,
}

/// The coarse clock in milliseconds.
pub fn now() -> u64 {
    u64::try_from(clock::monotonic().as_millis()).unwrap_or(u64::MAX)
}

/// A share of 1 in thousandths.
pub const WHOLE: u64 = 1000;
/// Share of an endpoint that has just come, in thousandths: it has to be asked to get warm.
const FIRST_SHARE: u64 = 50;

impl EndpointState {
    /// An endpoint that is added now.
    fn newcomer() -> Self {
        let state = Self::default();
        state.since.store(now(), Ordering::Relaxed);
        state
    }

    /// Whether it is ejected after too many failures.
    pub fn is_ejected(&self, now: u64) -> bool {
        self.ejected_until.load(Ordering::Relaxed) > now
    }

    /// Ejects it until then.
    pub fn eject(&self, until: u64) {
        self.since.store(until, Ordering::Relaxed);
        self.ejected_until.store(until, Ordering::Relaxed);
    }

    /// Whether health checks find it unhealthy.
    pub fn is_unhealthy(&self) -> bool {
        self.unhealthy.load(Ordering::Relaxed)
    }

    /// Sets the result of health checks.
    pub fn set_healthy(&self, healthy: bool) {
        if self.unhealthy.swap(!healthy, Ordering::Relaxed) && healthy {
            self.since.store(now(), Ordering::Relaxed);
        }
    }

    /// Whether it is healthy and not ejected.
    pub fn is_well(&self, now: u64) -> bool {
        !self.is_unhealthy() && !self.is_ejected(now)
    }

    /// Its part of its full share, in thousandths: it grows from when it was added or came back.
    pub fn share(&self, now: u64, slow_start_ms: u32) -> u64 {
        let since = self.since.load(Ordering::Relaxed);
        let (passed, all) = (now.saturating_sub(since), u64::from(slow_start_ms));
        if since == 0 || passed >= all {
            return WHOLE;
        }
        (passed * WHOLE / all).max(FIRST_SHARE)
    }

    /// Milliseconds until it is asked again.
    pub fn ejected_for(&self, now: u64) -> u64 {
        let until = self.ejected_until.load(Ordering::Relaxed);
        until.saturating_sub(now)
    }
}

impl Shared {
    /// Compiles the shared state of a port. `before`: the state until now, with the addresses of
    /// its endpoints.
    pub fn new(
        port: &resource::ServicePort,
        before: Option<(&Self, &[resource::Endpoint])>,
    ) -> Result<Option<Arc<Self>>, String> {
        let Some(traffic) = port.traffic.as_deref() else {
            return Ok(None);
        };
        let old = before.map(|(shared, _)| shared);
        let known: HashMap<SocketAddr, &Arc<EndpointState>> = before
            .into_iter()
            .flat_map(|(shared, endpoints)| endpoints.iter().zip(&shared.endpoints))
            .map(|(endpoint, state)| (endpoint.address, state))
            .collect();
        let endpoints = port.endpoints.iter().map(|e| match known.get(&e.address) {
            Some(state) => Arc::clone(state),
            // Endpoints that are there before the first request have equal shares.
            None if known.is_empty() || !old.is_some_and(Self::was_asked) => Arc::default(),
            None => Arc::new(EndpointState::newcomer()),
        });
        let same =
            |same: fn(&Traffic, &Traffic) -> bool| old.filter(|old| same(&old.traffic, traffic));
        let limits = match same(|a, b| a.limits == b.limits) {
            Some(old) => old.limits.clone(),
            None => PortLimits::new(&traffic.limits),
        };
        let breaker = match same(|a, b| a.breaker == b.breaker) {
            Some(old) => old.breaker.clone(),
            None => traffic.breaker.as_deref().map(Breaker::new),
        };
        let checks = match same(|a, b| a.health_check == b.health_check) {
            Some(old) => old.checks.clone(),
            None => traffic.health_check.as_deref().map(Checks::new),
        };
        let endpoints: Vec<_> = endpoints.collect();
        if checks.is_none() {
            // Without checks nothing would find out that it is healthy again.
            endpoints.iter().for_each(|e| e.set_healthy(true));
        }
        let retry = traffic.retry.as_deref().map(Policy::compile).transpose();
        Ok(Some(Arc::new(Self {
            retry: retry.map_err(|why| format!("{}: {why}", traffic.name))?,
            traffic: Arc::new(traffic.clone()),
            limits,
            breaker,
            checks,
            affinity: traffic.affinity.as_deref().cloned().map(Arc::new),
            outlier: traffic.outlier.as_deref().map(Outlier::new),
            ring: matches!(traffic.balancer, Balancer::RingHash(_))
                .then(|| Ring::new(&port.endpoints)),
            ejections: old.map(|old| old.ejections.clone()).unwrap_or_default(),
            asked: AtomicBool::new(old.is_some_and(Self::was_asked)),
            endpoints,
        })))
    }

    /// Notes that an endpoint was chosen.
    pub fn note_asked(&self) {
        // Workers share it: it is written once.
        if !self.was_asked() {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether results of exchanges have to be recorded.
    pub fn is_observed(&self) -> bool {
        self.breaker.is_some() || self.outlier.is_some()
    }

    /// Whether exchanges have to ask before they begin.
    pub fn is_guarded(&self) -> bool {
        self.breaker.is_some()
            || self
                .limits
                .as_ref()
                .is_some_and(|l| l.rule().connections > 0 || l.rule().requests > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::resource::{Endpoint, ServicePort};

    fn port(addresses: &[u16], change: impl FnOnce(&mut Traffic)) -> ServicePort {
        let mut traffic = Traffic::default();
        change(&mut traffic);
        let endpoint = |port: &u16| Endpoint::new(([10, 0, 0, 1], *port).into(), true);
        ServicePort {
            endpoints: addresses.iter().map(endpoint).collect(),
            traffic: Some(Box::new(traffic)),
            ..Default::default()
        }
    }

    #[test]
    fn what_is_known_outlives_a_change_and_who_comes_begins_slowly() {
        let limited = |t: &mut Traffic| {
            t.limits.requests = 3;
            t.breaker = Some(Box::default());
            t.slow_start_ms = 10_000;
        };
        let one = port(&[1, 2], limited);
        let before = Shared::new(&one, None).unwrap().unwrap();
        before.endpoints[1].eject(now() + 60_000);
        assert_eq!(before.endpoints[0].share(now(), 10_000), WHOLE);
        let two = port(&[3, 2], |t| {
            limited(t);
            t.limits.requests = 4;
        });
        let unasked = Shared::new(&two, Some((&before, &one.endpoints)));
        let first = &unasked.unwrap().unwrap().endpoints[0];
        assert_eq!(first.share(now(), 10_000), WHOLE, "nobody was asked before");
        before.note_asked();
        let after = Shared::new(&two, Some((&before, &one.endpoints)))
            .unwrap()
            .unwrap();
        assert!(after.endpoints[1].is_ejected(now()));
        assert!(after.endpoints[0].share(now(), 10_000) < WHOLE / 2);
        let (a, b) = (
            before.breaker.as_ref().unwrap(),
            after.breaker.as_ref().unwrap(),
        );
        assert!(Arc::ptr_eq(a, b));
        let (a, b) = (
            before.limits.as_ref().unwrap(),
            after.limits.as_ref().unwrap(),
        );
        assert!(!Arc::ptr_eq(a, b), "the limits have changed");
    }

    #[test]
    fn a_share_grows_with_time() {
        let state = EndpointState::default();
        state.eject(1000);
        let shares = [1000, 1250, 1500, 2000, 9000].map(|at| state.share(at, 1000));
        assert_eq!(shares, [FIRST_SHARE, 250, 500, WHOLE, WHOLE]);
        assert_eq!(state.share(1000, 0), WHOLE, "no slow start");
    }
}
