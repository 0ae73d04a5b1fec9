//! Leases a connection to an endpoint of a port, as far as the port's limits and its breaker allow.

use super::{EndpointHint, Port, health};
use crate::config::traffic::breaker::{BreakerProbe, BreakerVerdict};
use crate::config::traffic::limits::{LimitPermits, PortLimits, RetryPlace, TooMany};
use crate::config::traffic::shared::{self, Shared};
use crate::context::WorkerContext;
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use crate::upstream::permit::Permit;
use crate::upstream::{Lease, Upstream};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tulle_transport::StreamKind;

/// Endpoints tried before a connection attempt is given up.
const CONNECT_TRIES: usize = 3;

/// A lease that was not available at once.
pub enum Begun {
    /// No connection is open and free yet.
    Chose(Rc<Upstream>, Option<Box<Permit>>),
    /// All places are taken.
    Waits(Option<BreakerProbe>),
}

enum Admission {
    Now(Box<Permit>),
    /// All places are taken.
    Wait(Option<BreakerProbe>),
}

impl Port {
    /// Leases a connection to an endpoint that is open already. Otherwise returns the state for
    /// `later`.
    ///
    /// # Errors
    /// There is no endpoint, or none may be asked now.
    pub fn at_once(
        &self,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
        hint: &EndpointHint,
    ) -> Result<Result<Lease, Begun>, Failure> {
        let permit = match self.guarded {
            false => None,
            true => match self.admit(context, kind)? {
                Admission::Now(permit) => Some(permit),
                Admission::Wait(probe) => return Ok(Err(Begun::Waits(probe))),
            },
        };
        let upstream = self.pick(context, hint, None)?;
        Ok(match upstream.checkout(context, kind) {
            Some(lease) => Ok(lease.with(permit)),
            None => Err(Begun::Chose(upstream.clone(), permit)),
        })
    }

    /// Leases a connection to an endpoint and waits for it: for a place, for at most `wait_ms` (0:
    /// as long as it takes) and until the client has `gone`, or for a new connection.
    ///
    /// # Errors
    /// No endpoint is reachable, it took too long, or the client has gone.
    pub async fn later(
        &self,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
        hint: &EndpointHint,
        wait_ms: u32,
        begun: Begun,
        gone: impl Future<Output = Failure>,
    ) -> Result<Lease, Failure> {
        let (upstream, permit) = match begun {
            Begun::Chose(upstream, permit) => (Some(upstream), permit),
            Begun::Waits(probe) => {
                let permit = self.wait(kind, wait_ms, probe, gone).await?;
                (None, Some(permit))
            }
        };
        self.reach(context, kind, hint, None, upstream, permit)
            .await
    }

    /// Leases a connection to an endpoint, preferably not the one at `avoid`; waits as `later`
    /// does.
    ///
    /// # Errors
    /// There is no endpoint, none is reachable, the limits allow no more, or the client has gone.
    pub async fn lease(
        &self,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
        hint: &EndpointHint,
        avoid: Option<SocketAddr>,
        wait_ms: u32,
        gone: impl Future<Output = Failure>,
    ) -> Result<Lease, Failure> {
        let permit = match self.guarded {
            false => None,
            true => match self.admit(context, kind)? {
                Admission::Now(permit) => Some(permit),
                Admission::Wait(probe) => Some(self.wait(kind, wait_ms, probe, gone).await?),
            },
        };
        self.reach(context, kind, hint, avoid, None, permit).await
    }

    async fn reach(
        &self,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
        hint: &EndpointHint,
        avoid: Option<SocketAddr>,
        mut chosen: Option<Rc<Upstream>>,
        permit: Option<Box<Permit>>,
    ) -> Result<Lease, Failure> {
        let mut tries = self.endpoints.len().min(CONNECT_TRIES);
        loop {
            let upstream = match chosen.take() {
                Some(upstream) => upstream,
                None => self.pick(context, hint, avoid)?.clone(),
            };
            if let Some(lease) = upstream.checkout(context, kind) {
                return Ok(lease.with(permit));
            }
            match upstream.connect(context, kind).await {
                Ok(lease) => return Ok(lease.with(permit)),
                Err(failure) => {
                    if self.observed {
                        self.count(&upstream, true, Duration::ZERO);
                    }
                    // No byte was sent, so another endpoint may be asked.
                    if tries <= 1 {
                        self.unreachable(permit);
                        return Err(failure);
                    }
                    tries -= 1;
                }
            }
        }
    }

    fn admit(&self, context: &Rc<WorkerContext>, kind: StreamKind) -> Result<Admission, Failure> {
        let now = shared::now();
        let mut probe = None;
        let mut places = Some(LimitPermits::default());
        if let Some(shared) = &self.shared {
            if let Some(checks) = &shared.checks {
                health::used(checks, context, self, now);
            }
            match shared.breaker.as_ref().map(|b| b.admit(now)) {
                Some(BreakerVerdict::Open(ms)) => return Err(self.open(shared, ms)),
                Some(BreakerVerdict::Probe(tries)) => probe = Some(tries),
                Some(BreakerVerdict::Closed) | None => {}
            }
            if let Some(limits) = &shared.limits {
                places = limits.at_once(kind);
            }
        }
        Ok(match places {
            Some(places) => Admission::Now(Box::new(Permit::new(places, probe))),
            None => Admission::Wait(probe),
        })
    }

    async fn wait(
        &self,
        kind: StreamKind,
        most_ms: u32,
        probe: Option<BreakerProbe>,
        gone: impl Future<Output = Failure>,
    ) -> Result<Box<Permit>, Failure> {
        let most = (most_ms > 0).then(|| Duration::from_millis(most_ms.into()));
        let limits = self.shared.as_ref().and_then(|s| s.limits.as_ref());
        let places = match limits {
            None => LimitPermits::default(),
            Some(limits) => {
                let what = format!("{}:{}", self.service, self.number);
                limits.wait(kind, most, &what, gone).await?
            }
        };
        Ok(Box::new(Permit::new(places, probe)))
    }

    #[cold]
    fn open(&self, shared: &Shared, ms: u64) -> Failure {
        let text = format!(
            "{} has opened the circuit to {}:{} because too many requests failed or were slow; \
             one is tried in {ms} ms",
            shared.traffic.name, self.service, self.number
        );
        let failure = Failure::new(Reason::CircuitOpen, text);
        let Some(rule) = shared.traffic.breaker.as_deref() else {
            return failure;
        };
        if rule.status == 0 && rule.body.is_empty() {
            return failure;
        }
        let body = rule.body.as_bytes();
        let kind = || "text/plain; charset=utf-8".to_owned();
        failure.with_response(LocalResponse {
            status: match rule.status {
                0 => Reason::CircuitOpen.status(),
                given => given,
            },
            body: (!body.is_empty()).then(|| (kind(), body.to_vec())),
            ..LocalResponse::default()
        })
    }

    /// Begins a retry, as far as the limits allow.
    ///
    /// # Errors
    /// As many retries are under way as the limit allows.
    pub fn retry(&self) -> Result<Option<RetryPlace>, TooMany> {
        let limits = self.shared.as_ref().and_then(|s| s.limits.as_ref());
        limits.map(PortLimits::retry).transpose()
    }
}
