//! Which NetworkPolicies keep sidecars from the controller, Prometheus from sidecars, or the API server from
//! its webhook?
//!
//! Between pods the mesh has no ports of its own: a sidecar is called on its application's port. Only the
//! metrics move to a port of the sidecar's.
//!
//! Whether the cluster's network enforces them is not known. An `ipBlock` or a named port is taken to let
//! pass what is asked about.

use super::gather::{Facts, named};
use super::{Outcome, Report};
use crate::kube::workloads::{items, text, workload};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tulle_kube::names::{CONTROLLER, CONTROLLER_PORT, METRICS_PORT, WEBHOOK_PORT};

/// The rules of one direction, and whom they name.
struct Direction {
    policy_type: &'static str,
    rules: &'static str,
    peers: &'static str,
}

const IN: Direction = Direction {
    policy_type: "Ingress",
    rules: "/spec/ingress",
    peers: "/from",
};
const OUT: Direction = Direction {
    policy_type: "Egress",
    rules: "/spec/egress",
    peers: "/to",
};

/// A pod as policies select it.
struct Pod<'a> {
    namespace: &'a str,
    /// Labels of the namespace.
    around: Value,
    labels: Value,
}

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let around = |namespace: &str| {
        let found = named(&facts.namespaces, namespace);
        found.map_or(Value::Null, |n| n["metadata"]["labels"].clone())
    };
    let controller = Pod {
        namespace: &facts.home,
        around: around(&facts.home),
        labels: json!({ "app.kubernetes.io/name": CONTROLLER }),
    };
    let policies = &facts.network_policies;
    let mut cut = BTreeSet::new();
    for (meshed, _) in &facts.meshed {
        let labels = meshed.labels.iter();
        let labels = labels.map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        let pod = Pod {
            namespace: &meshed.namespace,
            around: around(&meshed.namespace),
            labels: Value::Object(labels.collect()),
        };
        let by = cutting(policies, &OUT, &pod, Some(&controller), CONTROLLER_PORT)
            .or_else(|| cutting(policies, &IN, &controller, Some(&pod), CONTROLLER_PORT));
        if let Some(by) = by {
            let who = format!("{}/{}", meshed.namespace, meshed.workload);
            cut.insert(format!(
                "pods of {who} do not reach the controller's port {CONTROLLER_PORT}: {by}"
            ));
        }
    }
    for pod in facts.pods.iter().filter(|pod| is_scraped(pod)) {
        let namespace = text(pod, "/metadata/namespace");
        let labels = pod.pointer("/metadata/labels").cloned();
        let own = Pod {
            namespace,
            around: around(namespace),
            labels: labels.unwrap_or_default(),
        };
        if let Some(by) = cutting(policies, &IN, &own, None, METRICS_PORT) {
            let who = workload(pod);
            cut.insert(format!(
                "Prometheus does not reach port {METRICS_PORT} of pods of {namespace}/{who}, where their annotations send it: {by}"
            ));
        }
    }
    if let Some(by) = cutting(policies, &IN, &controller, None, WEBHOOK_PORT) {
        cut.insert(format!(
            "the API server does not reach the webhook's port {WEBHOOK_PORT}: {by}"
        ));
    }
    let cut: Vec<String> = cut.into_iter().collect();
    report.each("TK099", Outcome::Error, cut, "none is in the way");
}

/// Whether a pod says that its metrics are at the sidecar's port, where injection has put them.
fn is_scraped(pod: &Value) -> bool {
    let said = |key: &str| text(pod, &format!("/metadata/annotations/prometheus.io~1{key}"));
    said("scrape") == "true" && said("port") == METRICS_PORT.to_string()
}

/// The policies that select a pod and of which none lets a connection pass; none if one does, or none selects it.
/// A peer that is not given may be anybody.
fn cutting(
    policies: &[Value],
    direction: &Direction,
    own: &Pod<'_>,
    peer: Option<&Pod<'_>>,
    port: u16,
) -> Option<String> {
    let selecting = policies.iter().filter(|p| {
        text(p, "/metadata/namespace") == own.namespace
            && holds(p, direction)
            && selects(p.pointer("/spec/podSelector"), &own.labels)
    });
    let selecting: Vec<&Value> = selecting.collect();
    let mut rules = selecting.iter().flat_map(|p| items(p, direction.rules));
    let passes = |rule: &Value| {
        opens(rule, port) && peer.is_none_or(|peer| names(rule, direction, own, peer))
    };
    if selecting.is_empty() || rules.any(passes) {
        return None;
    }
    let policies = selecting.iter().map(|p| {
        let name = text(p, "/metadata/name");
        format!("NetworkPolicy {}/{name}", own.namespace)
    });
    Some(policies.collect::<Vec<_>>().join(", "))
}

/// Whether a policy applies to a direction. One without types applies to incoming traffic, and to outgoing
/// traffic if it has rules for that.
fn holds(policy: &Value, direction: &Direction) -> bool {
    match policy
        .pointer("/spec/policyTypes")
        .and_then(Value::as_array)
    {
        Some(types) => types.iter().any(|t| t == direction.policy_type),
        None => {
            direction.policy_type == IN.policy_type
                || items(policy, direction.rules).next().is_some()
        }
    }
}

fn opens(rule: &Value, port: u16) -> bool {
    let mut ports = items(rule, "/ports").peekable();
    let port = u64::from(port);
    ports.peek().is_none()
        || ports.any(|p| {
            let is_tcp = matches!(text(p, "/protocol"), "" | "TCP");
            let first = p.get("port").and_then(Value::as_u64);
            let last = p.get("endPort").and_then(Value::as_u64);
            is_tcp && first.is_none_or(|first| (first..=last.unwrap_or(first)).contains(&port))
        })
}

fn names(rule: &Value, direction: &Direction, own: &Pod<'_>, peer: &Pod<'_>) -> bool {
    let mut peers = items(rule, direction.peers).peekable();
    peers.peek().is_none()
        || peers.any(|p| {
            let here = match p.get("namespaceSelector") {
                Some(selector) => selects(Some(selector), &peer.around),
                None => peer.namespace == own.namespace,
            };
            p.get("ipBlock").is_some() || here && selects(p.get("podSelector"), &peer.labels)
        })
}

/// Whether a label selector takes these labels; an empty one, or none, takes all.
fn selects(selector: Option<&Value>, labels: &Value) -> bool {
    let Some(selector) = selector else {
        return true;
    };
    let exact = selector.get("matchLabels").and_then(Value::as_object);
    let mut exact = exact.into_iter().flatten();
    let mut expressions = items(selector, "/matchExpressions");
    exact.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|e| {
            let value = labels.get(text(e, "/key"));
            let listed = || items(e, "/values").any(|v| Some(v) == value);
            match text(e, "/operator") {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => true,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxies::Meshed;

    fn found(policies: Vec<Value>) -> Vec<String> {
        let pod = json!({
            "metadata": { "namespace": "shop", "name": "web-1", "labels": { "app": "web" } },
            "spec": { "initContainers": [{ "name": "tulle-proxy", "image": "p:1" }] },
        });
        let labels = json!({ "kubernetes.io/metadata.name": "tulle-system" });
        let facts = Facts {
            home: "tulle-system".into(),
            namespaces: vec![
                json!({ "metadata": { "name": "tulle-system", "labels": labels } }),
                json!({ "metadata": { "name": "shop", "labels": { "team": "a" } } }),
            ],
            meshed: vec![(Meshed::from_pod(&pod).unwrap(), Err(String::new()))],
            network_policies: policies,
            ..Facts::default()
        };
        let wrong = Report::wrong(|report| check(&facts, report));
        wrong.into_iter().map(|f| f.finding).collect()
    }

    fn policy(namespace: &str, spec: Value) -> Value {
        json!({ "metadata": { "namespace": namespace, "name": "p" }, "spec": spec })
    }

    #[test]
    fn policies_that_cut_the_mesh_are_told() {
        let closed = policy(
            "shop",
            json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
        );
        let told = found(vec![closed.clone()]);
        assert_eq!(
            told,
            [
                "pods of shop/pod/web-1 do not reach the controller's port 15010: NetworkPolicy shop/p"
            ]
        );
        let out = |rule: Value| policy("shop", json!({ "podSelector": {}, "egress": [rule] }));
        let home = json!({ "matchLabels": { "kubernetes.io/metadata.name": "tulle-system" } });
        let open = [
            json!({}),
            json!({ "to": [{ "namespaceSelector": home }], "ports": [{ "port": 15000, "endPort": 15020 }] }),
            json!({ "to": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }] }),
        ];
        for rule in open {
            assert!(
                found(vec![closed.clone(), out(rule.clone())]).is_empty(),
                "{rule}"
            );
        }
        let shut = [
            json!({ "ports": [{ "port": 53, "protocol": "UDP" }] }),
            json!({ "to": [{ "podSelector": {} }] }),
            json!({ "to": [{ "namespaceSelector": { "matchExpressions": [
                { "key": "team", "operator": "Exists" },
            ] } }] }),
        ];
        for rule in shut {
            assert_eq!(found(vec![out(rule.clone())]).len(), 1, "{rule}");
        }
        // Another pod's.
        let other =
            json!({ "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Egress"] });
        assert!(found(vec![policy("shop", other)]).is_empty());
    }

    #[test]
    fn metrics_that_prometheus_cannot_read_are_told() {
        let annotations = json!({ "prometheus.io/scrape": "true", "prometheus.io/port": "15020" });
        let pod = |annotations: Value| {
            json!({ "metadata": {
                "namespace": "shop", "name": "web-1", "labels": { "app": "web" },
                "annotations": annotations,
            } })
        };
        let found = |pod: Value, policies: Vec<Value>| {
            let facts = Facts {
                home: "tulle-system".into(),
                pods: vec![pod],
                network_policies: policies,
                ..Facts::default()
            };
            let wrong = Report::wrong(|report| check(&facts, report));
            let found = wrong.into_iter().map(|f| f.finding);
            found.collect::<Vec<_>>()
        };
        // The port at which the application was read before it had a sidecar.
        let before = |port: u16| {
            let from = json!([{ "namespaceSelector": {} }]);
            let rule = json!({ "from": from, "ports": [{ "port": port }] });
            policy("shop", json!({ "podSelector": {}, "ingress": [rule] }))
        };
        let told = found(pod(annotations.clone()), vec![before(9090)]);
        assert_eq!(
            told,
            [
                "Prometheus does not reach port 15020 of pods of shop/pod/web-1, where their annotations send it: NetworkPolicy shop/p"
            ]
        );
        assert!(found(pod(annotations), vec![before(9090), before(15020)]).is_empty());
        assert!(found(pod(json!({})), vec![before(9090)]).is_empty());
    }

    #[test]
    fn the_controller_s_own_ports_are_looked_at_too() {
        let home = |ingress: Value| {
            policy(
                "tulle-system",
                json!({ "podSelector": {}, "ingress": ingress }),
            )
        };
        let told = found(vec![home(json!([]))]);
        assert_eq!(told.len(), 2, "{told:?}");
        let pods = json!({ "ports": [{ "port": 15010 }], "from": [{ "namespaceSelector": {} }] });
        let told = found(vec![home(json!([pods]))]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("15017"), "{told:?}");
        let both = json!([pods, { "ports": [{ "port": 15017 }] }]);
        assert!(found(vec![home(both)]).is_empty());
    }
}
