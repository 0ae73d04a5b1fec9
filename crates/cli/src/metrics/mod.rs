//! What proxies measured, turned into who talks to whom.

mod edges;
mod text;

pub(crate) use edges::{Edge, Unreached, edges, percentile, unreached};
pub(crate) use text::{Sample, parse};
