//! Meshes that start at the same time must not choose the same network: the choice depends on the
//! host's routes, and the route of the other mesh is there only when its link is.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::time::{Duration, Instant};

/// Longer than choosing and making a network takes on a busy machine. Whoever holds a claim for
/// longer is stuck, or wants to keep others from starting a mesh; neither shall succeed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The right to choose a network on this host: held from [`crate::Network::new`] until
/// [`crate::Network::ensure`] has returned, by one process at a time.
#[derive(Debug)]
pub struct Claim {
    /// The lock is on the network namespace itself: no file is left behind, and it reaches
    /// exactly as far as addresses have to differ.
    _namespace: Option<File>,
}

impl Claim {
    /// Waits for its turn.
    #[must_use]
    pub fn take() -> Self {
        let Ok(namespace) = File::open("/proc/self/ns/net") else {
            return Self { _namespace: None };
        };
        let until = Instant::now() + PATIENCE;
        while flock(&namespace, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= until {
                return Self { _namespace: None };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Self {
            _namespace: Some(namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let first = Claim::take();
        let second = std::thread::spawn(|| {
            drop(Claim::take());
            Instant::now()
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished());
        let released = Instant::now();
        drop(first);
        assert!(second.join().unwrap() >= released);
    }
}
