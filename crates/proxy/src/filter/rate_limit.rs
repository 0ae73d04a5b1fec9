//! Rate limits: token buckets shared by the whole proxy.
//!
//! A bucket is one number that all workers share: the time at which it would be full again, as in
//! the generic cell rate algorithm (ITU-T I.371). Taking a token moves that time on by the interval
//! of one token. Only limited requests touch it.

use crate::codec::request_values::Parties;
use crate::filter::expression;
use crate::filter::header_edit::{self, Draft};
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tulle_expression::Expression;
use tulle_model::condition;
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
    /// The same for each text by which requests are told apart.
    each: [Mutex<HashMap<u64, u64>>; SHARDS],
    keys: RandomState,
}

/// Locks that share the texts, so that workers seldom wait for each other.
const SHARDS: usize = 16;
/// Texts of a lock that are remembered at a time. Further ones share a bucket until some of these are full again.
const REMEMBERED: usize = 1024;

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
            each: Default::default(),
            keys: RandomState::new(),
        })
    }

    /// Takes a token from the bucket of a text.
    ///
    /// # Errors
    /// No token is left; the next one returns after this time.
    pub fn take_for(&self, text: &str, now: Instant) -> Result<(), Duration> {
        let key = self.keys.hash_one(text);
        let shard = usize::try_from(key % SHARDS as u64).unwrap_or(0);
        let Some(each) = self.each.get(shard) else {
            return self.take(now);
        };
        let mut each = each.lock().unwrap_or_else(PoisonError::into_inner);
        let time = self.time(now);
        if each.len() >= REMEMBERED && !each.contains_key(&key) {
            each.retain(|_, full| *full > time);
            if each.len() >= REMEMBERED {
                drop(each);
                return self.take(now);
            }
        }
        let full = each.entry(key).or_default();
        *full = self.taken((*full).max(time), time)?;
        Ok(())
    }

    /// Nanoseconds after `start`: 584 years fit.
    fn time(&self, now: Instant) -> u64 {
        let now = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(now).unwrap_or(u64::MAX)
    }

    /// When a bucket that would be full at `full` is full once a token was taken.
    fn taken(&self, full: u64, now: u64) -> Result<u64, Duration> {
        let missing = full - now;
        match missing > self.room {
            true => Err(Duration::from_nanos(missing - self.room)),
            false => Ok(full.saturating_add(self.interval)),
        }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// No token is left; the next one returns after this time.
    pub fn take(&self, now: Instant) -> Result<(), Duration> {
        let now = self.time(now);
        let mut seen = self.full.load(Ordering::Relaxed);
        loop {
            let next = self.taken(seen.max(now), now)?;
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
    /// The text that tells requests apart; `None`: all share the bucket.
    by: Option<Expression>,
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
            by: match limit.by.as_str() {
                "" => None,
                source => {
                    let by = condition::text(source);
                    Some(by.map_err(|e| format!("{}: by: {e}", limit.name))?)
                }
            },
            status,
            headers: headers.collect::<Result<_, _>>()?,
        })
    }

    /// Takes a token for a request.
    ///
    /// # Errors
    /// No token is left; the failure is the answer.
    pub fn check(&self, draft: &Draft<'_>, parties: &dyn Parties) -> Result<(), Failure> {
        let now = Instant::now();
        let taken = match &self.by {
            None => self.bucket.take(now),
            Some(by) => match expression::text(by, draft, parties) {
                Some(text) => self.bucket.take_for(&text, now),
                // Requests without such a text share one.
                None => self.bucket.take(now),
            },
        };
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
        let now = Instant::now();
        assert!(one.bucket.take(now).is_ok());
        assert!(again.bucket.take(now).is_err());
        assert!(other.bucket.take(now).is_ok());
    }

    #[test]
    fn each_text_has_its_own_tokens_and_memory_is_bounded() {
        let bucket = Bucket::new(&limit(2, 1000, 0)).unwrap();
        let now = bucket.start;
        let taken = |text: &str, now| {
            (0..9)
                .filter(|_| bucket.take_for(text, now).is_ok())
                .count()
        };
        assert_eq!((taken("a", now), taken("b", now)), (2, 2));
        assert_eq!(taken("a", now + Duration::from_millis(500)), 1);
        // More texts than are remembered: the rest share one bucket, and nobody gets more than the limit.
        let most = SHARDS * REMEMBERED;
        let let_through: usize = (0..2 * most).map(|n| taken(&format!("x{n}"), now)).sum();
        assert!(
            (2 * most - 100..=2 * most).contains(&let_through),
            "{let_through}"
        );
        let held: usize = bucket
            .each
            .iter()
            .map(|each| each.lock().unwrap().len())
            .sum();
        assert!(held <= most, "{held}");
        // Full again, they make room.
        assert_eq!(taken("y", now + Duration::from_secs(3)), 2);
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
