//! The engines of a worker's plugins: each is started when a request first needs it, and started again when a limit was
//! exceeded. A plugin that fails again and again is left out for a while.

use crate::filter::plugin::Plugin;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tulle_net::clock;
use tulle_script::{FailureCause, ScriptEngine, ScriptFailure};

/// Failures in a row after which a plugin is left out, and for how long.
const FAILURES: u32 = 5;
const LEFT_OUT: Duration = Duration::from_secs(10);
/// Lines that a plugin may log in a second, and bytes of a line.
const LINES: u32 = 20;
const LINE: usize = 1024;

/// Engines of one worker.
#[derive(Default)]
pub struct Plugins {
    running: RefCell<Vec<Running>>,
}

struct Running {
    plugin: Arc<Plugin>,
    engine: Option<Rc<ScriptEngine>>,
    failures: u32,
    /// Time of the clock until which it is left out.
    until: Duration,
}

impl Plugins {
    /// The engine of a plugin, started now if need be.
    ///
    /// # Errors
    /// It is left out, or does not start.
    pub fn engine(&self, plugin: &Arc<Plugin>) -> Result<Rc<ScriptEngine>, ScriptFailure> {
        let mut running = self.running.borrow_mut();
        let at = running.iter().position(|r| Arc::ptr_eq(&r.plugin, plugin));
        let at = at.unwrap_or_else(|| {
            // Engines of configurations that are no longer in force go.
            running.retain(|r| Arc::strong_count(&r.plugin) > 1);
            running.push(Running {
                plugin: plugin.clone(),
                engine: None,
                failures: 0,
                until: Duration::ZERO,
            });
            running.len() - 1
        });
        let Some(found) = running.get_mut(at) else {
            return Err(out());
        };
        if clock::monotonic() < found.until {
            return Err(out());
        }
        if let Some(engine) = found.engine.as_ref().filter(|e| !e.is_spoilt()) {
            return Ok(engine.clone());
        }
        let console = Rc::new(console(plugin.name().clone()));
        let started =
            ScriptEngine::start_with(&plugin.program, &plugin.config, &plugin.limits, console);
        let engine = Rc::new(started?);
        found.engine = Some(engine.clone());
        Ok(engine)
    }

    /// Notes how a call ended; true: the plugin is left out from now on.
    pub fn ended(&self, plugin: &Arc<Plugin>, failed: bool) -> bool {
        let mut running = self.running.borrow_mut();
        let Some(found) = running.iter_mut().find(|r| Arc::ptr_eq(&r.plugin, plugin)) else {
            return false;
        };
        found.failures = match failed {
            true => found.failures + 1,
            false => 0,
        };
        let out = found.failures >= FAILURES;
        if out {
            // One call after that decides whether it stays out.
            found.failures = FAILURES - 1;
            found.until = clock::monotonic() + LEFT_OUT;
        }
        out
    }
}

fn out() -> ScriptFailure {
    ScriptFailure {
        cause: FailureCause::Busy,
        text: format!("left out for {LEFT_OUT:?} after {FAILURES} failures in a row"),
    }
}

/// Writes lines of a plugin's `console` to the log, so many a second.
fn console(plugin: Arc<str>) -> impl Fn(&str, &str) {
    let second = Cell::new((0, 0));
    move |level: &str, text: &str| {
        let now = clock::monotonic().as_secs();
        let count = match second.get() {
            (then, count) if then == now => count + 1,
            _ => 1,
        };
        second.set((now, count));
        if count > LINES {
            return;
        }
        let plugin = &*plugin;
        let end = text.floor_char_boundary(LINE);
        let text = text.get(..end).unwrap_or_default();
        match level {
            "error" => tracing::error!(plugin, "{text}"),
            "warn" => tracing::warn!(plugin, "{text}"),
            "debug" => tracing::debug!(plugin, "{text}"),
            _ => tracing::info!(plugin, "{text}"),
        }
    }
}
