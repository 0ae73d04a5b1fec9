//! Turns the proxies' measurements into edges: which caller talked to which service.

mod edges;

pub(crate) use edges::{
    EGRESS, Edge, Unreached, edges, is_answered, is_denied, is_tcp_unreached, unreached,
};
