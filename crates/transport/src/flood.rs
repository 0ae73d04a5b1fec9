//! A budget against floods of frames that carry no work.
//!
//! Pings, empty frames, resets and tiny credits cost the peer little and us some. Each is paid from
//! a budget that useful bytes refill one for one, so no honest peer runs dry and no clock is
//! needed. Rapid reset (CVE-2023-44487) is stopped here: moved bytes and streams that ended
//! properly refill the budget, but not the head of a request that is cut right after. But a stream
//! that is cut after an answer, or after it was open for a while, is free: its client has lost
//! patience, and the limit on open streams bounds how many there can be.

use crate::ConnectionError;
use std::time::Duration;

/// The budget, in bytes of useful data.
pub(crate) const FULL: u32 = 8 * 1024 * 1024;
/// The price of a frame that carries no work.
pub(crate) const JUNK: u32 = 1024;
/// The price of a stream that is opened only to be cut, and the reward of one that ends properly.
pub(crate) const CUT_STREAM: u32 = 8 * 1024;
/// Refill per millisecond: 128 rapid resets a second cost nothing in the long run, because a
/// sidecar passes on those of many clients.
const MILLISECOND: u32 = 1024 * 1024 / 1000;

#[derive(Debug)]
pub(crate) struct FloodBudget(u32);

impl FloodBudget {
    pub(crate) fn new() -> Self {
        Self(FULL)
    }

    pub(crate) fn charge(&mut self, price: u32, what: &'static str) -> Result<(), ConnectionError> {
        match self.0.checked_sub(price) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(ConnectionError::Flood { what }),
        }
    }

    pub(crate) fn earn(&mut self, bytes: u32) {
        self.0 = self.0.saturating_add(bytes).min(FULL);
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.earn(millis.saturating_mul(MILLISECOND));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_dry_and_is_refilled_but_not_above_full() {
        let mut budget = FloodBudget::new();
        budget.earn(u32::MAX);
        for _ in 0..FULL / JUNK {
            assert!(budget.charge(JUNK, "pings").is_ok());
        }
        let dry = budget.charge(JUNK, "pings");
        assert_eq!(dry, Err(ConnectionError::Flood { what: "pings" }));
        budget.earn(JUNK);
        assert!(budget.charge(JUNK, "pings").is_ok());
        budget.pass(Duration::from_secs(1));
        assert!(budget.charge(1000 * MILLISECOND, "pings").is_ok());
        budget.pass(Duration::MAX);
        assert!(budget.charge(FULL, "pings").is_ok());
    }
}
