//! The proxies of a cluster: sidecars and gateways in its pods, asked over forwarded ports.

use super::cluster::Cluster;
use super::workloads::{self, NO_SIDECARS, items, meshed, text};
use crate::args::cluster::Within;
use crate::failure::{Failure, Result};
use crate::proxies::{MeshName, Meshed, Owners, Pipe, ProxySource, Target};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tulle_model::network::Network;

/// Administration of a sidecar, on its pod's loopback.
const ADMIN_PORT: u16 = 15000;

impl ProxySource for Cluster {
    fn mesh(&self) -> MeshName {
        MeshName::Cluster {
            context: self.context.clone(),
            server: self.server.clone(),
        }
    }

    fn no_proxies(&self) -> String {
        NO_SIDECARS.to_owned()
    }

    async fn proxies(&self, within: &Within) -> Result<Vec<Meshed>> {
        meshed(self, within).await
    }

    async fn select(&self, target: &str, within: &Within) -> Result<Vec<Meshed>> {
        select(self, target, within).await
    }

    async fn connect(&self, proxy: &Meshed) -> Result<Pipe> {
        Ok(Box::new(self.forward(proxy.key(), ADMIN_PORT).await?))
    }

    async fn owners(&self) -> Result<Owners> {
        owners(self).await
    }
}

/// The pods with a sidecar that are meant, at least one.
async fn select(cluster: &Cluster, target: &str, within: &Within) -> Result<Vec<Meshed>> {
    let parsed = Target::parse(target)?;
    let namespace = within.namespace.as_deref().unwrap_or(&cluster.namespace);
    let all = meshed(
        cluster,
        &Within {
            namespace: Some(namespace.to_owned()),
        },
    )
    .await?;
    let service = match parsed {
        Target::Service(name) | Target::Any(name) => {
            let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
            cluster.get(&path).await?
        }
        _ => None,
    };
    let selector = service
        .as_ref()
        .and_then(|s| s.pointer("/spec/selector")?.as_object());
    let chosen = |pod: &Meshed| {
        let behind = selector.is_some_and(|wanted| {
            !wanted.is_empty()
                && wanted.iter().all(|(key, value)| {
                    let mut labels = pod.labels.iter();
                    labels.any(|(k, v)| k == key && Some(v.as_str()) == value.as_str())
                })
        });
        behind || parsed.takes(pod)
    };
    let mut found: Vec<Meshed> = all.into_iter().filter(chosen).collect();
    if found.is_empty() {
        let what = format!("no pod of {target} in the namespace {namespace} has a sidecar");
        return Err(Failure::new(what)
            .fix("`tulle proxy list` lists those that have one; -n names another namespace"));
    }
    found.sort_by_key(|pod| !pod.sidecar_ready);
    Ok(found)
}

/// Asks the API server who has which address.
async fn owners(cluster: &Cluster) -> Result<Owners> {
    let pods = workloads::pods(cluster, None).await?;
    let nodes = cluster.list("/api/v1/nodes").await.unwrap_or_default();
    Ok(owners_of(&pods, &nodes))
}

fn owners_of(pods: &[Value], nodes: &[Value]) -> Owners {
    let mut owners = Owners::default();
    for pod in pods {
        let ended = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        if ended || pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
            continue;
        }
        let started = text(pod, "/status/startTime").parse::<Timestamp>();
        let started = started.map_or(0, Timestamp::as_second);
        let namespace = text(pod, "/metadata/namespace");
        let shown = format!("{namespace}/{}", workloads::workload(pod));
        let ips = items(pod, "/status/podIPs");
        for ip in ips.filter_map(|ip| text(ip, "/ip").parse().ok()) {
            owners.workloads.insert(ip, (shown.clone(), started));
        }
    }
    for node in nodes {
        let shown = format!("node {}", text(node, "/metadata/name"));
        let ips = items(node, "/status/addresses");
        for ip in ips.filter_map(|a| text(a, "/address").parse().ok()) {
            owners.nodes.insert(ip, shown.clone());
        }
        let ranges = items(node, "/spec/podCIDRs").filter_map(Value::as_str);
        owners
            .ranges
            .extend(ranges.filter_map(|r| r.parse::<Network>().ok()));
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn peers_are_named_and_those_that_are_gone_are_left_out() {
        let pod = |name: &str, ip: &str, host: bool| {
            json!({
                "metadata": { "namespace": "apps", "name": name },
                "spec": { "hostNetwork": host },
                "status": { "startTime": "1970-01-01T00:01:40Z", "podIPs": [{ "ip": ip }] },
            })
        };
        let node = json!({
            "metadata": { "name": "n1" }, "spec": { "podCIDRs": ["10.244.0.0/24"] },
            "status": { "addresses": [{ "type": "InternalIP", "address": "10.200.0.2" }] },
        });
        let pods = [
            pod("client", "10.244.0.5", false),
            pod("agent", "10.200.0.2", true),
        ];
        let owners = owners_of(&pods, &[node]);
        let name = |address: &str, last| owners.name(address.parse().unwrap(), last);
        assert_eq!(name("10.244.0.5", 100).as_deref(), Some("apps/pod/client"));
        // Somebody else had its address.
        assert_eq!(name("10.244.0.5", 99), None);
        assert_eq!(name("10.244.0.6", 200), None);
        assert_eq!(name("10.200.0.2", 200).as_deref(), Some("node n1"));
        assert_eq!(name("192.0.2.1", 200).as_deref(), Some("192.0.2.1"));
    }
}
