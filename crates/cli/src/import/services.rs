//! Services among the objects: whom policies, routes and rules are about.

use super::source::Source;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A Service of Kubernetes.
pub(super) struct Service {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    selector: BTreeMap<String, String>,
    /// Its ports by those of the pods, where these are numbers.
    pub(super) ports: Ports,
    /// Named ports of its pods, as far as workloads among the objects say.
    pub(super) named: BTreeMap<String, u64>,
    spec_ports: Vec<Value>,
}

/// Ports of a Service by those of its pods.
pub(super) type Ports = BTreeMap<u64, BTreeSet<u64>>;

impl Service {
    pub(super) fn read(object: &Value) -> Option<Self> {
        if object["kind"] != "Service" || object["apiVersion"] != "v1" {
            return None;
        }
        let ports = object["spec"]["ports"].as_array();
        let ports = ports.cloned().unwrap_or_default();
        let mut by_target = Ports::new();
        for port in &ports {
            let own = port["port"].as_u64();
            let target = port.get("targetPort").map_or(own, Value::as_u64);
            if let (Some(own), Some(target)) = (own, target) {
                by_target.entry(target).or_default().insert(own);
            }
        }
        Some(Self {
            namespace: object["metadata"]["namespace"].as_str().map(str::to_owned),
            name: object["metadata"]["name"].as_str()?.to_owned(),
            selector: labels(&object["spec"]["selector"]),
            ports: by_target,
            named: BTreeMap::new(),
            spec_ports: ports,
        })
    }

    /// Whether all its pods have these labels.
    pub(super) fn is_of(&self, namespace: Option<&str>, labels: &BTreeMap<String, String>) -> bool {
        self.namespace.as_deref() == namespace && self.selects(labels)
    }

    /// Whether it chooses its pods by these labels, among others.
    pub(super) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut labels = labels.iter();
        !self.selector.is_empty()
            && labels.all(|(name, value)| self.selector.get(name) == Some(value))
    }

    /// Whether a pod with these labels is one of its own.
    pub(super) fn chooses(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut selector = self.selector.iter();
        !self.selector.is_empty() && selector.all(|(name, value)| labels.get(name) == Some(value))
    }

    /// Whether some of its pods may have these labels.
    pub(super) fn may_select(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.selector.is_empty() && self.is_compatible(labels)
    }

    /// Whether none of these labels has another value among those of its pods.
    fn is_compatible(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut labels = labels.iter();
        labels.all(|(name, value)| self.selector.get(name).is_none_or(|own| own == value))
    }

    /// Returns the value of a label by which it chooses its pods.
    pub(super) fn selected(&self, label: &str) -> Option<&str> {
        self.selector.get(label).map(String::as_str)
    }

    /// Whether a pod may be of both. One without a selector has the pods that somebody lists.
    pub(super) fn may_share_pods(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.is_compatible(&other.selector)
    }

    /// Returns a Service of those of its pods that have more labels.
    pub(super) fn subset(&self, name: &str, more: &BTreeMap<String, String>) -> Value {
        let mut selector = self.selector.clone();
        selector.extend(more.clone());
        let plain = |port: &Value| {
            let mut port = port.clone();
            if let Some(fields) = port.as_object_mut() {
                fields.remove("nodePort");
            }
            port
        };
        let ports: Vec<Value> = self.spec_ports.iter().map(plain).collect();
        let mut metadata = Map::new();
        metadata.insert("name".into(), subset_name(&self.name, name).into());
        if let Some(namespace) = &self.namespace {
            metadata.insert("namespace".into(), namespace.clone().into());
        }
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": { "selector": selector, "ports": ports },
        })
    }

    /// Returns its ports that lead to a port of the pods. Each of the two may say its number or its name.
    pub(super) fn ports_to(&self, target: &Value) -> BTreeSet<u64> {
        let number = match target.as_str() {
            Some(name) => self.named.get(name).copied(),
            None => target.as_u64(),
        };
        let names = self.named.iter().filter(|(_, one)| Some(**one) == number);
        let names: BTreeSet<&str> = names
            .map(|(name, _)| name.as_str())
            .chain(target.as_str())
            .collect();
        let by_name = self.spec_ports.iter().filter(|port| {
            let target = port["targetPort"].as_str();
            target.is_some_and(|target| names.contains(target))
        });
        let mut ports: BTreeSet<u64> = by_name.filter_map(|port| port["port"].as_u64()).collect();
        let by_number = number.and_then(|number| self.ports.get(&number));
        ports.extend(by_number.into_iter().flatten());
        ports
    }

    /// Whether one of its own ports has this number.
    pub(super) fn has_port(&self, number: u64) -> bool {
        let mut ports = self.spec_ports.iter();
        ports.any(|port| port["port"].as_u64() == Some(number))
    }

    /// Returns its port, if it has just one.
    pub(super) fn only_port(&self) -> Option<u64> {
        match self.spec_ports.as_slice() {
            [port] => port["port"].as_u64(),
            _ => None,
        }
    }
}

/// Names the Service that a subset becomes.
pub(super) fn subset_name(service: &str, subset: &str) -> String {
    format!("{service}-{subset}")
}

pub(super) fn labels(map: &Value) -> BTreeMap<String, String> {
    let each = map.as_object().into_iter().flatten();
    each.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// A service that a host names: its namespace, if one is said, and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl Named {
    /// Reads a host as Istio does: a name of the object's own namespace, or one with its namespace. None: it is outside
    /// the cluster.
    pub(super) fn read(host: &str, source: &Source, services: &[Service]) -> Option<Self> {
        let labels: Vec<&str> = host.split('.').collect();
        let (name, namespace) = match labels.as_slice() {
            [name] => (*name, source.namespace.clone()),
            [name, namespace, "svc", ..] => (*name, Some((*namespace).to_owned())),
            // It could be a domain.
            [name, namespace] => {
                let is_it =
                    |s: &&Service| s.name == *name && s.namespace.as_deref() == Some(*namespace);
                services.iter().find(is_it)?;
                (*name, Some((*namespace).to_owned()))
            }
            _ => return None,
        };
        let is_name = !name.is_empty() && !name.contains('*');
        is_name.then(|| Self {
            namespace,
            name: name.to_owned(),
        })
    }

    /// Finds it among the objects.
    pub(super) fn find<'s>(&self, services: &'s [Service]) -> Option<&'s Service> {
        services
            .iter()
            .find(|s| s.name == self.name && s.namespace == self.namespace)
    }

    /// Refers to it from an object of a namespace.
    pub(super) fn reference(&self, from: Option<&str>) -> Map<String, Value> {
        let mut reference = Map::new();
        reference.insert("name".into(), self.name.clone().into());
        if let Some(namespace) = self.namespace.as_deref()
            && Some(namespace) != from
        {
            reference.insert("namespace".into(), namespace.into());
        }
        reference
    }
}
