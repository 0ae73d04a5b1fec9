//! Tests the allowing, denying and watching rules of a policy, on real traffic through two sidecars.

use serde_json::{Value, json};
use tests_local::{CLIENT, Client, Mesh, Pair, Proxy, SERVER, Server, id, inbound_config};

fn pair(app: &Server, permissive: bool, rules: Value) -> Pair {
    Pair::with(app.address(), |client, server| {
        let policy = json!({ "permissive": permissive, "rules": rules });
        (
            client,
            server
                .set("/inbound/policy", policy)
                .set("/mesh/accessLog", true),
        )
    })
}

#[test]
fn a_denial_comes_before_what_allows_and_names_its_rule() {
    let app = Server::echo();
    let rules = json!([
        { "name": "TrafficTarget/all", "sources": [id(CLIENT)] },
        { "name": "AuthorizationPolicy/lock", "action": "deny", "anyIdentity": true,
          "matches": [{ "methods": ["GET"], "path": { "prefix": "/admin" } }] },
        { "name": "AuthorizationPolicy/lock", "action": "deny",
          "matches": [{ "headerMatches": [{ "name": "x-debug", "value": "1" }] }] },
    ]);
    for permissive in [false, true] {
        let pair = pair(&app, permissive, rules.clone());
        assert_eq!(pair.ask("/ratings", "").status(), 200);
        let refused = pair.ask("/admin/users", "");
        assert_eq!(refused.status(), 403);
        assert_eq!(refused.header("x-tulle-reason"), "denied");
        let text = refused.text();
        assert!(
            text.contains("AuthorizationPolicy/lock rule 1 denies it"),
            "{text}"
        );
        assert!(text.contains(&id(CLIENT)), "{text}");
        let twice = pair.ask("/ratings", "X-Debug: 0\r\nx_debug: 1\r\n");
        assert!(
            twice.text().contains("AuthorizationPolicy/lock rule 2"),
            "{}",
            twice.text()
        );
        pair.server.await_error("denied");
    }
    assert!(!app.received_text().contains("/admin"));
}

#[test]
fn a_path_with_two_meanings_passes_no_rule_about_paths() {
    let app = Server::echo();
    let rules = json!([{
        "name": "AuthorizationPolicy/lock", "action": "deny",
        "matches": [{ "path": { "prefix": "/admin" } }],
    }]);
    let guarded = pair(&app, true, rules);
    let paths = [
        "/a/../admin",
        "/%2e%2e/admin",
        "/a/%2E./admin",
        "//admin",
        "/./admin",
        "/admin;x",
        "/admin%2f",
        "/a%2f..%2fadmin",
        "/%61dmin",
        "/admin%00",
        "/a%5c..%5cadmin",
        "/%252e%252e/admin",
    ];
    for path in paths {
        let response = guarded.ask(path, "");
        assert_eq!(
            (response.status(), response.header("x-tulle-reason")),
            (403, "denied"),
            "{path}"
        );
    }
    assert_eq!(guarded.ask("/100%25/a%20b/users/a%40b", "").status(), 200);
    assert_eq!(app.received_text().matches("GET ").count(), 1);
    let open = pair(&app, true, json!([]));
    assert_eq!(
        open.ask("/a/../%61dmin;x", "").status(),
        200,
        "where no rule looks at paths they are the application's business"
    );
    assert!(app.received_text().contains("GET /a/../%61dmin;x HTTP/1.1"));
}

#[test]
fn conditions_hold_for_host_headers_and_path_together() {
    let app = Server::echo();
    let rules = json!([{
        "name": "AuthorizationPolicy/team", "sources": [id(CLIENT)],
        "matches": [{
            "hosts": ["ratings", "*.example.com"], "path": { "exact": "/ratings" },
            "headerMatches": [{ "name": "x-team", "value": "a|b", "regex": true }],
        }],
    }]);
    let pair = pair(&app, false, rules);
    assert_eq!(pair.ask("/ratings", "x-team: b\r\n").status(), 200);
    for (target, fields) in [
        ("/ratings", ""),
        ("/ratings", "x-team: c\r\n"),
        ("/ratings", "x-team: a\r\nx-team: c\r\n"),
        ("/ratings/1", "x-team: a\r\n"),
        ("http://other/ratings", "x-team: a\r\n"),
    ] {
        assert_eq!(pair.ask(target, fields).status(), 403, "{target} {fields}");
    }
    assert_eq!(
        pair.ask("http://a.example.com/ratings", "x-team: a\r\n")
            .status(),
        200
    );
}

#[test]
fn an_address_lets_clients_in_without_a_certificate_where_mutual_tls_is_strict() {
    let app = Server::echo();
    let rule = |network: &str| {
        json!({ "rules": [{ "name": "AccessControl/scraper", "networks": [network],
                            "matches": [{ "path": { "exact": "/metrics" } }] }] })
    };
    let config = inbound_config(app.address()).set("/inbound/policy", rule("127.0.0.0/8"));
    let mesh = Mesh::new();
    let proxy = Proxy::start(&mesh, SERVER, config.file);
    assert_eq!(tests_local::one(config.address, "/metrics").status(), 200);
    let other = tests_local::one(config.address, "/ratings");
    assert_eq!(
        (other.status(), other.header("x-tulle-reason")),
        (403, "denied")
    );
    assert!(
        other
            .text()
            .contains("a client without a certificate at 127.0.0.1"),
        "{}",
        other.text()
    );

    let mut idle = Client::connect(config.address);
    assert_eq!(idle.get("/metrics").status(), 200);
    let mut file = proxy.config.clone();
    file["inbound"]["policy"] = rule("10.0.0.0/8");
    proxy.reload(&file);
    let later = idle.get("/metrics");
    assert_eq!(
        later.header("x-tulle-reason"),
        "plaintext_refused",
        "a connection that was let in before"
    );
    let mut forged = Client::connect(config.address);
    forged.send("GET /metrics HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n");
    let forged = forged.response("GET");
    assert_eq!(
        (forged.status(), forged.header("x-tulle-reason")),
        (403, "plaintext_refused"),
        "what a client says of its address counts for nothing"
    );
}

#[test]
fn rules_that_only_watch_are_counted_and_logged() {
    let app = Server::echo();
    let rules = json!([
        { "name": "AuthorizationPolicy/planned", "action": "auditDeny",
          "matches": [{ "methods": ["GET"], "path": { "exact": "/old" } }] },
        { "name": "AuthorizationPolicy/other", "action": "auditAllow", "sources": [id("nobody")] },
    ]);
    let pair = pair(&app, true, rules);
    assert_eq!(pair.ask("/old", "").status(), 200);
    assert_eq!(pair.ask("/new", "").status(), 200);
    let metric = "tulle_policy_audit_total";
    let planned = ["rule=\"AuthorizationPolicy/planned\""];
    pair.server.await_metric(metric, &planned, 1.0);
    assert_eq!(pair.server.metric(metric, &[]), 1.0);
    tests_local::eventually("both requests are logged", || {
        let log = pair.server.access_log();
        let of = |path: &str| log.iter().find(|l| l["path"] == path).cloned();
        of("/new").is_some_and(|l| l.get("policy_audit").is_none())
            && of("/old").is_some_and(|l| l["policy_audit"] == "AuthorizationPolicy/planned")
    });
}

#[test]
fn opaque_connections_are_denied_and_ended_by_a_new_denial() {
    let app = Server::start(|mut connection| {
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() || connection.try_send(bytes).is_err() {
                return;
            }
        }
    });
    let deny =
        json!([{ "name": "AuthorizationPolicy/d", "action": "deny", "sources": [id(CLIENT)] }]);
    let pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/services/0/ports/0/protocol", "tcp"),
            server.set("/inbound/ports/0/protocol", "tcp"),
        )
    });
    let mut long_lived = pair.connect();
    long_lived.send("hello");
    assert_eq!(long_lived.read_exact(5), b"hello");
    let mut file = pair.server.config.clone();
    file["inbound"]["policy"]["rules"] = deny;
    pair.server.reload(&file);
    assert!(long_lived.is_ended());
    assert!(Client::is_cut(pair.address, "hello"));
    let error = pair.server.await_error("denied");
    let detail = error["detail"].as_str().unwrap();
    assert!(
        detail.contains("AuthorizationPolicy/d denies it"),
        "{detail}"
    );
}
