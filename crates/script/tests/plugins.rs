//! Plugins as people write them, and as nobody should.
#![allow(missing_docs, clippy::unwrap_used)]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tulle_script::{
    CallId, FailureCause, Fetched, Head, HeadEdit, Hook, Party, Program, ScriptAnswer,
    ScriptEngine, ScriptFailure, ScriptLimits, Subject, Turn, Wish, WishKind,
};

fn start(source: &str) -> ScriptEngine {
    try_start(source, &patient()).unwrap()
}

/// With the time that plugins have: some bound of theirs is met before it is up, or it is that.
fn start_hurried(source: &str) -> ScriptEngine {
    try_start(source, &ScriptLimits::default()).unwrap()
}

fn try_start(source: &str, limits: &ScriptLimits) -> Result<ScriptEngine, ScriptFailure> {
    let program = Program::read("plugin.js", source).unwrap();
    ScriptEngine::start(&program, r#"{"tenants":["a","b"]}"#, limits)
}

/// Most tests ask what a call does; how long that may take is about the machine.
fn patient() -> ScriptLimits {
    ScriptLimits {
        cpu: Duration::from_millis(200),
        ..ScriptLimits::default()
    }
}

fn subject() -> Subject {
    let mut head = Head::request("GET", "/ratings/7?full=1", "ratings");
    head.push(b"Accept", b"application/json");
    head.push(b"Cookie", b"group=canary; session=5");
    Subject {
        source: Party {
            identity: "spiffe://mesh/ns/shop/sa/web".into(),
            ..Party::default()
        },
        ..Subject::new(head)
    }
}

fn request(engine: &ScriptEngine) -> (CallId, Turn) {
    let call = engine.begin(subject()).unwrap();
    (call, engine.run(call, Hook::Request))
}

fn failure(turn: Turn) -> ScriptFailure {
    match turn {
        Turn::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn answer(turn: Turn) -> ScriptAnswer {
    match turn {
        Turn::Done(Some(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

/// Returns the body of a plugin's answer.
fn text(source: &str) -> String {
    let source = format!("export function onRequest(request, context) {{ {source} }}");
    let engine = start(&source);
    String::from_utf8(answer(request(&engine).1).body).unwrap()
}

#[test]
fn a_request_is_read_and_edited() {
    let engine = start(
        "export function onRequest(request, context) {
            const group = /group=(\\w+)/.exec(request.headers.get('cookie'))?.[1];
            request.headers.set('X-Group', group);
            request.headers.append('accept', 'text/plain');
            request.headers.delete('cookie');
            request.path = request.path.replace('/ratings', '/v2');
        }",
    );
    let (call, turn) = request(&engine);
    assert_eq!(turn, Turn::Done(None));
    let subject = engine.end(call).unwrap();
    let edits = [
        HeadEdit::Set("x-group".into(), "canary".into()),
        HeadEdit::Append("accept".into(), "text/plain".into()),
        HeadEdit::Remove("cookie".into()),
        HeadEdit::Path("/v2/7?full=1".into()),
    ];
    assert_eq!(subject.request.edits(), edits);
}

#[test]
fn a_plugin_answers_itself() {
    let engine = start(
        "export function onRequest(request, context) {
            return Response.json({ tenants: context.config.tenants, all: [...request.headers] }, { status: 403, headers: { 'x-why': 'no' } });
        }",
    );
    let answer = answer(request(&engine).1);
    assert_eq!(answer.status, 403);
    let fields = [("content-type", "application/json"), ("x-why", "no")];
    assert_eq!(
        answer.fields,
        fields.map(|(n, v)| (n.to_owned(), v.to_owned()))
    );
    assert_eq!(
        String::from_utf8(answer.body).unwrap(),
        r#"{"tenants":["a","b"],"all":[["accept","application/json"],["cookie","group=canary; session=5"]]}"#
    );
}

#[test]
fn hooks_of_a_request_share_its_state_and_no_other() {
    let engine = start(
        "export function onRequest(request, context) { context.state.path = request.path; }
        export function onResponse(response, context) {
            response.headers.set('x-path', context.state.path ?? 'none');
            response.status = response.status + 1;
        }",
    );
    assert!(engine.has(Hook::Response) && !engine.has(Hook::Log));
    let (call, _) = request(&engine);
    let other = engine.begin(subject()).unwrap();
    for (call, path) in [(call, "/ratings/7?full=1"), (other, "none")] {
        assert_eq!(engine.respond(call, Head::response(200)), Ok(()));
        let response = engine.end(call).unwrap().response.unwrap();
        assert_eq!(response.field("x-path").as_deref(), Some(path));
        assert_eq!(response.edits().last(), Some(&HeadEdit::Status(201)));
    }
}

#[test]
fn a_plugin_awaits_a_service_and_a_timer() {
    let engine = start(
        "export async function onRequest(request) {
            await mesh.sleep(20);
            const [a, b] = await Promise.all([
                mesh.fetch('tokens:9000/check', { method: 'POST', headers: { 'x-a': 1 }, body: 'token' }),
                mesh.fetch('other:80/').catch((error) => error.message),
            ]);
            return new Response(`${a.status} ${(await a.json()).active} ${a.headers.get('x-b')} ${b}`);
        }",
    );
    let (call, turn) = request(&engine);
    let wishes = |turn: Turn| match turn {
        Turn::Waits(wishes) => wishes,
        other => panic!("{other:?}"),
    };
    let [Wish { id, kind }] = wishes(turn).try_into().unwrap();
    assert_eq!(kind, WishKind::Timer(Duration::from_millis(20)));
    let [a, b] = wishes(engine.settle(call, id, Ok(Fetched::default())))
        .try_into()
        .unwrap();
    let WishKind::Fetch {
        target,
        method,
        fields,
        body,
        ..
    } = a.kind
    else {
        panic!("{a:?}");
    };
    assert_eq!(
        (&*target, &*method, &*body),
        ("tokens:9000/check", "POST", &b"token"[..])
    );
    assert_eq!(fields, [("x-a".to_owned(), "1".to_owned())]);
    // In any order, and a second settlement of one changes nothing.
    assert_eq!(
        engine.settle(call, b.id, Err("denied".into())),
        Turn::Waits(Vec::new())
    );
    assert_eq!(
        engine.settle(call, b.id, Err("again".into())),
        Turn::Waits(Vec::new())
    );
    let fetched = Fetched {
        status: 200,
        fields: vec![("x-b".into(), "2".into())],
        body: br#"{"active":true}"#.to_vec(),
    };
    let answer = answer(engine.settle(call, a.id, Ok(fetched)));
    assert_eq!(answer.body, b"200 true 2 denied");
}

#[test]
fn what_a_plugin_keeps_is_there_for_the_next_request_and_bounded() {
    let engine = start(
        "export function onRequest(request) {
            for (let i = 0; i < 10; i++) store.set('k' + store.add('n'), 1);
            return new Response([store.get('n'), store.get('k1'), store.get('gone', store.set('gone', 1, { ttl: -1 }))].join());
        }",
    );
    for count in [10, 20] {
        let (call, turn) = request(&engine);
        assert_eq!(answer(turn).body, format!("{count},1,").into_bytes());
        engine.end(call);
    }
    for _ in 0..110 {
        let (call, _) = request(&engine);
        engine.end(call);
    }
    // 1,024 at most: the first ones are gone.
    let (_, turn) = request(&engine);
    assert_eq!(answer(turn).body, b"1130,,");
}

#[test]
fn the_functions_of_other_hosts_are_there() {
    for (source, expected) in [
        (
            "return new Response(btoa('a\\xff') + atob('aGk='))",
            "Yf8=hi",
        ),
        (
            "return new Response(new TextDecoder().decode(new TextEncoder().encode('é')) )",
            "é",
        ),
        (
            "return new Response(String([1,2,3].includes(2) && 'abc'.indexOf('c')))",
            "2",
        ),
        (
            "return new Response(typeof BigInt + typeof eval + typeof Atomics + typeof Proxy)",
            "undefinedundefinedundefinedundefined",
        ),
        (
            "return new Response(JSON.stringify(context.source))",
            r#"{"identity":"spiffe://mesh/ns/shop/sa/web","namespace":"","service":"","address":""}"#,
        ),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
    let engine = start(
        "const hex = (buffer) => [...new Uint8Array(buffer)].map((b) => b.toString(16).padStart(2, '0')).join('');
        export async function onRequest() {
            const data = new TextEncoder().encode('what do ya want for nothing?');
            const key = await crypto.subtle.importKey('raw', new TextEncoder().encode('Jefe'), { name: 'HMAC', hash: 'SHA-256' }, false, ['sign']);
            const made = await crypto.subtle.sign('HMAC', key, data);
            const right = await crypto.subtle.verify('HMAC', key, made, data);
            return new Response(`${hex(made)} ${right} ${hex(await crypto.subtle.digest('SHA-256', 'abc')).slice(0, 8)}`);
        }",
    );
    // RFC 4231, test case 2; FIPS 180-2.
    assert_eq!(
        answer(request(&engine).1).body,
        b"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843 true ba7816bf"
    );
}

#[test]
fn what_is_thrown_is_told_with_its_place() {
    let engine = start("export function onRequest(request) {\n  request.nothing.more();\n}");
    let failed = failure(request(&engine).1);
    assert_eq!(failed.cause, FailureCause::Thrown);
    assert!(
        failed
            .text
            .starts_with("TypeError: cannot read property 'more' of undefined"),
        "{failed}"
    );
    assert!(failed.text.contains("plugin.js:2:"), "{failed}");
    let engine = start(
        "export async function onRequest() {\n  await mesh.sleep(1);\n  throw new RangeError('no');\n}",
    );
    let (call, turn) = request(&engine);
    let Turn::Waits(wishes) = turn else {
        panic!("{turn:?}")
    };
    let failed = failure(engine.settle(call, wishes[0].id, Ok(Fetched::default())));
    assert!(
        failed.text.starts_with("RangeError: no") && failed.text.contains("plugin.js:3:"),
        "{failed}"
    );
    for (source, told) in [
        ("export const onRequest = 5", "onRequest is not a function"),
        (
            "export const onRequestBodies = () => {}",
            "onRequestBodies is no hook",
        ),
        ("throw new Error('at once')", "at once"),
        (
            "await mesh.sleep(5); export const onRequest = () => {}",
            "there is no request that waits",
        ),
        ("await new Promise(() => {})", "before a request is there"),
        ("for (;;) {}", "to start"),
        (
            "const all = []; for (;;) all.push(new Uint8Array(100000))",
            "out of memory",
        ),
    ] {
        let failed = try_start(source, &patient())
            .err()
            .unwrap_or_else(|| panic!("{source}"));
        assert!(failed.text.contains(told), "{source}: {failed}");
    }
    let refused = Program::read("a.js", "import { x } from 'fs'").unwrap_err();
    assert!(refused.message.contains("'fs'"), "{refused}");
    for (source, told) in [
        ("return 5", "returns nothing or a Response"),
        ("return new Promise(() => {})", "nothing settles"),
        ("throw 'a text'", "a text"),
        ("throw undefined", "undefined"),
        ("request.path = 'no'", "begins with /"),
        ("request.path = '/a b'", "no blanks"),
        ("return import('fs')", "fs"),
        (
            "return new Response('', { status: 42 })",
            "between 200 and 599",
        ),
    ] {
        let source = format!("export function onRequest(request) {{ {source} }}");
        let failed = failure(request(&start(&source)).1);
        assert!(failed.text.contains(told), "{source}: {failed}");
    }
}

#[test]
fn a_plugin_says_what_its_configuration_may_be() {
    let start = |schema: &str, config: &str| {
        let source =
            format!("export const configSchema = {schema};\nexport const onRequest = () => {{}}");
        let program = Program::read("plugin.js", &source).unwrap();
        ScriptEngine::start(&program, config, &ScriptLimits::default()).map(drop)
    };
    let schema = "{
        $schema: 'https://json-schema.org/draft/2020-12/schema', description: 'limits by tenant',
        type: 'object', required: ['tenants'], additionalProperties: false,
        properties: {
            tenants: { type: 'object', additionalProperties: { type: 'integer', minimum: 1, exclusiveMaximum: 100 } },
            mode: { enum: ['count', 'refuse', { other: 1 }] },
            names: { type: ['array', 'null'], minItems: 1, maxItems: 2,
                     items: { type: 'string', pattern: '^[a-zä]+$', minLength: 2, maxLength: 3 } },
            share: { type: 'number', maximum: 1, exclusiveMinimum: 0 },
            version: { const: 2 },
            anything: true,
        },
    }";
    for good in [
        r#"{"tenants": {}}"#,
        r#"{"tenants": {"a": 1, "b": 99, "c": 2.0}, "mode": {"other": 1}, "names": ["abc", "dä"], "share": 0.5}"#,
        r#"{"tenants": {}, "names": null, "share": 1, "version": 2, "anything": [1, {"b": null}]}"#,
    ] {
        start(schema, good).unwrap_or_else(|why| panic!("{good}: {why}"));
    }
    for (bad, told) in [
        ("null", r#"config is null, but its type is "object""#),
        ("[]", r#"config is [], but its type is "object""#),
        ("{}", r#"config is {}, but its required is ["tenants"]"#),
        (
            r#"{"tenants": {}, "tenant": 1}"#,
            "config.tenant is not known",
        ),
        (
            r#"{"tenants": {"red": "2"}}"#,
            r#"config.tenants.red is "2", but its type is "integer""#,
        ),
        (
            r#"{"tenants": {"red": 1.5}}"#,
            r#"config.tenants.red is 1.5, but its type is "integer""#,
        ),
        (
            r#"{"tenants": {"red": 0}}"#,
            "config.tenants.red is 0, but its minimum is 1",
        ),
        (
            r#"{"tenants": {"red": 100}}"#,
            "but its exclusiveMaximum is 100",
        ),
        (r#"{"tenants": {}, "mode": "none"}"#, "but its enum is"),
        (
            r#"{"tenants": {}, "names": []}"#,
            "config.names is [], but its minItems is 1",
        ),
        (
            r#"{"tenants": {}, "names": ["ab", "ab", "ab"]}"#,
            "but its maxItems is 2",
        ),
        (
            r#"{"tenants": {}, "names": ["ab", "A1"]}"#,
            "config.names[1] is \"A1\", but its pattern is",
        ),
        (
            r#"{"tenants": {}, "names": ["a"]}"#,
            "but its minLength is 2",
        ),
        (
            r#"{"tenants": {}, "names": ["abcd"]}"#,
            "but its maxLength is 3",
        ),
        (r#"{"tenants": {}, "share": 1.1}"#, "but its maximum is 1"),
        (
            r#"{"tenants": {}, "share": 0}"#,
            "but its exclusiveMinimum is 0",
        ),
        (r#"{"tenants": {}, "version": 1}"#, "but its const is 2"),
    ] {
        let failed = start(schema, bad).unwrap_err();
        assert!(failed.text.contains(told), "{bad}: {failed}");
    }
    // Names that every object inherits are no demands and no properties.
    start(
        "{ properties: {} , additionalProperties: true }",
        r#"{"toString": 1}"#,
    )
    .unwrap();
    for (schema, told) in [
        (
            "{ oneOf: [] }",
            "configSchema of config: oneOf is not known here",
        ),
        ("{ toString: 1 }", "toString is not known here"),
        ("5", "expected an object, true or false"),
        ("{ properties: { a: null } }", "configSchema of config.a"),
        ("{ pattern: '(' }", "SyntaxError"),
    ] {
        let config = if schema.contains("pattern") {
            r#""x""#
        } else {
            r#"{"a": 1}"#
        };
        let failed = start(schema, config).unwrap_err();
        assert!(failed.text.contains(told), "{schema}: {failed}");
    }
    assert!(
        start("false", "null")
            .unwrap_err()
            .text
            .contains("config is not known")
    );
}

#[test]
fn what_is_the_proxys_stays_the_proxys() {
    for (name, value) in [
        ("Host", "b"),
        ("content-length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("X-Forwarded-Client-Cert", "By=spiffe"),
        ("x-tulle-reason", "denied"),
        ("X_Forwarded-Client_Cert", "By=spiffe"),
        ("a b", "x"),
        ("", "x"),
        ("a", "x\r\nb: y"),
        ("a", "\u{100}"),
        ("a\r\nb", "x"),
    ] {
        for call in [
            format!("request.headers.set({name:?}, {value:?})"),
            format!("request.headers.append({name:?}, {value:?})"),
            format!("return new Response('', {{ headers: {{ {name:?}: {value:?} }} }})"),
            format!("return mesh.fetch('a:1/', {{ headers: {{ {name:?}: {value:?} }} }})"),
        ] {
            let source = format!("export function onRequest(request) {{ {call} }}");
            let failed = failure(request(&start(&source)).1);
            assert_eq!(failed.cause, FailureCause::Thrown, "{call}: {failed}");
        }
    }
    // Not by another prototype, another constructor or the stack either.
    for source in [
        "return new Response(String((function () {}).constructor('return 1')()))",
        "return new Response(String((async () => {}).constructor('return 1')()))",
        "return new Response(String(Object.getPrototypeOf(function* () {}).constructor('return 1')))",
        "return new Response(String(Reflect.construct(Object.getPrototypeOf(() => {}).constructor, ['return 1'])()))",
        "return new Response(String((0, eval)('1')))",
        "Object.defineProperty(Object.getPrototypeOf(() => {}), 'constructor', { value: 1 })",
        "globalThis.mesh = {}; mesh.fetch = 1;",
    ] {
        let source = format!("export function onRequest(request) {{ {source} }}");
        failure(request(&start(&source)).1);
    }
}

#[test]
fn a_plugin_that_changes_the_language_changes_only_itself() {
    let engine = start(
        "Array.prototype.map = () => [['host', 'evil']];
        Object.entries = () => [['host', 'evil']];
        String.prototype.toLowerCase = () => 'content-type';
        Map.prototype.get = () => undefined;
        Array.prototype[Symbol.iterator] = function* () { yield ['host', 'evil']; };
        export function onRequest(request) { return new Response('x', { headers: { a: 'b' } }); }",
    );
    // Its own answer may be wrong, and is judged like any other.
    match request(&engine).1 {
        Turn::Failed(failed) => assert_eq!(failed.cause, FailureCause::Thrown),
        Turn::Done(Some(answer)) => assert!(answer.fields.iter().all(|(n, _)| n != "host")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_number_that_a_plugin_makes_up_names_no_call() {
    for number in [
        "4294967295",
        "2147483648",
        "-1",
        "0",
        "1e300",
        "NaN",
        "'x'",
        "{}",
    ] {
        for use_it in [
            "request.method",
            "request.path = '/'",
            "request.headers.get('a')",
            "request.headers.set('a', 'b')",
            "context.backends; request.path",
        ] {
            let engine = start(&format!(
                "export function onRequest(request, context) {{
                    for (const object of [request, request.headers, context])
                        for (const symbol of Object.getOwnPropertySymbols(object)) object[symbol] = {number};
                    {use_it}
                }}"
            ));
            let failed = failure(request(&engine).1);
            assert_eq!(
                failed.cause,
                FailureCause::Thrown,
                "{number}, {use_it}: {failed}"
            );
        }
    }
}

#[test]
fn what_exceeds_its_bounds_is_cut() {
    for (source, cause) in [
        ("for (;;) {}", FailureCause::Time),
        ("while (true) await 0", FailureCause::Time),
        (
            "const f = async () => { await 0; return f() }; await f()",
            FailureCause::Time,
        ),
        ("/(a+)+$/.test('a'.repeat(40) + 'b')", FailureCause::Time),
        (
            "try { for (;;) {} } catch { for (;;) {} } finally { for (;;) {} }",
            FailureCause::Time,
        ),
        (
            "const all = []; for (;;) all.push(new Uint8Array(100000))",
            FailureCause::Memory,
        ),
        ("let s = 'x'; for (;;) s += s", FailureCause::Thrown),
        ("const f = () => f() + 1; f()", FailureCause::Thrown),
        (
            "JSON.stringify({ toJSON() { for (;;) {} } })",
            FailureCause::Time,
        ),
        (
            "const a = []; a.length = 4294967295; a.join()",
            FailureCause::Thrown,
        ),
        (
            "const a = []; a.length = 4294967295; String(a)",
            FailureCause::Thrown,
        ),
        (
            "Array.prototype.copyWithin.call({ length: 2 ** 53 - 1 }, 1, 0)",
            FailureCause::Thrown,
        ),
        (
            "'a'.repeat(400000).indexOf('a'.repeat(200000) + 'b')",
            FailureCause::Thrown,
        ),
    ] {
        let source = format!("export async function onRequest() {{ {source} }}");
        // Another bound is met in less time than plugins have, but not on every machine.
        let engine = match cause {
            FailureCause::Time => start_hurried(&source),
            _ => start(&source),
        };
        let begun = Instant::now();
        let failed = failure(request(&engine).1);
        let took = begun.elapsed();
        assert_eq!(failed.cause, cause, "{source}: {failed}");
        assert_eq!(
            engine.is_spoilt(),
            cause != FailureCause::Thrown,
            "{source}"
        );
        // Far more than on any machine, and far less than without bounds.
        assert!(took < Duration::from_secs(2), "{source}: {took:?}");
    }
}

#[test]
fn time_counts_over_all_turns_of_a_call() {
    let engine = start(
        "export async function onRequest() {
            for (;;) { await mesh.sleep(1); for (let i = 0; i < 20000; i++) {} }
        }",
    );
    let (call, mut turn) = request(&engine);
    for turns in 0.. {
        match turn {
            Turn::Waits(wishes) => turn = engine.settle(call, wishes[0].id, Ok(Fetched::default())),
            other => {
                assert_eq!(failure(other).cause, FailureCause::Time);
                assert!(turns > 1, "{turns}");
                break;
            }
        }
    }
}

#[test]
fn only_so_many_calls_and_wishes_are_open() {
    let program = Program::read("a.js", "export const onRequest = async () => { const all = []; for (let i = 0; i < 17; i++) all.push(mesh.sleep(5)); await Promise.all(all) }").unwrap();
    let limits = ScriptLimits {
        calls: 2,
        ..patient()
    };
    let engine = ScriptEngine::start(&program, "null", &limits).unwrap();
    let (first, turn) = request(&engine);
    assert!(failure(turn).text.contains("16 things"));
    engine.begin(subject()).unwrap();
    assert_eq!(
        engine.begin(subject()).unwrap_err().cause,
        FailureCause::Busy
    );
    engine.end(first);
    engine.begin(subject()).unwrap();
}

#[test]
fn a_request_that_has_ended_is_out_of_reach() {
    let engine = start(
        "let first;
        export function onRequest(request) {
            first ??= request;
            return new Response(first.path);
        }",
    );
    let (call, _) = request(&engine);
    engine.end(call);
    assert!(failure(request(&engine).1).text.contains("has ended"));
}

#[test]
fn lines_of_the_console_arrive() {
    let lines = Rc::new(RefCell::new(Vec::new()));
    let told = lines.clone();
    let console =
        Rc::new(move |level: &str, text: &str| told.borrow_mut().push(format!("{level} {text}")));
    let source = "console.warn('started'); export function onRequest(request) { console.log('a', { b: 1 }, 5) }";
    let program = Program::read("a.js", source).unwrap();
    let engine =
        ScriptEngine::start_with(&program, "null", &ScriptLimits::default(), console).unwrap();
    request(&engine);
    assert_eq!(*lines.borrow(), ["warn started", "info a {\"b\":1} 5"]);
}

#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let engine = start(
        "export function onRequest(request, context) { context.state.x = 'x'.repeat(5000); request.headers.set('a', context.state.x.slice(0, 5)) }
        export function onResponse() {}",
    );
    let once = |engine: &ScriptEngine| {
        let (call, turn) = request(engine);
        assert_eq!(turn, Turn::Done(None));
        engine.end(call).unwrap();
    };
    once(&engine);
    let before = engine.memory();
    (0..1000).for_each(|_| once(&engine));
    assert!(
        engine.memory() < before + 20_000,
        "{before} -> {}",
        engine.memory()
    );
}

/// Editors are told of all that there is.
#[test]
fn declarations_name_what_the_prelude_has() {
    let declared = include_str!("../../../docs/plugins.d.ts");
    let prelude = include_str!("../src/prelude.js");
    let (_, globals) = prelude.split_once("  const globals = {\n").unwrap();
    let (globals, _) = globals.split_once("\n  };").unwrap();
    let mut count = 0;
    for line in globals
        .lines()
        .filter(|line| line.starts_with("    ") && !line.starts_with("     "))
    {
        let name: String = line
            .trim()
            .chars()
            .take_while(|c| c.is_alphanumeric())
            .collect();
        if name.is_empty() {
            continue;
        }
        let forms = ["const ", "class ", "function "].map(|form| format!("declare {form}{name}"));
        assert!(forms.iter().any(|form| declared.contains(form)), "{name}");
        count += 1;
    }
    assert_eq!(count, declared.matches("\ndeclare ").count());
}

#[test]
fn bodies_are_seen_and_replaced() {
    let engine = start(
        "export async function onRequestBody(body, request, context) {
            request.headers.set('x-length', body.length);
            context.state.first = body.bytes()[0];
            await mesh.sleep(1);
            return body.text().toUpperCase();
        }
        export function onResponseBody(body, response, context) {
            if (body.length === 0) return response.headers.set('x-first', context.state.first);
            return new Uint8Array([context.state.first, ...body.bytes()]);
        }",
    );
    let (call, turn) = request(&engine);
    assert_eq!(turn, Turn::Done(None));
    assert!(engine.wants_request_body(call) && engine.wants_response_body(call));
    engine.give_body(call, b"abc".to_vec());
    let Turn::Waits(wishes) = engine.run(call, Hook::RequestBody) else {
        panic!("it waits");
    };
    assert_eq!(engine.take_body(call), None);
    let turn = engine.settle(call, wishes[0].id, Ok(Fetched::default()));
    assert_eq!(turn, Turn::Done(None));
    assert_eq!(engine.take_body(call).unwrap(), b"ABC");
    assert_eq!(engine.take_body(call), None);
    let edits = [HeadEdit::Set("x-length".into(), "3".into())];
    assert_eq!(engine.take_request_edits(call), edits);
    assert!(engine.take_request_edits(call).is_empty());
    engine.respond(call, Head::response(200)).unwrap();
    engine.respond_body(call, b"\xff\x00".to_vec()).unwrap();
    assert_eq!(engine.take_body(call).unwrap(), b"a\xff\x00");
    engine.respond_body(call, Vec::new()).unwrap();
    assert_eq!(engine.take_body(call), None);
    let edits = [HeadEdit::Set("x-first".into(), "97".into())];
    assert_eq!(engine.take_response_edits(call), edits);
    engine.end(call);
}

#[test]
fn a_call_may_leave_its_bodies_alone() {
    let engine = start(
        "export const onRequest = (request) => request.skipBody();
        export const onRequestBody = () => 'a';
        export const onResponse = (response) => response.skipBody();
        export const onResponseBody = () => 'b';",
    );
    let (call, _) = request(&engine);
    assert!(!engine.wants_request_body(call) && engine.wants_response_body(call));
    engine.respond(call, Head::response(200)).unwrap();
    assert!(!engine.wants_response_body(call));
    // Another call is not meant.
    let other = engine.begin(subject()).unwrap();
    assert!(engine.wants_request_body(other));
    engine.end(call);
    assert!(!engine.wants_request_body(call));
    engine.end(other);
}

#[test]
fn a_search_that_is_interrupted_frees_nothing_twice() {
    for name in ["find", "findIndex", "findLast", "findLastIndex"] {
        let engine = start_hurried(&format!(
            "const long = 'a'.repeat(60000);
            export function onRequest() {{
                for (;;) Array.prototype.{name}.call(long, () => false);
            }}"
        ));
        // Each is cut at another place.
        for _ in 0..20 {
            let (call, turn) = request(&engine);
            assert_eq!(failure(turn).cause, FailureCause::Time);
            engine.end(call);
        }
    }
}

#[test]
fn lists_are_searched_as_they_should_be() {
    let found = text(
        "const list = [1, 5, , 7, 5];
        const is = (n) => (one, at, all) => one === n && all === list;
        return Response.json([
            list.find(is(5)), list.findIndex(is(5)), list.findLast((n) => n < 7), list.findLastIndex(is(5)),
            list.findIndex((n) => n === undefined), list.find(is(9)) === undefined, list.findIndex(is(9)), [].findLast(() => true) === undefined,
            Array.prototype.find.call('abc', function (c) { return c > this.than; }, { than: 'a' }),
            new Uint8Array([3, 4]).find((n) => n > 3),
        ]);",
    );
    assert_eq!(found, "[5,1,5,4,2,true,-1,true,\"b\",4]");
}

#[test]
fn bodies_that_a_plugin_keeps_are_within_its_memory() {
    let engine = start(
        "const kept = [];
        export function onRequestBody(body) { kept.push(body.bytes()) }",
    );
    for count in 0.. {
        assert!(count < 40, "40 bodies of 250 KB in 4 MiB");
        let call = engine.begin(subject()).unwrap();
        engine.give_body(call, vec![b'x'; 250_000]);
        let turn = engine.run(call, Hook::RequestBody);
        engine.end(call);
        if turn != Turn::Done(None) {
            assert_eq!(failure(turn).cause, FailureCause::Memory);
            break;
        }
    }
}

#[test]
fn what_a_plugin_asks_of_the_proxy_is_bounded() {
    let long = "'x'.repeat(8000)";
    for (source, text) in [
        (
            format!("return new Response('', {{ headers: Array(1e4).fill(['a', {long}]) }})"),
            "headers have at most 64 KiB",
        ),
        (
            format!("mesh.fetch('a:1/', {{ headers: Array(1e4).fill(['a', {long}]) }})"),
            "headers have at most 64 KiB",
        ),
        (
            format!("for (;;) request.headers.append('a', {long})"),
            "at most 64 KiB of a request's headers",
        ),
        (
            "for (;;) request.headers.delete('a')".to_owned(),
            "at most 64 KiB of a request's headers",
        ),
        (
            "const body = new Uint8Array(1e6); for (let i = 0; i < 5; i++) mesh.fetch('a:1/', { body })".to_owned(),
            "as many bytes as limits.memory",
        ),
    ] {
        let engine = start(&format!(
            "export function onRequest(request) {{ {source} }}"
        ));
        // Room of an ended call is there for the next one.
        for _ in 0..2 {
            let (call, turn) = request(&engine);
            let failed = failure(turn);
            assert!(failed.text.contains(text), "{source}: {failed}");
            engine.end(call);
        }
    }
}

#[test]
fn a_long_text_that_is_thrown_is_told_in_part() {
    for source in ["throw new Error('é'.repeat(1e5))", "throw 'é'.repeat(1e5)"] {
        for function in ["function", "async function"] {
            let engine = start(&format!("export {function} onRequest() {{ {source} }}"));
            let failed = failure(request(&engine).1);
            assert!(failed.text.contains("ééé"), "{failed}");
            assert!(failed.text.len() <= 1024, "{}", failed.text.len());
        }
    }
}

#[test]
fn requests_that_are_answered_leave_their_room_to_others() {
    let engine = start(
        "export async function onRequest() {
            const body = new Uint8Array(1e6);
            for (let i = 0; i < 9; i++) await mesh.fetch('a:1/', { body });
        }",
    );
    let (call, mut turn) = request(&engine);
    for _ in 0..9 {
        let Turn::Waits(wishes) = turn else {
            panic!("{turn:?}")
        };
        let answered = Fetched {
            status: 200,
            body: vec![1; 1000],
            ..Fetched::default()
        };
        turn = engine.settle(call, wishes[0].id, Ok(answered));
    }
    assert_eq!(turn, Turn::Done(None));
}

#[test]
fn lists_are_put_together_as_they_should_be() {
    let made = text(
        "const spread = { length: 2, 0: 'a', 1: 'b', [Symbol.isConcatSpreadable]: true };
        const apart = Object.assign([7], { [Symbol.isConcatSpreadable]: false });
        const all = [1, , 3].concat(4, [5, [6]], spread, apart);
        return Response.json([all, all.length, 1 in all, [].concat().length, Array.prototype.concat.call('x', 1).length,
            Array.prototype.slice.call({ length: '2', 0: 1, 1: 2 }), Array.prototype.map.call(new Uint8Array([1, 2]), (n) => n + 1),
            [5, 6, 7].values().drop(1).toArray()]);",
    );
    assert_eq!(
        made,
        "[[1,null,3,4,5,[6],\"a\",\"b\",[7]],9,false,0,2,[1,2],[2,3],[6,7]]"
    );
}

#[test]
fn texts_are_searched_as_they_should_be() {
    let found = text(
        "const thrown = (f) => { try { f(); return false; } catch (error) { return error instanceof TypeError; } };
        return Response.json([
            'a,b'.split(','), 'a1b'.split(/\\d/), 'ab'.split(), 'ab'.split(''), 'a,b,c'.split([','], 2), 'aXa'.replace('a', (m) => m + '!'),
            'aXa'.replaceAll(/a/g, 'b'), 'aXa'.replaceAll('a', '$&$&'), 'abc'.includes('c', 1), 'a1'.includes(1), 'abab'.lastIndexOf('ab', 1),
            'undefined'.indexOf(), thrown(() => 'a'.includes(/a/)), thrown(() => 'a'.replaceAll(/a/, '')), thrown(() => ''.indexOf.call(null)),
            'a-b'.split({ [Symbol.split]: (whole, most) => [whole, most] }, 7), 'x'.replace.name,
        ]);",
    );
    assert_eq!(
        found,
        "[[\"a\",\"b\"],[\"a\",\"b\"],[\"ab\"],[\"a\",\"b\"],[\"a\",\"b\"],\"a!Xa\",\"bXb\",\"aaXaa\",true,true,0,0,true,true,true,[\"a-b\",7],\"replace\"]"
    );
}
