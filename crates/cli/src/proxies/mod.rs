//! The proxies of a mesh, wherever it runs: what they say of themselves, and how they are asked.
//!
//! A [`ProxySource`] finds the proxies and connects to them. There are two: a cluster's pods, and a host's
//! workloads and gateways. Everything that is shown is the same for both.

mod list;
mod owners;
mod page;
mod page_server;
mod source;
mod target;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use list::{ProxyReport, Row, refused, reports, rows, run, table};
pub(crate) use owners::Owners;
pub(crate) use page::page;
pub(crate) use page_server::serve_page;
pub(crate) use source::{MeshName, Meshed, Pipe, ProxySource, ask, ask_all, open, say_which};
pub(crate) use target::Target;

use std::time::{SystemTime, UNIX_EPOCH};

/// Asks for metrics with few labels, without sizes and the application's own.
pub(crate) const SHORT_METRICS: &str = "/metrics?only=proxy";

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |n| i64::try_from(n.as_secs()).unwrap_or(i64::MAX))
}
