//! The owners of addresses, to name peers outside the mesh.

use std::collections::BTreeMap;
use std::net::IpAddr;
use tulle_model::network::Network;

/// The owners of addresses.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Workloads with the time they were started.
    pub(crate) workloads: BTreeMap<IpAddr, (String, i64)>,
    /// Nodes of a cluster.
    pub(crate) nodes: BTreeMap<IpAddr, String>,
    /// Networks whose addresses workloads have.
    pub(crate) ranges: Vec<Network>,
}

impl Owners {
    /// Names the owner of an address that was last seen then. None: a workload that is gone.
    pub(crate) fn name(&self, address: IpAddr, last: i64) -> Option<String> {
        let address = address.to_canonical();
        if let Some((name, started)) = self.workloads.get(&address) {
            return (*started <= last).then(|| name.clone());
        }
        if let Some(node) = self.nodes.get(&address) {
            return Some(node.clone());
        }
        let of_workloads = self.ranges.iter().any(|range| range.contains(address));
        (!of_workloads).then(|| address.to_string())
    }
}
