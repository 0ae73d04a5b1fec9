//! Connections whose bytes are opaque, and the first bytes by which they are told from others.

pub mod first_bytes;
pub mod forward;
