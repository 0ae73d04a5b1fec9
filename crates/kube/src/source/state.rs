//! Turns the objects of the API server into edits of the index. Pure.

mod endpoints;
mod ports;
mod room;
mod seen;

use crate::metadata::Metadata;
use crate::names::PROFILE;
use crate::pod::Pod;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use room::EndpointRooms;
pub(super) use room::{Cut, name_of_closing};
use seen::{SeenPod, SeenService, SeenSlice};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use tulle_control::index::{ClusterPod, Edit};
use tulle_model::namespaced::{Namespaced, ObjectName};

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
    /// Bounds the endpoints of services.
    rooms: EndpointRooms,
    /// Services that are closed because some of their endpoints are not known.
    closed: BTreeSet<Namespaced>,
    /// The bounds have cut something else than the index was told of.
    cuts_changed: bool,
    /// Names of what changed since the last [`State::edits`].
    changed_services: BTreeSet<Namespaced>,
    changed_pods: BTreeSet<Namespaced>,
}

/// Returns the keys that are known and no longer listed.
fn gone<K: Borrow<str> + Clone, T>(
    known: &BTreeMap<K, T>,
    listed: &BTreeSet<ObjectName>,
) -> impl Iterator<Item = K> + use<K, T> {
    let gone = known.keys().filter(|key| !listed.contains((*key).borrow()));
    gone.cloned().collect::<Vec<_>>().into_iter()
}

impl State {
    pub(super) fn service(&mut self, key: Namespaced, service: &Service) {
        let Some(seen) = SeenService::read(&key, service) else {
            return self.remove_service(&key);
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
        let Some(seen) = SeenSlice::read(&key, slice) else {
            return;
        };
        if !seen.foreign.is_empty() && said.as_ref() != Some(&seen.foreign) {
            tracing::warn!(
                slice = key.as_str(),
                pods = ?seen.foreign,
                "an EndpointSlice refers to pods of another namespace (targetRef): those endpoints are ignored"
            );
        }
        let service = seen.service.clone();
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
        let Some(seen) = SeenPod::read(&key, pod) else {
            return self.remove_pod(&key);
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
        self.edit_services(&mut edits);
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
}

#[cfg(test)]
mod tests;
