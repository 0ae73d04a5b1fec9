//! What proxies measured, turned into who talks to whom.

mod edges;

pub(crate) use edges::{Edge, Unreached, edges, unreached};
