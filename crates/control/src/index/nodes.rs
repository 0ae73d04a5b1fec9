//! Nodes of the mesh, for those who want to see it: services, gateways, destinations outside. And to whom an
//! identity belongs.

use super::Inputs;
use super::cluster::Cluster;
use super::inputs::identity_name_of;
use super::protocols::protocol_name;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::WorkloadPort;
use tulle_model::namespaced::ObjectName;

/// The id of what is outside the mesh and calls into it.
pub(crate) const OUTSIDE: &str = "outside";
/// The id of destinations that belong to nobody.
pub(crate) const UNKNOWN: &str = "egress/unknown";

/// A node, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeFacts {
    pub(crate) id: Arc<str>,
    /// `service`, `gateway`, `external` or `outside`.
    pub(crate) kind: &'static str,
    /// With its namespace in a cluster.
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) hosts: BTreeSet<String>,
    pub(crate) endpoints: usize,
    pub(crate) ready: usize,
    pub(crate) identities: BTreeSet<String>,
    pub(crate) ports: BTreeMap<u16, String>,
}

/// Where a service is served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndpointFacts {
    pub(crate) address: String,
    pub(crate) workload: String,
    pub(crate) host: String,
    pub(crate) ready: bool,
}

/// All nodes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) all: BTreeMap<Arc<str>, NodeFacts>,
    by_identity: HashMap<String, Arc<str>>,
    /// The node of each workload or pod.
    by_instance: HashMap<String, Arc<str>>,
    outside: Arc<str>,
    unknown: Arc<str>,
}

impl Nodes {
    /// Returns the node that an identity belongs to; what has none is outside. Where services share one, the first by name.
    pub(crate) fn of_identity(&self, identity: &str) -> &Arc<str> {
        self.by_identity.get(identity).unwrap_or(&self.outside)
    }

    /// Returns the node of a proxy.
    pub(crate) fn of_proxy(&self, identity: &str, instance: &str) -> &Arc<str> {
        let own = self.by_instance.get(instance);
        // It says itself what instance it is, so that must be one of its identity.
        let own = own.filter(|id| {
            let node = self.all.get(*id);
            node.is_some_and(|node| node.identities.contains(identity))
        });
        own.unwrap_or_else(|| self.of_identity(identity))
    }

    /// Returns the node that a proxy calls by this name.
    pub(crate) fn of_destination(&self, name: &str) -> &Arc<str> {
        if let Some((id, _)) = self.all.get_key_value(format!("service/{name}").as_str()) {
            return id;
        }
        if let Some(rule) = name.strip_prefix("Egress/")
            && let Some((id, _)) = self.all.get_key_value(format!("egress/{rule}").as_str())
        {
            return id;
        }
        // A pod that is called by its address is named so.
        let pod = name.strip_prefix("pod/");
        let pod = pod.and_then(|pod| self.by_instance.get(pod));
        pod.unwrap_or(&self.unknown)
    }

    /// Whether an identity serves a node.
    pub(crate) fn serves(&self, identity: &str, node: &str) -> bool {
        let node = self.all.get(node);
        node.is_some_and(|node| node.identities.contains(identity))
    }

    /// The outside.
    pub(crate) fn outside(&self) -> &Arc<str> {
        &self.outside
    }

    /// Finds a node by its id or by its name.
    pub(crate) fn find(&self, name: &str) -> Option<&NodeFacts> {
        let forms = ["", "service/", "gateway/"];
        let mut ids = forms.iter().map(|form| format!("{form}{name}"));
        ids.find_map(|id| self.all.get(id.as_str()))
    }

    fn node(&mut self, kind: &'static str, prefix: &str, name: &str) -> &mut NodeFacts {
        let id: Arc<str> = format!("{prefix}/{name}").into();
        self.all.entry(id.clone()).or_insert_with(|| NodeFacts {
            id,
            kind,
            name: name.to_owned(),
            ..NodeFacts::default()
        })
    }
}

/// Lists all nodes.
pub(super) fn nodes(inputs: &Inputs) -> Nodes {
    let mut nodes = Nodes {
        outside: OUTSIDE.into(),
        unknown: UNKNOWN.into(),
        ..Nodes::default()
    };
    for name in inputs.services.keys() {
        host_service(inputs, name, &mut nodes);
    }
    if let Some(cluster) = &inputs.cluster {
        cluster_services(inputs, cluster, &mut nodes);
    }
    for split in inputs.splits.values() {
        nodes.node("service", "service", &split.service);
    }
    for (name, spec) in &inputs.gateways {
        if spec.gateway_class_name != "tulle" {
            continue;
        }
        let account = match inputs.cluster_gateway(name.as_str()) {
            Some(gateway) => gateway.name.sibling(&gateway.account).into(),
            None => name.clone(),
        };
        let node = nodes.node("gateway", "gateway", name.as_str());
        node.identities.extend(identity(inputs, &account));
        for listener in &spec.listeners {
            node.ports
                .insert(listener.port, listener.protocol.to_string());
        }
    }
    for name in inputs.egress.keys() {
        nodes.node("external", "egress", name.as_str());
    }
    for node in nodes.all.values_mut() {
        let name = inputs.object_name(&node.name);
        let namespace = name
            .as_ref()
            .map(ObjectName::namespace)
            .filter(|n| !n.is_empty());
        node.namespace = namespace.map(str::to_owned);
    }
    // A gateway's identity is its own: a Service in front of its pods has the same one.
    let ranked = nodes.all.values().filter(|n| n.kind == "gateway");
    let ranked = ranked.chain(nodes.all.values().filter(|n| n.kind != "gateway"));
    let mut by_identity = HashMap::new();
    for node in ranked {
        for identity in &node.identities {
            by_identity
                .entry(identity.clone())
                .or_insert_with(|| node.id.clone());
        }
    }
    nodes.by_identity = by_identity;
    nodes
}

fn identity(inputs: &Inputs, account: &ObjectName) -> Option<String> {
    let identity = inputs.identity(account).ok();
    identity.as_ref().map(SpiffeId::to_string)
}

fn host_service(inputs: &Inputs, name: &str, nodes: &mut Nodes) {
    let (mut facts, mut workloads) = (NodeFacts::default(), Vec::new());
    for (workload, spec) in inputs.workloads_of(name) {
        let id = inputs.identity_named(identity_name_of(workload, spec)).ok();
        facts
            .identities
            .extend(id.as_ref().map(SpiffeId::to_string));
        for port in &spec.ports {
            facts.ports.insert(port.port, protocol(port));
        }
        if let Some(placed) = inputs.placements.get(workload) {
            facts.endpoints += 1;
            facts.ready += usize::from(!placed.not_ready);
            facts.hosts.insert(placed.node.clone());
        }
        workloads.push(workload.to_owned());
    }
    // The controller's own host has no name.
    facts.hosts.remove("");
    let node = nodes.node("service", "service", name);
    let (id, name) = (node.id.clone(), node.name.clone());
    *node = NodeFacts {
        id: id.clone(),
        kind: "service",
        name,
        ..facts
    };
    let workloads = workloads.into_iter().map(|workload| (workload, id.clone()));
    nodes.by_instance.extend(workloads);
}

fn protocol(port: &WorkloadPort) -> String {
    protocol_name(port.protocol()).to_owned()
}

fn cluster_services(inputs: &Inputs, cluster: &Cluster, nodes: &mut Nodes) {
    for service in cluster.services() {
        let accounts = cluster.accounts(service.name.as_str()).into_iter();
        let identities = accounts.filter_map(|account| identity(inputs, &account.into()));
        let node = nodes.node("service", "service", service.name.as_str());
        node.identities.extend(identities);
        for port in &service.ports {
            node.ports.insert(port.port.port, protocol(&port.port));
        }
        let all = service.ports.iter().flat_map(|port| &port.endpoints);
        let mut seen = BTreeMap::new();
        for endpoint in all {
            *seen.entry(endpoint.address.ip()).or_insert(false) |= endpoint.ready;
            node.hosts.insert(endpoint.node.clone());
        }
        node.hosts.remove("");
        node.endpoints = seen.len();
        node.ready = seen.values().filter(|ready| **ready).count();
    }
    for pod in cluster.pods().filter(|pod| pod.sidecar) {
        if let Some(service) = cluster.services_of(pod).next() {
            let id = format!("service/{}", service.name);
            if let Some((id, _)) = nodes.all.get_key_value(id.as_str()) {
                let id = id.clone();
                nodes.by_instance.insert(pod.name.to_string(), id);
            }
            continue;
        }
        // A client that nobody calls has no Service.
        let identity = identity(inputs, &pod.account().into());
        let node = nodes.node("service", "workload", pod.account().as_str());
        node.identities.extend(identity);
        node.hosts
            .extend(Some(pod.node.clone()).filter(|n| !n.is_empty()));
        node.endpoints += 1;
        node.ready += 1;
        let id = node.id.clone();
        nodes.by_instance.insert(pod.name.to_string(), id);
    }
}

/// Lists where a service is served.
pub(super) fn endpoints(inputs: &Inputs, name: &str) -> Vec<EndpointFacts> {
    let mut all = Vec::new();
    for (workload, _) in inputs.workloads_of(name) {
        let Some(placed) = inputs.placements.get(workload) else {
            continue;
        };
        all.extend(placed.ports.iter().map(|port| EndpointFacts {
            address: port.endpoint.to_string(),
            workload: workload.to_owned(),
            host: placed.node.clone(),
            ready: !placed.not_ready,
        }));
    }
    let ports = inputs.cluster_service(name).map(|service| &service.ports);
    let of_cluster = ports.into_iter().flatten().flat_map(|port| &port.endpoints);
    all.extend(of_cluster.map(|endpoint| EndpointFacts {
        address: endpoint.address.to_string(),
        workload: endpoint.pod.clone().unwrap_or_default(),
        host: endpoint.node.clone(),
        ready: endpoint.ready,
    }));
    all
}
