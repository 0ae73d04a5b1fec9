//! What leaves by itself, without being asked.

pub mod spans;
