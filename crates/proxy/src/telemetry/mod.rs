//! Records of requests and connections: counters, log lines, spans, and the reasons of failures.
//!
//! This module knows nothing of connections or configuration; its callers say what happened.

pub mod access_log;
pub(crate) mod export_totals;
pub(crate) mod grpc_status;
mod line_room;
pub(crate) mod log_export;
pub(crate) mod log_rules;
pub mod logging;
pub(crate) mod metrics;
pub(crate) mod outside_peers;
pub(crate) mod reason;
pub(crate) mod span;
pub(crate) mod tap;
pub mod trace_context;
