//! Connections whose bytes are opaque, and the first bytes by which they are told from others.

mod account;
pub(crate) mod first_bytes;
pub(crate) mod forward;
pub(crate) mod pipe;
pub(crate) mod routed;
