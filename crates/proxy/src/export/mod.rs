//! Sends telemetry to collectors: traces.

pub(crate) mod spans;
