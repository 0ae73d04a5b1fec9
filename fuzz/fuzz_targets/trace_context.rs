//! The trace context of a request: reading never panics and yields only valid ids, and the
//! forwarded context is read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

// Pure; depending on its crate would put all of the proxy under the sanitizer.
#[path = "../../crates/proxy/src/telemetry/trace_context/mod.rs"]
mod trace_context;

use trace_context::{TraceContext, Decision, Onward, read};

fuzz_target!(|data: &[u8]| {
    let lines = data.split(|&byte| byte == b'\n');
    let fields = lines.map(|line| {
        let at = line.iter().position(|&byte| byte == b':');
        let (name, value) = line.split_at(at.unwrap_or(line.len()));
        (name, value.get(1..).unwrap_or_default())
    });
    let Some(context) = read(fields) else { return };
    let Some(ids) = context.ids else {
        assert!(context.decision.is_some());
        return;
    };
    assert!(ids.trace != 0 && ids.span != 0);
    let decision = context.decision.unwrap_or(Decision::Record);
    let onward = Onward {
        form: context.form,
        ids,
        parent: 1,
        decision,
        random: context.random,
        begins: false,
    };
    let fields = onward.fields();
    let debug = [("x-b3-flags", &b"1"[..])];
    let flags = debug.into_iter().filter(|_| decision == Decision::Debug);
    let said = fields.iter().chain(flags);
    let again = read(said.map(|(name, value)| (name.as_bytes(), value)));
    let decision = Some(decision);
    assert_eq!(again, Some(TraceContext { decision, ..context }));
});
