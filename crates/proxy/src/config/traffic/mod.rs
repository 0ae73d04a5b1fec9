//! How requests to a port are treated, and what all workers of the proxy know of its endpoints while it is in force.

pub(crate) mod breaker;
pub(crate) mod checks;
pub(crate) mod limits;
pub(crate) mod outlier;
pub(crate) mod retry;
pub(crate) mod ring;
pub(crate) mod shared;
