//! A budget against floods of frames that carry no work.
//!
//! Pings, settings, empty frames, resets and window updates cost the peer little and us some. Each
//! is paid from a budget that useful bytes and streams that end properly refill, so no honest peer
//! runs dry and no clock is needed. Rapid reset (CVE-2023-44487) and its inversion, making us reset
//! (CVE-2025-8671), are stopped here: a cut stream is paid for, whoever cut it. But a stream that
//! the peer cuts after an answer, or after it was open for a while, is free: its client has lost
//! patience, and the limit on open streams bounds how many there can be.

use crate::{ConnectionError, ErrorCode};
use std::time::Duration;

/// The budget, in bytes of useful data.
pub(crate) const FULL: u32 = 2 * 1024 * 1024;
/// The price of a frame that carries no work.
pub(crate) const JUNK: u32 = 1024;
/// The price of a stream that is opened only to be cut, and the reward of one that ends properly.
pub(crate) const CUT_STREAM: u32 = 8 * 1024;
/// The price of a head that is over a limit: compressed, it costs its sender little.
pub(crate) const LARGE_HEAD: u32 = 64 * 1024;
/// Refill per millisecond: 128 pings or 16 rapid resets a second cost nothing in the long run.
const MILLISECOND: u32 = 128 * 1024 / 1000;

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
            None => Err(ConnectionError::new(ErrorCode::EnhanceYourCalm, what)),
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
