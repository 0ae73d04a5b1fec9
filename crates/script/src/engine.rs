//! One plugin on one worker: its program started once, and its hooks run call by call, turn by turn.

use crate::bounds::{Meter, ScriptLimits};
use crate::call::{Call, CallId, Calls, ScriptAnswer, Subject, Wish, WishId};
use crate::failure::{FailureCause, NO_ERROR, ScriptFailure};
use crate::head::{Head, HeadEdit};
use crate::host::{self, Bytes, Console};
use crate::program::Program;
use crate::sandbox::Sandbox;
use rquickjs::context::intrinsic::{
    Date, Eval, Json, MapSet, Promise, RegExp, RegExpCompiler, TypedArrays,
};
use rquickjs::function::IntoArgs;
use rquickjs::{CatchResultExt, CaughtError, Ctx, Function, Module, Object, Persistent, Value};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The objects and functions of plugins beside the language.
const PRELUDE: &str = include_str!("prelude.js");
/// How long a plugin may take to start. It happens once, and on a request's time.
const START: Duration = Duration::from_millis(100);

/// Number of hooks.
const HOOKS: usize = 6;

/// Hooks of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// A request, before it is forwarded.
    Request,
    /// Its body.
    RequestBody,
    /// The head of its response.
    Response,
    /// The body of that.
    ResponseBody,
    /// Its end.
    Log,
    /// The first bytes of a connection.
    Connection,
}

impl Hook {
    /// All hooks.
    pub const ALL: [Self; HOOKS] = [
        Self::Request,
        Self::RequestBody,
        Self::Response,
        Self::ResponseBody,
        Self::Log,
        Self::Connection,
    ];

    /// The name of the function that a plugin exports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "onRequest",
            Self::RequestBody => "onRequestBody",
            Self::Response => "onResponse",
            Self::ResponseBody => "onResponseBody",
            Self::Log => "onLog",
            Self::Connection => "onConnection",
        }
    }
}

/// The answer to a fetch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Status; 0: a timer.
    pub status: u16,
    /// Fields: names in lower case.
    pub fields: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// How a turn of a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// The hook is done; it may have answered.
    Done(Option<ScriptAnswer>),
    /// It waits. These are its new wishes; a turn may have none while older ones are open.
    Waits(Vec<Wish>),
    /// It failed.
    Failed(ScriptFailure),
}

/// A started plugin. Not for several threads.
pub struct ScriptEngine {
    calls: Rc<Calls>,
    limits: ScriptLimits,
    spoilt: Cell<bool>,
    // Dropped before the sandbox that they belong to.
    hooks: Hooks,
    returned: Persistent<Function<'static>>,
    settle: Persistent<Function<'static>>,
    drop_call: Persistent<Function<'static>>,
    sandbox: Sandbox,
}

impl ScriptEngine {
    /// Starts a plugin. `config` is JSON. Its lines of `console` go nowhere; see [`Self::start_with`].
    ///
    /// # Errors
    /// The plugin throws, or exceeds its limits, while it starts.
    pub fn start(
        program: &Program,
        config: &str,
        limits: &ScriptLimits,
    ) -> Result<Self, ScriptFailure> {
        Self::start_with(program, config, limits, Rc::new(|_, _| {}))
    }

    /// Starts a plugin. `console` gets level and text of each line that it writes.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        program: &Program,
        config: &str,
        limits: &ScriptLimits,
        console: Console,
    ) -> Result<Self, ScriptFailure> {
        type Language = (
            Date,
            Eval,
            RegExpCompiler,
            RegExp,
            Json,
            MapSet,
            TypedArrays,
            Promise,
        );
        let sandbox = Sandbox::new::<Language>(limits.memory)?;
        let calls = Rc::new(Calls::new(limits.memory));
        sandbox.start(START);
        let started = sandbox.context().with(|ctx| {
            let started = begin(&ctx, program, config, &calls, console, sandbox.meter());
            started.map_err(|error| told(&error, program, sandbox.meter()))
        });
        sandbox.meter().stop();
        let ([returned, settle, drop_call], hooks) = started?;
        Ok(Self {
            calls,
            limits: limits.clone(),
            spoilt: Cell::new(false),
            hooks,
            returned,
            settle,
            drop_call,
            sandbox,
        })
    }

    /// Whether the plugin has this hook.
    pub fn has(&self, hook: Hook) -> bool {
        self.function(hook).is_some()
    }

    fn function(&self, hook: Hook) -> Option<&Persistent<Function<'static>>> {
        self.hooks.get(hook as usize)?.as_ref()
    }

    /// Whether a limit was exceeded, so that its state may be halfway: start another one.
    pub fn is_spoilt(&self) -> bool {
        self.spoilt.get()
    }

    /// Memory in use, in bytes.
    pub fn memory(&self) -> usize {
        let used = self.sandbox.context().runtime().memory_usage();
        usize::try_from(used.malloc_size).unwrap_or_default()
    }

    /// Begins a call.
    ///
    /// # Errors
    /// [`FailureCause::Busy`]: too many are under way.
    pub fn begin(&self, subject: Subject) -> Result<CallId, ScriptFailure> {
        self.calls.begin(subject, self.limits.calls)
    }

    /// Shows a call the head of its response.
    ///
    /// # Errors
    /// The hook failed, or did what only the request's may: wait, or answer.
    pub fn respond(&self, call: CallId, response: Head) -> Result<(), ScriptFailure> {
        let then = |call: &mut Call| call.subject.response = Some(response);
        self.calls.with(call.0, then);
        self.run_at_once(call, Hook::Response)
    }

    /// Shows a call the body of its response.
    ///
    /// # Errors
    /// As [`Self::respond`].
    pub fn respond_body(&self, call: CallId, body: Vec<u8>) -> Result<(), ScriptFailure> {
        self.give_body(call, body);
        self.run_at_once(call, Hook::ResponseBody)
    }

    fn run_at_once(&self, call: CallId, hook: Hook) -> Result<(), ScriptFailure> {
        match self.run(call, hook) {
            Turn::Done(None) => Ok(()),
            Turn::Failed(failure) => Err(failure),
            Turn::Done(Some(_)) | Turn::Waits(_) => Err(ScriptFailure::thrown(format!(
                "{} neither waits nor answers",
                hook.name()
            ))),
        }
    }

    /// Takes whether the connection of a call may go on; `None`: the hook wants to see more of it.
    pub fn take_verdict(&self, call: CallId) -> Option<bool> {
        self.calls.with(call.0, |call| call.verdict.take())?
    }

    /// Gives a call the body, or the bytes of its connection, that its next hook sees.
    pub fn give_body(&self, call: CallId, body: Vec<u8>) {
        self.calls.with(call.0, |call| call.body = body);
    }

    /// Takes the body that the last hook wants instead, if it wants another.
    pub fn take_body(&self, call: CallId) -> Option<Vec<u8>> {
        self.calls.with(call.0, |call| call.instead.take())?
    }

    /// Whether a call is to see the body of its request.
    pub fn wants_request_body(&self, call: CallId) -> bool {
        self.wants(call, Hook::RequestBody, 0)
    }

    /// Whether a call is to see the body of its response.
    pub fn wants_response_body(&self, call: CallId) -> bool {
        self.wants(call, Hook::ResponseBody, 1)
    }

    fn wants(&self, call: CallId, hook: Hook, which: usize) -> bool {
        let skips = |call: &mut Call| call.skips.get(which).copied().unwrap_or_default();
        self.has(hook) && self.calls.with(call.0, skips) == Some(false)
    }

    /// Takes names and values that a call has for the log.
    pub fn take_tags(&self, call: CallId) -> Vec<(String, String)> {
        let tags = |call: &mut Call| std::mem::take(&mut call.tags);
        self.calls.with(call.0, tags).unwrap_or_default()
    }

    /// Takes what was counted by all calls, by name.
    pub fn take_counts(&self) -> impl Iterator<Item = (String, u64)> {
        self.calls.counts.take().into_iter()
    }

    /// Which of its backends a call has chosen.
    pub fn chosen_backend(&self, call: CallId) -> Option<usize> {
        self.calls.with(call.0, |call| call.backend)?
    }

    /// Takes what a call has changed of its request since the last time.
    pub fn take_request_edits(&self, call: CallId) -> Vec<HeadEdit> {
        let request = |call: &mut Call| call.subject.request.take_edits();
        self.calls.with(call.0, request).unwrap_or_default()
    }

    /// Takes what a call has changed of its response since the last time.
    pub fn take_response_edits(&self, call: CallId) -> Vec<HeadEdit> {
        let response = |call: &mut Call| call.subject.response.as_mut().map(Head::take_edits);
        self.calls
            .with(call.0, response)
            .flatten()
            .unwrap_or_default()
    }

    /// Runs a hook of a call.
    pub fn run(&self, call: CallId, hook: Hook) -> Turn {
        let Some(function) = self.function(hook) else {
            return Turn::Done(None);
        };
        self.turn(call, function, (call.0,), Some(hook))
    }

    /// Settles a wish of a call, which goes on.
    pub fn settle(&self, call: CallId, wish: WishId, result: Result<Fetched, String>) -> Turn {
        if !self.calls.granted(call, wish) {
            return Turn::Waits(Vec::new());
        }
        let (failed, fetched) = match result {
            Ok(fetched) => (None, fetched),
            Err(why) => (Some(why), Fetched::default()),
        };
        let Fetched {
            status,
            fields,
            body,
        } = fetched;
        let fields: Vec<Vec<String>> = fields.into_iter().map(|(n, v)| vec![n, v]).collect();
        let args = (wish.0, failed, status, fields, Bytes(body));
        self.turn(call, &self.settle, args, None)
    }

    /// Ends a call; what its subject has become. `None`: it had ended.
    pub fn end(&self, call: CallId) -> Option<Subject> {
        let ended = self.calls.end(call)?;
        if ended.has_context {
            self.sandbox.start(self.limits.cpu);
            self.sandbox.context().with(|ctx| {
                let drop_call = self.drop_call.clone().restore(&ctx);
                // It deletes from a map, which cannot fail.
                let _ = drop_call.and_then(|drop_call| drop_call.call::<_, ()>((call.0,)));
            });
            self.sandbox.meter().stop();
        }
        Some(ended.subject)
    }

    /// Runs a function of the plugin or the prelude as a turn of a call. `hook`: it is this one's.
    fn turn<A>(
        &self,
        id: CallId,
        function: &Persistent<Function<'static>>,
        args: A,
        hook: Option<Hook>,
    ) -> Turn
    where
        A: for<'a> IntoArgs<'a>,
    {
        let meter = self.sandbox.meter();
        let taken = self.calls.with(id.0, |call| {
            if hook.is_some() {
                call.end = None;
                call.instead = None;
                call.has_context = true;
            }
            call.taken
        });
        let Some(taken) = taken else {
            return Turn::Failed(ScriptFailure::thrown("the call has ended"));
        };
        self.calls.current.set(id.0);
        self.sandbox.start(self.limits.cpu.saturating_sub(taken));
        let done = self.sandbox.context().with(|ctx| {
            let ran = self.call(&ctx, id, function, args, hook);
            let ran = ran.catch(&ctx).map_err(|error| said(&error));
            // Functions that awaited go on, one step at a time.
            while ran.is_ok() && ctx.execute_pending_job() && !meter.is_up() {}
            drop(ctx.catch());
            ran
        });
        let exceeded = meter.was_exceeded();
        let took = meter.stop();
        self.calls.current.set(0);
        let state = self.calls.with(id.0, |call| {
            call.taken += took;
            let waits = !call.waiting.is_empty();
            (call.end.take(), std::mem::take(&mut call.wishes), waits)
        });
        let (end, wishes, waits) = state.unwrap_or_default();
        let failure = match (done, end) {
            _ if exceeded => {
                let ms = self.limits.cpu.as_secs_f64() * 1e3;
                ScriptFailure::new(
                    FailureCause::Time,
                    format!("it took more than {ms} ms of CPU"),
                )
            }
            (Err(text), _) => ScriptFailure::thrown(text),
            (Ok(_), Some(Ok(answer))) => return Turn::Done(answer),
            (Ok(_), Some(Err(failure))) => failure,
            (Ok(true), None) => return Turn::Done(None),
            (Ok(false), None) if waits => return Turn::Waits(wishes),
            (Ok(false), None) => {
                ScriptFailure::thrown("it waits for a promise that nothing settles")
            }
        };
        if failure.cause != FailureCause::Thrown {
            self.spoilt.set(true);
        }
        Turn::Failed(failure)
    }

    /// Calls a function; true: it is a hook's, and has returned nothing, so the hook is done.
    fn call<'js, A>(
        &self,
        ctx: &Ctx<'js>,
        id: CallId,
        function: &Persistent<Function<'static>>,
        args: A,
        hook: Option<Hook>,
    ) -> rquickjs::Result<bool>
    where
        A: for<'a> IntoArgs<'a>,
    {
        let function = function.clone().restore(ctx)?;
        let returned: Value<'js> = function.call(args)?;
        let Some(hook) = hook else { return Ok(false) };
        if returned.is_undefined() || returned.is_null() {
            return Ok(true);
        }
        let function = self.returned.clone().restore(ctx)?;
        function.call::<_, ()>((id.0, hook.name(), returned))?;
        Ok(false)
    }
}

/// Functions that run the hooks that there are.
type Hooks = [Option<Persistent<Function<'static>>>; HOOKS];
/// `returned`, `settle` and `drop` of the prelude, and the hooks.
type Started = ([Persistent<Function<'static>>; 3], Hooks);

/// An error while a plugin starts.
enum Failed {
    Said(String),
    TopLevelAwait,
}

fn begin(
    ctx: &Ctx<'_>,
    program: &Program,
    config: &str,
    calls: &Rc<Calls>,
    console: Console,
    meter: &Rc<Meter>,
) -> Result<Started, Failed> {
    let say = |e: rquickjs::Error| Failed::Said(said(&CaughtError::from_error(ctx, e)));
    let host = host::functions(ctx, calls, console, meter).map_err(say)?;
    let config = ctx.json_parse(config).map_err(say)?;
    let prelude = evaluate(ctx, "tulle", PRELUDE, meter)?;
    let install: Function<'_> = prelude.get("default").map_err(say)?;
    let made: Object<'_> = install.call((host, config)).map_err(say)?;
    let plugin = evaluate(ctx, &program.name, &program.source, meter)?;
    let schema: Value<'_> = plugin.get("configSchema").map_err(say)?;
    if !schema.is_undefined() {
        let configured: Function<'_> = made.get("configured").map_err(say)?;
        let () = configured.call((schema,)).map_err(say)?;
    }
    let mut exported = Vec::new();
    for hook in Hook::ALL {
        let value: Value<'_> = plugin.get(hook.name()).map_err(say)?;
        match value.as_function() {
            Some(function) => exported.push((hook, function.clone())),
            None if value.is_undefined() => {}
            None => {
                let text = format!("{} is not a function", hook.name());
                return Err(Failed::Said(text));
            }
        }
    }
    for key in plugin.keys::<String>() {
        let key = key.map_err(say)?;
        let known = Hook::ALL.iter().any(|hook| hook.name() == key);
        // A hook with a slip in its name would never run.
        if key.starts_with("on") && !known {
            let hooks = Hook::ALL.map(Hook::name).join(", ");
            return Err(Failed::Said(format!("{key} is no hook: there are {hooks}")));
        }
    }
    let runs: Function<'_> = made.get("runs").map_err(say)?;
    let mut hooks = Hooks::default();
    let alone = exported.len() == 1;
    for (hook, function) in exported {
        let run = runs.call((hook.name(), function, alone));
        let run: Function<'_> = run.map_err(say)?;
        if let Some(place) = hooks.get_mut(hook as usize) {
            *place = Some(Persistent::save(ctx, run));
        }
    }
    let function = |name: &str| {
        let function: Function<'_> = made.get(name).map_err(say)?;
        Ok(Persistent::save(ctx, function))
    };
    let functions = [
        function("returned")?,
        function("settle")?,
        function("drop")?,
    ];
    Ok((functions, hooks))
}

/// Evaluates a module; what it exports.
fn evaluate<'js>(
    ctx: &Ctx<'js>,
    name: &str,
    source: &str,
    meter: &Meter,
) -> Result<Object<'js>, Failed> {
    let say = |e: rquickjs::Error| Failed::Said(said(&CaughtError::from_error(ctx, e)));
    let module = Module::declare(ctx.clone(), name, source).map_err(say)?;
    let (module, promise) = module.eval().map_err(say)?;
    while promise.result::<()>().is_none() && ctx.execute_pending_job() && !meter.is_up() {}
    match promise.result::<()>() {
        Some(result) => result.map_err(say)?,
        None => return Err(Failed::TopLevelAwait),
    }
    module.namespace().map_err(say)
}

fn told(failed: &Failed, program: &Program, meter: &Meter) -> ScriptFailure {
    let name = &program.name;
    match failed {
        _ if meter.was_exceeded() => ScriptFailure::new(
            FailureCause::Time,
            format!("{name}: it took more than {START:?} to start"),
        ),
        Failed::TopLevelAwait => ScriptFailure::thrown(format!(
            "{name}: it awaits something before a request is there"
        )),
        Failed::Said(text) => ScriptFailure::thrown(text),
    }
}

/// An error as a person reads it: `TypeError: …  at onRequest (a.js:3:7)`.
fn said(error: &CaughtError<'_>) -> String {
    match error {
        CaughtError::Exception(exception) => {
            let kind: Option<String> = exception.as_object().get("name").ok();
            let message = exception.message().unwrap_or_default();
            let stack = exception.stack().unwrap_or_default();
            let place = stack
                .lines()
                .map(str::trim)
                .find(|line| !line.contains("tulle:"));
            let place = place.filter(|place| !place.is_empty());
            let kind = kind.unwrap_or_else(|| "Error".to_owned());
            match place {
                Some(place) => format!("{kind}: {message} {place}"),
                None => format!("{kind}: {message}"),
            }
        }
        CaughtError::Value(value) => {
            if value.is_null() {
                return NO_ERROR.to_owned();
            }
            let text = value.as_string().and_then(|text| text.to_string().ok());
            text.unwrap_or_else(|| format!("{} was thrown", value.type_name()))
        }
        CaughtError::Error(error) => error.to_string(),
    }
}
