//! Rate limits: token buckets shared by the whole proxy.
//!
//! A bucket is one number that all workers share: the time at which it would be full again, as in
//! the generic cell rate algorithm (ITU-T I.371). Taking a token moves that time on by the interval
//! of one token. Only limited requests touch it.

use crate::filter::header_edit;
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tulle_model::resource;

/// Buckets in use, by limit and place: a changed configuration keeps the tokens that are left. Only
/// compiling a configuration looks here.
static IN_USE: Mutex<BTreeMap<Key, Weak<Bucket>>> = Mutex::new(BTreeMap::new());

/// Name of the limit and its place, then tokens, milliseconds and burst.
type Key = (String, u32, u32, u32);

/// Tokens that come back at a steady rate.
pub struct Bucket {
    /// Nanoseconds until one token returns.
    interval: u64,
    /// Nanoseconds until all but one have returned.
    room: u64,
    start: Instant,
    /// Nanoseconds after `start` at which the bucket is full.
    full: AtomicU64,
}

impl Bucket {
    /// Returns the bucket for `place`, the same one as long as its rate is the same.
    ///
    /// # Errors
    /// The rate makes no sense.
    pub fn shared(place: &str, limit: &resource::RateLimit) -> Result<Arc<Self>, String> {
        let fresh = Self::new(limit)?;
        let key = (place.to_owned(), limit.tokens, limit.per_ms, limit.burst);
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|_, bucket| bucket.strong_count() > 0);
        if let Some(known) = in_use.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let bucket = Arc::new(fresh);
        in_use.insert(key, Arc::downgrade(&bucket));
        Ok(bucket)
    }

    fn new(limit: &resource::RateLimit) -> Result<Self, String> {
        if limit.tokens == 0 || limit.per_ms == 0 {
            return Err(format!(
                "{}: a rate limit of {} per {} ms lets nothing through; to refuse everything use \
                 an AuthorizationPolicy",
                limit.name, limit.tokens, limit.per_ms
            ));
        }
        // More than one token per nanosecond is not a noticeable limit.
        let interval = u64::from(limit.per_ms) * 1_000_000 / u64::from(limit.tokens);
        let interval = interval.max(1);
        let most = u64::from(limit.tokens) + u64::from(limit.burst);
        Ok(Self {
            interval,
            room: interval.saturating_mul(most - 1),
            start: Instant::now(),
            full: AtomicU64::new(0),
        })
    }

    /// Takes a token.
    ///
    /// # Errors
    /// No token is left; the next one returns after this time.
    pub fn take(&self, now: Instant) -> Result<(), Duration> {
        let now = now.saturating_duration_since(self.start).as_nanos();
        // 584 years.
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let mut seen = self.full.load(Ordering::Relaxed);
        loop {
            let full = seen.max(now);
            let missing = full - now;
            if missing > self.room {
                return Err(Duration::from_nanos(missing - self.room));
            }
            let next = full.saturating_add(self.interval);
            // No other memory access is ordered by this number.
            match self
                .full
                .compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(other) => seen = other,
            }
        }
    }
}

/// A limit on requests, and the answer to requests beyond it.
pub struct RateLimit {
    name: String,
    bucket: Arc<Bucket>,
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
}

impl RateLimit {
    /// Compiles a limit. It has one bucket at each place, however many rules there use it.
    ///
    /// # Errors
    /// Its rate or answer makes no sense.
    pub fn compile(limit: &resource::RateLimit, place: &str) -> Result<Self, String> {
        let status = match limit.status {
            0 => Reason::RateLimited.status(),
            status @ 400..=599 => status,
            status => {
                return Err(format!(
                    "{}: status {status} of a refusal is not from 400 to 599",
                    limit.name
                ));
            }
        };
        let headers = limit.headers.iter().map(header_edit::line);
        Ok(Self {
            name: limit.name.clone(),
            bucket: Bucket::shared(&format!("{place} {}", limit.name), limit)?,
            status,
            headers: headers.collect::<Result<_, _>>()?,
        })
    }

    /// Takes a token for a request.
    ///
    /// # Errors
    /// No token is left; the failure is the answer.
    pub fn check(&self) -> Result<(), Failure> {
        let taken = self.bucket.take(Instant::now());
        taken.map_err(|wait| self.refuse(wait))
    }

    #[cold]
    fn refuse(&self, wait: Duration) -> Failure {
        let mut headers = self.headers.clone();
        if !headers.iter().any(|(name, _)| name == "retry-after") {
            // Rounded up to whole seconds.
            let seconds = wait.as_millis().div_ceil(1000).max(1);
            headers.push(("retry-after".into(), seconds.to_string().into_bytes()));
        }
        let text = format!("{}: too many requests", self.name);
        Failure::new(Reason::RateLimited, text).with_response(LocalResponse {
            status: self.status,
            headers,
            body: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(tokens: u32, per_ms: u32, burst: u32) -> resource::RateLimit {
        resource::RateLimit {
            name: "RateLimit/r".into(),
            tokens,
            per_ms,
            burst,
            ..Default::default()
        }
    }

    #[test]
    fn as_many_as_there_are_then_one_at_a_time() {
        let bucket = Bucket::new(&limit(10, 1000, 5)).unwrap();
        let start = bucket.start;
        let at = |ms| start + Duration::from_millis(ms);
        let taken = (0..100).filter(|_| bucket.take(at(0)).is_ok()).count();
        assert_eq!(taken, 15);
        assert_eq!(bucket.take(at(0)), Err(Duration::from_millis(100)));
        assert!(bucket.take(at(99)).is_err());
        assert!(bucket.take(at(100)).is_ok());
        assert!(bucket.take(at(100)).is_err(), "only one has come back");
        let taken = (0..100).filter(|_| bucket.take(at(60_000)).is_ok());
        assert_eq!(taken.count(), 15, "no more than it holds");
    }

    #[test]
    fn threads_take_no_more_than_there_is() {
        let bucket = Arc::new(Bucket::new(&limit(1000, 3_600_000, 0)).unwrap());
        let now = bucket.start;
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let bucket = bucket.clone();
                std::thread::spawn(move || (0..1000).filter(|_| bucket.take(now).is_ok()).count())
            })
            .collect();
        let taken: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(taken, 1000);
    }

    #[test]
    fn tokens_outlive_a_change_that_leaves_the_rate() {
        let first = Bucket::shared("place of this test", &limit(1, 3_600_000, 0)).unwrap();
        assert!(first.take(Instant::now()).is_ok());
        let second = Bucket::shared("place of this test", &limit(1, 3_600_000, 0)).unwrap();
        drop(first);
        assert!(second.take(Instant::now()).is_err());
        let other = Bucket::shared("place of this test", &limit(1, 3_600_001, 0)).unwrap();
        assert!(other.take(Instant::now()).is_ok());
        drop(second);
        let anew = Bucket::shared("place of this test", &limit(1, 3_600_000, 0)).unwrap();
        assert!(anew.take(Instant::now()).is_ok());
    }

    /// Several Services of a pod may each have a limit for the same requests.
    #[test]
    fn rules_of_a_port_that_demand_the_same_share_it() {
        let demanded = |name: &str| {
            let limit = resource::RateLimit {
                name: name.into(),
                ..limit(1, 3_600_000, 0)
            };
            RateLimit::compile(&limit, "port of this test").unwrap()
        };
        let (one, again, other) = (demanded("a"), demanded("a"), demanded("b"));
        assert!(one.check().is_ok());
        assert!(again.check().is_err());
        assert!(other.check().is_ok());
    }

    #[test]
    fn rates_that_make_no_sense_and_extreme_ones() {
        assert!(Bucket::new(&limit(0, 1000, 1)).is_err());
        assert!(Bucket::new(&limit(1, 0, 1)).is_err());
        let extreme = Bucket::new(&limit(u32::MAX, 1, u32::MAX)).unwrap();
        assert!(extreme.take(extreme.start).is_ok());
        let slow = Bucket::new(&limit(1, u32::MAX, u32::MAX)).unwrap();
        assert!(slow.take(slow.start).is_ok() && slow.take(slow.start).is_ok());
    }
}
