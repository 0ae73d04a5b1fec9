//! Do slices keep to their own namespace? Anybody who may write EndpointSlices can list any address.

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::{containers, items, text};
use serde_json::Value;
use std::collections::BTreeMap;
use tulle_kube::names::{EGRESS_GATEWAY, SIDECAR};

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let residents = residents(facts);
    let mut wrong = Vec::new();
    for slice in &facts.slices {
        let namespace = text(slice, "/metadata/namespace");
        let name = format!(
            "EndpointSlice {namespace}/{}",
            text(slice, "/metadata/name")
        );
        for endpoint in items(slice, "/endpoints") {
            let target = text(endpoint, "/targetRef/namespace");
            let is_pod = text(endpoint, "/targetRef/kind") == "Pod";
            if is_pod && !target.is_empty() && target != namespace {
                let pod = text(endpoint, "/targetRef/name");
                wrong.push(format!(
                    "{name} refers to pod {target}/{pod}, which is passed over"
                ));
                continue;
            }
            let addresses = items(endpoint, "/addresses").filter_map(Value::as_str);
            for address in addresses {
                let there = residents.get(address).map(Vec::as_slice);
                let there = there.unwrap_or_default();
                if let Some((of, pod)) = there.first()
                    && !there.iter().any(|(of, _)| *of == namespace)
                {
                    wrong.push(format!(
                        "{name} has {address}, which is pod {of}/{pod}: nobody is sent there"
                    ));
                }
            }
        }
    }
    report.each(
        "TK089",
        Outcome::Warning,
        wrong,
        "all slices keep to their namespace",
    );
}

/// Namespace and name of the pods with sidecars, by address. Those of a node's network share its own.
fn residents(facts: &Facts) -> BTreeMap<&str, Vec<(&str, &str)>> {
    let mut residents: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    let meshed = facts.pods.iter().filter(|pod| {
        let alive = !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        let of_node = pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
        let of_mesh = |c: &Value| [SIDECAR, EGRESS_GATEWAY].contains(&text(c, "/name"));
        alive && !of_node && containers(pod).any(of_mesh)
    });
    for pod in meshed {
        let name = (
            text(pod, "/metadata/namespace"),
            text(pod, "/metadata/name"),
        );
        for ip in items(pod, "/status/podIPs") {
            residents.entry(text(ip, "/ip")).or_default().push(name);
        }
    }
    residents
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn slices_about_other_namespaces_are_found() {
        let pod = |namespace: &str, ip: &str| {
            json!({
                "metadata": { "namespace": namespace, "name": "p" },
                "spec": { "containers": [{ "name": SIDECAR }] },
                "status": { "phase": "Running", "podIPs": [{ "ip": ip }] },
            })
        };
        let slice = |namespace: &str, ip: &str, target: Value| {
            json!({
                "metadata": { "namespace": namespace, "name": "s" },
                "endpoints": [{ "addresses": [ip], "targetRef": target }],
            })
        };
        let target =
            |namespace: &str| json!({ "kind": "Pod", "name": "p", "namespace": namespace });
        let mut facts = Facts {
            pods: vec![pod("shop", "10.0.0.1"), pod("evil", "10.0.0.2")],
            slices: vec![
                slice("shop", "10.0.0.1", target("shop")),
                slice("evil", "10.0.0.3", Value::Null),
            ],
            ..Facts::default()
        };
        let wrong = |facts: &Facts| {
            let wrong = Report::wrong(|report| check(facts, report)).into_iter();
            wrong.map(|f| f.finding).collect::<Vec<_>>()
        };
        assert!(wrong(&facts).is_empty(), "{:?}", wrong(&facts));
        facts.slices = vec![
            slice("evil", "10.0.0.2", target("shop")),
            slice("evil", "10.0.0.1", target("evil")),
        ];
        assert_eq!(
            wrong(&facts),
            [
                "EndpointSlice evil/s refers to pod shop/p, which is passed over",
                "EndpointSlice evil/s has 10.0.0.1, which is pod shop/p: nobody is sent there",
            ]
        );
    }
}
