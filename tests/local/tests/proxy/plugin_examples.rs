//! The plugins of `demo/plugins`, each on real traffic.

use crate::plugins::{introspection, pair, plugin, rules};
use crate::routing::{edge, rule};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tests_local::{CLIENT, Client, Message, Pair, Server, get, ok, pause, post, repository};

/// A plugin of `demo/plugins` with a configuration.
fn example(name: &str, config: &Value) -> Value {
    let file = repository().join("demo/plugins").join(format!("{name}.js"));
    let source = std::fs::read_to_string(file).unwrap();
    let mut own = plugin(&source);
    own["config"] = config.to_string().into();
    own
}

/// A server that answers with this type and body.
fn page(kind: &'static str, body: &'static str) -> Server {
    Server::http(move |_| {
        let head = format!("Content-Type: {kind}\r\nContent-Length: {}", body.len());
        format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").into_bytes()
    })
}

#[test]
fn every_example_is_tested() {
    let here = include_str!("plugin_examples.rs");
    let mut count = 0;
    for file in std::fs::read_dir(repository().join("demo/plugins")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(here.contains(&format!("\"{name}\"")), "{name}");
        count += 1;
    }
    assert_eq!(count, 10);
}

#[test]
fn a_canary_by_header_and_by_cookie() {
    let config =
        json!({ "stable": "a", "canary": "b", "header": "x-version", "cookie": "version" });
    let mut rule = rule(json!([]), "a");
    rule["backends"] = json!([
        { "service": "a", "port": 80 }, { "service": "b", "port": 80, "weight": 0 },
    ]);
    rule["filters"] = json!([{ "plugin": example("canary", &config) }]);
    let edge = edge(json!([{ "name": "r", "rules": [rule] }]), |config| config);
    let ask = |fields: &str| {
        let mut client = Client::connect(edge.address);
        client.send(format!("GET / HTTP/1.1\r\nHost: any\r\n{fields}\r\n"));
        client.response("GET")
    };
    for (fields, backend, cookie) in [
        ("", "a", "version=stable"),
        ("X-Version: canary\r\n", "b", "version=canary"),
        ("Cookie: a=b; version=canary\r\n", "b", "version=canary"),
        ("Cookie: version=stable\r\n", "a", "version=stable"),
        ("Cookie: other-version=canary\r\n", "a", "version=stable"),
    ] {
        let answer = ask(fields);
        assert_eq!(answer.text(), backend, "{fields}");
        assert!(answer.header("set-cookie").starts_with(cookie), "{fields}");
    }
}

#[test]
fn a_token_is_introspected_and_the_answer_kept() {
    let app = Server::echo();
    let tokens = Server::http(|request| {
        assert_eq!(
            request.header("content-type"),
            "application/x-www-form-urlencoded"
        );
        let body = match request.text().as_str() {
            "token=a%2Fb" => r#"{"active":true,"sub":"ada"}"#,
            "token=broken" => return b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_vec(),
            _ => r#"{"active":false}"#,
        };
        ok(body.as_bytes())
    });
    let config = json!({ "endpoint": "tokens:9080/introspect", "seconds": 60 });
    let own = example("token-introspection", &config);
    let mesh = introspection(app.address(), tokens.address(), own);
    let ask = |token: &str| {
        mesh.pair
            .ask("/", &format!("Authorization: Bearer {token}\r\n"))
    };
    for _ in 0..3 {
        let answer = ask("a/b");
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let seen = answer.text().to_lowercase();
        assert!(
            seen.contains("x-user: ada") && !seen.contains("bearer"),
            "{seen}"
        );
        assert_eq!(ask("other").status(), 401);
    }
    assert_eq!(mesh.pair.ask("/", "").header("www-authenticate"), "Bearer");
    assert_eq!(ask("broken").header("x-tulle-reason"), "plugin_failed");
    assert_eq!(
        tokens.received_text().matches("POST /introspect").count(),
        3
    );
}

/// The signature that the example must make, by OpenSSL.
fn signature(key: &str, method_and_path: &str, body: &[u8]) -> String {
    let digest = openssl(&["dgst", "-sha256", "-r"], body);
    let text = format!("{method_and_path}\n{digest}");
    openssl(&["dgst", "-sha256", "-r", "-hmac", key], text.as_bytes())
}

fn openssl(arguments: &[&str], input: &[u8]) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut process = Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(input).unwrap();
    let out = process.wait_with_output().unwrap().stdout;
    String::from_utf8(out)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn requests_are_signed() {
    let app = Server::echo();
    // `secret` in base64.
    let config = json!({ "id": "web", "key": "c2VjcmV0" });
    let pair = pair(app.address(), &[example("sign-requests", &config)]);
    let mut client = pair.connect();
    for (method, body) in [("GET", &b""[..]), ("POST", b"order=1"), ("POST", b"")] {
        match method {
            "GET" => client.send(get("/x?y=z")),
            _ => client.send(post("/x?y=z", body)),
        }
        let text = client.response(method).text();
        let expected = signature("secret", &format!("{method}\n/x?y=z"), body);
        assert!(
            text.contains(&format!("x-signature: web:{expected}\r\n")),
            "{text}"
        );
    }
}

#[test]
fn fields_of_json_are_hidden() {
    let body = r#"{"name":"ada","cards":[{"cardNumber":"4711","valid":true}]}"#;
    let config = json!({ "fields": ["cardNumber"] });
    let own = example("redact-body", &config);
    let app = page("application/vnd.x+json", body);
    let answer =
        pair(app.address(), std::slice::from_ref(&own)).ask("/", "Accept-Encoding: gzip\r\n");
    assert_eq!(answer.text(), body.replace("4711", "***"));
    assert!(
        !app.received_text()
            .to_lowercase()
            .contains("accept-encoding")
    );
    let app = page("text/plain", "cardNumber 4711");
    assert_eq!(
        pair(app.address(), std::slice::from_ref(&own))
            .ask("/", "")
            .text(),
        "cardNumber 4711"
    );
    let app = page("application/json", "{\"cardNumber\": 4711");
    let answer = pair(app.address(), &[own]).ask("/", "");
    assert_eq!(answer.header("x-tulle-reason"), "plugin_failed");
    assert!(!answer.text().contains("4711"), "{}", answer.text());
}

#[test]
fn a_page_is_filled_in() {
    let app = page(
        "text/html; charset=utf-8",
        "<p>{{site}} {{ caller }} {{path}} {{ other }}</p>",
    );
    let config = json!({ "values": { "site": "A & B" } });
    let pair = pair(app.address(), &[example("template-response", &config)]);
    let answer = pair.ask("/a?b=<i>", "");
    let expected = format!("<p>A &#38; B {CLIENT} /a?b=&#60;i&#62; {{{{ other }}}}</p>");
    assert_eq!(answer.text(), expected);
}

#[test]
fn each_tenant_has_its_limit() {
    let app = Server::http(|_| ok(b"x"));
    let config =
        json!({ "header": "x-tenant", "seconds": 60, "limits": { "gold": 3 }, "others": 1 });
    let pair = pair(app.address(), &[example("tenant-limit", &config)]);
    let ask = |tenant: &str| -> Message { pair.ask("/", &format!("X-Tenant: {tenant}\r\n")) };
    for left in ["2", "1", "0"] {
        assert_eq!(ask("gold").header("x-ratelimit-remaining"), left);
    }
    assert_eq!(
        (
            ask("gold").status(),
            ask("red").status(),
            ask("blue").status()
        ),
        (429, 200, 200)
    );
    let answer = ask("red");
    assert_eq!((answer.status(), answer.header("retry-after")), (429, "60"));
    assert_eq!(pair.ask("/", "").status(), 400);
    let labels = ["name=\"limited\""];
    pair.server
        .await_metric("tulle_plugin_count_total", &labels, 2.0);
}

#[test]
fn headers_are_mapped_both_ways() {
    let app = Server::http(|request| {
        let old = request.header("X_CLIENT").to_owned();
        format!("HTTP/1.1 200 OK\r\nX-Old-Status: OK\r\nX-Seen: {old}\r\nContent-Length: 0\r\n\r\n")
            .into_bytes()
    });
    let config = json!({
        "request": { "x-tenant": "X_CLIENT" },
        "response": { "x-old-status": "X-Status" },
        "values": { "x-status": { "OK": "ready" } },
    });
    let pair = pair(app.address(), &[example("legacy-headers", &config)]);
    let answer = pair.ask("/", "X-Tenant: red\r\n");
    assert_eq!(answer.header("x-seen"), "red");
    assert_eq!(
        (answer.header("x-status"), answer.header("x-old-status")),
        ("ready", "")
    );
}

#[test]
fn tokens_are_injected_by_the_caller_and_verified_by_the_service() {
    let app = Server::echo();
    let injector = example(
        "fsm-token-injector",
        &json!({ "tokens": { CLIENT: "7d1ec" } }),
    );
    let config = json!({ "public": ["^/health$"], "tokens": ["7d1ec"] });
    let verifier = example("fsm-token-verifier", &config);
    let open = json!({ "path": { "exact": "/plain" } });
    let backend = json!([{ "service": "ratings", "port": 9080 }]);
    let routes = json!([{ "name": "r", "rules": [
        { "matches": [open, { "path": { "exact": "/health" } }], "backends": backend },
        { "backends": backend, "filters": [{ "plugin": injector }] },
    ] }]);
    let pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/services/0/routes", routes),
            server.set("/inbound/ports/0/rules", rules(&[verifier])),
        )
    });
    let answer = pair.ask("/", "");
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(!answer.text().contains("7d1ec"), "{}", answer.text());
    assert_eq!(pair.ask("/health", "").status(), 200);
    assert_eq!(pair.ask("/plain", "").status(), 401);
    assert_eq!(
        pair.ask("/plain", "Authorization: Basic 7d1ed\r\n")
            .status(),
        401
    );
}

/// An MQTT CONNECT of this version with this client identifier.
fn connect(version: u8, client: &str) -> Vec<u8> {
    let mut packet = vec![0, 4];
    packet.extend_from_slice(b"MQTT");
    packet.extend_from_slice(&[version, 2, 0, 60]);
    if version == 5 {
        // Session expiry interval.
        packet.extend_from_slice(&[5, 0x11, 0, 0, 0, 9]);
    }
    packet.extend_from_slice(&u16::try_from(client.len()).unwrap().to_be_bytes());
    packet.extend_from_slice(client.as_bytes());
    let mut out = vec![0x10];
    let (low, high) = (packet.len() & 127, packet.len() >> 7);
    out.push(u8::try_from(low).unwrap() | if high > 0 { 128 } else { 0 });
    out.extend((high > 0).then(|| u8::try_from(high).unwrap()));
    out.extend(packet);
    out
}

/// A pair for a port of bytes, whose server's sidecar has this plugin.
fn of_bytes(app: SocketAddr, plugin: Value) -> Pair {
    Pair::with(app, |client, server| {
        (
            client.set("/services/0/ports/0/protocol", "tcp"),
            server
                .set("/inbound/ports/0/protocol", "tcp")
                .set("/inbound/ports/0/rules", rules(&[plugin])),
        )
    })
}

#[test]
fn an_mqtt_client_has_an_identifier_that_its_identity_may_use() {
    static SERVED: AtomicUsize = AtomicUsize::new(0);
    // CONNACK to everybody; what follows is echoed.
    let broker = Server::start(|mut connection| {
        SERVED.fetch_add(1, Ordering::SeqCst);
        connection.read_exact(2).unwrap();
        connection.send([0x20, 2, 0, 0]);
        pause("the client reads the answer", Duration::from_millis(300));
    });
    let long = format!("kitchen-{}", "7".repeat(150));
    let config = json!({ "clients": { CLIENT: "^kitchen-[0-9]+$" } });
    let pair = of_bytes(broker.address(), example("mqtt-clients", &config));
    for (version, client, size) in [
        (4, "kitchen-7", 1000),
        (5, "kitchen-8", 1000),
        (4, "kitchen-9", 3),
        (5, long.as_str(), 50),
    ] {
        let mut mqtt = pair.connect();
        for piece in connect(version, client).chunks(size) {
            mqtt.send(piece);
            pause("the next piece is read by itself", Duration::from_millis(5));
        }
        assert_eq!(mqtt.read_exact(4), [0x20, 2, 0, 0], "{client}");
    }
    for bytes in [
        connect(4, "cellar-1"),
        connect(4, "kitchen-"),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ] {
        assert!(Client::is_reset(pair.address, &bytes));
    }
    assert_eq!(SERVED.load(Ordering::SeqCst), 4);
    let labels = ["plugin=\"p\"", "outcome=\"answered\""];
    pair.server
        .await_metric("tulle_plugin_calls_total", &labels, 3.0);
    let text = pair.server.await_error("denied")["detail"].to_string();
    assert!(text.contains("plugin p refuses it"), "{text}");
}
