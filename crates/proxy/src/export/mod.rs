//! What leaves by itself, without being asked.

pub(crate) mod spans;
