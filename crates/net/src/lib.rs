//! Access of a worker to the operating system: sockets, buffers that belong to the worker, and deadlines that cost
//! nothing per request.
//!
//! Everything here is single-threaded on purpose: a worker shares nothing with other workers. The exceptions are
//! `places` and `memory_limit`, which the listeners of administration and of the controller use as well, `passing`, by which
//! the supervisor gives a gateway its listeners, and `messages`, by which it tells proxies of a joined host of services.

pub mod buffer;
pub mod clock;
pub mod deadline;
pub mod memory;
pub mod memory_limit;
pub mod messages;
pub mod moderation;
pub mod passing;
pub mod places;
pub mod socket;
pub mod splice;
pub mod task;
pub mod thread;

pub use buffer::Buf;
pub use deadline::{Deadline, Deadlines};
