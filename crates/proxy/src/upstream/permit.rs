//! The place that an exchange holds at a port with limits or a circuit breaker.

use crate::config::traffic::breaker::BreakerProbe;
use crate::config::traffic::limits::LimitPermits;

/// Places among those that the port's limits allow, and the breaker's question whether it is well again.
/// Both are given back when it is dropped.
pub struct Permit {
    _places: LimitPermits,
    probe: Option<BreakerProbe>,
}

impl Permit {
    /// Holds both.
    pub fn new(places: LimitPermits, probe: Option<BreakerProbe>) -> Self {
        Self {
            _places: places,
            probe,
        }
    }

    /// Takes the question, to answer it.
    pub fn take_probe(&mut self) -> Option<BreakerProbe> {
        self.probe.take()
    }
}
