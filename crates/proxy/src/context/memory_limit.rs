//! Refuses clients with a reason while memory is short ([`tulle_net::memory_limit`]), before the
//! kernel kills the proxy.
//!
//! Each client's memory is bounded everywhere, but clients are many. So while the process is close
//! to its cgroup's limit, it accepts nothing new, and cuts peers that do not read the bytes waiting
//! for them: they hold most memory, and nobody waits for them. Other traffic goes on.

use crate::telemetry::reason::{Failure, Reason};
use std::time::Duration;
use tulle_net::memory_limit::{FULL, limit};
use tulle_net::{Deadline, memory, memory_limit};

pub use tulle_net::memory_limit::is_short;

/// Interval between two checks.
const LOOK: Duration = Duration::from_millis(10);
/// How long a peer may read nothing while memory is short.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Why a peer that reads nothing is cut.
pub const STUCK: &str = "memory is short, and the peer did not read what waits for it";

/// Starts checking the limit. Without this, or without a limit, memory is never short.
pub fn start() {
    memory_limit::start(LOOK, memory::release_free);
    if let Some(bytes) = limit() {
        tracing::debug!(bytes, "limit of memory");
    }
}

/// Whether to give up an exchange whose peer does not read the bytes waiting for it. It began to
/// wait when `deadline` was armed with `idle`.
pub fn gives_up(deadline: &Deadline, idle: Duration) -> bool {
    is_short() && deadline.left().is_some_and(|left| left + PATIENCE <= idle)
}

/// The failure of a client that is not admitted.
#[cold]
pub fn refusal() -> Failure {
    let limit = limit().unwrap_or_default();
    let text = format!(
        "this proxy uses over {FULL} % of the {} MiB of memory that its cgroup allows; it takes no new \
         clients until it has room; give it more (Mesh spec.sidecar.memoryLimit, or the container's limit)",
        limit >> 20
    );
    Failure::new(Reason::Overload, text)
}
