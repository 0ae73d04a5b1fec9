//! Ctrl-C and SIGTERM: the study ends after putting away what it started, keeping what is done.

use crate::failure::{Failure, FailureKind, OrFail, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Set by the first signal; a second one ends the process at once.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

impl Interrupt {
    /// Catches signals from now on.
    ///
    /// # Errors
    /// The system takes no handler.
    pub fn catch() -> Result<Self> {
        let this = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let what = || "cannot handle signals".to_owned();
            // The order matters: the first signal finds the flag unset and does not end the process.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&this.0))
                .or_fail(what)?;
            signal_hook::flag::register(signal, Arc::clone(&this.0)).or_fail(what)?;
        }
        Ok(this)
    }

    /// Whether it was set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends what is being done if it was set.
    ///
    /// # Errors
    /// It was set.
    pub fn check(&self) -> Result<()> {
        if self.is_set() {
            return Err(Failure::new(FailureKind::Interrupted, "interrupted"));
        }
        Ok(())
    }

    /// Sleeps, but not longer than until it is set.
    ///
    /// # Errors
    /// It was set.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}
