//! Reads Services, EndpointSlices and pods: the fields that matter here. Pure.

use super::ports::{direct_ports, is_tcp, opaque_ports, service_port};
use crate::names::{EGRESS_GATEWAY, SIDECAR};
use crate::pod::Pod;
use crate::workload;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tulle_model::manifest::WorkloadPort;
use tulle_model::namespaced::{Namespaced, ObjectName};
use tulle_model::resource::Workload;

/// Zones that an endpoint may be meant for, as in Kubernetes.
const MOST_ZONES: usize = 8;

pub(super) const SERVICE_OF_SLICE: &str = "kubernetes.io/service-name";

#[derive(Debug)]
pub(super) struct SeenService {
    pub(super) created: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<(String, WorkloadPort)>,
    pub(super) sticky: bool,
    pub(super) node_local: bool,
}

impl SeenService {
    /// Reads a Service; `None`: it has no spec, or is a name for something outside.
    pub(super) fn read(key: &Namespaced, service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        // A name for something outside: resolvers follow it, no connection has its address.
        if spec.type_.as_deref() == Some("ExternalName") {
            return None;
        }
        let addresses = spec.cluster_ips.iter().flatten();
        let opaque = opaque_ports("Service", key, &service.metadata);
        let ports = spec
            .ports
            .iter()
            .flatten()
            .filter(|p| is_tcp(p.protocol.as_deref()));
        Some(Self {
            created: created(&service.metadata),
            // `None` for a headless one.
            addresses: addresses.filter_map(|ip| ip.parse().ok()).collect(),
            ports: ports.filter_map(|p| service_port(p, &opaque)).collect(),
            sticky: spec.session_affinity.as_deref() == Some("ClientIP"),
            node_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        })
    }
}

#[derive(Debug)]
pub(super) struct SeenSlice {
    pub(super) service: Namespaced,
    /// The number of each port, by its name.
    pub(super) ports: BTreeMap<String, u16>,
    pub(super) endpoints: Vec<SeenEndpoint>,
    /// The number of endpoints that it makes of a port, counted once for each zone that they are meant for.
    pub(super) size: usize,
    /// Pods of other namespaces that it refers to. The references are ignored, and logged once.
    pub(super) foreign: BTreeSet<ObjectName>,
}

#[derive(Debug)]
pub(super) struct SeenEndpoint {
    pub(super) addresses: Vec<IpAddr>,
    /// One of the slice's own namespace.
    pub(super) pod: Option<Namespaced>,
    pub(super) ready: bool,
    pub(super) node: String,
    /// Zones of the clients it is meant for.
    pub(super) zones: Vec<String>,
}

impl SeenEndpoint {
    /// The number of endpoints that it makes of a port.
    fn size(&self) -> usize {
        self.addresses.len() * self.zones.len().max(1)
    }
}

impl SeenSlice {
    /// Reads an EndpointSlice; `None`: it is no Service's.
    pub(super) fn read(key: &Namespaced, slice: &EndpointSlice) -> Option<Self> {
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|l| l.get(SERVICE_OF_SLICE));
        // Always one of its own namespace.
        let service = service.and_then(|s| Namespaced::new(s, key.namespace()))?;
        let ports = slice
            .ports
            .iter()
            .flatten()
            .filter(|p| is_tcp(p.protocol.as_deref()));
        let ports = ports.filter_map(|p| {
            let number = u16::try_from(p.port?).ok().filter(|number| *number != 0)?;
            Some((p.name.clone().unwrap_or_default(), number))
        });
        let mut by_name = BTreeMap::new();
        for (name, number) in ports {
            by_name.entry(name).or_insert(number);
        }
        let mut foreign = BTreeSet::new();
        let endpoints = slice.endpoints.iter().map(|endpoint| {
            let target = endpoint.target_ref.as_ref();
            let mut pod = target.filter(|t| t.kind.as_deref() == Some("Pod"));
            // Anybody may write a slice. One of another namespace's pod says nothing of that pod.
            let other = pod.and_then(|p| p.namespace.as_deref());
            if let Some(other) = other.filter(|other| *other != key.namespace()) {
                let name = pod.and_then(|p| p.name.as_deref()).unwrap_or_default();
                foreign.insert(ObjectName::in_namespace(name, other));
                pod = None;
            }
            let ready = endpoint.conditions.as_ref().and_then(|c| c.ready);
            let hints = endpoint.hints.as_ref().and_then(|h| h.for_zones.as_ref());
            let zones = hints.into_iter().flatten().take(MOST_ZONES);
            SeenEndpoint {
                addresses: endpoint
                    .addresses
                    .iter()
                    .filter_map(|a| a.parse().ok())
                    .collect(),
                pod: pod
                    .and_then(|p| p.name.as_deref())
                    .map(|name| key.sibling(name)),
                // Absent means ready (discovery.k8s.io/v1, EndpointConditions).
                ready: ready.unwrap_or(true),
                node: endpoint.node_name.clone().unwrap_or_default(),
                zones: zones.map(|zone| zone.name.clone()).collect(),
            }
        });
        let endpoints: Vec<SeenEndpoint> = endpoints.collect();
        Some(Self {
            ports: by_name,
            size: endpoints.iter().map(SeenEndpoint::size).sum(),
            endpoints,
            service,
            foreign,
        })
    }

    /// The pods of its endpoints.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Namespaced> {
        self.endpoints.iter().filter_map(|e| e.pod.as_ref())
    }
}

#[derive(Debug)]
pub(super) struct SeenPod {
    pub(super) created: String,
    pub(super) account: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<u16>,
    pub(super) opaque: Vec<u16>,
    pub(super) direct: Vec<u16>,
    pub(super) sidecar: bool,
    pub(super) egress_gateway: bool,
    pub(super) node: String,
    /// The pod has its node's network, and so is no pod of the mesh.
    pub(super) of_node: bool,
    pub(super) workload: Arc<Workload>,
}

impl SeenPod {
    /// Reads a pod; `None`: it has no spec, or has ended.
    pub(super) fn read(key: &Namespaced, pod: &Pod) -> Option<Self> {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref());
        // Addresses of a pod that has ended may be another pod's by now.
        let phase = status.and_then(|s| s.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let ips = status
            .and_then(|s| s.pod_ips.as_ref())
            .into_iter()
            .flatten();
        let all = spec.all_containers();
        let runs = |name: &str| all.clone().any(|c| c.name == name);
        let proxies = [SIDECAR, EGRESS_GATEWAY];
        let own = all.clone().filter(|c| !proxies.contains(&&*c.name));
        let ports = own.flat_map(|c| c.ports.iter().flatten());
        let ports = ports.filter(|p| is_tcp(p.protocol.as_deref()));
        let account = spec.service_account_name.clone();
        Some(Self {
            created: created(&pod.metadata),
            account: account.unwrap_or_else(|| "default".into()),
            addresses: ips.filter_map(|ip| ip.ip.parse().ok()).collect(),
            ports: ports
                .filter_map(|p| u16::try_from(p.container_port).ok())
                .collect(),
            opaque: opaque_ports("Pod", key, &pod.metadata),
            direct: direct_ports(&pod.metadata, spec),
            sidecar: proxies.into_iter().any(runs),
            egress_gateway: runs(EGRESS_GATEWAY),
            node: spec.node_name.clone().unwrap_or_default(),
            of_node: spec.host_network == Some(true),
            workload: Arc::new(workload::of_pod(&pod.metadata)),
        })
    }
}

/// When it was made, in a form that sorts.
fn created(metadata: &ObjectMeta) -> String {
    let created = metadata.creation_timestamp.as_ref();
    created.map(|at| at.0.to_string()).unwrap_or_default()
}
