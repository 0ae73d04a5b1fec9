//! A proxy's configuration at its start, made of its description and of the Mesh.

use super::{DRAIN, Maker};
use crate::failure::{OrFail, Result};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use tulle_model::bootstrap::{Bootstrap, Control};
use tulle_model::identity::SpiffeId;

impl Maker {
    pub(super) fn bootstrap(&self, token: PathBuf) -> Result<Bootstrap> {
        let identity = SpiffeId::parse(&self.identity.borrow())
            .or_fail(|| "the controller gave an identity that is none".to_owned())?;
        let (configured, limit, settings) = {
            let mesh = self.context.mesh.borrow();
            let limit = mesh.sidecar_cpu_milli().ok().flatten();
            (mesh.sidecar.workers, limit, mesh.settings())
        };
        Ok(Bootstrap {
            identity,
            certificates: None,
            control: Some(Control {
                address: self.context.controller.to_string(),
                ca_fingerprint: self.context.ca_fingerprint.borrow().clone(),
                trust_bundle: None,
                service: self.description.workload.clone(),
                // Also when it is spent: a proxy whose certificate expires looks there again.
                join_token_file: Some(token),
                service_account_token: None,
                snapshot: Some(self.snapshot()),
                identity_cache: Some(PathBuf::from("/proc/self/fd/0")),
                host_authority: None,
                host_services: None,
                // A joined host may be far from its controller. The agent of Envoy takes no signals.
                sparing: !self.context.node.is_empty() && self.context.envoy.is_none(),
            }),
            workers: configured.unwrap_or_else(|| workers(limit)),
            admin: self.description.admin,
            admin_socket: Some(self.context.paths.admin_socket(&self.description.name)),
            metrics: self.description.metrics,
            health: None,
            application: Ipv4Addr::LOCALHOST.into(),
            probes: Vec::new(),
            application_metrics: None,
            listeners: self.listeners.borrow().clone(),
            gateway_sockets: None,
            heir_socket: self.heir_socket(),
            dns: self.description.dns.clone(),
            drain_timeout_ms: u32::try_from(DRAIN.as_millis()).unwrap_or(u32::MAX),
            mesh: settings.unwrap_or_default(),
            services: Vec::new(),
            inbound: None,
            gateways: Vec::new(),
            egress: None,
        })
    }
}

/// One worker up to one core, then one for each begun core. 0 lets the proxy decide.
fn workers(limit: Option<u32>) -> u16 {
    limit.map_or(0, |millis| {
        u16::try_from(millis.div_ceil(1000).max(1)).unwrap_or(u16::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_follow_the_cpu_limit() {
        assert_eq!(workers(None), 0);
        assert_eq!(workers(Some(200)), 1);
        assert_eq!(workers(Some(1000)), 1);
        assert_eq!(workers(Some(1001)), 2);
    }
}
