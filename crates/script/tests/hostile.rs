//! Every function that a plugin can reach, called with what would make it run for long. The engine looks at the clock between
//! steps of a script, and not within a function of its own: this finds the ones that the prelude must bound.
#![allow(missing_docs, clippy::unwrap_used)]

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use tulle_script::{CallId, Head, Hook, Program, ScriptEngine, ScriptLimits, Subject, Turn};

/// Far more than the 5 ms that a call has, and far less than what has no bound.
const LONG: Duration = Duration::from_millis(1500);

const PLUGIN: &str = r"
const functions = [];
const seen = new Set([functions]);
function walk(value, path, depth) {
    if ((typeof value !== 'object' && typeof value !== 'function') || value === null || seen.has(value) || depth > 6) return;
    seen.add(value);
    if (typeof value === 'function') functions.push([path, value]);
    for (const key of Reflect.ownKeys(value)) {
        const { value: inner, get, set } = Reflect.getOwnPropertyDescriptor(value, key);
        for (const one of [inner, get, set]) walk(one, `${path}.${String(key)}`, depth + 1);
    }
    walk(Object.getPrototypeOf(value), `${path}.__proto__`, depth + 1);
}
walk(globalThis, '', 0);
for (const made of [(function* () {})(), (async function* () {})(), [][Symbol.iterator](), ''.matchAll(/a/g), ''[Symbol.iterator](),
    new Map()[Symbol.iterator](), new Set()[Symbol.iterator](), async () => {}]) walk(made, 'made', 0);

const giant = { length: 2 ** 53 - 1 };
const sparse = [];
sparse.length = 5e7;
const long = 'a'.repeat(40000);
const half = 'a'.repeat(20000) + 'b';
const bytes = new Uint8Array(20000);
const list = Array.from({ length: 500 }, (_, i) => i ^ 0x555);
const map = new Map(list.map((n) => [n, n]));
const catastrophe = /(a+)+$/;
const some = [giant, sparse, long, half, bytes, list, map, catastrophe, 2 ** 53 - 1, 1e9, Infinity, -1, () => false, [sparse], { get length() { return 2 ** 53 - 1 } }];
const given = [[], ...some.map((one) => [one]), [giant, giant], [sparse, sparse], [long, long], [0, 2 ** 53 - 1], [1, 0, 2 ** 53 - 1], [half, long], [long, half],
    ['x', 1e9], [1e9, 'x'], [giant, 1], [() => 1, 1], [catastrophe, long], [long, 'a', 1e6]];
const selves = [undefined, ...some.slice(0, 8), new Set(list), new Date(), Array, bytes.buffer, new DataView(bytes.buffer), 123.456];

export function onRequest(request) {
    const [, f, s, g] = request.path.split('/').map(Number);
    if (f >= functions.length) return new Response('end');
    if (s > selves.length) return new Response('selves');
    if (g >= given.length) return new Response('given');
    if (s === selves.length) Reflect.construct(functions[f][1], given[g]);
    else Reflect.apply(functions[f][1], selves[s], given[g]);
}
export function onResponse(response) {
    const [at] = response.headers.get('at').split('/').map(Number);
    response.headers.set('name', encodeURIComponent(functions[at]?.[0] ?? 'none'));
}
";

fn start(program: &Program) -> ScriptEngine {
    let limits = ScriptLimits {
        memory: 8 << 20,
        ..ScriptLimits::default()
    };
    ScriptEngine::start(program, "null", &limits).unwrap()
}

/// CPU time of this thread: others that have the processor meanwhile do not count.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        now.tv_sec.cast_unsigned(),
        now.tv_nsec.cast_unsigned() as u32,
    )
}

fn begin(engine: &ScriptEngine, path: &str) -> CallId {
    let head = Head::request("GET", path, "a");
    engine.begin(Subject::new(head)).unwrap()
}

fn name(program: &Program, function: u32) -> String {
    let engine = start(program);
    let call = begin(&engine, "/");
    let mut head = Head::response(200);
    head.push(b"at", function.to_string().as_bytes());
    engine.respond(call, head).unwrap();
    let response = engine.end(call).unwrap().response.unwrap();
    response.field("name").unwrap()
}

#[test]
fn no_function_of_the_language_takes_long() {
    let program = Program::read("hostile.js", PLUGIN).unwrap();
    let mut engine = start(&program);
    let (mut function, mut this, mut given, mut calls) = (0, 0, 0, 0);
    // All of them take minutes (`make fuzz`); these are others in each function.
    let stride = if std::env::var_os("TULLE_ALL_CALLS").is_some() {
        1
    } else {
        4
    };
    let mut worst = (Duration::ZERO, 0, 0, 0);
    let mut long: Vec<String> = Vec::new();
    loop {
        let path = format!("/{function}/{this}/{given}");
        let call = begin(&engine, &path);
        let begun = cpu_time();
        let turn = engine.run(call, Hook::Request);
        let took = cpu_time() - begun;
        engine.end(call);
        calls += 1;
        if took > worst.0 {
            worst = (took, function, this, given);
        }
        if took > LONG {
            long.push(format!("{} at {path}: {took:?}", name(&program, function)));
            (function, this, given) = (function + 1, 0, 0);
            engine = start(&program);
            continue;
        }
        // Its changes of the language are gone with it.
        if engine.is_spoilt() || calls % 500 == 0 {
            engine = start(&program);
        }
        given += stride;
        if let Turn::Done(Some(answer)) = turn {
            match &*answer.body {
                b"given" => (this, given) = (this + 1, (function + this + 1) % stride),
                b"selves" => (function, this, given) = (function + 1, 0, 0),
                b"end" => break,
                _ => {}
            }
        }
    }
    println!(
        "{calls} calls of {function} functions; the longest {:?}: {} at {:?}",
        worst.0,
        name(&program, worst.1),
        worst
    );
    assert!(long.is_empty(), "{long:#?}");
    assert!(function > 300, "{function}");
}

#[test]
fn functions_of_maps_that_a_plugin_replaces_are_not_called_by_the_end_of_a_request() {
    for name in ["get", "set", "delete"] {
        let source = format!(
            "Map.prototype.{name} = () => {{ for (;;); }}; export function onRequest() {{}} export function onResponse() {{}}"
        );
        let program = Program::read("replaced.js", &source).unwrap();
        let engine = start(&program);
        for _ in 0..2 {
            let call = begin(&engine, "/");
            let turn = engine.run(call, Hook::Request);
            assert!(matches!(turn, Turn::Done(None)), "{name}: {turn:?}");
            engine.respond(call, Head::response(200)).unwrap();
            assert!(engine.end(call).is_some(), "{name}");
        }
    }
}

/// Scripts that were found to hold a thread for minutes, or without end, although each turn has 5 ms.
#[test]
fn scripts_that_are_written_to_hold_a_worker_are_cut() {
    let giant = "Array.prototype.values.call({ length: 2 ** 53 - 1 })";
    let bodies = [
        // The engine makes a rejection of its order to end.
        "for (;;) new Promise(() => { for (;;); });",
        "for (;;) Promise.all({ [Symbol.iterator]() { for (;;); } });",
        "for (;;) Promise.race({ [Symbol.iterator]() { for (;;); } });",
        "for (;;) (async function* () { for (;;); })().next();",
        "for (;;) (async () => { for (;;); })();",
        "for (;;) Promise.try(() => { for (;;); });",
        "const f = () => { Promise.resolve().then(f).catch(f); for (;;); }; f();",
        "for (;;) try { new Promise(() => { for (;;); }); [].map(() => 1); } catch {}",
        // Functions of the engine that go on as long as an object says.
        &format!("{giant}.drop(2 ** 53 - 2).next();"),
        &format!(
            "{giant}.drop({{ calls: 0, valueOf() {{ return this.calls++ ? 2 ** 53 - 1 : 1; }} }}).next();"
        ),
        &format!(
            "new Set([undefined]).isSupersetOf({{ size: 1, has: () => true, keys: () => {giant} }});"
        ),
        &format!(
            "new Set([undefined]).union({{ size: 1, has: () => true, keys: () => {giant} }});"
        ),
        "Math.sumPrecise(Array.prototype.keys.call({ length: 2 ** 53 - 1 }));",
        "Array.prototype.reverse.call({ calls: 0, get length() { return this.calls++ ? 2 ** 53 - 1 : 1; } });",
        "Array.prototype.reverse.call({ length: { calls: 0, valueOf() { return this.calls++ ? 2 ** 53 - 1 : 1; } } });",
        "Object.defineProperty(Number.prototype, 'length', { get() { return 2 ** 53 - 1; } }); Array.prototype.reverse.call(5);",
        "const b = []; [].concat({ length: 1, get [Symbol.isConcatSpreadable]() { b.length = 2 ** 32 - 1; return true; } }, b);",
        "let n = 0; 'a'.repeat(1e6).indexOf({ toString() { return n++ ? 'a'.repeat(5e5) + 'b' : 'a'; } }); for (;;);",
        "let n = 0; const twice = { toString() { return n++ ? 'a'.repeat(1e6) : 'a'; } }; String.prototype.indexOf.call(twice, 'a'.repeat(4e5) + 'b'); for (;;);",
        "let n = 0; const sought = { get [Symbol.split]() { return n++ ? undefined : () => {}; }, toString: () => 'a'.repeat(5e5) + 'b' }; 'a'.repeat(1e6).split(sought);",
        // Costly ones, ten thousand times.
        "const wide = 'é'.repeat(1e6); for (;;) wide.toUpperCase();",
        "const wide = 'é'.repeat(1e6); for (;;) try { wide.normalize('NFD'); } catch {}",
        "const list = Array.from({ length: 6e4 }, (_, i) => i ^ 0x5555); for (;;) list.toSorted();",
        "const list = JSON.stringify(Array(3e4).fill(0)); for (;;) JSON.parse(list);",
        "const list = Array(5e4).fill(0); for (;;) Object.keys(list);",
        "const bytes = new Uint8Array(1e6); for (;;) crypto.subtle.digest('SHA-512', bytes);",
        "const bytes = new Uint8Array(1e6); for (;;) new TextDecoder().decode(bytes);",
    ];
    let mut long: Vec<String> = Vec::new();
    for body in bodies {
        let source = format!("export function onRequest() {{ {body} }}");
        let program = Program::read("held.js", &source).unwrap();
        let engine = ScriptEngine::start(&program, "null", &ScriptLimits::default()).unwrap();
        let call = begin(&engine, "/");
        let begun = cpu_time();
        let turn = engine.run(call, Hook::Request);
        engine.end(call);
        drop(engine);
        let took = cpu_time() - begun;
        println!("{took:?} {turn:?} {body}");
        if took > LONG || !matches!(turn, Turn::Failed(_)) {
            long.push(format!("{took:?} {turn:?} {body}"));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}
