//! No sidecars: the client speaks to the server in plaintext.

use super::{Peer, Sidecar, Topology};
use crate::failure::Result;

/// The baseline.
pub struct None;

impl Peer for None {
    fn name(&self) -> &'static str {
        "none"
    }

    fn version(&self) -> Result<String> {
        Ok("–".into())
    }

    fn notes(&self) -> Vec<String> {
        vec!["none: the client speaks to the server directly, in plaintext.".into()]
    }

    fn relays_tcp(&self) -> bool {
        true
    }

    fn sidecars(&self, _: &Topology) -> Result<Vec<Sidecar>> {
        Ok(Vec::new())
    }

    fn prove(&self, _: &Topology, _: u64) -> std::result::Result<Vec<String>, String> {
        Ok(super::baseline())
    }
}
