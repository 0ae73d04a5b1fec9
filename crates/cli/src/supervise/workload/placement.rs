//! Tells the controller of a workload: where it runs, whether it may be called, and that it has moved to another address of its host.

use super::{RETRY, Unit};
use crate::failure::Result;
use crate::supervise::proxy::RunningProxy;
use crate::supervise::workload_plan::WorkloadPlan;
use std::net::{IpAddr, SocketAddr};
use tokio::sync::watch;
use tokio::time::sleep;
use tulle_api::v1::Placement;

impl Unit {
    /// Tells the controller where it runs; that it may be called comes later.
    pub(super) async fn report(&self, plan: &WorkloadPlan) -> Result<()> {
        let placement = Placement {
            workload: self.name.clone(),
            node: self.context.node.clone(),
            ports: plan.ports.clone(),
            addresses: plan.addresses.iter().map(ToString::to_string).collect(),
            not_ready: true,
            ..Default::default()
        };
        *self.placement.borrow_mut() = Some(placement.clone());
        if self.context.line.is_away() {
            // It is told as soon as it is back.
            return Ok(());
        }
        self.context.report(placement).await
    }

    /// Tells the controller each time it becomes callable or no longer is, until it is heard.
    pub(super) async fn announce(
        &self,
        mut wanted: watch::Receiver<bool>,
        announced: watch::Sender<bool>,
    ) {
        // The controller may have received a report although its answer was lost.
        let mut doubtful = false;
        while wanted.changed().await.is_ok() {
            loop {
                let callable = *wanted.borrow_and_update();
                if callable == *announced.borrow() && !doubtful {
                    break;
                }
                let placement = self.placement.borrow_mut().as_mut().map(|placement| {
                    placement.not_ready = !callable;
                    placement.clone()
                });
                let Some(placement) = placement else { return };
                match self.context.report(placement).await {
                    Ok(()) => {
                        doubtful = false;
                        announced.send_replace(callable);
                    }
                    Err(failure) => {
                        tracing::warn!(workload = self.name, "{failure}");
                        doubtful = true;
                        sleep(RETRY).await;
                        self.context.line.back().await;
                    }
                }
            }
        }
    }

    /// Moves to this host's address whenever that becomes another. The controller is told by whoever finds that
    /// it can be reached again.
    pub(super) async fn follow_address(&self, plan: &WorkloadPlan, sidecar: Option<&RunningProxy>) {
        let mut addresses = self.context.reachable.subscribe();
        let on_host = plan.namespace.is_none().then_some(plan.endpoints.first());
        let (Some(Some(mut old)), Some(sidecar)) =
            (on_host.map(|e| e.map(SocketAddr::ip)), sidecar)
        else {
            return std::future::pending().await;
        };
        loop {
            let new = *addresses.borrow_and_update();
            if new != old {
                tracing::warn!(workload = self.name, %old, %new, "moves to this host's new address");
                if let Some(placement) = self.placement.borrow_mut().as_mut() {
                    for port in &mut placement.ports {
                        port.endpoint = moved(&port.endpoint, old, new);
                    }
                }
                self.update(|s| {
                    let endpoints = s.endpoints.iter_mut();
                    endpoints
                        .filter(|e| e.ip() == old)
                        .for_each(|e| e.set_ip(new));
                });
                sidecar.move_to(old, new);
                old = new;
            }
            if addresses.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Tells the controller where it is.
    pub(super) async fn tell(&self, placement: Placement) {
        if let Err(failure) = self.context.report(placement).await {
            // Expected of a workload whose object was deleted.
            tracing::debug!("{failure}");
        }
    }
}

/// The endpoint at the new address, if it is at the old one.
fn moved(endpoint: &str, old: IpAddr, new: IpAddr) -> String {
    match endpoint.parse::<SocketAddr>() {
        Ok(at) if at.ip() == old => SocketAddr::new(new, at.port()).to_string(),
        _ => endpoint.to_owned(),
    }
}
