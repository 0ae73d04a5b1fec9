//! Names the workloads behind endpoints and proxies, for metrics. No decision depends on it.

use super::inputs::{identity_name_of, service_of};
use super::{Inputs, Placement};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::WorkloadSpec;
use tulle_model::namespaced::ObjectName;
use tulle_model::resource::{ServicePort, Workload, Workloads};

/// A Workload of a host: its service is its application.
pub(super) fn of_host(name: &str, spec: &WorkloadSpec) -> Workload {
    let service = service_of(name, spec).to_owned();
    Workload {
        name: name.to_owned(),
        kind: "Workload".to_owned(),
        app: service.clone(),
        canonical_service: service,
        ..Default::default()
    }
}

/// The Deployment of a cluster's gateway, which has the name of its service account, or the gateway of a host.
pub(super) fn of_gateway(inputs: &Inputs, gateway: &ObjectName) -> Workload {
    let (name, kind) = match inputs.cluster_gateway(gateway.as_str()) {
        Some(gateway) => (gateway.account.clone(), ""),
        None => (gateway.name().to_owned(), "Gateway"),
    };
    Workload {
        app: name.clone(),
        name,
        kind: kind.to_owned(),
        ..Default::default()
    }
}

/// The workloads behind a service's endpoints.
pub(super) fn table(
    inputs: &Inputs,
    service: &str,
    identities: &[SpiffeId],
    ports: &[ServicePort],
) -> Workloads {
    let place = |identity: &SpiffeId| {
        let place = identities.iter().position(|known| known == identity)?;
        u16::try_from(place).ok()
    };
    let hosted: Vec<(Workload, u16, &Placement)> = inputs
        .workloads_of(service)
        .filter_map(|(name, spec)| {
            let identity = inputs.identity_named(identity_name_of(name, spec));
            let placement = inputs.placements.get(name)?;
            Some((of_host(name, spec), place(&identity.ok()?)?, placement))
        })
        .collect();
    let hosted = hosted.iter().flat_map(|(workload, identity, placement)| {
        let ports = placement.ports.iter();
        ports.map(move |port| (port.endpoint, (workload, *identity)))
    });
    let hosted: BTreeMap<SocketAddr, (&Workload, u16)> = hosted.collect();
    let cluster = inputs.cluster.as_ref();
    let pods = cluster.and_then(|c| Some(c.pods_by_address(c.service(service)?)));
    let pods = pods.into_iter().flatten().filter_map(|(ip, pod)| {
        let identity = inputs.identity(&pod.account().into()).ok()?;
        Some((ip, (&*pod.workload, place(&identity)?)))
    });
    let pods: BTreeMap<IpAddr, (&Workload, u16)> = pods.collect();
    let ports: Vec<Vec<SocketAddr>> = ports
        .iter()
        .map(|port| port.endpoints.iter().map(|e| e.address).collect())
        .collect();
    Workloads::new(&ports, |address| {
        let pod = pods.get(&address.ip());
        pod.or_else(|| hosted.get(address)).copied()
    })
}
