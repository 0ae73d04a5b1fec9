//! TrafficMetrics of resources and their edges, from a window. Pure.

use super::path::Resource;
use super::pods::Measured;
use super::scrape_window::{Account, Direction, Way, Window};
use super::{GROUP, VERSION};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;
use tulle_model::namespaced::Namespaced;
use tulle_model::samples::CountedTraffic;

/// Annotation with the number of a resource's pods that did not answer, so that its numbers are too
/// low.
const UNHEARD: &str = "tulle.dev/pods-not-heard";

/// A resource of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Object {
    pub(super) resource: &'static Resource,
    /// Empty for one that has none.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Object {
    pub(super) fn reference(&self) -> Value {
        reference(self.resource.kind, &self.namespace, &self.name)
    }

    fn has(&self, pod: &Measured) -> bool {
        let here = self.namespace.is_empty() || pod.account.namespace == self.namespace;
        // The pods that a service has today do not tell which requests it received.
        let any = self.is_service();
        here && (any || pod.names(self.resource.kind).any(|name| name == self.name))
    }

    fn is_service(&self) -> bool {
        self.resource.kind == "Service"
    }

    /// Whether traffic of its pods is its own.
    fn takes(&self, way: &Way) -> bool {
        let is_own = |service: Namespaced| {
            service.name() == self.name && service.namespace() == self.namespace
        };
        let called = way.direction == Direction::From;
        !self.is_service() || called && Namespaced::parse(&way.service).is_some_and(is_own)
    }

    /// Returns the counts of its pods, and the number of pods that did not answer.
    fn ways<'a>(&'a self, window: &'a Window) -> (Vec<(&'a Way, &'a CountedTraffic)>, usize) {
        let pods: Vec<&Measured> = window.pods.iter().filter(|pod| self.has(pod)).collect();
        let heard = pods.iter().filter_map(|pod| window.counts(pod)).count();
        let counts = pods.iter().filter_map(|pod| window.counts(pod)).flatten();
        let own = counts.filter(|(way, _)| self.takes(way));
        (own.collect(), pods.len() - heard)
    }
}

fn reference(kind: &str, namespace: &str, name: &str) -> Value {
    let mut reference = json!({ "kind": kind, "name": name });
    if !namespace.is_empty() {
        reference["namespace"] = namespace.into();
    }
    reference
}

/// Returns the metrics of all requests that a resource received.
pub(super) fn received(object: &Object, window: &Window) -> Value {
    let (ways, unheard) = object.ways(window);
    let mut sum = CountedTraffic::default();
    let called = ways
        .iter()
        .filter(|(way, _)| way.direction == Direction::From);
    called.for_each(|(_, counted)| sum.add(counted));
    metrics(object, unheard, Direction::From, json!({}), &sum, window)
}

/// The possible peers: all pods with a proxy, and all services as namespace and name.
pub(super) struct Peers {
    pub(super) pods: Vec<Measured>,
    pub(super) services: BTreeSet<(String, String)>,
}

/// Returns the edges of a resource: its traffic with each peer.
pub(super) fn edges(object: &Object, window: &Window, peers: &Peers) -> Vec<Value> {
    let (ways, unheard) = object.ways(window);
    let mut sums: BTreeMap<(Direction, Peer), CountedTraffic> = BTreeMap::new();
    for (way, counted) in ways {
        if counted.requests == 0.0 {
            continue;
        }
        if let Some(peer) = Peer::from_way(way, object.resource.kind, peers) {
            sums.entry((way.direction, peer)).or_default().add(counted);
        }
    }
    let each = sums.iter().map(|((direction, peer), counted)| {
        let peer = reference(&peer.kind, &peer.namespace, &peer.name);
        metrics(object, unheard, *direction, peer, counted, window)
    });
    each.collect()
}

/// The other end of an edge.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Peer {
    kind: String,
    namespace: String,
    name: String,
}

impl Peer {
    /// Proxies know each other by service account. If all pods with that account belong to one
    /// resource of the wanted kind, the peer is that resource; otherwise it is the account.
    ///
    /// `None`: the peer is outside the mesh, and its name belongs to no Service of the cluster.
    fn from_way(way: &Way, kind: &str, peers: &Peers) -> Option<Self> {
        let Some(Account { namespace, name }) = &way.peer else {
            let service = Namespaced::parse(&way.service)?;
            let (namespace, name) = (service.namespace(), service.name());
            let known = (namespace.to_owned(), name.to_owned());
            let called = way.direction == Direction::To && peers.services.contains(&known);
            return called.then(|| Self::new("Service", namespace, name));
        };
        if kind == "Namespace" {
            return Some(Self::new(kind, "", namespace));
        }
        let of_account = peers
            .pods
            .iter()
            .filter(|pod| Some(&pod.account) == way.peer.as_ref());
        let names: BTreeSet<Option<&str>> = of_account.map(|pod| pod.names(kind).next()).collect();
        match names.iter().collect::<Vec<_>>().as_slice() {
            [Some(one)] if kind == "Node" => Some(Self::new(kind, "", one)),
            [Some(one)] => Some(Self::new(kind, namespace, one)),
            _ => Some(Self::new("ServiceAccount", namespace, name)),
        }
    }

    fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

fn metrics(
    object: &Object,
    unheard: usize,
    direction: Direction,
    peer: Value,
    counted: &CountedTraffic,
    window: &Window,
) -> Value {
    let timestamp = timestamp(window.time);
    let mut metadata = json!({ "name": object.name, "creationTimestamp": timestamp });
    if !object.namespace.is_empty() {
        metadata["namespace"] = object.namespace.as_str().into();
    }
    if unheard > 0 {
        metadata["annotations"] = json!({ UNHEARD: unheard.to_string() });
    }
    let (direction, side) = match direction {
        Direction::From => ("from", "server"),
        Direction::To => ("to", "client"),
    };
    let percentile = |name: &str, share| {
        let ms = counted.percentile(share)?;
        Some(json!({ "name": name, "unit": "seconds", "value": seconds(ms) }))
    };
    // Without requests there are no percentiles.
    let latencies = [
        percentile("p99_response_latency", 0.99),
        percentile("p90_response_latency", 0.90),
        percentile("p50_response_latency", 0.50),
    ];
    let count = |name: &str, count: f64| json!({ "name": name, "value": format!("{count:.0}") });
    let counts = [
        count("success_count", counted.requests - counted.failed),
        count("failure_count", counted.failed),
    ];
    let all: Vec<Value> = latencies.into_iter().flatten().chain(counts).collect();
    json!({
        "kind": "TrafficMetrics", "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": metadata,
        "timestamp": timestamp,
        "window": format!("{:.3}s", window.length.as_secs_f64()),
        "resource": object.reference(),
        "edge": { "direction": direction, "side": side, "resource": peer },
        "metrics": all,
    })
}

/// A quantity of the API server: whole thousandths of a second, or millionths.
fn seconds(ms: f64) -> String {
    let micro = (ms * 1000.0).round();
    match micro % 1000.0 == 0.0 {
        true => format!("{:.0}m", micro / 1000.0),
        false => format!("{micro:.0}u"),
    }
}

fn timestamp(time: SystemTime) -> String {
    let time = k8s_openapi::jiff::Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A list of them.
pub(super) fn list(
    resource: &Resource,
    namespace: Option<&str>,
    selector: Option<String>,
    items: Vec<Value>,
) -> Value {
    let mut of = json!({ "kind": resource.kind });
    if let Some(namespace) = namespace {
        of["namespace"] = namespace.into();
    }
    let mut list = json!({
        "kind": "TrafficMetricsList", "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {},
        "resource": of,
    });
    if let Some(selector) = selector.as_deref().and_then(match_labels) {
        list["selector"] = selector;
    }
    list["items"] = items.into();
    list
}

/// `a=b,c=d` as a LabelSelector; `None`: it says something else, or nothing.
fn match_labels(selector: &str) -> Option<Value> {
    let each = selector.split(',').map(|part| {
        let (label, value) = part.split_once('=')?;
        let value = value.trim_start_matches('=');
        let plain = |text: &str| !text.is_empty() && !text.contains(['!', '(', ' ']);
        plain(label).then(|| (label.to_owned(), Value::from(value)))
    });
    let labels: serde_json::Map<String, Value> = each.collect::<Option<_>>()?;
    Some(json!({ "matchLabels": labels }))
}

#[cfg(test)]
mod tests;
