//! Pods of the workloads among the objects: which numbers their containers give the names of ports. A Service and a policy may
//! name the same port differently, one by its number and the other by its name.

use super::services::{Service, labels};
use serde_json::Value;
use std::collections::BTreeMap;

/// Pods that are alike.
struct Pods {
    namespace: Option<String>,
    labels: BTreeMap<String, String>,
    /// Numbers by names.
    ports: BTreeMap<String, u64>,
}

impl Pods {
    fn read(object: &Value) -> Option<Self> {
        let spec = &object["spec"];
        let pod = match object["kind"].as_str()? {
            "Pod" => object,
            "CronJob" => &spec["jobTemplate"]["spec"]["template"],
            "DaemonSet" | "Deployment" | "Job" | "ReplicaSet" | "StatefulSet" => &spec["template"],
            _ => return None,
        };
        let mut ports = BTreeMap::new();
        let containers = pod["spec"]["containers"].as_array();
        for container in containers.into_iter().flatten() {
            for port in container["ports"].as_array().into_iter().flatten() {
                let is_tcp = port["protocol"].as_str().is_none_or(|p| p == "TCP");
                let (name, number) = (port["name"].as_str(), port["containerPort"].as_u64());
                if let (true, Some(name), Some(number)) = (is_tcp, name, number) {
                    // The first one counts for Kubernetes, too.
                    ports.entry(name.to_owned()).or_insert(number);
                }
            }
        }
        Some(Self {
            namespace: object["metadata"]["namespace"].as_str().map(str::to_owned),
            labels: labels(&pod["metadata"]["labels"]),
            ports,
        })
    }
}

/// Has Services know the named ports that all of their pods among the objects give the same number.
pub(super) fn name_ports(services: &mut [Service], objects: &[Value]) {
    let all: Vec<Pods> = objects.iter().filter_map(Pods::read).collect();
    for service in services {
        let is_own =
            |pods: &&Pods| service.namespace == pods.namespace && service.chooses(&pods.labels);
        let mut own = all.iter().filter(is_own);
        let mut named = own
            .next()
            .map(|pods| pods.ports.clone())
            .unwrap_or_default();
        for pods in own {
            named.retain(|name, number| pods.ports.get(name) == Some(number));
        }
        service.named = named;
    }
}
