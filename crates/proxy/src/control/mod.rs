//! Receives configuration from the controller or a file, and turns it into a snapshot for all workers.

mod backoff;
pub mod client;
pub mod dial;
pub mod file;
pub mod host;
pub mod publish;
pub(crate) mod random;
