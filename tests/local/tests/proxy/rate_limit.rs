//! Limits on how often something may happen, held by a proxy as a whole.

use crate::tcp::echo;
use serde_json::{Value, json};
use tests_local::{Client, Pair, SERVER, Server};

/// Nothing comes back while a test lasts.
const HOUR_MS: u32 = 3_600_000;

#[test]
fn new_opaque_connections_are_limited_over_all_workers_and_config_changes() {
    let app = echo();
    let pair = Pair::with(app.address(), |client, server| {
        let limit = json!({ "name": "RateLimit/r", "tokens": 3, "perMs": HOUR_MS, "burst": 2 });
        (
            client.set("/services/0/ports/0/protocol", "tcp"),
            server
                .set("/inbound/ports/0/protocol", "tcp")
                .set("/inbound/ports/0/connectionLimit", limit)
                .set("/workers", 2),
        )
    });
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut connection = pair.connect();
        connection.send("hello");
        assert_eq!(connection.read_exact(5), b"hello");
        open.push(connection);
    }
    let refused = || Client::is_cut(pair.address, "hello");
    assert!(refused());
    let error = pair.server.await_error("rate_limited");
    assert!(
        error["detail"]
            .as_str()
            .unwrap()
            .contains("too many new connections")
    );
    let labels = ["reason=\"rate_limited\""];
    pair.server
        .await_metric("tulle_tcp_failures_total", &labels, 1.0);

    let mut file = pair.server.config.clone();
    file["mesh"]["idleTimeoutMs"] = 100_000.into();
    pair.server.reload(&file);
    assert!(refused(), "another configuration with the same limit");
    for connection in &mut open {
        connection.send("still");
        assert_eq!(connection.read_exact(5), b"still");
    }
    file["inbound"]["ports"][0]["connectionLimit"]["burst"] = 3.into();
    pair.server.reload(&file);
    assert!(!refused(), "another limit");
}

fn limit(name: &str, tokens: u32) -> Value {
    json!({ "rateLimit": { "name": name, "tokens": tokens, "perMs": HOUR_MS } })
}

#[test]
fn requests_to_a_port_are_limited_by_the_first_rule_that_matches() {
    let app = Server::echo();
    let mut strict = limit("RateLimit/ratings", 2);
    strict["rateLimit"]["status"] = 503.into();
    strict["rateLimit"]["headers"] = json!([{ "name": "x-limited", "value": "yes" }]);
    let rules = json!([
        { "name": "RateLimit/ratings", "matches": [{ "path": { "prefix": "/dear" } }],
          "filters": [strict] },
        { "name": "RateLimit/all", "filters": [limit("RateLimit/all", 3)] },
    ]);
    let pair = Pair::with(app.address(), |client, server| {
        (
            client,
            server
                .set("/inbound/ports/0/rules", rules)
                .set("/workers", 2),
        )
    });
    let status = |target: &str| pair.connect().get(target);
    for _ in 0..2 {
        assert_eq!(status("/dear/x").status(), 200);
    }
    let refused = status("/dear/x");
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.header("x-tulle-reason"), "rate_limited");
    assert_eq!(refused.header("x-limited"), "yes");
    assert!(refused.header("retry-after").parse::<u32>().unwrap() > 1000);
    for _ in 0..3 {
        assert_eq!(status("/cheap").status(), 200);
    }
    let refused = status("/cheap");
    assert_eq!(refused.status(), 429);
    assert!(
        refused.text().contains("RateLimit/all"),
        "{}",
        refused.text()
    );
    let labels = ["response_flags=\"rate_limited\""];
    pair.server
        .await_metric("istio_requests_total", &labels, 2.0);
    assert_eq!(app.received_text().matches("GET ").count(), 5);

    // The connection to the client is still good.
    let mut client = pair.connect();
    assert_eq!(client.get("/cheap").status(), 429);
    assert_eq!(client.get("/cheap").status(), 429);
}

#[test]
fn a_limit_by_path_can_overlook_letter_case() {
    let app = Server::echo();
    let rules = |ignore: bool| {
        json!([{
            "name": "RateLimit/r",
            "matches": [{ "path": { "prefix": "/search" }, "ignoreCase": ignore }],
            "filters": [limit("RateLimit/r", 2)],
        }])
    };
    for ignore in [false, true] {
        let pair = Pair::with(app.address(), |client, server| {
            (client, server.set("/inbound/ports/0/rules", rules(ignore)))
        });
        let statuses = ["/search", "/SEARCH/x", "/Search", "/sEARCH", "/books"];
        let statuses = statuses.map(|target| pair.connect().get(target).status());
        match ignore {
            true => assert_eq!(statuses, [200, 200, 429, 429, 200]),
            false => assert_eq!(statuses, [200; 5]),
        }
    }
}

#[test]
fn a_route_limits_at_the_client_whichever_backend_is_chosen() {
    let app = Server::echo();
    let backend = || json!({ "service": SERVER, "port": 9080 });
    let route = json!({ "name": "r", "rules": [{
        "matches": [{ "path": { "prefix": "/limited" } }],
        "backends": [backend(), backend()], "filters": [limit("RateLimit/r", 4)],
    }, { "backends": [backend()] }] });
    let pair = Pair::with(app.address(), |client, server| {
        (client.set("/services/0/routes", json!([route])), server)
    });
    let mut client = pair.connect();
    let passed = (0..20).filter(|_| client.get("/limited").status() == 200);
    assert_eq!(passed.count(), 4);
    assert_eq!(client.get("/else").status(), 200);
    pair.client.await_error("rate_limited");
}
