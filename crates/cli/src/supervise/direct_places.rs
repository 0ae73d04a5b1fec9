//! The places of workloads without sidecars, by which they find each other (`direct`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tulle_model::manifest::{WorkloadPort, WorkloadSpec};

pub(super) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Where services are.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// The workloads to run on this host.
    pub(crate) workloads: BTreeMap<String, WorkloadSpec>,
    /// Service and addresses of each workload that has its place.
    pub(super) placed: BTreeMap<String, (String, Vec<IpAddr>)>,
}

impl Direct {
    /// Every service with the addresses of its workloads.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        let placed = self.placed.values();
        placed.flat_map(|(service, all)| all.iter().map(|ip| (service.as_str(), *ip)))
    }

    /// A workload has left its place; whether it had one here.
    pub(crate) fn leave(&mut self, workload: &str) -> bool {
        self.placed.remove(workload).is_some()
    }

    /// Where a service's application listens on this host: that of its first workload by name.
    pub(super) fn on_host(&self, service: &str, port: u16) -> Option<SocketAddr> {
        let mut all = self.workloads.iter();
        let (_, spec) = all.find(|(name, w)| w.service.as_ref().unwrap_or(name) == service)?;
        let port = spec.ports.iter().find(|p| p.port == port)?;
        Some(SocketAddr::new(
            spec.address.unwrap_or(LOCALHOST),
            own(port),
        ))
    }
}

/// Where the application listens.
pub(super) fn own(port: &WorkloadPort) -> u16 {
    port.target_port.unwrap_or(port.port)
}
