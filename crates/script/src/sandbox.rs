//! A runtime of QuickJS with one context, within bounds, and freed with care.

use crate::bounds::{Meter, STACK};
use crate::failure::{FailureCause, ScriptFailure};
use rquickjs::context::Intrinsic;
use rquickjs::{Context, Function, Runtime};
use std::mem;
use std::rc::Rc;
use std::time::Duration;

/// Steps that are begun and cut at the end, so that they let go of what they hold.
const LAST_STEPS: usize = 10_000;

/// A runtime with its context. What belongs to them is dropped before.
pub(crate) struct Sandbox {
    // Dropped before its runtime is looked at.
    context: Context,
    end: End,
}

impl Sandbox {
    /// A context with a part of the language. `memory` is in bytes.
    pub(crate) fn new<Language: Intrinsic>(memory: usize) -> Result<Self, ScriptFailure> {
        let failed = |e: rquickjs::Error| ScriptFailure::new(FailureCause::Memory, e.to_string());
        let runtime = Runtime::new().map_err(failed)?;
        runtime.set_memory_limit(memory);
        runtime.set_max_stack_size(STACK);
        // Reference counts free nearly everything; what is left, sooner than by default.
        runtime.set_gc_threshold(memory / 8);
        let meter = Rc::new(Meter::default());
        let watch = meter.clone();
        runtime.set_interrupt_handler(Some(Box::new(move || watch.is_up())));
        keep_prototypes_apart(&runtime).map_err(failed)?;
        let least = counts(&runtime);
        let end = End {
            runtime,
            meter,
            least,
        };
        let context = Context::custom::<Language>(&end.runtime).map_err(failed)?;
        Ok(Self { context, end })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Measures the turn under way.
    pub(crate) fn meter(&self) -> &Rc<Meter> {
        &self.end.meter
    }
}

/// Frees a runtime, or does not: the engine ends the process if something is left then, and there are ways for a script to
/// leave something. What a runtime leaks that is not freed is at most its limit, and mostly little.
struct End {
    runtime: Runtime,
    meter: Rc<Meter>,
    /// Counts from before the script.
    least: [i64; 4],
}

/// The binding makes the prototype of host functions once for a runtime, and keeps it, with the context in which it was
/// made, until the end. That is this empty one, so that the script's own is gone before somebody counts what is left.
fn keep_prototypes_apart(runtime: &Runtime) -> rquickjs::Result<()> {
    let first = Context::base(runtime)?;
    first.with(|ctx| Function::new(ctx, || ()).map(drop))
}

/// Numbers of objects, shapes, functions and properties.
fn counts(runtime: &Runtime) -> [i64; 4] {
    runtime.run_gc();
    let left = runtime.memory_usage();
    [
        left.obj_count,
        left.shape_count,
        left.js_func_count,
        left.prop_count,
    ]
}

impl Drop for End {
    fn drop(&mut self) {
        self.meter.start(Duration::ZERO);
        for _ in 0..LAST_STEPS {
            match self.runtime.execute_pending_job() {
                Ok(false) => break,
                Ok(true) => {}
                Err(failed) => drop(failed),
            }
        }
        self.meter.stop();
        let left = counts(&self.runtime);
        if left
            .iter()
            .zip(self.least)
            .any(|(left, least)| *left > least)
        {
            mem::forget(self.runtime.clone());
        }
    }
}
