//! Keeps meshes that start at the same time from choosing the same network. The choice depends on
//! the host's routes, and another mesh's route exists only once its link does.

use std::fs::File;
use std::time::{Duration, Instant};

/// Longest wait: more than choosing and creating a network takes on a busy machine. A process that
/// holds a claim for longer is stuck, or wants to block other meshes; either is ignored.
const PATIENCE: Duration = Duration::from_secs(10);

/// The right to choose a network on this host: held from [`crate::Network::new`] until
/// [`crate::Network::ensure`] has returned, by one process at a time.
#[derive(Debug)]
pub struct Claim {
    /// The lock is on the network namespace itself: no file is left behind, and it covers exactly
    /// the scope in which addresses have to differ.
    _namespace: Option<File>,
}

impl Claim {
    /// Waits for the claim.
    #[must_use]
    pub fn take() -> Self {
        let Ok(namespace) = File::open("/proc/self/ns/net") else {
            return Self { _namespace: None };
        };
        let until = Instant::now() + PATIENCE;
        while namespace.try_lock().is_err() {
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
