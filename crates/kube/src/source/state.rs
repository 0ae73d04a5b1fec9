//! Turns the objects of the API server into edits of the index. Pure.

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tulle_control::index::{ClusterEndpoint, ClusterPod, ClusterPort, ClusterService, Edit};
use tulle_model::manifest::WorkloadPort;
use tulle_model::namespaced::{Namespaced, ObjectName};
use tulle_model::resource::Workload;
use tulle_redirect::{PodRules, REDIRECTION};

use crate::inject::{self, containers};
use crate::metadata::Metadata;
use crate::names::{
    EGRESS_GATEWAY, EXCLUDE_INBOUND_PORTS, HEALTH_PORT, INIT, METRICS_PORT, OPAQUE_PORTS, PROFILE,
    SIDECAR,
};
use crate::pod::{Pod, PodSpec};
use crate::workload;

/// Zones that an endpoint may be meant for, as in Kubernetes.
const MOST_ZONES: usize = 8;

const SERVICE_OF_SLICE: &str = "kubernetes.io/service-name";
const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";

/// The fields of the cluster's objects that matter here. All others are dropped when an object is
/// seen.
#[derive(Debug, Default)]
pub(super) struct State {
    services: BTreeMap<Namespaced, SeenService>,
    slices: BTreeMap<Namespaced, SeenSlice>,
    /// The slices of each service.
    of_service: BTreeMap<Namespaced, BTreeSet<Namespaced>>,
    /// Pods, known or not, with the slices that have an endpoint of each.
    of_pod: BTreeSet<(Namespaced, ObjectName)>,
    /// Counts the entries of `of_pod` that were looked at.
    #[cfg(test)]
    looked_at: std::cell::Cell<usize>,
    pods: BTreeMap<Namespaced, SeenPod>,
    /// The pods on each node.
    on_node: BTreeMap<String, BTreeSet<Namespaced>>,
    localities: BTreeMap<String, String>,
    /// Labels of each namespace.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Counts changes of services' existence and ports and of namespaces: what references to them
    /// mean.
    revision: u64,
    /// Namespaces that are strict, and whether the index knows.
    strict: BTreeSet<String>,
    strict_changed: bool,
    /// Names of what changed since the last [`State::edits`].
    changed_services: BTreeSet<Namespaced>,
    changed_pods: BTreeSet<Namespaced>,
}

#[derive(Debug)]
struct SeenService {
    created: String,
    addresses: Vec<IpAddr>,
    ports: Vec<(String, WorkloadPort)>,
    sticky: bool,
    node_local: bool,
}

#[derive(Debug)]
struct SeenSlice {
    service: Namespaced,
    ports: Vec<(String, u16)>,
    endpoints: Vec<SeenEndpoint>,
    /// Pods of other namespaces that it refers to. The references are ignored, and logged once.
    foreign: BTreeSet<ObjectName>,
}

#[derive(Debug)]
struct SeenEndpoint {
    addresses: Vec<IpAddr>,
    /// One of the slice's own namespace.
    pod: Option<Namespaced>,
    ready: bool,
    node: String,
    /// Zones of the clients it is meant for.
    zones: Vec<String>,
}

#[derive(Debug)]
struct SeenPod {
    created: String,
    account: String,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    opaque: Vec<u16>,
    direct: Vec<u16>,
    sidecar: bool,
    egress_gateway: bool,
    node: String,
    /// The pod has its node's network, and so is no pod of the mesh.
    of_node: bool,
    workload: Arc<Workload>,
}

impl SeenSlice {
    /// The pods of its endpoints.
    fn pods(&self) -> impl Iterator<Item = &Namespaced> {
        self.endpoints.iter().filter_map(|e| e.pod.as_ref())
    }
}

impl State {
    pub(super) fn service(&mut self, key: Namespaced, service: &Service) {
        let Some(spec) = &service.spec else {
            return self.remove_service(&key);
        };
        // A name for something outside: resolvers follow it, no connection has its address.
        if spec.type_.as_deref() == Some("ExternalName") {
            return self.remove_service(&key);
        }
        let addresses = spec.cluster_ips.iter().flatten();
        let opaque = opaque_ports("Service", &key, &service.metadata);
        let ports = spec
            .ports
            .iter()
            .flatten()
            .filter(|p| is_tcp(p.protocol.as_deref()));
        let seen = SeenService {
            created: created(&service.metadata),
            // `None` for a headless one.
            addresses: addresses.filter_map(|ip| ip.parse().ok()).collect(),
            ports: ports.filter_map(|p| port(p, &opaque)).collect(),
            sticky: spec.session_affinity.as_deref() == Some("ClientIP"),
            node_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        };
        let old = self.services.insert(key.clone(), seen);
        if old.is_none_or(|old| old.ports != self.services[&key].ports) {
            self.revision += 1;
        }
        self.changed_services.insert(key);
    }

    pub(super) fn remove_service(&mut self, key: &Namespaced) {
        if self.services.remove(key).is_some() {
            self.revision += 1;
            self.changed_services.insert(key.clone());
        }
    }

    pub(super) fn keep_services(&mut self, listed: &BTreeSet<ObjectName>) {
        gone(&self.services, listed).for_each(|key| self.remove_service(&key));
    }

    /// The ports of a service with their names, if there is one of this name in the namespace.
    pub(super) fn ports(
        &self,
        name: &str,
        namespace: &str,
    ) -> Option<impl Iterator<Item = (&str, u16)> + use<'_>> {
        let service = self.services.get(&Namespaced::new(name, namespace)?)?;
        let ports = service.ports.iter();
        Some(ports.map(|(name, port)| (name.as_str(), port.port)))
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn namespace(&mut self, name: String, namespace: &Metadata) {
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        // A misspelt value must not open the namespace.
        let strict = labels.get(PROFILE).is_some_and(|p| p != "permissive");
        let changed = match strict {
            true => self.strict.insert(name.clone()),
            false => self.strict.remove(&name),
        };
        self.strict_changed |= changed;
        let old = self.namespaces.insert(name, labels.clone());
        if old.as_ref() != Some(&labels) {
            self.revision += 1;
        }
    }

    pub(super) fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
        self.strict_changed |= self.strict.remove(name);
        self.revision += 1;
    }

    pub(super) fn keep_namespaces(&mut self, listed: &BTreeSet<ObjectName>) {
        gone(&self.namespaces, listed).for_each(|name| self.remove_namespace(&name));
    }

    /// The labels of a namespace.
    pub(super) fn labels(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(namespace)
    }

    pub(super) fn slice(&mut self, key: Namespaced, slice: &EndpointSlice) {
        let said = self.slices.get(&key).map(|old| old.foreign.clone());
        self.remove_slice(&key);
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|l| l.get(SERVICE_OF_SLICE));
        // Always one of its own namespace.
        let Some(service) = service.and_then(|s| Namespaced::new(s, key.namespace())) else {
            return;
        };
        let ports = slice
            .ports
            .iter()
            .flatten()
            .filter(|p| is_tcp(p.protocol.as_deref()));
        let ports = ports.filter_map(|p| {
            let number = u16::try_from(p.port?).ok().filter(|number| *number != 0)?;
            Some((p.name.clone().unwrap_or_default(), number))
        });
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
        let seen = SeenSlice {
            ports: ports.collect(),
            endpoints: endpoints.collect(),
            service: service.clone(),
            foreign,
        };
        if !seen.foreign.is_empty() && said.as_ref() != Some(&seen.foreign) {
            tracing::warn!(
                slice = key.as_str(),
                pods = ?seen.foreign,
                "an EndpointSlice refers to pods of another namespace (targetRef): those endpoints are ignored"
            );
        }
        self.of_service
            .entry(service.clone())
            .or_default()
            .insert(key.clone());
        for pod in seen.pods() {
            self.of_pod.insert((pod.clone(), key.clone().into()));
        }
        self.slices.insert(key, seen);
        self.changed_services.insert(service);
    }

    pub(super) fn remove_slice(&mut self, key: &Namespaced) {
        let Some(slice) = self.slices.remove(key) else {
            return;
        };
        for pod in slice.pods() {
            self.of_pod.remove(&(pod.clone(), key.clone().into()));
        }
        if let Some(keys) = self.of_service.get_mut(&slice.service) {
            keys.remove(key);
            if keys.is_empty() {
                self.of_service.remove(&slice.service);
            }
        }
        self.changed_services.insert(slice.service);
    }

    pub(super) fn keep_slices(&mut self, listed: &BTreeSet<ObjectName>) {
        gone(&self.slices, listed).for_each(|key| self.remove_slice(&key));
    }

    pub(super) fn pod(&mut self, key: Namespaced, pod: &Pod) {
        let (Some(spec), status) = (&pod.spec, pod.status.as_ref()) else {
            return self.remove_pod(&key);
        };
        // Addresses of a pod that has ended may be another pod's by now.
        let phase = status.and_then(|s| s.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return self.remove_pod(&key);
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
        let seen = SeenPod {
            created: created(&pod.metadata),
            account: account.unwrap_or_else(|| "default".into()),
            addresses: ips.filter_map(|ip| ip.ip.parse().ok()).collect(),
            ports: ports
                .filter_map(|p| u16::try_from(p.container_port).ok())
                .collect(),
            opaque: opaque_ports("Pod", &key, &pod.metadata),
            direct: direct_ports(&pod.metadata, spec),
            sidecar: proxies.into_iter().any(runs),
            egress_gateway: runs(EGRESS_GATEWAY),
            node: spec.node_name.clone().unwrap_or_default(),
            of_node: spec.host_network == Some(true),
            workload: Arc::new(workload::of_pod(&pod.metadata)),
        };
        // Endpoints name the pod only where it has an address of its own.
        let was_of_node = self.pods.get(&key).is_some_and(|old| old.of_node);
        if seen.of_node != was_of_node {
            self.change_endpoints(&key);
        }
        let node = self.on_node.entry(seen.node.clone()).or_default();
        node.insert(key.clone());
        let node = seen.node.clone();
        if let Some(old) = self.pods.insert(key.clone(), seen)
            && old.node != node
        {
            self.leave(&old.node, &key);
        }
        self.changed_pods.insert(key);
    }

    pub(super) fn remove_pod(&mut self, key: &Namespaced) {
        let Some(old) = self.pods.remove(key) else {
            return;
        };
        self.leave(&old.node, key);
        if old.of_node {
            self.change_endpoints(key);
        }
        self.changed_pods.insert(key.clone());
    }

    /// A pod is no longer on a node.
    fn leave(&mut self, node: &str, pod: &Namespaced) {
        if let Some(pods) = self.on_node.get_mut(node) {
            pods.remove(pod);
            if pods.is_empty() {
                self.on_node.remove(node);
            }
        }
    }

    /// The services that have endpoints of this pod.
    fn change_endpoints(&mut self, pod: &Namespaced) {
        let services = self.slices_of(pod).map(|slice| slice.service.clone());
        let services: Vec<Namespaced> = services.collect();
        self.changed_services.extend(services);
    }

    /// The slices that have an endpoint of this pod.
    fn slices_of<'a>(&'a self, pod: &'a Namespaced) -> impl Iterator<Item = &'a SeenSlice> {
        let first = (pod.clone(), ObjectName::Plain("".into()));
        let from = self.of_pod.range(first..);
        #[cfg(test)]
        let from = from.inspect(|_| self.looked_at.set(self.looked_at.get() + 1));
        let own = from.take_while(move |(of, _)| of == pod);
        own.filter_map(|(_, slice)| self.slices.get(slice.as_str()))
    }

    pub(super) fn keep_pods(&mut self, listed: &BTreeSet<ObjectName>) {
        gone(&self.pods, listed).for_each(|key| self.remove_pod(&key));
    }

    pub(super) fn node(&mut self, name: String, node: &Metadata) {
        let label = |name| node.metadata.labels.as_ref()?.get(name);
        let locality = match (label(REGION), label(ZONE)) {
            (Some(region), Some(zone)) => format!("{region}/{zone}"),
            (Some(region), None) => region.clone(),
            (None, Some(zone)) => zone.clone(),
            (None, None) => String::new(),
        };
        let old = self.localities.insert(name.clone(), locality.clone());
        if old.unwrap_or_default() != locality {
            let there = self.on_node.get(&name).into_iter().flatten();
            self.changed_pods.extend(there.cloned());
            // Hints name a zone only, and which region that is in nodes say.
            let hinted = |s: &&SeenSlice| s.endpoints.iter().any(|e| !e.zones.is_empty());
            let slices = self.slices.values().filter(hinted);
            self.changed_services
                .extend(slices.map(|s| s.service.clone()));
        }
    }

    pub(super) fn remove_node(&mut self, name: &str) {
        self.localities.remove(name);
    }

    pub(super) fn keep_nodes(&mut self, listed: &BTreeSet<ObjectName>) {
        self.localities
            .retain(|name, _| listed.contains(name.as_str()));
    }

    /// Returns the changes since the last time.
    pub(super) fn edits(&mut self) -> Vec<Edit> {
        let mut edits = Vec::new();
        if std::mem::take(&mut self.strict_changed) {
            edits.push(Edit::StrictNamespaces(self.strict.clone()));
        }
        for key in std::mem::take(&mut self.changed_pods) {
            let pod = self.pods.get(&key).filter(|pod| !pod.of_node);
            edits.push(match pod {
                Some(pod) => Edit::Pod(Box::new(self.cluster_pod(&key, pod))),
                None => Edit::RemovePod(key),
            });
        }
        for key in std::mem::take(&mut self.changed_services) {
            edits.push(match self.services.get(&key) {
                Some(service) => Edit::Service(Box::new(self.cluster_service(&key, service))),
                None => Edit::RemoveService(key),
            });
        }
        edits
    }

    fn cluster_pod(&self, key: &Namespaced, pod: &SeenPod) -> ClusterPod {
        ClusterPod {
            name: key.clone(),
            created: pod.created.clone(),
            account: pod.account.clone(),
            addresses: pod.addresses.clone(),
            ports: pod.ports.clone(),
            opaque: pod.opaque.clone(),
            direct: match pod.sidecar {
                true => pod.direct.clone(),
                false => Vec::new(),
            },
            sidecar: pod.sidecar,
            egress_gateway: pod.egress_gateway,
            node: pod.node.clone(),
            locality: self.localities.get(&pod.node).cloned().unwrap_or_default(),
            workload: pod.workload.clone(),
        }
    }

    fn cluster_service(&self, key: &Namespaced, service: &SeenService) -> ClusterService {
        let slices = self.of_service.get(key).into_iter().flatten();
        let slices: Vec<&SeenSlice> = slices.filter_map(|key| self.slices.get(key)).collect();
        let ports = service.ports.iter().map(|(name, port)| ClusterPort {
            port: port.clone(),
            endpoints: slices
                .iter()
                .flat_map(|slice| self.endpoints(slice, name))
                .collect(),
        });
        ClusterService {
            ports: ports.collect(),
            name: key.clone(),
            created: service.created.clone(),
            addresses: service.addresses.clone(),
            sticky: service.sticky,
            node_local: service.node_local,
        }
    }

    /// `region/zone` of a zone, as nodes have it.
    fn place(&self, zone: &str) -> String {
        let mut places = self.localities.values();
        let place = places.find(|place| place.rsplit('/').next() == Some(zone));
        place.map_or(zone, String::as_str).to_owned()
    }

    /// The endpoints that a slice has for the port of this name.
    fn endpoints(&self, slice: &SeenSlice, name: &str) -> Vec<ClusterEndpoint> {
        let mut ports = slice.ports.iter();
        let Some((_, number)) = ports.find(|(n, _)| n == name) else {
            return Vec::new();
        };
        let of_node = |pod: &Namespaced| self.pods.get(pod).is_some_and(|pod| pod.of_node);
        let zones = slice.endpoints.iter().flat_map(|e| &e.zones);
        // A slice names few zones, and each again and again.
        let zones: BTreeSet<&String> = zones.collect();
        let places = zones.into_iter().map(|zone| (zone, self.place(zone)));
        let places: BTreeMap<&String, String> = places.collect();
        let place = |zone: &String| places.get(zone).cloned();
        let each = slice.endpoints.iter().flat_map(|endpoint| {
            let pod = endpoint.pod.as_ref().filter(|pod| !of_node(pod));
            endpoint.addresses.iter().map(move |ip| ClusterEndpoint {
                address: SocketAddr::new(*ip, *number),
                pod: pod.map(|pod| pod.name().to_owned()),
                ready: endpoint.ready,
                node: endpoint.node.clone(),
                zones: endpoint.zones.iter().filter_map(place).collect(),
            })
        });
        each.collect()
    }
}

/// Returns the keys that are known and no longer listed.
fn gone<K: Borrow<str> + Clone, T>(
    known: &BTreeMap<K, T>,
    listed: &BTreeSet<ObjectName>,
) -> impl Iterator<Item = K> + use<K, T> {
    let gone = known.keys().filter(|key| !listed.contains((*key).borrow()));
    gone.cloned().collect::<Vec<_>>().into_iter()
}

/// When it was made, in a form that sorts.
fn created(metadata: &ObjectMeta) -> String {
    let created = metadata.creation_timestamp.as_ref();
    created.map(|at| at.0.to_string()).unwrap_or_default()
}

/// UDP passes by untouched, and nobody asks for anything else.
fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|p| p == "TCP")
}

/// Reads the list of ports in an annotation; without it there are none.
///
/// # Errors
/// Why the list cannot be read.
fn annotated_ports(metadata: &ObjectMeta, key: &str) -> Result<Vec<u16>, String> {
    let annotations = metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(key));
    text.map_or_else(|| Ok(Vec::new()), |text| inject::ports(text))
}

/// Returns the ports that clients reach past the sidecar of a pod. An unreadable annotation adds none: the
/// webhook has refused such pods.
///
/// The installation's ports are read where the webhook wrote them, for the init container or the CNI plugin: a
/// pod keeps the rules that it started with when the installation's value changes.
fn direct_ports(metadata: &ObjectMeta, spec: &PodSpec) -> Vec<u16> {
    let mut ports = annotated_ports(metadata, EXCLUDE_INBOUND_PORTS).unwrap_or_default();
    let init = spec.all_containers().filter(|c| c.name == INIT);
    let args = init.filter_map(|c| c.args.as_deref());
    ports.extend(args.flat_map(containers::excluded_inbound));
    let annotations = metadata.annotations.as_ref();
    let rules = annotations.and_then(|all| PodRules::parse(all.get(REDIRECTION)?).ok());
    ports.extend(
        rules
            .into_iter()
            .flat_map(|rules| rules.exceptions.exclude_inbound_ports),
    );
    ports.extend([METRICS_PORT, HEALTH_PORT]);
    // The webhook's list has the annotation's ports, too.
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// The ports that an object's annotation says are opaque. An unreadable annotation gives none: the
/// webhook has refused such pods, and `tulle check` names such Services.
fn opaque_ports(kind: &str, key: &Namespaced, metadata: &ObjectMeta) -> Vec<u16> {
    annotated_ports(metadata, OPAQUE_PORTS).unwrap_or_else(|why| {
        let object = format!("{kind}/{key}");
        tracing::warn!(
            object,
            "without effect: the annotation {OPAQUE_PORTS}: {why}"
        );
        Vec::new()
    })
}

/// A port of a Service; `opaque` are those of which its annotation says that nobody reads their bytes.
fn port(port: &ServicePort, opaque: &[u16]) -> Option<(String, WorkloadPort)> {
    let name = port.name.clone().unwrap_or_default();
    let app_protocol = match port.app_protocol.as_deref() {
        Some("https") => Some("tls"),
        Some("kubernetes.io/ws") => Some("http"),
        Some("kubernetes.io/wss") => Some("tls"),
        other => other,
    };
    let number = u16::try_from(port.port).ok()?;
    let app_protocol = match opaque.contains(&number) {
        // TLS of the application is opaque already, and may be routed by server name.
        true => app_protocol.filter(|p| *p == "tls").or(Some("tcp")),
        false => app_protocol,
    };
    let made = WorkloadPort {
        name: port.name.clone(),
        port: number,
        target_port: None,
        app_protocol: app_protocol.map(str::to_owned),
        proxy_protocol: false,
    };
    Some((name, made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tulle_control::index::Index;
    use tulle_model::identity::TrustDomain;
    use tulle_model::manifest::Object;

    fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn named(qualified: &str) -> Namespaced {
        Namespaced::parse(qualified).unwrap()
    }

    fn service(spec: Value) -> Service {
        from(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}))
    }

    fn slice(name: &str, endpoints: Value) -> EndpointSlice {
        from(json!({
            "metadata": {
                "name": name, "namespace": "shop", "labels": {SERVICE_OF_SLICE: "web"},
            },
            "addressType": "IPv4",
            "ports": [
                {"name": "http", "port": 8080, "protocol": "TCP"},
                {"name": "dns", "port": 5353, "protocol": "UDP"},
            ],
            "endpoints": endpoints,
        }))
    }

    fn pod(containers: Value, status: Value) -> Pod {
        from(json!({
            "metadata": {"name": "web-1", "namespace": "shop"},
            "spec": {"containers": containers, "nodeName": "n1", "serviceAccountName": "web"},
            "status": status,
        }))
    }

    fn endpoint(ip: &str, conditions: Value) -> Value {
        json!({
            "addresses": [ip], "conditions": conditions,
            "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "shop"},
        })
    }

    fn one(edits: Vec<Edit>) -> Edit {
        let [edit] = <[Edit; 1]>::try_from(edits).unwrap_or_else(|all| panic!("{all:?}"));
        edit
    }

    #[test]
    fn a_namespace_s_label_makes_it_strict_also_if_it_is_misspelt() {
        let mut state = State::default();
        let mut seen = |name: &str, profile: Option<&str>| {
            let labels = profile.map(|p| json!({ PROFILE: p })).unwrap_or_default();
            let namespace = from(json!({ "metadata": { "name": name, "labels": labels } }));
            state.namespace(name.into(), &namespace);
            state.edits()
        };
        let strict = |edits: Vec<Edit>| match one(edits) {
            Edit::StrictNamespaces(names) => names.into_iter().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert!(seen("shop", None).is_empty());
        assert!(seen("other", Some("permissive")).is_empty());
        assert_eq!(strict(seen("shop", Some("strict"))), ["shop"]);
        assert!(seen("shop", Some("strict")).is_empty());
        assert_eq!(strict(seen("apps", Some("Strict"))), ["apps", "shop"]);
        assert_eq!(strict(seen("shop", None)), ["apps"]);
        state.remove_namespace("apps");
        assert!(strict(state.edits()).is_empty());
    }

    fn web(state: &mut State) -> ClusterService {
        match one(state.edits()) {
            Edit::Service(service) => *service,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_service_has_the_endpoints_of_all_its_slices() {
        let mut state = State::default();
        let ports = json!([
            {"name": "http", "port": 80, "appProtocol": "kubernetes.io/ws"},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ]);
        let spec = json!({"clusterIPs": ["10.96.0.9", "fd00::9"], "ports": ports});
        state.service(named("web.shop"), &service(spec));
        let ready = endpoint("10.244.0.5", json!({"ready": true}));
        state.slice(named("a.shop"), &slice("a", json!([ready])));
        let ended = endpoint("10.244.0.6", json!({"ready": false, "terminating": true}));
        let unsaid = endpoint("10.244.0.7", json!({}));
        state.slice(named("b.shop"), &slice("b", json!([ended, unsaid])));
        let web = web(&mut state);
        assert_eq!(web.addresses.len(), 2);
        let [port] = web.ports.as_slice() else {
            panic!("{web:?}");
        };
        assert_eq!(
            (port.port.port, port.port.app_protocol.as_deref()),
            (80, Some("http"))
        );
        let seen: Vec<_> = port
            .endpoints
            .iter()
            .map(|e| (e.address.to_string(), e.ready))
            .collect();
        assert_eq!(
            seen,
            [
                ("10.244.0.5:8080".to_owned(), true),
                ("10.244.0.6:8080".to_owned(), false),
                ("10.244.0.7:8080".to_owned(), true),
            ]
        );
        assert_eq!(port.endpoints[0].pod.as_deref(), Some("web-1"));
        state.remove_slice(&named("b.shop"));
        assert_eq!(self::web(&mut state).ports[0].endpoints.len(), 1);
        assert!(state.edits().is_empty());
    }

    #[test]
    fn a_pod_of_its_nodes_network_is_an_address_and_no_more() {
        let mut state = State::default();
        let spec = json!({"clusterIPs": ["10.96.0.9"], "ports": [{"name": "http", "port": 80}]});
        state.service(named("web.shop"), &service(spec));
        let ready = endpoint("10.200.0.2", json!({"ready": true}));
        state.slice(named("a.shop"), &slice("a", json!([ready])));
        let endpoint = |edits: Vec<Edit>| match edits.into_iter().next_back() {
            Some(Edit::Service(service)) => service.ports[0].endpoints[0].clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(endpoint(state.edits()).pod.as_deref(), Some("web-1"));
        let mut of_node = pod(json!([{"name": "web"}]), json!({"phase": "Running"}));
        of_node.spec.as_mut().unwrap().host_network = Some(true);
        state.pod(named("web-1.shop"), &of_node);
        let edits = state.edits();
        assert!(matches!(&edits[0], Edit::RemovePod(name) if name.as_str() == "web-1.shop"));
        assert_eq!(endpoint(edits).pod, None);
        // The next pod of this name has an address of its own, and is seen after its endpoint.
        let next = pod(json!([{"name": "web"}]), json!({"phase": "Running"}));
        state.pod(named("web-1.shop"), &next);
        assert_eq!(endpoint(state.edits()).pod.as_deref(), Some("web-1"));
        state.pod(named("web-1.shop"), &of_node);
        assert_eq!(endpoint(state.edits()).pod, None);
        state.remove_pod(&named("web-1.shop"));
        assert_eq!(endpoint(state.edits()).pod.as_deref(), Some("web-1"));
    }

    /// The controller is told of each pod of a DaemonSet again and again, and of many that have a node's network.
    #[test]
    fn a_pod_of_its_nodes_network_costs_no_look_at_the_endpoints_of_others() {
        let mut state = State::default();
        let spec = json!({"clusterIPs": ["10.96.0.9"], "ports": [{"name": "http", "port": 80}]});
        state.service(named("web.shop"), &service(spec));
        for number in 0..300 {
            let mut ready = endpoint("10.200.0.2", json!({"ready": true}));
            ready["targetRef"]["name"] = format!("web-{number}").into();
            let name = format!("slice-{number}");
            state.slice(
                named(&format!("{name}.shop")),
                &slice(&name, json!([ready])),
            );
        }
        state.edits();
        let mut of_node = pod(json!([{"name": "web"}]), json!({"phase": "Running"}));
        of_node.spec.as_mut().unwrap().host_network = Some(true);
        for _ in 0..2 {
            state.looked_at.set(0);
            state.pod(named("web-1.shop"), &of_node);
            // Its own slice, and the entry behind it.
            assert_eq!(state.looked_at.replace(0), 2);
            assert_eq!(state.changed_services.len(), 1);
            assert_eq!(state.on_node["n1"].len(), 1);
            state.remove_pod(&named("web-1.shop"));
            assert_eq!(state.looked_at.get(), 2);
            assert!(state.on_node.is_empty());
            state.edits();
        }
        for number in 0..300 {
            state.remove_slice(&named(&format!("slice-{number}.shop")));
        }
        assert!(state.of_pod.is_empty());
        // A pod that was bound to a node after it was seen.
        let mut bound = of_node.clone();
        of_node.spec.as_mut().unwrap().node_name = None;
        state.pod(named("web-1.shop"), &of_node);
        state.pod(named("web-1.shop"), &bound);
        bound.spec.as_mut().unwrap().node_name = Some("n2".into());
        state.pod(named("web-1.shop"), &bound);
        assert_eq!(state.on_node.keys().collect::<Vec<_>>(), ["n2"]);
    }

    /// A Service and a slice that anybody can write into a namespace of their own, about a pod that is
    /// not theirs.
    #[test]
    fn a_slice_says_nothing_of_pods_of_other_namespaces() {
        let object = |kind: &str, spec: Value| {
            let manifest = json!({
                "apiVersion": "tulle.dev/v1alpha1", "kind": kind,
                "metadata": { "name": "p", "namespace": "evil" }, "spec": spec,
            });
            let mut object = Object::from_json(&manifest.to_string()).unwrap();
            object.qualify();
            Edit::Put(Box::new(object))
        };
        let mut state = State::default();
        let mut index = Index::of_cluster(TrustDomain::default(), "tulle-system");
        let ports = json!([{"name": "http", "port": 80, "appProtocol": "http"}]);
        state.service(named("web.shop"), &service(json!({"ports": ports})));
        let ready = endpoint("10.244.0.5", json!({"ready": true}));
        state.slice(named("a.shop"), &slice("a", json!([ready])));
        let containers = json!([{"name": "web"}, {"name": SIDECAR}]);
        let running = json!({"phase": "Running", "podIPs": [{"ip": "10.244.0.5"}]});
        state.pod(named("web-1.shop"), &pod(containers, running));
        index.apply(state.edits());
        let all = |index: &Index| {
            let names = [
                "inbound/web-1.shop",
                "service/web.shop",
                "service/pod/web-1.shop",
            ];
            names.map(|name| index.get(name).cloned())
        };
        let before = all(&index);
        assert!(before.iter().all(Option::is_some));
        // A Service like `evil`'s would open port 9000, and port 8080 to `x`.
        let ports = json!([{"name": "http", "port": 80}, {"name": "more", "port": 81}]);
        let of_evil = |object: Value, metadata: Value| {
            let mut object = object;
            object["metadata"] = metadata;
            object
        };
        let metadata = json!({"name": "web", "namespace": "evil"});
        let service = of_evil(json!({"spec": {"ports": ports}}), metadata);
        state.service(named("web.evil"), &from(service));
        let mut target = ready.clone();
        target["targetRef"]["namespace"] = "shop".into();
        let labels = json!({SERVICE_OF_SLICE: "web"});
        let evil = of_evil(
            json!({
                "addressType": "IPv4", "endpoints": [target],
                "ports": [{"name": "http", "port": 8080}, {"name": "more", "port": 9000}],
            }),
            json!({"name": "a", "namespace": "evil", "labels": labels}),
        );
        state.slice(named("a.evil"), &from(evil));
        index.apply(state.edits());
        let policy = json!({
            "targetRefs": [{"kind": "Service", "name": "web"}],
            "rules": [{"from": {"serviceAccounts": ["x"]}}],
        });
        index.apply([object("AuthorizationPolicy", policy)]);
        assert!(all(&index) == before, "the victim is told something else");
        let evil = index.get("service/web.evil").unwrap();
        let evil = String::from_utf8_lossy(&evil.body);
        assert!(
            !evil.contains("10.244.0.5") && !evil.contains("ns/shop"),
            "{evil}"
        );
    }

    #[test]
    fn headless_and_external_services() {
        let mut state = State::default();
        let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]});
        state.service(named("web.shop"), &service(spec));
        assert!(web(&mut state).addresses.is_empty());
        let spec = json!({"type": "ExternalName", "externalName": "example.org"});
        state.service(named("web.shop"), &service(spec));
        assert!(
            matches!(one(state.edits()), Edit::RemoveService(name) if name.as_str() == "web.shop")
        );
    }

    #[test]
    fn annotations_say_which_ports_are_opaque() {
        let mut state = State::default();
        let annotated = |mut object: Value, ports: &str| {
            object["metadata"] = json!({
                "name": "web", "namespace": "shop", "annotations": {OPAQUE_PORTS: ports},
            });
            object
        };
        let ports = json!([
            {"name": "a", "port": 80}, {"name": "b", "port": 81, "appProtocol": "http"},
            {"name": "c", "port": 82, "appProtocol": "tls"}, {"name": "d", "port": 83},
        ]);
        let spec = json!({"spec": {"ports": ports}});
        let mut said = |ports: &str| -> Vec<Option<String>> {
            state.service(named("web.shop"), &from(annotated(spec.clone(), ports)));
            let ports = web(&mut state).ports.into_iter();
            ports.map(|p| p.port.app_protocol).collect()
        };
        let texts = |all: [&str; 4]| all.map(|t| (!t.is_empty()).then(|| t.to_owned()));
        assert_eq!(said("80, 81,82"), texts(["tcp", "tcp", "tls", ""]));
        assert_eq!(said("80,nonsense"), texts(["", "http", "tls", ""]));

        let spec = json!({"spec": {"containers": [{"name": "web"}]}});
        state.pod(named("web-1.shop"), &from(annotated(spec, "8080,9090")));
        assert!(matches!(one(state.edits()), Edit::Pod(pod) if pod.opaque == [8080, 9090]));
    }

    #[test]
    fn what_a_service_and_its_slices_say_of_near_endpoints() {
        let mut state = State::default();
        let node: Metadata = from(json!({"metadata": {"labels": {REGION: "r", ZONE: "a"}}}));
        state.node("n1".into(), &node);
        let spec = json!({
            "ports": [{"name": "http", "port": 80}], "sessionAffinity": "ClientIP",
            "internalTrafficPolicy": "Local",
        });
        state.service(named("web.shop"), &service(spec));
        let mut hinted = endpoint("10.244.0.5", json!({"ready": true}));
        hinted["nodeName"] = "n1".into();
        hinted["hints"] = json!({"forZones": [{"name": "a"}, {"name": "unknown"}]});
        state.slice(named("a.shop"), &slice("a", json!([hinted])));
        let seen = web(&mut state);
        assert!(seen.sticky && seen.node_local);
        let endpoint = &seen.ports[0].endpoints[0];
        assert_eq!(endpoint.node, "n1");
        assert_eq!(endpoint.zones, ["r/a", "unknown"]);
        // Its region was not known before.
        let node: Metadata = from(json!({"metadata": {"labels": {REGION: "s", ZONE: "unknown"}}}));
        state.node("n2".into(), &node);
        assert_eq!(
            web(&mut state).ports[0].endpoints[0].zones,
            ["r/a", "s/unknown"]
        );
        let spec = json!({"ports": [{"name": "http", "port": 80}], "sessionAffinity": "None"});
        state.service(named("web.shop"), &service(spec));
        let seen = web(&mut state);
        assert!(!seen.sticky && !seen.node_local);
    }

    #[test]
    fn some_ports_of_a_pod_are_reached_without_its_sidecar() {
        let mut state = State::default();
        let mut seen = |containers: Value| {
            let mut pod = pod(containers, json!({"phase": "Running"}));
            let annotations =
                BTreeMap::from([(EXCLUDE_INBOUND_PORTS.to_owned(), "9443".to_owned())]);
            pod.metadata.annotations = Some(annotations);
            state.pod(named("web-1.shop"), &pod);
            match one(state.edits()) {
                Edit::Pod(pod) => pod.direct,
                other => panic!("{other:?}"),
            }
        };
        let ports = seen(json!([{"name": "web"}, {"name": SIDECAR}]));
        assert_eq!(ports, [9443, METRICS_PORT, HEALTH_PORT]);
        assert_eq!(seen(json!([{"name": "web"}])), [0; 0]);
    }

    #[test]
    fn the_installation_s_ports_are_direct_for_the_pods_that_got_them() {
        use inject::{InjectionOutcome, InjectionSetting};
        let mut state = State::default();
        let mut seen = |init: Option<&str>, value: &[u16], annotations: Value| {
            let settings: inject::Settings = from(json!({
                "image": "proxy", "initImage": init, "controller": "controller:15010",
                "trustDomain": "td", "redirection": {"excludeInboundPorts": value},
            }));
            let pod = json!({
                "metadata": {"name": "web-1", "namespace": "shop", "annotations": annotations},
                "spec": {"containers": [{"name": "web", "args": ["--exclude-inbound-ports=1"]}]},
            });
            let injected = match inject::inject(&pod, InjectionSetting::Enabled, &settings).unwrap()
            {
                InjectionOutcome::Injected(pod) => pod,
                InjectionOutcome::Left(why) => panic!("{why}"),
            };
            state.pod(named("web-1.shop"), &from(injected));
            match one(state.edits()) {
                Edit::Pod(pod) => pod.direct,
                other => panic!("{other:?}"),
            }
        };
        // The init container makes the rules, or the CNI plugin.
        for init in [Some("init"), None] {
            let own = json!({EXCLUDE_INBOUND_PORTS: "9443, 9000"});
            assert_eq!(
                seen(init, &[9000, 9001], own),
                [9000, 9001, 9443, METRICS_PORT, HEALTH_PORT]
            );
            assert_eq!(
                seen(init, &[9000], json!({})),
                [9000, METRICS_PORT, HEALTH_PORT]
            );
            assert_eq!(seen(init, &[], json!({})), [METRICS_PORT, HEALTH_PORT]);
        }
    }

    #[test]
    fn a_pod_with_its_account_and_place() {
        let mut state = State::default();
        let node = |zone: &str| from(json!({"metadata": {"labels": {REGION: "r", ZONE: zone}}}));
        state.node("n1".into(), &node("a"));
        let containers = json!([
            {"name": "web", "ports": [{"containerPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]},
            {"name": SIDECAR, "ports": [{"containerPort": 15020}]},
        ]);
        let running = json!({"phase": "Running", "podIPs": [{"ip": "10.244.0.5"}]});
        state.pod(
            named("web-1.shop"),
            &pod(containers.clone(), running.clone()),
        );
        let Edit::Pod(seen) = one(state.edits()) else {
            panic!();
        };
        assert_eq!((seen.name.as_str(), &*seen.account), ("web-1.shop", "web"));
        assert_eq!(seen.ports, [8080]);
        assert_eq!(
            (seen.workload.kind(), &*seen.workload.name),
            ("Pod", "web-1")
        );
        assert!(seen.sidecar && !seen.egress_gateway);
        assert_eq!(seen.locality, "r/a");
        state.node("n1".into(), &node("b"));
        assert!(matches!(one(state.edits()), Edit::Pod(pod) if pod.locality == "r/b"));
        let ended = json!({"phase": "Succeeded", "podIPs": [{"ip": "10.244.0.5"}]});
        state.pod(named("web-1.shop"), &pod(containers, ended));
        assert!(
            matches!(one(state.edits()), Edit::RemovePod(name) if name.as_str() == "web-1.shop")
        );
        // A gateway for clients outside is no member; an egress gateway is one, with no ports of its own.
        let ports = json!([{"containerPort": 10080}]);
        for (name, member) in [("gateway", false), (EGRESS_GATEWAY, true)] {
            let containers = json!([{"name": name, "ports": ports}]);
            state.pod(named("out-1.shop"), &pod(containers, running.clone()));
            let Edit::Pod(seen) = one(state.edits()) else {
                panic!();
            };
            assert_eq!((seen.sidecar, seen.egress_gateway), (member, member));
            assert_eq!(seen.ports.is_empty(), member);
        }
    }
}
