//! The nodes of the cluster: what runs where, and whether all of it is still there after a load.

use super::{Kubectl, ReadyNamespace};
use crate::failure::{Failure, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Nodes that pods can be sent to, by name.
///
/// As in the published study, the load has the last one for itself, and the applications take turns on the others. With one
/// node nothing is said about places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes(Vec<String>);

impl Nodes {
    /// Finds those that are ready and take pods.
    ///
    /// # Errors
    /// There are none, or they may not be listed.
    pub fn find(kubectl: &Kubectl) -> Result<Self> {
        let nodes = kubectl.json(&["get", "nodes", "-o", "json"])?;
        let usable = items(&nodes).filter(|node| {
            let taints = node.pointer("/spec/taints").and_then(Value::as_array);
            let refused = taints
                .into_iter()
                .flatten()
                .any(|t| t["effect"] != "PreferNoSchedule");
            readiness(node).is_some_and(|c| c["status"] == "True") && !refused
        });
        let mut names: Vec<_> = usable.filter_map(name).collect();
        names.sort();
        if names.is_empty() {
            return Err(Failure::failed("no node of the cluster is ready"));
        }
        Ok(Self(names))
    }

    /// The node of an application, by its number among those that are measured.
    pub fn of_application(&self, number: usize) -> Option<String> {
        let (_, others) = self.0.split_last()?;
        (!others.is_empty()).then(|| others[number % others.len()].clone())
    }

    /// The node of the load.
    pub fn of_load(&self) -> Option<String> {
        self.0.last().filter(|_| self.0.len() > 1).cloned()
    }

    /// Returns what a reader of the results must know.
    pub fn note(&self) -> String {
        match self.0.split_last() {
            Some((load, others)) if !others.is_empty() => {
                format!(
                    "Applications are on {}, the load on {load}.",
                    others.join(", ")
                )
            }
            _ => "Everything is on one node.".to_owned(),
        }
    }
}

/// Everything that must not change during a load: pods, how often their containers have started, and since when nodes are ready.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Standing(BTreeMap<String, String>);

impl Standing {
    /// Returns the first difference.
    pub(super) fn change(&self, now: &Self) -> Option<String> {
        let kept = self
            .0
            .iter()
            .find(|(key, was)| now.0.get(*key) != Some(*was));
        let new = || now.0.iter().find(|(key, _)| !self.0.contains_key(*key));
        let (key, was) = kept.or_else(new)?;
        let is = now.0.get(key).map_or("gone", String::as_str);
        Some(format!("{key} was {was} and is {is}"))
    }
}

impl ReadyNamespace {
    /// How pods and nodes stand now.
    ///
    /// # Errors
    /// The cluster does not say.
    pub(super) fn standing(&self) -> Result<Standing> {
        let nodes = self.kubectl.json(&["get", "nodes", "-o", "json"])?;
        let pods = ["-n", &self.namespace, "get", "pods", "-o", "json"];
        Ok(standing(&nodes, &self.kubectl.json(&pods)?))
    }
}

fn standing(nodes: &Value, pods: &Value) -> Standing {
    let of_node = |node: &Value| {
        let ready = readiness(node)?;
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        let state = format!(
            "Ready={} since {}",
            text("status"),
            text("lastTransitionTime")
        );
        Some((format!("node {}", name(node)?), state))
    };
    let of_pod = |pod: &Value| {
        let lists = ["/status/containerStatuses", "/status/initContainerStatuses"];
        let all = lists
            .iter()
            .filter_map(|list| pod.pointer(list)?.as_array());
        let starts: u64 = all
            .flatten()
            .filter_map(|c| c["restartCount"].as_u64())
            .sum();
        Some((
            format!("pod {}", name(pod)?),
            format!("restarted {starts} times"),
        ))
    };
    let nodes = items(nodes).filter_map(of_node);
    Standing(nodes.chain(items(pods).filter_map(of_pod)).collect())
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

fn name(object: &Value) -> Option<String> {
    object
        .pointer("/metadata/name")?
        .as_str()
        .map(str::to_owned)
}

fn readiness(node: &Value) -> Option<&Value> {
    let conditions = node.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|c| c["type"] == "Ready")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, since: &str) -> Value {
        json!({
            "metadata": { "name": name },
            "status": { "conditions": [
                { "type": "Ready", "status": "True", "lastTransitionTime": since },
            ] },
        })
    }

    fn pod(name: &str, restarts: u64) -> Value {
        json!({
            "metadata": { "name": name },
            "status": { "containerStatuses": [{ "restartCount": restarts }, { "restartCount": 0 }] },
        })
    }

    fn list(items: &[Value]) -> Value {
        json!({ "items": items })
    }

    #[test]
    fn the_load_has_a_node_for_itself() {
        let nodes = |names: &[&str]| Nodes(names.iter().map(|n| (*n).to_owned()).collect());
        let three = nodes(&["a", "b", "c"]);
        let places: Vec<_> = (0..3).filter_map(|n| three.of_application(n)).collect();
        assert_eq!(places, ["a", "b", "a"]);
        assert_eq!(three.of_load().as_deref(), Some("c"));
        assert_eq!(three.note(), "Applications are on a, b, the load on c.");
        let one = nodes(&["a"]);
        assert_eq!((one.of_application(0), one.of_load()), (None, None));
    }

    #[test]
    fn what_changes_during_a_load_is_named() {
        let at = |since: &str, pods: &[Value]| standing(&list(&[node("a", since)]), &list(pods));
        let before = at("10:00", &[pod("x", 0)]);
        assert_eq!(before.change(&at("10:00", &[pod("x", 0)])), None);
        for (now, said) in [
            (
                at("10:05", &[pod("x", 0)]),
                "node a was Ready=True since 10:00 and is Ready=True since 10:05",
            ),
            (
                at("10:00", &[pod("x", 1)]),
                "pod x was restarted 0 times and is restarted 1 times",
            ),
            (at("10:00", &[]), "pod x was restarted 0 times and is gone"),
        ] {
            assert_eq!(before.change(&now).as_deref(), Some(said));
        }
        let more = at("10:00", &[pod("x", 0), pod("y", 0)]);
        assert!(before.change(&more).unwrap().starts_with("pod y"));
    }
}
