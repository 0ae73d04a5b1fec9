//! Plugins on real traffic through two sidecars.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tests_local::{
    CLIENT, Client, Config, Load, Message, Pair, Proxy, SERVER, Server, eventually, gateway_config,
    id, inbound_config, ok, post,
};

pub(crate) fn rules(plugins: &[Value]) -> Value {
    let filters: Vec<Value> = plugins.iter().map(|p| json!({ "plugin": p })).collect();
    json!([{ "name": "Plugin/p", "filters": filters }])
}

/// A pair whose server's sidecar has these plugins.
pub(crate) fn pair(app: SocketAddr, plugins: &[Value]) -> Pair {
    Pair::with(app, |client, server| {
        (client, server.set("/inbound/ports/0/rules", rules(plugins)))
    })
}

pub(crate) fn plugin(source: &str) -> Value {
    // 5 ms of a processor, the default, are few where others have it, too, or qemu imitates it.
    json!({ "name": "p", "source": source, "cpuMs": 200 })
}

pub(crate) fn calls(proxy: &Proxy, outcome: &str, count: f64) {
    let labels = ["plugin=\"p\"".to_owned(), format!("outcome=\"{outcome}\"")];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    proxy.await_metric("tulle_plugin_calls_total", &labels, count);
}

#[test]
fn a_plugin_edits_requests_and_their_responses() {
    let app = Server::echo();
    let source = r"
        export function onRequest(request, context) {
            context.state.tenant = request.headers.get('x-tenant') ?? 'none';
            request.headers.set('x-user', `${context.state.tenant}@${context.source.identity.split('/').pop()}`);
            request.headers.delete('x-debug');
            request.headers.append('via-plugin', context.config.name);
            request.path = request.path.replace(/^\/old\//, '/new/');
        }
        export function onResponse(response, context) {
            response.headers.set('x-tenant', context.state.tenant);
            if (response.headers.has('content-type')) response.headers.delete('content-type');
            response.status = 203;
        }";
    let mut own = plugin(source);
    own["config"] = json!({ "name": "é" }).to_string().into();
    let pair = pair(app.address(), &[own]);
    let mut client = pair.connect();
    for tenant in ["a", "b"] {
        let fields =
            format!("X-Tenant: {tenant}\r\nX-User: root\r\nX_User: root\r\nX-Debug: 1\r\n");
        client.send(format!(
            "GET /old/x?y=z HTTP/1.1\r\nHost: ratings\r\n{fields}\r\n"
        ));
        let answer = client.response("GET");
        assert_eq!(answer.status(), 203);
        assert_eq!(answer.header("x-tenant"), tenant);
        let seen = answer.text();
        assert!(seen.starts_with("GET /new/x?y=z HTTP/1.1\r\n"), "{seen}");
        assert!(
            seen.contains(&format!("x-user: {tenant}@{CLIENT}\r\n")),
            "{seen}"
        );
        assert!(
            !seen.contains("root") && !seen.to_ascii_lowercase().contains("x-debug"),
            "{seen}"
        );
    }
    let sent = app.received().concat();
    assert!(sent.windows(14).any(|w| w == b"via-plugin: \xe9\r"));
    calls(&pair.server, "passed", 2.0);
}

#[test]
fn a_plugin_answers_and_the_application_is_not_asked() {
    let app = Server::echo();
    let source = "export const onRequest = (request) => request.path === '/pass' ? undefined
        : Response.json({ path: request.path, method: request.method }, { status: 418, headers: { 'x-a': 'b' } });";
    let pair = pair(app.address(), &[plugin(source)]);
    let mut client = pair.connect();
    client.send(post("/tea", b"a body that nobody reads"));
    let answer = client.response("POST");
    assert_eq!((answer.status(), answer.header("x-a")), (418, "b"));
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.text(), r#"{"path":"/tea","method":"POST"}"#);
    assert_eq!(app.connections(), 0);
    assert_eq!(pair.ask("/pass", "").status(), 200);
    calls(&pair.server, "answered", 1.0);
}

/// client → sidecar ═ sidecar of `ratings` with the plugin → application; and ═ sidecar of `tokens` → its application.
pub(crate) struct Introspection {
    pub(crate) pair: Pair,
    _tokens: Proxy,
}

const TOKENS: &str = "tokens";

pub(crate) fn introspection(app: SocketAddr, tokens: SocketAddr, mut own: Value) -> Introspection {
    let sidecar = inbound_config(tokens);
    own["services"] = json!([TOKENS]);
    let service = json!({ "name": TOKENS, "identities": [id(TOKENS)], "ports": [{
        "port": 9080, "protocol": "http", "endpoints": [{ "address": sidecar.address.to_string() }] }] });
    let pair = Pair::with(app, |client, server| {
        let server = server
            .set("/services", json!([service]))
            .set("/inbound/ports/0/rules", rules(&[own]));
        (client, server)
    });
    let only_ratings = json!({ "rules": [{ "name": "t", "sources": [id(SERVER)] }] });
    let Config { file, .. } = sidecar
        .set("/inbound/service", TOKENS)
        .set("/inbound/policy", only_ratings);
    let tokens = Proxy::start(&pair.mesh, TOKENS, file);
    Introspection {
        pair,
        _tokens: tokens,
    }
}

#[test]
fn a_plugin_asks_a_service_through_the_mesh_and_remembers() {
    let app = Server::echo();
    let tokens = Server::http(|request| {
        let active = request.text().contains("token=good");
        let body = format!("{{\"active\":{active}}}");
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    });
    let source = r"
        export async function onRequest(request) {
            const token = request.headers.get('authorization')?.replace(/^Bearer /, '') ?? '';
            let active = store.get(token);
            if (active === undefined) {
                const answer = await mesh.fetch('tokens:9080/introspect', { method: 'POST', body: `token=${token}`, timeout: 10000 });
                ({ active } = await answer.json());
                store.set(token, active, { ttl: 60 });
            }
            if (!active) return new Response('log in\n', { status: 401 });
        }";
    let mesh = introspection(app.address(), tokens.address(), plugin(source));
    for _ in 0..3 {
        assert_eq!(
            mesh.pair
                .ask("/", "Authorization: Bearer good\r\n")
                .status(),
            200
        );
        let refused = mesh.pair.ask("/", "Authorization: Bearer bad\r\n");
        assert_eq!((refused.status(), &*refused.text()), (401, "log in\n"));
    }
    // Each token once; the sidecar has one worker.
    assert_eq!(
        tokens.received_text().matches("POST /introspect").count(),
        2
    );
}

#[test]
fn a_post_of_a_plugin_is_never_sent_twice() {
    let source = r"
        export async function onRequest(request) {
            const ask = (method) => mesh.fetch('tokens:9080/order', { method }).then((a) => `${a.status}`, () => 'lost');
            await ask('GET');
            return new Response(await ask(request.headers.get('x-method')));
        }";
    for (method, told, sent) in [("POST", "lost", 1), ("GET", "200", 3)] {
        let app = Server::echo();
        let tokens = Server::start(|mut connection| {
            if connection.request().is_ok() {
                connection.send(ok(b"first"));
            }
            // It has the second request when it ends.
            let _ = connection.request();
        });
        let mut own = plugin(source);
        own["services"] = json!([TOKENS]);
        let service = json!({ "name": TOKENS, "identities": [id(TOKENS)], "ports": [{
            "port": 9080, "protocol": "http",
            "endpoints": [{ "address": tokens.address().to_string(), "mutualTls": false }] }] });
        let pair = Pair::with(app.address(), |client, server| {
            let server = server.set("/services", json!([service]));
            (client, server.set("/inbound/ports/0/rules", rules(&[own])))
        });
        let answer = pair.ask("/", &format!("X-Method: {method}\r\n"));
        assert_eq!(answer.text(), told, "{method}");
        let line = format!("{method} /order");
        assert_eq!(
            tokens.received_text().matches(&line).count(),
            sent,
            "{method}"
        );
    }
}

#[test]
fn what_a_plugin_may_not_ask_it_is_told() {
    let app = Server::echo();
    let tokens = Server::http(|_| ok(b"x"));
    let source = r"
        export async function onRequest(request) {
            const told = await mesh.fetch(request.headers.get('x-target')).then((a) => `${a.status}`, (e) => e.message);
            return new Response(told);
        }";
    let mesh = introspection(app.address(), tokens.address(), plugin(source));
    for (target, told) in [
        ("tokens:9080/x", "200"),
        ("tokens:80/", "no port 80"),
        ("tokens", "is not service:port/path"),
        ("reviews:9080/", "not among the services"),
        ("127.0.0.1:22/", "not among the services"),
    ] {
        let answer = mesh.pair.ask("/", &format!("X-Target: {target}\r\n"));
        assert!(answer.text().contains(told), "{target}: {}", answer.text());
    }
}

fn refused(answer: &Message, told: &str) {
    assert_eq!(answer.status(), 500, "{}", answer.text());
    assert_eq!(answer.header("x-tulle-reason"), "plugin_failed");
    assert!(answer.text().contains(told), "{}", answer.text());
}

#[test]
fn a_plugin_that_fails_closes_or_opens_and_is_left_out() {
    let source = "export function onRequest(request) { if (request.path === '/bad') request.no.such(); }
        export function onResponse(response) { if (response.headers.get('x-bad')) throw new Error('a bad response'); }";
    let app = Server::http(|request| {
        let bad = request.target() == "/response";
        let field = if bad { "X-Bad: secret\r\n" } else { "" };
        format!("HTTP/1.1 200 OK\r\n{field}Content-Length: 6\r\n\r\nsecret").into_bytes()
    });
    let closed = pair(app.address(), &[plugin(source)]);
    assert_eq!(closed.ask("/good", "").status(), 200);
    refused(
        &closed.ask("/bad", ""),
        "plugin p: TypeError: cannot read property 'such' of undefined",
    );
    let answer = closed.ask("/response", "");
    refused(&answer, "a bad response");
    assert!(!answer.text().contains("secret"));
    // A success in between: it is not left out.
    assert_eq!(closed.ask("/good", "").status(), 200);
    for _ in 0..5 {
        refused(&closed.ask("/bad", ""), "TypeError");
    }
    refused(&closed.ask("/good", ""), "left out");
    calls(&closed.server, "thrown", 7.0);
    calls(&closed.server, "busy", 1.0);

    let mut own = plugin(source);
    own["failOpen"] = true.into();
    let open = pair(app.address(), &[own]);
    for path in ["/bad", "/response"].repeat(4) {
        assert_eq!(open.ask(path, "").status(), 200, "{path}");
    }
}

/// A script that never ends is cut after its time, and meanwhile others wait no longer than that.
#[test]
fn a_plugin_that_never_ends_delays_nobody_for_long() {
    let app = Server::http(|_| ok(b"x"));
    let source = "export function onRequest(request) { if (request.path === '/loop') for (;;); if (request.path === '/fill') { const all = []; for (;;) all.push(new Uint8Array(100000)) } }";
    let mut own = plugin(source);
    own["failOpen"] = true.into();
    let pair = pair(app.address(), &[own]);
    let load = Load::start(pair.address, 2, "/");
    let begun = Instant::now();
    for path in ["/loop", "/fill"].repeat(2) {
        assert_eq!(pair.ask(path, "").status(), 200, "{path}");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    load.await_more(100);
    load.assert_no_failure();
    calls(&pair.server, "time", 2.0);
    calls(&pair.server, "memory", 2.0);
}

#[test]
fn a_changed_plugin_takes_over_and_a_broken_one_is_refused() {
    let app = Server::http(|_| ok(b"x"));
    let version = |version: &str| {
        plugin(&format!(
            "let n = 0; export const onRequest = () => new Response('{version} ' + ++n)"
        ))
    };
    let pair = pair(app.address(), &[version("one")]);
    assert_eq!(pair.ask("/", "").text(), "one 1");
    let mut file = pair.server.config.clone();
    // Something else changes: what the plugin knows stays.
    file["mesh"]["accessLog"] = true.into();
    pair.server.reload(&file);
    assert_eq!(pair.ask("/", "").text(), "one 2");
    file["inbound"]["ports"][0]["rules"] = rules(&[version("two")]);
    pair.server.reload(&file);
    assert_eq!(pair.ask("/", "").text(), "two 1");
    // One that is no program is refused alone: what else is in the file is in force.
    let broken = "export function onRequest() {\n  return (;\n}";
    let mut first = plugin(broken);
    first["name"] = "new".into();
    file["inbound"]["ports"][0]["rules"] = rules(&[plugin(broken)]);
    file["mesh"]["requestTimeoutMs"] = 12_345.into();
    pair.server.write_config(&file);
    pair.server
        .await_metric("tulle_config_refused", &["what=\"configuration\""], 1.0);
    let shown = pair.server.admin("/config").text();
    assert!(shown.contains("plugin p: line 2, column"), "{shown}");
    assert!(shown.contains("12345"), "{shown}");
    assert_eq!(pair.ask("/", "").text(), "two 2");
    // Where there is no last good one, requests are refused, or pass.
    for open in [false, true] {
        first["failOpen"] = open.into();
        file["inbound"]["ports"][0]["rules"] = rules(&[first.clone(), version("three")]);
        pair.server.write_config(&file);
        let (status, told) = match open {
            false => (500, "plugin new: line 2, column"),
            true => (200, "three"),
        };
        eventually("it is in force", || {
            let answer = pair.ask("/", "");
            answer.status() == status && answer.text().contains(told)
        });
    }
    // Mended, it runs.
    file["inbound"]["ports"][0]["rules"] = rules(&[version("four")]);
    pair.server.reload(&file);
    assert_eq!(pair.ask("/", "").text(), "four 1");
    pair.server
        .await_metric("tulle_config_refused", &["what=\"configuration\""], 0.0);
}

#[test]
fn a_gateway_has_plugins_on_its_routes() {
    let app = Server::echo();
    let source = "export const onRequest = (request, context) => { request.headers.set('x-client', context.source.address) }";
    let config = gateway_config(app.address());
    let filters = json!([{ "plugin": plugin(source) }]);
    let config = config.set("/gateways/0/routes/0/rules/0/filters", filters);
    let mesh = tests_local::Mesh::new();
    let _gateway = Proxy::start(&mesh, "edge", config.file);
    let answer = Client::connect(config.address).get("/");
    assert!(
        answer.text().contains("x-client: 127.0.0.1"),
        "{}",
        answer.text()
    );
}
