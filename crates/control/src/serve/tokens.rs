//! Limits how often something may be asked for, and reviews the tokens of a cluster: the API server
//! reviews them, and nobody makes the controller ask it without end.

use crate::cluster::{Account, ReviewError, ReviewFuture};
use aws_lc_rs::digest;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tonic::Status;
use tulle_model::identity::SpiffeId;

/// Certificates of one identity. Its replicas start together.
pub(super) const CERTIFICATES: Allowance = Allowance {
    burst: 200,
    refill: Duration::from_millis(500),
};
/// Tokens of one source that the API server has not found good. Its pods have good ones, so it takes
/// a fault or an attack to need more.
const REFUSALS: Allowance = Allowance {
    burst: 64,
    refill: Duration::from_secs(1),
};
/// Budgets remembered; the ones idle longest are forgotten first.
const MAX_REMEMBERED: usize = 20_000;
/// Refused tokens remembered.
const MAX_REFUSED: usize = 4096;
/// A refused token is not reviewed again for so long. It may become good: a clock is set, or a pod is
/// only now known to the API server.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Allows so many at once, and then one per `refill`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    burst: u32,
    refill: Duration,
}

/// The allowance that each key has left.
#[derive(Debug)]
pub(super) struct Budgets<K> {
    allowance: Allowance,
    budgets: Mutex<HashMap<K, Budget>>,
}

#[derive(Debug)]
struct Budget {
    left: u32,
    since: Instant,
}

impl<K: Hash + Eq + Clone> Budgets<K> {
    pub(super) fn new(allowance: Allowance) -> Self {
        Self {
            allowance,
            budgets: Mutex::default(),
        }
    }

    fn budgets(&self) -> MutexGuard<'_, HashMap<K, Budget>> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one, if there is one left.
    pub(super) fn take(&self, of: &K, now: Instant) -> bool {
        let Allowance { burst, refill } = self.allowance;
        let mut budgets = self.budgets();
        if budgets.len() >= MAX_REMEMBERED {
            let full = refill * burst;
            budgets.retain(|_, b| now.duration_since(b.since) < full);
        }
        let budget = budgets.entry(of.clone()).or_insert(Budget {
            left: burst,
            since: now,
        });
        let refills = now.duration_since(budget.since).as_millis() / refill.as_millis();
        if refills > 0 {
            let refills = u32::try_from(refills).unwrap_or(u32::MAX);
            budget.left = budget.left.saturating_add(refills).min(burst);
            budget.since = now;
        }
        budget.left = match budget.left.checked_sub(1) {
            Some(left) => left,
            None => return false,
        };
        true
    }

    /// Gives one back.
    fn give_back(&self, of: &K) {
        if let Some(budget) = self.budgets().get_mut(of) {
            budget.left = budget.left.saturating_add(1).min(self.allowance.burst);
        }
    }
}

/// The pace at which an identity gets certificates, as here, for a host that certifies its own workloads.
#[derive(Debug)]
pub struct CertificatePace(Budgets<SpiffeId>);

impl Default for CertificatePace {
    fn default() -> Self {
        Self(Budgets::new(CERTIFICATES))
    }
}

impl CertificatePace {
    /// Whether an identity may have one more now. It has had one more then.
    pub fn take(&self, id: &SpiffeId, now: Instant) -> bool {
        self.0.take(id, now)
    }
}

/// Tokens that were refused, and how many of each source.
#[derive(Debug)]
pub(super) struct Tokens {
    refused: Mutex<HashMap<[u8; 32], Instant>>,
    refusals: Budgets<IpAddr>,
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            refused: Mutex::default(),
            refusals: Budgets::new(REFUSALS),
        }
    }
}

impl Tokens {
    /// Returns whose a token is, by a review or because it was just refused.
    ///
    /// # Errors
    /// It is refused, cannot be reviewed now, or its source has sent too many that were refused.
    pub(super) async fn review(
        &self,
        token: String,
        from: IpAddr,
        review: impl FnOnce(String) -> ReviewFuture,
    ) -> Result<Account, Status> {
        let digest = digest::digest(&digest::SHA256, token.as_bytes());
        let key: [u8; 32] = digest.as_ref().try_into().unwrap_or_default();
        if self.was_refused(&key, Instant::now()) {
            return Err(Status::unauthenticated(
                "the token was refused a moment ago",
            ));
        }
        // Taken before it is known to be bad: many may be under way at once.
        if !self.refusals.take(&from, Instant::now()) {
            return Err(Status::resource_exhausted(format!(
                "{from} sent too many tokens that are not valid; try again later"
            )));
        }
        match review(token).await {
            Ok(account) => {
                self.refusals.give_back(&from);
                Ok(account)
            }
            Err(error @ ReviewError::Unavailable(_)) => {
                self.refusals.give_back(&from);
                Err(Status::unavailable(error.to_string()))
            }
            Err(error @ ReviewError::Refused(_)) => {
                self.refuse(key, Instant::now());
                Err(Status::unauthenticated(error.to_string()))
            }
        }
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<[u8; 32], Instant>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_refused(&self, key: &[u8; 32], now: Instant) -> bool {
        let refused = self.refused();
        let at = refused.get(key);
        at.is_some_and(|at| now.duration_since(*at) < REFUSED_FOR)
    }

    fn refuse(&self, key: [u8; 32], now: Instant) {
        let mut refused = self.refused();
        if refused.len() >= MAX_REFUSED {
            refused.retain(|_, at| now.duration_since(*at) < REFUSED_FOR);
        }
        // A sender of so many different tokens gains nothing from those that are not remembered.
        if refused.len() < MAX_REFUSED {
            refused.insert(key, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const BAD: fn() -> ReviewError = || ReviewError::Refused("it is not valid".into());

    #[tokio::test]
    async fn a_refused_token_is_not_reviewed_again_at_once() {
        let (tokens, reviews) = (Tokens::default(), AtomicUsize::new(0));
        let from = Ipv4Addr::LOCALHOST.into();
        for _ in 0..100 {
            let review = |_| -> ReviewFuture {
                reviews.fetch_add(1, Ordering::SeqCst);
                Box::pin(async { Err(BAD()) })
            };
            let refused = tokens.review("x".into(), from, review).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unauthenticated);
        }
        assert_eq!(reviews.load(Ordering::SeqCst), 1);
        let (key, at) = tokens
            .refused()
            .iter()
            .map(|(k, v)| (*k, *v))
            .next()
            .unwrap();
        assert!(!tokens.was_refused(&key, at + REFUSED_FOR));
    }

    #[tokio::test]
    async fn good_tokens_cost_a_source_nothing() {
        let tokens = Tokens::default();
        let from = Ipv4Addr::LOCALHOST.into();
        for number in 0..10 * REFUSALS.burst {
            let review = |_| -> ReviewFuture {
                let namespace = "shop".into();
                let name = "web".into();
                Box::pin(async { Ok(Account { namespace, name }) })
            };
            tokens
                .review(number.to_string(), from, review)
                .await
                .unwrap();
        }
    }

    #[test]
    fn refused_tokens_are_forgotten() {
        let tokens = Tokens::default();
        let begin = Instant::now();
        let key = |number: usize| {
            let mut key = [0; 32];
            key[..size_of::<usize>()].copy_from_slice(&number.to_be_bytes());
            key
        };
        (0..2 * MAX_REFUSED).for_each(|n| tokens.refuse(key(n), begin));
        assert_eq!(tokens.refused().len(), MAX_REFUSED);
        tokens.refuse(key(2 * MAX_REFUSED), begin + REFUSED_FOR);
        assert_eq!(tokens.refused().len(), 1);
    }
}
