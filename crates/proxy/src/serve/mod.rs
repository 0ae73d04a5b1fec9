//! Connections that were accepted: what they are, by which of the proxy's four entrances they came, and who carries them.

pub mod connect;
pub mod egress;
pub mod gateway;
pub mod gateway_tls;
pub mod inbound;
pub mod outbound;
pub mod proxied;
pub mod spread;
