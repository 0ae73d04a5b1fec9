//! What the controller, or a file, says, and how it becomes a snapshot for all workers.

pub mod client;
pub(crate) mod dial;
pub mod file;
pub mod publish;
