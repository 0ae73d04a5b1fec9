//! Formats that come from the network: bytes in, values out. No sockets, no clock, no configuration.

pub mod answered;
pub mod detect;
pub mod dns_message;
pub mod exposition;
pub(crate) mod host;
pub mod plain_path;
pub mod proxy_protocol;
pub(crate) mod request_values;
pub mod sni;
