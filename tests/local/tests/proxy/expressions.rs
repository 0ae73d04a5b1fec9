//! Expressions in CEL on real traffic through two sidecars: conditions of policies, matches and filters, header values
//! and keys of rate limits.

use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tests_local::{CLIENT, Client, Mesh, Pair, Proxy, Server, eventually, gateway_config, id, ok};

/// Nothing comes back while a test lasts.
const HOUR_MS: u32 = 3_600_000;

fn policed(app: &Server, rules: Value) -> Pair {
    Pair::with(app.address(), |client, server| {
        let policy = json!({ "permissive": false, "rules": rules });
        (client, server.set("/inbound/policy", policy))
    })
}

fn when(name: &str, action: &str, condition: &str) -> Value {
    json!({ "name": name, "action": action, "anyIdentity": true, "matches": [{ "when": [condition] }] })
}

#[test]
fn a_policy_asks_who_calls_and_what_the_request_says() {
    let app = Server::echo();
    let allow = format!(
        "source.identity == '{}' && request.headers['x-team'] in ['books', 'stars'] && destination.port == 9080",
        id(CLIENT)
    );
    let pair = policed(
        &app,
        json!([
            when("AuthorizationPolicy/teams", "allow", &allow),
            when("AuthorizationPolicy/size", "deny", "request.size > 10"),
        ]),
    );
    assert_eq!(pair.ask("/", "X-Team: books\r\n").status(), 200);
    for (fields, why) in [
        (
            "X-Team: other\r\n",
            "none of AuthorizationPolicy/teams allows it",
        ),
        (
            "",
            "AuthorizationPolicy/teams does not allow it, because its `when` has no value for this request: there is no such key or header",
        ),
        (
            "X-Team: books\r\nx_team: stars\r\n",
            "a header came more than once",
        ),
        (
            "X-Team: \u{e9}\r\n",
            "none of AuthorizationPolicy/teams allows it",
        ),
    ] {
        let refused = pair.ask("/", fields);
        assert_eq!(refused.status(), 403, "{fields}");
        assert!(refused.text().contains(why), "{fields}: {}", refused.text());
    }
    let mut client = pair.connect();
    client.send("POST / HTTP/1.1\r\nHost: ratings\r\nX-Team: books\r\nContent-Length: 11\r\n\r\nhello world");
    let refused = client.response("POST");
    assert!(
        refused
            .text()
            .contains("AuthorizationPolicy/size denies it"),
        "{}",
        refused.text()
    );
}

/// A rule that denies is not escaped by the ways in which servers read a path.
#[test]
fn a_denial_about_paths_holds_in_every_reading() {
    let app = Server::echo();
    let pair = policed(
        &app,
        json!([
            { "name": "TrafficTarget/all", "anyIdentity": true },
            when("AuthorizationPolicy/admin", "deny", "request.path == '/admin' || request.path.startsWith('/admin/')"),
        ]),
    );
    assert_eq!(pair.ask("/ratings", "").status(), 200);
    for path in [
        "/admin",
        "/admin/",
        "/admin/x",
        "/x/../admin",
        "//admin",
        "/%61dmin",
        "/admin;x",
        "/admin?x",
    ] {
        assert_eq!(pair.ask(path, "").status(), 403, "{path}");
    }
    assert!(!app.received_text().contains("admin"));
}

/// A condition without a value denies where it would deny, and says so.
#[test]
fn a_denial_without_a_value_denies() {
    let app = Server::echo();
    let pair = policed(
        &app,
        json!([
            { "name": "TrafficTarget/all", "anyIdentity": true },
            when("AuthorizationPolicy/debug", "deny", "request.headers['x-debug'] == 'on'"),
        ]),
    );
    assert_eq!(pair.ask("/", "X-Debug: off\r\n").status(), 200);
    assert_eq!(pair.ask("/", "X-Debug: on\r\n").status(), 403);
    let refused = pair.ask("/", "");
    assert_eq!(refused.status(), 403);
    assert!(
        refused
            .text()
            .contains("AuthorizationPolicy/debug denies it, because its `when` has no value")
    );
}

fn routed(app: &Server, rules: Value) -> Pair {
    Pair::with(app.address(), |client, server| {
        let routes = json!([{ "name": "r", "rules": rules }]);
        (client.set("/services/0/routes", routes), server)
    })
}

fn answer(status: u16) -> Value {
    json!([{ "respond": { "status": status } }])
}

#[test]
fn a_route_takes_what_meets_its_condition() {
    let app = Server::http(|_| ok(b"stars"));
    let pair = routed(
        &app,
        json!([
            { "matches": [{ "path": { "prefix": "/" }, "when": ["'beta' in request.headers['cookie'].split('; ')"] }],
              "filters": answer(299) },
            { "matches": [{ "path": { "prefix": "/" } }], "backends": [{ "service": "ratings", "port": 9080 }] },
        ]),
    );
    for (fields, status) in [
        ("Cookie: a=b; beta\r\n", 299),
        ("Cookie: a=b; betas\r\n", 200),
        ("", 200),
    ] {
        assert_eq!(pair.ask("/", fields).status(), status, "{fields}");
    }
}

#[test]
fn filters_have_conditions_and_headers_have_values() {
    let app = Server::http(|request| ok(request.head.as_bytes()));
    let guarded = json!([{ "when": {
        "condition": "request.path.startsWith('/private') && !has(request.headers.`x-key`)",
        "filters": [{ "respond": { "status": 401 } }, { "respond": { "status": 402 } }] } },
        { "requestValues": [
            { "name": "x-who", "expression": "request.method.lowerAscii() + ' ' + request.headers['x-name'].upperAscii()" },
            { "name": "x-host", "expression": "request.host" },
        ] },
    ]);
    let pair = routed(
        &app,
        json!([{ "matches": [{ "path": { "prefix": "/" } }], "filters": guarded,
                 "backends": [{ "service": "ratings", "port": 9080 }] }]),
    );
    let passed = pair.ask("/public", "X-Name: ann\r\nX_Who: forged\r\n");
    assert_eq!(passed.status(), 200);
    let got = passed.text().to_ascii_lowercase();
    assert!(
        got.contains("x-who: get ann\r\n") && got.contains("x-host: ratings\r\n"),
        "{got}"
    );
    assert!(!got.contains("forged"), "{got}");
    // Without a value there is no field, and what the client sent under the name does not pass.
    let got = pair
        .ask("/public", "X-Who: forged\r\n")
        .text()
        .to_ascii_lowercase();
    assert!(!got.contains("x-who"), "{got}");
    assert_eq!(pair.ask("/private", "").status(), 401);
    assert_eq!(pair.ask("/private", "X-Key: 1\r\n").status(), 200);
    // A path of two readings may be the one that is protected.
    assert_eq!(pair.ask("/%70rivate", "").status(), 401);
}

#[test]
fn a_rate_limit_tells_requests_apart() {
    let app = Server::http(|_| ok(b"stars"));
    let limit = json!([{ "rateLimit": {
        "name": "HTTPFilter/r", "tokens": 2, "perMs": HOUR_MS, "by": "request.headers['x-tenant']" } }]);
    let pair = routed(
        &app,
        json!([{ "matches": [{ "path": { "prefix": "/" } }], "filters": limit,
                 "backends": [{ "service": "ratings", "port": 9080 }] }]),
    );
    for fields in ["X-Tenant: a\r\n", "X-Tenant: b\r\n", ""] {
        let statuses: Vec<u16> = (0..3).map(|_| pair.ask("/", fields).status()).collect();
        assert_eq!(statuses, [200, 200, 429], "{fields}");
    }
}

#[test]
fn only_what_meets_the_condition_is_sent_again() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let app = Server::http(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let retry = json!({ "attempts": 2, "statuses": [503], "backoffMs": 1, "when": "'idempotency-key' in request.headers" });
    let pair = routed(
        &app,
        json!([{ "matches": [], "retry": retry, "backends": [{ "service": "ratings", "port": 9080 }] }]),
    );
    for (fields, times) in [("", 1), ("Idempotency-Key: 1\r\n", 3)] {
        asked.store(0, Ordering::SeqCst);
        assert_eq!(pair.ask("/", fields).status(), 503);
        assert_eq!(asked.load(Ordering::SeqCst), times, "{fields}");
    }
}

#[test]
fn the_log_has_what_is_asked_of_the_response_and_further_fields() {
    let app = Server::http(|request| match request.target() {
        "/bad" => b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".to_vec(),
        _ => ok(b"stars"),
    });
    let lines = json!({
        "when": "response.code >= 400 && request.path.startsWith('/b') && request.host == 'a'",
        "fields": [{ "name": "tenant", "expression": "request.headers['x-tenant']" },
                   { "name": "none", "expression": "request.headers['x-none']" }] });
    let config = gateway_config(app.address())
        .set("/mesh/accessLog", true)
        .set("/mesh/accessLogLines", lines);
    let mesh = Mesh::new();
    let proxy = Proxy::start(&mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    for path in ["/good", "/bad"] {
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nX-Tenant: t1\r\n\r\n"
        ));
        client.response("GET");
    }
    eventually("the line is there", || !proxy.access_log().is_empty());
    let log = proxy.access_log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!(log[0]["path"], "/bad");
    assert_eq!(log[0]["fields"], json!({ "tenant": "t1" }));
}

/// An expression that is not valid is refused with its place, and the last good configuration stays.
#[test]
fn an_expression_that_is_not_valid_is_refused() {
    let app = Server::http(|_| ok(b"stars"));
    let pair = policed(
        &app,
        json!([{ "name": "TrafficTarget/all", "anyIdentity": true }]),
    );
    assert_eq!(pair.ask("/", "").status(), 200);
    let mut file = pair.server.config.clone();
    file["inbound"]["policy"]["rules"] = json!([when(
        "AuthorizationPolicy/bad",
        "allow",
        "request.path == 1"
    )]);
    pair.server.write_config(&file);
    pair.server
        .await_metric("tulle_config_refused", &["what=\"configuration\""], 1.0);
    let shown = pair.server.admin("/config").text();
    assert!(
        shown.contains("line 1, column 14: `==` does not take string and int"),
        "{shown}"
    );
    assert_eq!(pair.ask("/", "").status(), 200);
}
