//! HTTP exchanges: a request's head is read, decided on, edited and carried; its response likewise.

pub mod call;
pub mod exchange;
pub mod relay;
pub mod reply;
