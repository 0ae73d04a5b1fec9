//! Retries: when a request is sent again, how often, and how many at most.
//!
//! A retry helps when one endpoint or connection has a bad moment. When a service as a whole is in
//! trouble, retries multiply its load. So there is a budget: retries may add only a share to the
//! requests of the last ten seconds, beside a few per second that are always allowed. Each worker has
//! its own: the shares add up to that of the proxy, and the few are as many for each.

use crate::codec::request_values::RequestValues;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tulle_expression::Expression;
use tulle_model::condition;
use tulle_model::resource;
use tulle_net::clock;

/// Seconds that the budget looks back.
const WINDOW: u64 = 10;
/// Destinations a worker keeps a budget for. Beyond that, all budgets are forgotten together.
const MAX_BUDGETS: usize = 1024;

/// A compiled retry policy.
pub struct Policy {
    /// Tries after the first.
    pub attempts: u32,
    /// Timeout of each try in milliseconds; 0: none.
    pub try_timeout_ms: u32,
    statuses: Vec<u16>,
    grpc_statuses: Vec<u16>,
    connect_failure: bool,
    reset: bool,
    timeout: bool,
    methods: Vec<String>,
    backoff: Duration,
    backoff_max: Duration,
    budget_percent: u64,
    budget_min: u64,
    when: Option<Expression>,
}

/// Cause of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No connection could be made: nothing was sent.
    Connect,
    /// The upstream said that it did not process the request.
    Refused,
    /// The upstream ended the connection before a response.
    Reset,
    /// The try took too long.
    Timeout,
    /// The response's status is one to retry.
    Status,
}

impl Cause {
    /// Returns the code, as in metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::Connect => "connect_failure",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::Status => "status",
        }
    }

    /// Whether the upstream has not processed the request.
    pub fn is_unseen(self) -> bool {
        matches!(self, Self::Connect | Self::Refused)
    }
}

impl Policy {
    /// Checks and compiles.
    ///
    /// # Errors
    /// A status is not valid.
    pub fn compile(retry: &resource::Retry) -> Result<Arc<Self>, String> {
        if let Some(bad) = retry.statuses.iter().find(|s| !(200..=599).contains(*s)) {
            return Err(format!("status {bad} to retry is not from 200 to 599"));
        }
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let millis = |ms: u32| Duration::from_millis(ms.into());
        let backoff = or(retry.backoff_ms, 25);
        let backoff_max = or(retry.backoff_max_ms, backoff.saturating_mul(10));
        Ok(Arc::new(Self {
            // The counter of tries has no more bits.
            attempts: retry.attempts.min(u16::MAX.into()),
            try_timeout_ms: retry.try_timeout_ms,
            statuses: retry.statuses.clone(),
            grpc_statuses: retry.grpc_statuses.clone(),
            connect_failure: retry.connect_failure,
            reset: retry.reset,
            timeout: retry.timeout,
            methods: retry.methods.clone(),
            backoff: millis(backoff),
            backoff_max: millis(backoff_max.max(backoff)),
            budget_percent: or(retry.budget_percent, 20).into(),
            budget_min: or(retry.budget_min_per_s, 10).into(),
            when: match retry.when.as_str() {
                "" => None,
                source => {
                    Some(condition::condition(source).map_err(|e| format!("retry.when: {e}"))?)
                }
            },
        }))
    }

    /// Whether a request may be sent again at all. A condition without a value does not hold.
    pub fn is_for(&self, request: &RequestValues<'_>) -> bool {
        let mut when = self.when.iter();
        when.all(|condition| condition.condition(request) == Ok(true))
    }

    /// Whether a try with this end may be followed by another.
    pub fn covers(&self, cause: Cause) -> bool {
        match cause {
            Cause::Connect => self.connect_failure,
            Cause::Refused => self.connect_failure || self.reset,
            Cause::Reset => self.reset,
            Cause::Timeout => self.timeout,
            // Only a response with such a status is held back.
            Cause::Status => true,
        }
    }

    /// Whether this method may be sent again although it is not idempotent.
    pub fn names(&self, method: &[u8]) -> bool {
        self.methods.iter().any(|m| m.as_bytes() == method)
    }

    /// Whether a response is one to retry. A gRPC status in the head means that no message follows.
    pub fn holds(&self, status: u16, head: &[u8]) -> bool {
        if self.statuses.contains(&status) {
            return true;
        }
        if self.grpc_statuses.is_empty() {
            return false;
        }
        let mut headers = tulle_http1::headers(head);
        let value = headers.find(|(name, _)| name.eq_ignore_ascii_case(b"grpc-status"));
        value
            .and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok())
            .is_some_and(|code: u16| self.grpc_statuses.contains(&code))
    }

    /// Returns the wait before retry number `made` + 1: a random time up to a limit that doubles
    /// each time, so that requests that failed together do not come back together.
    pub fn pause(&self, made: u32, random: u64) -> Duration {
        let most = self
            .backoff
            .saturating_mul(1u32.checked_shl(made).unwrap_or(u32::MAX))
            .min(self.backoff_max);
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(random % most.saturating_add(1))
    }
}

/// Requests and retries of the last seconds to one destination, as one worker sees them.
#[derive(Default)]
struct Budget {
    /// The second each slot is for.
    seconds: [Cell<Second>; WINDOW as usize],
}

#[derive(Default, Clone, Copy)]
struct Second {
    number: u64,
    requests: u32,
    retries: u32,
}

impl Budget {
    fn add(&self, now: u64, change: impl FnOnce(&mut Second)) {
        let Some(slot) = self.seconds.get((now % WINDOW) as usize) else {
            return;
        };
        let mut second = slot.get();
        if second.number != now {
            second = Second {
                number: now,
                ..Default::default()
            };
        }
        change(&mut second);
        slot.set(second);
    }

    /// Counts a request that could be retried.
    fn request(&self, now: u64) {
        self.add(now, |s| s.requests = s.requests.saturating_add(1));
    }

    /// Takes a retry, if the budget has one.
    fn take(&self, policy: &Policy, now: u64) -> bool {
        let recent = self.seconds.iter().map(Cell::get);
        let recent = recent.filter(|s| s.number + WINDOW > now);
        let (requests, retries) = recent.fold((0u64, 0u64), |(a, b), s| {
            (a + u64::from(s.requests), b + u64::from(s.retries))
        });
        let share = requests.saturating_mul(policy.budget_percent) / 100;
        if retries >= share.saturating_add(policy.budget_min.saturating_mul(WINDOW)) {
            return false;
        }
        self.add(now, |s| s.retries = s.retries.saturating_add(1));
        true
    }
}

/// The budgets of one worker. They survive changes of the configuration, which must not refill
/// them.
#[derive(Default)]
pub struct RetryBudgets(RefCell<HashMap<Destination, Rc<Budget>>>);

/// Service and port.
type Destination = (Arc<str>, u16);

impl RetryBudgets {
    fn for_destination(&self, service: &Arc<str>, port: u16) -> Rc<Budget> {
        let mut all = self.0.borrow_mut();
        if all.len() >= MAX_BUDGETS {
            all.clear();
        }
        all.entry((service.clone(), port)).or_default().clone()
    }

    /// Counts a request that could be retried.
    pub fn request(&self, service: &Arc<str>, port: u16) {
        self.for_destination(service, port).request(seconds());
    }

    /// Takes a retry, if the budget has one.
    pub fn take(&self, service: &Arc<str>, port: u16, policy: &Policy) -> bool {
        self.for_destination(service, port).take(policy, seconds())
    }
}

fn seconds() -> u64 {
    // Starts at 1, since a second that was never used has the number 0.
    clock::monotonic().as_secs() + WINDOW + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(percent: u32, min: u32) -> Arc<Policy> {
        Policy::compile(&resource::Retry {
            attempts: 2,
            budget_percent: percent,
            budget_min_per_s: min,
            ..Default::default()
        })
        .unwrap()
    }

    #[test]
    fn retries_are_a_share_of_the_requests_of_ten_seconds() {
        let budget = Budget::default();
        let policy = policy(10, 1);
        for second in 100..110 {
            (0..100).for_each(|_| budget.request(second));
        }
        let taken = (0..1000).filter(|_| budget.take(&policy, 109));
        assert_eq!(taken.count(), 100 + 10, "a tenth of 1000, and one a second");
        // Five seconds later half of the requests are forgotten, the retries are not.
        assert!(!budget.take(&policy, 114));
        // Long after, the minimum is available again.
        let taken = (0..1000).filter(|_| budget.take(&policy, 200));
        assert_eq!(taken.count(), 10);
    }

    #[test]
    fn pauses_double_and_end_at_a_limit() {
        let policy = policy(0, 0);
        let most = |made| {
            let pauses = (0..10_000).map(|random| policy.pause(made, random));
            pauses.max().unwrap().as_millis()
        };
        assert_eq!([most(0), most(1), most(2)], [25, 50, 100]);
        assert_eq!([most(4), most(40)], [250, 250]);
        assert_eq!(policy.pause(0, 26), Duration::ZERO, "the whole range");
    }
}
