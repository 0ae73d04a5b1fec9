//! Fault injection: a share of requests is delayed, a share aborted.

use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use std::time::Duration;
use tulle_model::resource;

/// All requests, in millionths.
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
    /// A share is more than one, or the status is not valid.
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

    /// Returns how long to delay this request.
    pub fn delay(&self, random: impl FnOnce() -> u64) -> Option<Duration> {
        (!self.delay.is_zero() && hits(random, self.delay_ppm)).then_some(self.delay)
    }

    /// Decides whether this request is aborted.
    ///
    /// # Errors
    /// It is aborted.
    pub fn abort(&self, random: impl FnOnce() -> u64) -> Result<(), Failure> {
        if !hits(random, self.abort_ppm) {
            return Ok(());
        }
        let failure = Failure::new(Reason::FaultInjected, "aborted by a fault of the route");
        Err(failure.with_response(LocalResponse {
            status: self.abort_status,
            ..Default::default()
        }))
    }
}

/// Whether a share of the requests includes this one, by a random number.
pub fn hits(random: impl FnOnce() -> u64, ppm: u32) -> bool {
    ppm > 0 && (ppm >= WHOLE || random() % u64::from(WHOLE) < u64::from(ppm))
}
