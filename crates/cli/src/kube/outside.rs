//! Lists traffic across the border of the mesh, per workload: plaintext callers, and destinations outside
//! the mesh without an Egress. Sidecars report addresses; the API server knows which pods have them.

use super::cluster::Cluster;
use super::present;
use super::workloads::{self, Meshed, items, text};
use crate::failure::Result;
use crate::output::{Columns, coarse};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tulle_kube::names::PROFILE;
use tulle_kube::source::settings_of_mesh;
use tulle_model::network::Network;

/// A peer outside the mesh, as the sidecars of a workload saw it since they were started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Peer {
    /// The namespace of the workload inside the mesh.
    pub(super) namespace: String,
    pub(super) workload: String,
    /// `namespace/deployment/name`, `node name`, or an address.
    pub(super) peer: String,
    /// The workload's if it was called, else the peer's.
    pub(super) port: u16,
    /// Connections that were let through, and that strictness refuses.
    pub(super) allowed: u64,
    pub(super) refused: u64,
    /// When the last one was, in seconds since 1970.
    pub(super) last: i64,
}

impl Peer {
    /// The workload with its namespace.
    pub(super) fn own(&self) -> String {
        format!("{}/{}", self.namespace, self.workload)
    }

    /// How long ago it was seen.
    pub(super) fn ago(&self) -> String {
        let since = super::proxy::now() - self.last;
        format!("{} ago", coarse(since.max(0)))
    }
}

/// All that was seen.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outside {
    /// Peers that called in plaintext.
    pub(super) plaintext: Vec<Peer>,
    /// Destinations that were reached without an Egress.
    pub(super) egress: Vec<Peer>,
    /// Pods whose sidecars did not say.
    pub(super) unknown: Vec<String>,
}

/// The parts of a cluster that are strict.
#[derive(Debug, Default)]
pub(super) struct Strictness {
    /// The mesh takes no plaintext.
    pub(super) mtls: bool,
    /// Nothing leaves the mesh without an Egress.
    pub(super) egress: bool,
    /// These are strict by themselves.
    pub(super) namespaces: BTreeSet<String>,
}

/// The `spec` of the Mesh in force: what its object says, else what was chosen at the installation.
pub(super) async fn mesh_in_force(cluster: &Cluster) -> Result<Value> {
    let mesh = cluster.get("/apis/tulle.dev/v1alpha1/meshes/mesh").await?;
    let mut mesh = mesh.map_or(Value::Null, |mut mesh| mesh["spec"].take());
    let installed = present::find(cluster).await?.unwrap_or_default();
    settings_of_mesh(&mut mesh, installed.into_mesh());
    Ok(mesh)
}

impl Strictness {
    /// Asks the API server.
    pub(super) async fn from_cluster(cluster: &Cluster, namespaces: &[Value]) -> Result<Self> {
        let mesh = mesh_in_force(cluster).await?;
        let strict = namespaces.iter().filter(|n| is_strict(n));
        Ok(Self {
            mtls: text(&mesh, "/mtls/mode") != "permissive",
            egress: mesh["allowEgress"] != true,
            namespaces: strict
                .map(|n| text(n, "/metadata/name").to_owned())
                .collect(),
        })
    }

    /// Whether workloads of a namespace refuse plaintext.
    pub(super) fn refuses_plaintext(&self, namespace: &str) -> bool {
        self.mtls || self.namespaces.contains(namespace)
    }

    /// Whether workloads of a namespace leave the mesh by an Egress alone.
    pub(super) fn refuses_egress(&self, namespace: &str) -> bool {
        self.egress || self.namespaces.contains(namespace)
    }
}

/// The profile that a namespace's label says; empty: none.
pub(super) fn profile(namespace: &Value) -> &str {
    let labels = namespace.pointer("/metadata/labels");
    let profile = labels.and_then(|labels| labels.get(PROFILE)?.as_str());
    profile.unwrap_or_default()
}

fn is_strict(namespace: &Value) -> bool {
    let labels = namespace.pointer("/metadata/labels");
    let is_there = labels.is_some_and(|labels| labels.get(PROFILE).is_some());
    is_there && profile(namespace) != "permissive"
}

/// Asks the sidecars of a namespace, or all.
pub(super) async fn seen(cluster: &Cluster, namespace: Option<&str>) -> Result<Outside> {
    let pods = workloads::pods(cluster, None).await?;
    let nodes = cluster.list("/api/v1/nodes").await.unwrap_or_default();
    let meshed: Vec<Meshed> = pods.iter().filter_map(Meshed::from_pod).collect();
    let own = meshed
        .iter()
        .filter(|pod| !pod.gateway && pod.sidecar_runs)
        .filter(|pod| namespace.is_none_or(|name| name == pod.namespace));
    let answers = workloads::ask_all(cluster, own, "/outside").await;
    let names = Names::new(&pods, &nodes);
    let mut told = Vec::new();
    let mut unknown = Vec::new();
    for (pod, answer) in answers {
        let read = answer
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok());
        match read {
            Some(rows) => told.push((pod, rows)),
            None => unknown.push(pod.shown()),
        }
    }
    let (plaintext, egress) = together(&names, told);
    Ok(Outside {
        plaintext,
        egress,
        unknown,
    })
}

/// A peer as a sidecar reports it.
#[derive(Debug, Deserialize)]
struct Row {
    direction: String,
    address: IpAddr,
    port: u16,
    allowed: u64,
    refused: u64,
    last: i64,
}

/// Peers of the same workload that are the same, once: callers, and what was called.
fn together(names: &Names, told: Vec<(&Meshed, Vec<Row>)>) -> (Vec<Peer>, Vec<Peer>) {
    let mut all: BTreeMap<(bool, String, String, String, u16), Peer> = BTreeMap::new();
    for (pod, row) in told
        .into_iter()
        .flat_map(|(p, rows)| rows.into_iter().map(move |r| (p, r)))
    {
        let Some(peer) = names.name(&row) else {
            continue;
        };
        let called = row.direction == "outbound";
        let key = (
            called,
            pod.namespace.clone(),
            pod.workload.clone(),
            peer.clone(),
            row.port,
        );
        let known = all.entry(key).or_insert(Peer {
            namespace: pod.namespace.clone(),
            workload: pod.workload.clone(),
            peer,
            port: row.port,
            allowed: 0,
            refused: 0,
            last: 0,
        });
        known.allowed += row.allowed;
        known.refused += row.refused;
        known.last = known.last.max(row.last);
    }
    let (egress, plaintext): (Vec<_>, Vec<_>) = all.into_iter().partition(|(key, _)| key.0);
    let peers = |all: Vec<(_, Peer)>| all.into_iter().map(|(_, peer)| peer).collect();
    (peers(plaintext), peers(egress))
}

/// The owners of addresses.
#[derive(Default)]
struct Names {
    /// Pods with the time they were started.
    pods: BTreeMap<IpAddr, (String, i64)>,
    nodes: BTreeMap<IpAddr, String>,
    /// Addresses of pods.
    ranges: Vec<Network>,
}

impl Names {
    fn new(pods: &[Value], nodes: &[Value]) -> Self {
        let mut names = Self::default();
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
                names.pods.insert(ip, (shown.clone(), started));
            }
        }
        for node in nodes {
            let shown = format!("node {}", text(node, "/metadata/name"));
            let ips = items(node, "/status/addresses");
            for ip in ips.filter_map(|a| text(a, "/address").parse().ok()) {
                names.nodes.insert(ip, shown.clone());
            }
            let ranges = items(node, "/spec/podCIDRs").filter_map(Value::as_str);
            names
                .ranges
                .extend(ranges.filter_map(|r| r.parse::<Network>().ok()));
        }
        names
    }

    /// None: a pod that is gone.
    fn name(&self, row: &Row) -> Option<String> {
        let address = row.address.to_canonical();
        if let Some((name, started)) = self.pods.get(&address) {
            return (*started <= row.last).then(|| name.clone());
        }
        if let Some(node) = self.nodes.get(&address) {
            return Some(node.clone());
        }
        let of_pods = self.ranges.iter().any(|range| range.contains(address));
        (!of_pods).then(|| address.to_string())
    }
}

/// Both in columns, each under its title; empty if there is nothing.
pub(super) fn tables(outside: &Outside) -> String {
    let parts = [
        table(
            "callers in plaintext, since the sidecars were started:",
            ["CALLER", "WORKLOAD", "PORT"],
            &outside.plaintext,
            |p| [p.peer.clone(), p.own(), p.port.to_string()],
        ),
        table(
            "what leaves the mesh without an Egress:",
            ["WORKLOAD", "DESTINATION", "PORT"],
            &outside.egress,
            |p| [p.own(), p.peer.clone(), p.port.to_string()],
        ),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join("\n\n")
}

fn table(
    title: &str,
    columns: [&'static str; 3],
    peers: &[Peer],
    cells: impl Fn(&Peer) -> [String; 3],
) -> Option<String> {
    if peers.is_empty() {
        return None;
    }
    let [one, two, three] = columns;
    let mut columns = Columns::new(&[one, two, three, "ALLOWED", "REFUSED", "LAST"]);
    for peer in peers {
        let counts = [
            peer.allowed.to_string(),
            peer.refused.to_string(),
            peer.ago(),
        ];
        columns.row(cells(peer).into_iter().chain(counts).collect());
    }
    Some(format!("{title}\n{}", columns.render()))
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
        let names = Names::new(&pods, &[node]);
        let row = |address: &str, last: i64| Row {
            direction: "inbound".into(),
            address: address.parse().unwrap(),
            port: 80,
            allowed: 1,
            refused: 0,
            last,
        };
        let name = |address, last| names.name(&row(address, last));
        assert_eq!(name("10.244.0.5", 100).as_deref(), Some("apps/pod/client"));
        // Somebody else had its address.
        assert_eq!(name("10.244.0.5", 99), None);
        assert_eq!(name("10.244.0.6", 200), None);
        assert_eq!(name("10.200.0.2", 200).as_deref(), Some("node n1"));
        assert_eq!(name("192.0.2.1", 200).as_deref(), Some("192.0.2.1"));
    }

    #[test]
    fn a_namespace_s_profile_is_strict_unless_it_is_permissive() {
        let of = |labels: Value| is_strict(&json!({ "metadata": { "labels": labels } }));
        assert!(of(json!({ PROFILE: "strict" })) && of(json!({ PROFILE: "Strict" })));
        assert!(!of(json!({ PROFILE: "permissive" })) && !of(json!({})));
    }
}
