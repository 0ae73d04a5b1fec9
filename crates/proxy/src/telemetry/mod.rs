//! What is remembered of requests and connections: counters, log lines, spans, and the reasons of what failed.
//!
//! It knows nothing of connections or configuration; who calls it says what happened.

pub mod access_log;
pub(crate) mod grpc_status;
pub mod logging;
pub(crate) mod metrics;
pub(crate) mod outside_peers;
pub(crate) mod reason;
pub(crate) mod span;
pub(crate) mod tap;
pub mod trace_context;
