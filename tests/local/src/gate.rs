//! A gate at which the threads of a scripted server wait until the test lets them go on.

use std::sync::{Condvar, Mutex};

/// A gate, closed at first. Where a test never opens it, those who wait end with the process.
#[derive(Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Waits until the gate is open.
    pub fn pass(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |open| !*open).unwrap());
    }

    /// Lets everybody pass, now and later.
    pub fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Whether everybody may pass.
    pub fn is_open(&self) -> bool {
        *self.is_open.lock().unwrap()
    }
}
