//! Receives configuration from the controller or a file, and turns it into a snapshot for all workers.

mod backoff;
pub mod client;
pub(crate) mod dial;
pub mod file;
pub mod publish;
