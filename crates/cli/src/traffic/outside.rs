//! Lists traffic across the border of the mesh, per workload: plaintext callers, and destinations outside
//! the mesh without an Egress. Sidecars report addresses; the source of the proxies knows who has them.

use crate::args::cluster::Within;
use crate::failure::Result;
use crate::output::{Columns, coarse};
use crate::proxies::{self, Meshed, Owners, ProxySource, now};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A peer outside the mesh, as the sidecars of a workload saw it since they were started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Peer {
    /// The namespace of the workload inside the mesh; empty on a host.
    pub(crate) namespace: String,
    pub(crate) workload: String,
    /// `namespace/deployment/name`, `node name`, or an address.
    pub(crate) peer: String,
    /// The workload's if it was called, else the peer's.
    pub(crate) port: u16,
    /// Connections that were let through, and that strictness refuses.
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    /// When the last one was, in seconds since 1970.
    pub(crate) last: i64,
}

impl Peer {
    /// The workload with its namespace.
    pub(crate) fn own(&self) -> String {
        match self.namespace.as_str() {
            "" => self.workload.clone(),
            namespace => format!("{namespace}/{}", self.workload),
        }
    }

    /// How long ago it was seen.
    pub(crate) fn ago(&self) -> String {
        let since = now() - self.last;
        format!("{} ago", coarse(since.max(0)))
    }
}

/// All that was seen.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Outside {
    /// Peers that called in plaintext.
    pub(crate) plaintext: Vec<Peer>,
    /// Destinations that were reached without an Egress.
    pub(crate) egress: Vec<Peer>,
    /// Pods whose sidecars did not say.
    pub(crate) unknown: Vec<String>,
}

/// Asks the sidecars of a namespace, or all.
pub(crate) async fn seen<S: ProxySource>(source: &S, within: &Within) -> Result<Outside> {
    let meshed = source.proxies(within).await?;
    let owners = source.owners().await?;
    let own = meshed
        .iter()
        .filter(|proxy| !proxy.gateway && proxy.sidecar_runs);
    let answers = proxies::ask_all(source, own, "/outside").await;
    let mut told = Vec::new();
    let mut unknown = Vec::new();
    for (proxy, answer) in answers {
        let read = answer
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok());
        match read {
            Some(rows) => told.push((proxy, rows)),
            None => unknown.push(proxy.shown()),
        }
    }
    let (plaintext, egress) = together(&owners, told);
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
fn together(owners: &Owners, told: Vec<(&Meshed, Vec<Row>)>) -> (Vec<Peer>, Vec<Peer>) {
    let mut all: BTreeMap<(bool, String, String, String, u16), Peer> = BTreeMap::new();
    for (pod, row) in told
        .into_iter()
        .flat_map(|(p, rows)| rows.into_iter().map(move |r| (p, r)))
    {
        let Some(peer) = owners.name(row.address, row.last) else {
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

/// Both in columns, each under its title; empty if there is nothing.
pub(crate) fn tables(outside: &Outside) -> String {
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
