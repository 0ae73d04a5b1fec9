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

/// How old the last look at the CPU clock may be when a turn begins: what the thread has done since is the turn's, too.
const STALE: Duration = Duration::from_micros(200);

/// Measures the turn under way. The engine asks it after some ten thousand steps. The CPU clock is a call of the kernel,
/// which most turns do without: no more CPU time than time of the wall clock can have passed.
#[derive(Default)]
pub(crate) struct Meter {
    turn: Cell<Option<Turn>>,
    /// The last look at both clocks.
    looked: Cell<Option<(Instant, Duration)>>,
    exceeded: Cell<bool>,
}

#[derive(Clone, Copy)]
struct Turn {
    started: Instant,
    /// CPU time at its beginning or a little before.
    cpu: Duration,
    left: Duration,
}

impl Turn {
    /// CPU time that it has taken; up to [`STALE`] more, and more precisely only from there on.
    fn taken(&self) -> Duration {
        let elapsed = self.started.elapsed();
        match elapsed > STALE {
            true => elapsed.min(cpu_time().saturating_sub(self.cpu)),
            false => elapsed,
        }
    }
}

impl Meter {
    /// Begins a turn that may take so much CPU time.
    pub(crate) fn start(&self, left: Duration) {
        self.exceeded.set(false);
        let started = Instant::now();
        let known = self.looked.get();
        let cpu = match known.filter(|(at, _)| started.duration_since(*at) < STALE) {
            Some((_, cpu)) => cpu,
            None => {
                let cpu = cpu_time();
                self.looked.set(Some((started, cpu)));
                cpu
            }
        };
        self.turn.set(Some(Turn { started, cpu, left }));
    }

    /// Ends it; how much CPU time it took.
    pub(crate) fn stop(&self) -> Duration {
        let turn = self.turn.take();
        turn.map_or(Duration::ZERO, |turn| turn.taken())
    }

    /// Whether the turn has taken all of its time.
    pub(crate) fn is_up(&self) -> bool {
        let Some(turn) = self.turn.get() else {
            return false;
        };
        let up = turn.started.elapsed() > turn.left && turn.taken() > turn.left;
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
