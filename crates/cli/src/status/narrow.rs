//! Narrows a [`Report`] to some names, or to what is wrong.

use super::report::{Proxy, Report};
use crate::failure::{Failure, Result};
use crate::metrics::{EGRESS, Edge};
use std::collections::BTreeSet;

impl Report {
    /// Keeps what concerns these services, workloads and gateways; with none, everything.
    pub(crate) fn only(&mut self, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let named: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let known = self.names();
        let unknown: Vec<&str> = named
            .iter()
            .copied()
            .filter(|name| !known.contains(*name))
            .collect();
        if !unknown.is_empty() {
            let failure = Failure::new(format!(
                "there is no service, workload or gateway named {}",
                unknown.join(", ")
            ));
            return Err(failure.fix(match known.is_empty() {
                true => "nothing runs here yet; `tulle apply` starts workloads".to_owned(),
                false => format!("there are {}", list(&known)),
            }));
        }
        self.narrowed = true;
        // A name may be that of a service, with all its workloads, or of one of them.
        let mut units: BTreeSet<String> = names.iter().map(|n| format!("gateway.{n}")).collect();
        for service in &mut self.services {
            if !named.contains(service.name.as_str()) {
                service
                    .workloads
                    .retain(|w| named.contains(w.name.as_str()));
            }
            units.extend(service.workloads.iter().map(|w| w.name.clone()));
        }
        self.services.retain(|s| !s.workloads.is_empty());
        self.gateways.retain(|g| named.contains(g.name.as_str()));
        self.proxies.retain(|p| units.contains(&p.workload));
        // Edges know services and identities.
        let services: BTreeSet<&str> = self.services.iter().map(|s| s.name.as_str()).collect();
        let identities: BTreeSet<&str> = self.proxies.iter().map(|p| p.identity.as_str()).collect();
        self.edges.retain(|e| {
            identities.contains(e.source.as_str())
                || identities.contains(e.destination.as_str())
                || services.contains(e.destination_service.as_str())
        });
        self.unreached.retain(|u| {
            identities.contains(u.source.as_str())
                || services.contains(u.destination_service.as_str())
        });
        Ok(())
    }

    /// Keeps what is wrong or was: units that are not ready or were restarted, proxies with a
    /// complaint, and traffic that failed, was denied or was plaintext.
    pub(crate) fn only_problems(&mut self) {
        self.narrowed = true;
        let controller = self.controller.ready && self.mesh.node.is_empty();
        for service in &mut self.services {
            service.workloads.retain(|w| !w.ready || w.restarts > 0);
        }
        self.services.retain(|s| !s.workloads.is_empty());
        self.gateways.retain(|g| !g.ready);
        self.proxies.retain(|p| is_troubled(p, controller));
        self.edges.retain(is_bad);
    }

    /// Whether nothing is left to tell of.
    pub(crate) fn has_no_rows(&self) -> bool {
        self.services.is_empty()
            && self.gateways.is_empty()
            && self.proxies.is_empty()
            && self.edges.is_empty()
            && self.unreached.is_empty()
    }

    fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for service in &self.services {
            names.insert(service.name.clone());
            names.extend(service.workloads.iter().map(|w| w.name.clone()));
        }
        names.extend(self.gateways.iter().map(|g| g.name.clone()));
        names
    }
}

fn is_troubled(proxy: &Proxy, controller: bool) -> bool {
    !proxy.ready
        || proxy.restarts > 0
        || proxy.last_nack.is_some()
        || proxy.faults.is_some()
        || (controller && !proxy.connected)
        || super::show::has_expired(proxy)
}

fn is_bad(edge: &Edge) -> bool {
    !["mutual_tls", EGRESS].contains(&edge.security.as_str())
        || edge.denied > 0
        || edge.success_rate.is_some_and(|rate| rate < 1.0)
}

fn list(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = names.len().saturating_sub(SHOWN);
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
