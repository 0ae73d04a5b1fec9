//! Limits on how often something may happen, held by a proxy as a whole.
#![allow(clippy::unwrap_used)]

use serde_json::json;
use tests_local::{Pair, Server};

/// Nothing comes back while a test lasts.
const HOUR_MS: u32 = 3_600_000;

fn echo_bytes() -> Server {
    Server::start(|mut connection| {
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() || connection.try_send(bytes).is_err() {
                return;
            }
        }
    })
}

#[test]
fn new_opaque_connections_are_limited_over_all_workers_and_config_changes() {
    let app = echo_bytes();
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
    let refused = || {
        let mut connection = pair.connect();
        let _ = connection.try_send("hello");
        connection.is_ended()
    };
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
