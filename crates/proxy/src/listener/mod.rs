//! Sockets that accept.

pub mod accept;
