//! What a proxy does while memory is short ([`tulle_net::memory_limit`]): clients are refused, with a reason, before
//! the kernel ends it.
//!
//! What one client can hold is bounded everywhere, and clients are many. So while the process uses
//! nearly what its cgroup allows, nothing new is let in, and peers that take nothing of what waits for
//! them go first: they hold most, and nobody waits for them. What moves goes on.

use crate::telemetry::reason::{Failure, Reason};
use std::time::Duration;
use tulle_net::memory_limit::{FULL, limit};
use tulle_net::{Deadline, memory, memory_limit};

pub use tulle_net::memory_limit::is_short;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// How long a peer may take nothing while memory is short.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Why whoever takes nothing is cut.
pub const STUCK: &str = "memory is short, and the peer took nothing of what waits for it";

/// Reads the limit. Without this, or without a limit, memory is never short.
pub fn start() {
    memory_limit::start(LOOK, memory::release_free);
    if let Some(bytes) = limit() {
        tracing::debug!(bytes, "limit of memory");
    }
}

/// Whether to give up an exchange whose peer takes nothing of what waits for it. It began to wait when
/// `deadline` was armed with `idle`.
pub fn gives_up(deadline: &Deadline, idle: Duration) -> bool {
    is_short() && deadline.left().is_some_and(|left| left + PATIENCE <= idle)
}

/// What somebody is told who is not let in.
#[cold]
pub fn refusal() -> Failure {
    let limit = limit().unwrap_or_default();
    let text = format!(
        "this proxy uses over {FULL} % of the {} MiB of memory that its cgroup allows; nothing new is \
         taken until it has room, give it more (Mesh spec.sidecar.memoryLimit, or the container's limit)",
        limit >> 20
    );
    Failure::new(Reason::Overload, text)
}
