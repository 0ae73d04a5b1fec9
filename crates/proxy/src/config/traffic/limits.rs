//! Limits how much a proxy asks of a port at a time, all its workers together.
//!
//! Requests above the limit wait in order, as far as the queue allows, or are refused. Changed
//! limits apply to requests that come afterwards; those under way keep their places.

use crate::telemetry::reason::{Failure, Reason};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tulle_model::resource::ConnectionLimits;
use tulle_transport::StreamKind;

/// The limits of one port, and the requests and connections under way.
#[derive(Debug)]
pub struct PortLimits {
    rule: ConnectionLimits,
    connections: Option<Arc<Semaphore>>,
    requests: Option<Arc<Semaphore>>,
    pending: AtomicU32,
    retries: AtomicU32,
    refused: AtomicU64,
}

/// Places taken; free again when dropped.
#[derive(Debug, Default)]
pub struct LimitPermits {
    _connection: Option<OwnedSemaphorePermit>,
    _request: Option<OwnedSemaphorePermit>,
}

/// A request's turn to be sent again; over when dropped.
#[derive(Debug)]
pub struct RetryPlace(Arc<PortLimits>);

/// As many retries are under way as the limit allows.
#[derive(Debug)]
pub struct TooMany;

impl Drop for RetryPlace {
    fn drop(&mut self) {
        self.0.retries.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Waiting<'a>(&'a PortLimits);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

fn places(limit: u32) -> Option<Arc<Semaphore>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    (limit > 0).then(|| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))))
}

impl PortLimits {
    /// `None`: nothing is limited.
    pub fn new(rule: &ConnectionLimits) -> Option<Arc<Self>> {
        (*rule != ConnectionLimits::default()).then(|| {
            Arc::new(Self {
                rule: rule.clone(),
                connections: places(rule.connections),
                requests: places(rule.requests),
                pending: AtomicU32::new(0),
                retries: AtomicU32::new(0),
                refused: AtomicU64::new(0),
            })
        })
    }

    /// Returns the configured limits.
    pub fn rule(&self) -> &ConnectionLimits {
        &self.rule
    }

    /// Returns the semaphores that a request or connection needs. Over HTTP/1.1 a request needs
    /// both.
    fn needed(&self, kind: StreamKind) -> [Option<&Arc<Semaphore>>; 2] {
        let requests = (kind != StreamKind::Tcp).then_some(self.requests.as_ref());
        let connections = matches!(kind, StreamKind::Tcp | StreamKind::Http);
        let connections = connections.then_some(self.connections.as_ref());
        [connections.flatten(), requests.flatten()]
    }

    /// Takes a place, if there is one and nobody waits for it.
    pub fn at_once(&self, kind: StreamKind) -> Option<LimitPermits> {
        let take = |all: Option<&Arc<Semaphore>>| match all {
            None => Some(None),
            Some(all) => all.clone().try_acquire_owned().ok().map(Some),
        };
        let [connections, requests] = self.needed(kind);
        Some(LimitPermits {
            _connection: take(connections)?,
            _request: take(requests)?,
        })
    }

    /// Waits for a place, in order, for at most so long, and until the client has `gone`.
    ///
    /// # Errors
    /// Too many wait already, it takes too long, or nobody waits for the answer any more. `what` is the port, for the
    /// operator.
    pub async fn wait(
        &self,
        kind: StreamKind,
        most: Option<Duration>,
        what: &str,
        gone: impl Future<Output = Failure>,
    ) -> Result<LimitPermits, Failure> {
        let rule = &self.rule;
        let failed = |text: String| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            Failure::new(Reason::Overload, text)
        };
        let waiting = Waiting(self);
        if self.pending.fetch_add(1, Ordering::Relaxed) >= rule.pending {
            let (connections, requests) = (rule.connections, rule.requests);
            return Err(failed(format!(
                "{what} is at this proxy's limits: {connections} connections, \
                 {requests} requests (0: none) and {} that wait",
                rule.pending
            )));
        }
        let [connections, requests] = self.needed(kind);
        let places = async {
            LimitPermits {
                _connection: take(connections).await,
                _request: take(requests).await,
            }
        };
        let places = async {
            match most {
                None => Some(places.await),
                Some(most) => tokio::time::timeout(most, places).await.ok(),
            }
        };
        let places = tokio::select! {
            // A place that is free now goes to somebody who is still there.
            biased;
            failure = gone => return Err(failure),
            places = places => places,
        };
        drop(waiting);
        places.ok_or_else(|| {
            failed(format!(
                "{what} had no free place for {:?}; {} may wait",
                most.unwrap_or_default(),
                rule.pending
            ))
        })
    }

    /// Begins a retry.
    ///
    /// # Errors
    /// As many retries are under way as the limit allows.
    pub fn retry(self: &Arc<Self>) -> Result<RetryPlace, TooMany> {
        let place = RetryPlace(self.clone());
        let before = self.retries.fetch_add(1, Ordering::Relaxed);
        match self.rule.retries {
            0 => Ok(place),
            most if before < most => Ok(place),
            _ => Err(TooMany),
        }
    }

    /// Requests that wait.
    pub fn pending(&self) -> u32 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Requests refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

async fn take(all: Option<&Arc<Semaphore>>) -> Option<OwnedSemaphorePermit> {
    // The semaphore is never closed, so a place comes in the end.
    all?.clone().acquire_owned().await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn limits(change: impl FnOnce(&mut ConnectionLimits)) -> Arc<PortLimits> {
        let mut rule = ConnectionLimits::default();
        change(&mut rule);
        PortLimits::new(&rule).unwrap()
    }

    #[tokio::test]
    async fn who_waits_longest_is_next_and_the_queue_is_bounded() {
        let limits = limits(|r| (r.requests, r.pending) = (1, 2));
        let first = limits.at_once(StreamKind::Http).unwrap();
        let wait = || {
            let most = Some(Duration::from_secs(20));
            limits.wait(StreamKind::Http, most, "a:1", pending())
        };
        let (second, third) = (wait(), wait());
        tokio::pin!(second, third);
        assert!(
            tokio::time::timeout(Duration::from_millis(1), &mut second)
                .await
                .is_err()
        );
        assert!(
            tokio::time::timeout(Duration::from_millis(1), &mut third)
                .await
                .is_err()
        );
        assert_eq!(wait().await.unwrap_err().reason, Reason::Overload);
        drop(first);
        assert!(
            limits.at_once(StreamKind::Http).is_none(),
            "it is the second's"
        );
        let held = second.await.unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(1), &mut third)
                .await
                .is_err()
        );
        drop(held);
        third.await.unwrap();
        assert_eq!((limits.pending(), limits.refused()), (0, 1));
        assert!(limits.at_once(StreamKind::Tcp).is_some(), "requests only");
    }

    #[tokio::test]
    async fn who_waits_too_long_is_refused_and_leaves_no_trace() {
        let limits = limits(|r| (r.connections, r.pending) = (1, 1));
        let held = limits.at_once(StreamKind::Tcp).unwrap();
        let most = Some(Duration::from_millis(1));
        let wait = limits.wait(StreamKind::Http, most, "a:1", pending());
        assert_eq!(wait.await.unwrap_err().reason, Reason::Overload);
        drop(held);
        assert!(limits.at_once(StreamKind::Http).is_some());
        assert_eq!(limits.pending(), 0);
    }

    #[tokio::test]
    async fn who_has_gone_gives_its_place_in_the_queue_up() {
        let limits = limits(|r| (r.requests, r.pending) = (1, 1));
        let held = limits.at_once(StreamKind::Http).unwrap();
        let gone = ready(Failure::new(Reason::ClientClosed, "gone"));
        let wait = limits.wait(StreamKind::Http, None, "a:1", gone);
        assert_eq!(wait.await.unwrap_err().reason, Reason::ClientClosed);
        assert_eq!((limits.pending(), limits.refused()), (0, 0));
        drop(held);
        assert!(limits.at_once(StreamKind::Http).is_some());
    }

    #[test]
    fn retries_are_counted() {
        let limits = limits(|r| r.retries = 1);
        let one = limits.retry().unwrap();
        assert!(limits.retry().is_err());
        drop(one);
        assert!(limits.retry().is_ok());
    }
}
