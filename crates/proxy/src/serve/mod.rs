//! Serves accepted connections: finds out what they carry, by which of the proxy's four entrances they came, and
//! hands them on.

pub(crate) mod connect;
pub(crate) mod egress;
#[cfg(feature = "plugins")]
pub(crate) mod first_judged;
#[cfg(not(feature = "plugins"))]
#[path = "unjudged.rs"]
pub(crate) mod first_judged;
pub mod gateway;
pub(crate) mod gateway_tls;
pub mod inbound;
pub mod outbound;
pub(crate) mod proxied;
pub(crate) mod room;
pub(crate) mod spread;
