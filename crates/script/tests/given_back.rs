//! An engine that is dropped, because its plugin changed or did what it may not, leaves nothing behind. Alone in its process.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Duration;
use tulle_script::{Head, Hook, Program, ScriptEngine, ScriptLimits, Subject};

const SOURCE: &str = "
    export async function onRequest(request, context) { context.state.seen = request.headers.get('x'); }
    export function onResponse(response, context) { response.headers.set('x', String(context.state.seen)); }";

/// Memory of this process that belongs to no file, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    line.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

fn live() {
    let program = Program::read("a.js", SOURCE).unwrap();
    let limits = ScriptLimits {
        cpu: Duration::from_millis(200),
        ..ScriptLimits::default()
    };
    let engine = ScriptEngine::start(&program, "{}", &limits).unwrap();
    let call = engine
        .begin(Subject::new(Head::request("GET", "/", "a")))
        .unwrap();
    engine.run(call, Hook::Request);
    engine.respond(call, Head::response(200)).unwrap();
    engine.end(call).unwrap();
}

#[test]
fn an_engine_that_ends_gives_its_memory_back() {
    (0..20).for_each(|_| live());
    let before = resident();
    (0..200).for_each(|_| live());
    let each = resident().saturating_sub(before) / 200;
    assert!(each < 16, "{each} KiB of each engine are left");
}
