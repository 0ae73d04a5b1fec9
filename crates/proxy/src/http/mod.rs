//! HTTP exchanges: a request's head is read, decided on, edited and carried; its response likewise.

pub(crate) mod auth_call;
pub(crate) mod call;
pub(crate) mod exchange;
pub(crate) mod mirror_send;
#[cfg(feature = "plugins")]
pub(crate) mod plugin_call;
pub(crate) mod relay;
pub(crate) mod reply;
pub(crate) mod stream_handlers;
