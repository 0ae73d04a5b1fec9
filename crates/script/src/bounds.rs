//! The bounds of a plugin: time, memory, depth and calls at once.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Limits of a plugin on one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptLimits {
    /// CPU time of one call, all its turns together.
    pub cpu: Duration,
    /// Memory of the plugin with all its calls, in bytes.
    pub memory: usize,
    /// Calls under way.
    pub calls: usize,
    /// The longest body that its hooks see, in bytes.
    pub body: usize,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        Self {
            cpu: Duration::from_millis(5),
            memory: 4 << 20,
            calls: 256,
            body: 256 << 10,
        }
    }
}

/// The depth of a script's stack in bytes. A worker's own stack has far more.
pub(crate) const STACK: usize = 128 << 10;

/// Measures the turn under way. The engine asks it after some ten thousand steps; the first look is at the wall clock, which
/// costs nothing, because no more CPU time than that can have passed.
#[derive(Default)]
pub(crate) struct Meter {
    turn: Cell<Option<Turn>>,
    exceeded: Cell<bool>,
}

#[derive(Clone, Copy)]
struct Turn {
    started: Instant,
    cpu: Duration,
    left: Duration,
}

impl Meter {
    /// Begins a turn that may take so much CPU time.
    pub(crate) fn start(&self, left: Duration) {
        self.exceeded.set(false);
        self.turn.set(Some(Turn {
            started: Instant::now(),
            cpu: cpu_time(),
            left,
        }));
    }

    /// Ends it; how much CPU time it took.
    pub(crate) fn stop(&self) -> Duration {
        let turn = self.turn.take();
        turn.map_or(Duration::ZERO, |turn| cpu_time().saturating_sub(turn.cpu))
    }

    /// Whether the turn has taken all of its time.
    pub(crate) fn is_up(&self) -> bool {
        let Some(turn) = self.turn.get() else {
            return false;
        };
        let up =
            turn.started.elapsed() > turn.left && cpu_time().saturating_sub(turn.cpu) > turn.left;
        if up {
            self.exceeded.set(true);
        }
        up
    }

    /// Whether the engine was told so in this turn.
    pub(crate) fn was_exceeded(&self) -> bool {
        self.exceeded.get()
    }
}

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}
