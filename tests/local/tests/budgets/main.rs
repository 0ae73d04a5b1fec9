//! Tests the budgets of a sidecar, each a number that a change can break: allocations and system calls per
//! request, memory per idle connection and at the start, sizes of tasks.
//!
//! The figures are printed (`--nocapture` shows them); time is not among them, because machines
//! differ.

#![allow(clippy::unwrap_used)]

mod allocations;
mod counting;
mod memory;
mod sizes;
mod system_calls;

use serde_json::{Value, json};
use tests_local::{CLIENT, Config, id};

/// A policy that has to look at everything: identity, port, method, path and a header.
fn policy() -> Value {
    json!({ "rules": [{
        "name": "TrafficTarget/pages-to-ratings",
        "sources": [id("other"), id(CLIENT)],
        "ports": [9080],
        "matches": [{
            "name": "rate",
            "methods": ["GET", "POST"],
            "pathRegex": "/ratings/[0-9]+",
            "headers": { "user-agent": "curl/.*" },
        }],
    }] })
}

fn with_policy(server: Config) -> Config {
    server.set("/inbound/policy", policy())
}

/// A request of a common client.
fn usual_request() -> String {
    "GET /ratings/7 HTTP/1.1\r\nHost: ratings\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n"
        .to_owned()
}

/// A request of a common client, with a body.
fn usual_post() -> String {
    let body = "x".repeat(1000);
    format!(
        "POST /ratings/7 HTTP/1.1\r\nHost: ratings\r\nUser-Agent: curl/8.5.0\r\n\
         Content-Length: 1000\r\n\r\n{body}"
    )
}

/// Whether what these tests need was promised, so that its absence is a failure: `make test` sets
/// this after it has installed and built everything.
fn is_promised() -> bool {
    ["CI", "TULLE_RELEASE"]
        .iter()
        .any(|v| std::env::var_os(v).is_some())
}
