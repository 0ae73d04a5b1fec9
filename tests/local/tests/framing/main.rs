//! The corpus of RFC 9112 through whole proxies: two sidecars in a row, a server sidecar that
//! takes plaintext, and a gateway.
//!
//! The verdict comes from the bytes that the other side received, never from a status alone: what
//! the codec refuses must not reach it at all, and what is let through must have one meaning to a
//! reader that shares no code with the proxy.

#![allow(clippy::unwrap_used, clippy::type_complexity)]

#[path = "../../../../crates/http1/corpus/cases.rs"]
mod cases;
mod reader;
mod requests;
mod responses;
mod smuggling;

use cases::Case;
use std::net::SocketAddr;
use tests_local::{Mesh, Pair, Proxy, SERVER, gateway_config, inbound_config, repository};

/// Limits that the corpus supposes; only where the message comes in, because sidecars add lines.
fn limited(config: tests_local::Config) -> tests_local::Config {
    config
        .set("/mesh/maxHeaderBytes", 8192)
        .set("/mesh/maxHeaders", 64)
}

/// The lines that the proxies themselves add to requests.
const ADDED: [&str; 5] = [
    "x-request-id",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
];

fn corpus(file: &str, at_least: usize) -> Vec<Case> {
    let path = repository().join(format!("crates/http1/corpus/{file}.txt"));
    let cases = cases::read(&std::fs::read_to_string(path).unwrap());
    assert!(cases.len() >= at_least, "only {} cases", cases.len());
    cases
}

/// A value in a verdict.
fn named<'a>(case: &'a Case, key: &str) -> Option<&'a str> {
    let mut words = case.verdict.split(' ');
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Where a client connects to reach `app`, and what keeps it running.
struct Place {
    name: &'static str,
    address: SocketAddr,
    _running: Box<dyn std::any::Any + Send + Sync>,
}

/// All kinds of proxies in front of one application each.
fn place(name: &'static str, app: SocketAddr) -> Place {
    let (address, running): (_, Box<dyn std::any::Any + Send + Sync>) = match name {
        "two sidecars, limits at the client's" => {
            let pair = Pair::with(app, |client, server| (limited(client), server));
            (pair.address, Box::new(pair))
        }
        "two sidecars, limits at the server's" => {
            let pair = Pair::with(app, |client, server| (client, limited(server)));
            (pair.address, Box::new(pair))
        }
        "plaintext to a sidecar" => {
            let mesh = Mesh::new();
            let config = limited(inbound_config(app)).set("/mesh/strictMtls", false);
            let proxy = Proxy::start(&mesh, SERVER, config.file);
            (config.address, Box::new((mesh, proxy)))
        }
        _ => {
            let mesh = Mesh::new();
            let config = limited(gateway_config(app));
            let proxy = Proxy::start(&mesh, "edge", config.file);
            (config.address, Box::new((mesh, proxy)))
        }
    };
    Place {
        name,
        address,
        _running: running,
    }
}

/// Panics with all failures, each with its case.
fn report(place: &str, failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{place}: {} cases failed\n{}",
        failures.len(),
        failures.join("\n")
    );
}
