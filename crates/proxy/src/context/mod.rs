//! What is the same for a whole worker, or process, and changes while it runs: admission, peers, memory.

pub(crate) mod admission;
pub(crate) mod memory_limit;
pub(crate) mod peers;
