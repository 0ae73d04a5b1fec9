//! Sockets that accept.

pub(crate) mod accept;
