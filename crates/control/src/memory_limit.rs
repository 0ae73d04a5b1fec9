//! Refuses new connections, new streams of configuration and long messages while memory is short, with a reason.
//! Proxies go on with the configuration they have, and come again.
//!
//! Each peer can hold only a bounded amount of memory, but there may be many peers.

use std::time::Duration;
use tulle_net::{memory, memory_limit};

pub use tulle_net::memory_limit::{is_short, limit};

/// Time between two looks. A look that finds memory short also makes the allocator give back free memory.
const LOOK: Duration = Duration::from_millis(50);

/// Reads the limit. Without this, or without a limit, memory is never short.
pub fn start() {
    memory_limit::start(LOOK, memory::trim);
    if let Some(bytes) = limit() {
        tracing::info!(bytes, "limit of memory");
    }
}

/// Says why nothing new is taken; `None`: memory is not short.
pub fn refusal() -> Option<String> {
    is_short().then(|| {
        format!(
            "overload: the controller uses over {} % of the {} MiB of memory that its cgroup allows, and takes nothing \
             new until it has room; give it more (controller.resources.limits.memory of the chart, or the limit of \
             its unit or container)",
            memory_limit::FULL,
            limit().unwrap_or_default() >> 20
        )
    })
}
