//! Turns the proxies' measurements into edges: which caller talked to which service.

mod edges;

pub(crate) use edges::{EGRESS, Edge, Unreached, edges, is_denied, unreached};
