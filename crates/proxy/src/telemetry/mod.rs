//! What is remembered of requests and connections: counters, log lines, spans, and the reasons of what failed.
//!
//! It knows nothing of connections or configuration; who calls it says what happened.

pub mod access_log;
pub mod grpc_status;
pub mod logging;
pub mod metrics;
pub mod outside_peers;
pub mod reason;
pub mod span;
pub mod tap;
pub mod trace_context;
