//! No source of a plugin and no head makes the engine or its bridge panic, take more than its bounds, or leave a head that
//! cannot be sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::time::{Duration, Instant};
use tulle_script::{HeadEdit, ScriptEngine, Fetched, Head, Hook, ScriptLimits, Program, Subject, Turn};

/// Far more than a call has, and far less than what has no bound.
const LONG: Duration = Duration::from_secs(3);

fn is_value(value: &str) -> bool {
    value.chars().all(|c| c == '\t' || ((' '..='\u{ff}').contains(&c) && c != '\u{7f}'))
}

fn judge(edits: &[HeadEdit]) {
    for edit in edits {
        let fits = match edit {
            HeadEdit::Set(name, value) | HeadEdit::Append(name, value) => !name.is_empty() && is_value(value),
            HeadEdit::Remove(name) => !name.is_empty(),
            HeadEdit::Path(path) => path.starts_with('/') && path.bytes().all(|b| b > b' ' && b < 0x7f),
            HeadEdit::Status(status) => (200..600).contains(status),
        };
        assert!(fits, "{edit:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    // The bytes of the network come after the first zero.
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let source = parts.next().unwrap_or_default();
    let given = parts.next().unwrap_or_default();
    let Ok(source) = std::str::from_utf8(source) else {
        return;
    };
    // So that short inputs reach the bridge.
    let source = match source.contains("export") {
        true => source.to_owned(),
        false => format!(
            "export async function onRequest(request, context) {{ {source}\n}} export function onResponseBody(body, response, context) {{ {source}\n}} export function onConnection(bytes, context) {{ {source}\n}}"
        ),
    };
    let Ok(program) = Program::read("fuzz.js", &source) else {
        return;
    };
    let limits = ScriptLimits {
        cpu: Duration::from_millis(2),
        memory: 2 << 20,
        calls: 4,
        body: 4096,
    };
    let begun = Instant::now();
    let Ok(engine) = ScriptEngine::start(&program, "{}", &limits) else {
        return;
    };
    let mut head = Head::request("GET", "/", "a");
    head.push(b"x-given", given);
    let Ok(call) = engine.begin(Subject::new(head)) else {
        return;
    };
    let mut turn = engine.run(call, Hook::Request);
    for _ in 0..8 {
        let Turn::Waits(wishes) = turn else { break };
        let Some(wish) = wishes.first() else { return };
        let fetched = Fetched {
            status: 200,
            fields: vec![("x-given".into(), given.iter().copied().map(char::from).collect())],
            body: given.to_vec(),
        };
        turn = engine.settle(call, wish.id, Ok(fetched));
    }
    // A script may fail.
    let _ = engine.respond(call, Head::response(200));
    let _ = engine.respond_body(call, given.to_vec());
    engine.give_body(call, given.to_vec());
    let _ = engine.run(call, Hook::Connection);
    assert!(engine.take_body(call).is_none_or(|body| body.len() <= 1 << 20));
    assert!(engine.take_tags(call).len() <= 16 && engine.take_counts().count() <= 32);
    assert!(engine.chosen_backend(call).is_none(), "there is none to choose");
    let subject = engine.end(call).expect("the call has not ended");
    judge(subject.request.edits());
    judge(subject.response.unwrap_or_default().edits());
    drop(engine);
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
});
