//! What is the same for a whole worker, or process, and changes while it runs: admission, peers, memory.

pub mod admission;
pub mod memory_limit;
pub mod peers;
