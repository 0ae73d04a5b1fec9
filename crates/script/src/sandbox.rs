//! A runtime of QuickJS with one context, within bounds, and freed with care.

use crate::bounds::{Meter, STACK};
use crate::failure::{FailureCause, ScriptFailure};
use rquickjs::context::Intrinsic;
use rquickjs::{Context, Function, Runtime, qjs};
use std::mem;
use std::ptr::NonNull;
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
        let raw = keep_prototypes_apart(&runtime).map_err(failed)?;
        let watch = meter.clone();
        let interrupt = move || {
            if watch.was_exceeded() {
                close_stack(raw);
            }
            watch.is_up()
        };
        runtime.set_interrupt_handler(Some(Box::new(interrupt)));
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

    /// Begins a turn that may take so much CPU time.
    pub(crate) fn start(&self, left: Duration) {
        self.end.start(left);
    }

    /// Measures the turn under way.
    pub(crate) fn meter(&self) -> &Rc<Meter> {
        &self.end.meter
    }
}

/// Lets a script call nothing more in this turn. No `catch` sees that the engine is told to end it, but its promises do: they make
/// a rejection of that, and the script goes on. Without functions a script is soon at an end, or in a loop of its own, which is cut.
#[allow(
    unsafe_code,
    reason = "the handler runs while the runtime is borrowed, so no safe function of the binding reaches it"
)]
fn close_stack(runtime: NonNull<qjs::JSRuntime>) {
    // SAFETY: called by the handler of this runtime alone, so it is there, and no other thread has it. Two numbers of it are set.
    unsafe { qjs::JS_SetMaxStackSize(runtime.as_ptr(), 1) }
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
/// Returns the engine's own name of the runtime.
#[allow(
    unsafe_code,
    reason = "the binding keeps the engine's own name of a runtime to itself"
)]
fn keep_prototypes_apart(runtime: &Runtime) -> rquickjs::Result<NonNull<qjs::JSRuntime>> {
    let first = Context::base(runtime)?;
    first.with(|ctx| {
        // SAFETY: the context is there, and so is its runtime.
        let raw = unsafe { qjs::JS_GetRuntime(ctx.as_raw().as_ptr()) };
        Function::new(ctx, || ())?;
        NonNull::new(raw).ok_or(rquickjs::Error::Unknown)
    })
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

impl End {
    fn start(&self, left: Duration) {
        // The turn before may have closed it.
        if self.meter.was_exceeded() {
            self.runtime.set_max_stack_size(STACK);
        }
        self.meter.start(left);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.start(Duration::ZERO);
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
