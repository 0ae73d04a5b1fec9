//! What proxies measured, turned into who talks to whom.

mod edges;

pub(crate) use edges::{EGRESS, Edge, Unreached, edges, unreached};
