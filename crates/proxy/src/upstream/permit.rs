//! The place that an exchange holds at a port with limits or a circuit breaker.

use crate::config::traffic::breaker::Probe;
use crate::config::traffic::limits::Places;

/// Places among those that the port's limits allow, and the breaker's question whether it is well again.
/// Both are given back when it is dropped.
pub struct Permit {
    _places: Places,
    probe: Option<Probe>,
}

impl Permit {
    /// Holds both.
    pub fn new(places: Places, probe: Option<Probe>) -> Self {
        Self {
            _places: places,
            probe,
        }
    }

    /// Takes the question, to answer it.
    pub fn take_probe(&mut self) -> Option<Probe> {
        self.probe.take()
    }
}
