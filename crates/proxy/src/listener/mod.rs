//! Sockets that accept.

pub(crate) mod accept;
pub(crate) mod passed;
pub(crate) mod sockets;
