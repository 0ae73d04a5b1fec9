//! Failures on purpose: a share of requests is delayed, a share aborted.

use crate::telemetry::reason::{Answer, Failure, Reason};
use std::time::Duration;
use tulle_model::resource;

/// Everything, in millionths.
pub const WHOLE: u32 = 1_000_000;

/// A fault, compiled.
pub struct Fault {
    delay: Duration,
    delay_ppm: u32,
    abort_status: u16,
    abort_ppm: u32,
}

impl Fault {
    /// Checks a fault.
    ///
    /// # Errors
    /// A share is more than everything, or the status is no answer.
    pub fn compile(fault: &resource::Fault) -> Result<Self, String> {
        if fault.delay_ppm > WHOLE || fault.abort_ppm > WHOLE {
            return Err(format!("a fault's share is at most {WHOLE} millionths"));
        }
        if !matches!(fault.abort_status, 0 | 200..=599) {
            return Err(format!(
                "status {} of a fault is not from 200 to 599",
                fault.abort_status
            ));
        }
        Ok(Self {
            delay: Duration::from_millis(fault.delay_ms.into()),
            delay_ppm: fault.delay_ppm,
            abort_status: fault.abort_status,
            abort_ppm: fault.abort_ppm,
        })
    }

    /// For how long this request has to wait.
    pub fn delay(&self, random: impl FnOnce() -> u64) -> Option<Duration> {
        (!self.delay.is_zero() && hits(random, self.delay_ppm)).then_some(self.delay)
    }

    /// Whether this request ends here.
    ///
    /// # Errors
    /// It does.
    pub fn abort(&self, random: impl FnOnce() -> u64) -> Result<(), Failure> {
        if !hits(random, self.abort_ppm) {
            return Ok(());
        }
        let failure = Failure::new(Reason::FaultInjected, "aborted by a fault of the route");
        Err(failure.answered(Answer {
            status: self.abort_status,
            ..Default::default()
        }))
    }
}

/// Whether a share of the requests includes this one, by a random number.
pub fn hits(random: impl FnOnce() -> u64, ppm: u32) -> bool {
    ppm > 0 && (ppm >= WHOLE || random() % u64::from(WHOLE) < u64::from(ppm))
}
