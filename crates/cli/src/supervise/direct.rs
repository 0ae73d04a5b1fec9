//! Runs workloads without sidecars: they call each other directly, in plaintext, and everybody may.
//!
//! This is what the sidecars are compared with: the same manifests, processes and names. In
//! namespaces a service's name stands for the addresses of its workloads. On the host the variable
//! of a declared upstream names the application's own address. Routes between services, policies
//! and balancing need a sidecar, so there are none.

use super::context::{Context, placed};
use super::direct_places::{Direct, LOCALHOST, own};
use super::ports;
use super::state::Mode;
use super::workload_plan::{Planner, WorkloadPlan};
use crate::failure::{Failure, Result};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Says what a mesh without sidecars does not do.
pub(super) fn warn(context: &Context) {
    if !context.data_plane.has_sidecars() {
        context.warn(
            "there are no sidecars (--data-plane none): everything is plaintext and anyone may call \
             anyone, whatever Mesh and TrafficTargets say"
                .into(),
        );
    }
}

impl Planner {
    /// Decides where a workload without a sidecar runs and how others reach it.
    pub(super) async fn settle_directly(&self) -> Result<WorkloadPlan> {
        let mut plan = WorkloadPlan {
            namespace: None,
            number: None,
            dns: None,
            listeners: Vec::new(),
            ports: Vec::new(),
            addresses: Vec::new(),
            endpoints: Vec::new(),
            metrics: SocketAddr::new(LOCALHOST, 0),
            scraped: SocketAddr::new(LOCALHOST, 0),
            reserved: Vec::new(),
            admin: SocketAddr::new(LOCALHOST, 0),
            upstreams: BTreeMap::new(),
            app: self.spec.address.unwrap_or(LOCALHOST),
        };
        if self.context.mode == Mode::Namespaces && self.spec.address.is_none() {
            let (number, namespace) = self.make_namespace().await?;
            // Not its IPv6 address: see `apply_direct`.
            plan.addresses = vec![namespace.v4.into()];
            plan.number = Some(number);
            plan.namespace = Some(namespace);
        } else if !self.spec.command.is_empty() {
            for port in &self.spec.ports {
                ports::free(SocketAddr::new(plan.app, own(port)))?;
            }
        }
        if let Err(failure) = self.make_reachable(&mut plan) {
            self.leave(plan).await;
            return Err(failure);
        }
        Ok(plan)
    }

    fn make_reachable(&self, plan: &mut WorkloadPlan) -> Result<()> {
        for port in &self.spec.ports {
            let target = SocketAddr::new(plan.app, own(port));
            let endpoint = match plan.addresses.first() {
                Some(ip) => SocketAddr::new(*ip, port.port),
                None => target,
            };
            let mut placed = placed(port.port, endpoint, target);
            placed.mutual_tls = false;
            plan.ports.push(placed);
            plan.endpoints.push(endpoint);
        }
        let mut known = plan.addresses.clone();
        if known.is_empty() && !plan.app.is_loopback() {
            known.push(plan.app);
        }
        let placed = (self.service.clone(), known);
        let mut direct = self.context.direct.borrow_mut();
        direct.placed.insert(self.name.clone(), placed);
        for upstream in &self.spec.upstreams {
            let address = match plan.namespace {
                Some(_) => format!("{}:{}", upstream.service, upstream.port),
                None => self.upstream(&direct, &upstream.service, upstream.port)?,
            };
            let here = format!("{LOCALHOST}:{}", upstream.local_port.unwrap_or_default());
            if upstream.local_port.is_some() && plan.namespace.is_none() && address != here {
                return Err(Failure::new(format!(
                    "nobody listens on {here} for the upstream {}",
                    upstream.service
                ))
                .because("a `localPort` is the sidecar's, and there is none")
                .fix("give the upstream `env` in place of `localPort`"));
            }
            if let Some(variable) = &upstream.env {
                plan.upstreams.insert(variable.clone(), address);
            }
        }
        drop(direct);
        self.context.service_addresses(&self.service).map(drop)
    }

    fn upstream(&self, direct: &Direct, service: &str, port: u16) -> Result<String> {
        let found = direct.on_host(service, port);
        found.map(|a| a.to_string()).ok_or_else(|| {
            Failure::new(format!(
                "cannot find the upstream {service} with port {port}"
            ))
            .because("without sidecars it must be a Workload on this host")
        })
    }
}
