//! Services and gateways.

use super::Observer;
use super::graph::{edge, of_counts, own_name, pairs_of, rounded, series};
use super::pages::{EndpointRow, FindingRow, PortRow, ServicePage, ServiceRow};
use super::shown::{Edge, EdgeSeries, Health};
use crate::history::Counts;
use crate::index::{EndpointFacts, NodeFacts};
use crate::reports::now;
use std::collections::{BTreeMap, HashMap};

/// The windows of rates and of series, in seconds.
const RATES: u32 = 60;
const SERIES: u32 = 900;

impl Observer {
    /// All services and gateways.
    pub fn services(&self) -> Vec<ServiceRow> {
        let nodes = self.state.nodes_known();
        let (_, served, _) = self.edges(now(), RATES);
        let found = self.found();
        let shown = nodes.all.values().filter(|node| node.kind != "external");
        let rows = shown.map(|node| {
            let findings = found.of_node.get(&*node.id).copied().unwrap_or_default();
            row(node, served.get(&*node.id), findings)
        });
        rows.collect()
    }

    /// All about a service or gateway.
    pub fn service(&self, name: &str) -> Option<ServicePage> {
        let nodes = self.state.nodes_known();
        let node = nodes.find(name)?;
        let found = self.found();
        let findings = found.of_node.get(&*node.id).copied().unwrap_or_default();
        let (edges, served, series) = self.traffic_of(&node.id);
        let row = row(node, served.get(&*node.id), findings);
        let endpoints = self.state.with_index(|index| index.endpoints(&node.name));
        let left_out = self.left_out();
        let is_own = |finding: &&FindingRow| {
            let object = finding.object.as_ref();
            object.is_some_and(|o| o.name == own_name(node) && o.namespace == node.namespace)
        };
        let proxies = self.proxies().into_iter();
        Some(ServicePage {
            endpoints: endpoints
                .into_iter()
                .map(|facts| endpoint(facts, row.health, &left_out))
                .collect(),
            series,
            inbound: those(&edges, |edge| *edge.destination == *node.id),
            outbound: those(&edges, |edge| *edge.source == *node.id),
            objects: self.acting_on(&node.id),
            identities: node.identities.iter().cloned().collect(),
            findings: found.all.iter().filter(is_own).cloned().collect(),
            proxies: proxies.filter(|proxy| proxy.name == node.name).collect(),
            row,
        })
    }

    /// How many callers' proxies pass over each endpoint.
    fn left_out(&self) -> HashMap<String, usize> {
        let mut left_out = HashMap::new();
        for proxy in self.state.reports.proxies() {
            for address in proxy.facts().left_out {
                *left_out.entry(address).or_default() += 1;
            }
        }
        left_out
    }

    /// Edges from and to a node, sums of what is served, and how that did over time.
    fn traffic_of(&self, node: &str) -> (Vec<Edge>, BTreeMap<String, Counts>, EdgeSeries) {
        let at = now();
        let history = self.state.reports.history();
        let span = history.span(at, SERIES);
        let inbound = pairs_of(&history, span, |pair| *pair.1 == *node);
        let series = series(&history, &inbound, at, SERIES);
        let span = history.span(at, RATES);
        let mut served: BTreeMap<String, Counts> = BTreeMap::new();
        let mut edges = Vec::new();
        for (pair, counts) in history.edges(span) {
            if *pair.0 != *node && *pair.1 != *node {
                continue;
            }
            edges.push(edge(&history, pair, &counts, span.seconds()));
            served.entry(pair.1.to_string()).or_default().add(&counts);
        }
        edges.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        (edges, served, series)
    }
}

fn those(edges: &[Edge], wanted: impl Fn(&&Edge) -> bool) -> Vec<Edge> {
    edges.iter().filter(wanted).cloned().collect()
}

#[allow(clippy::cast_precision_loss)]
fn row(node: &NodeFacts, served: Option<&Counts>, findings: usize) -> ServiceRow {
    let none = Counts::default();
    let served = served.unwrap_or(&none);
    let all = served.requests as f64;
    let good = served
        .requests
        .saturating_sub(served.failed + served.denied) as f64;
    let health = match of_counts(served) {
        _ if node.endpoints > 0 && node.ready == 0 => Health::Error,
        Health::Idle | Health::Ok if findings > 0 || node.ready < node.endpoints => Health::Warning,
        health => health,
    };
    ServiceRow {
        name: node.name.clone(),
        namespace: node.namespace.clone(),
        kind: node.kind,
        ports: node
            .ports
            .iter()
            .map(|(port, protocol)| PortRow {
                port: *port,
                protocol: protocol.clone(),
            })
            .collect(),
        endpoints: node.endpoints,
        ready: node.ready,
        rate: rounded(all / f64::from(RATES)),
        success: (served.requests > 0).then(|| rounded(good / all)),
        p50: served.quantile(0.5).map(rounded),
        p99: served.quantile(0.99).map(rounded),
        health,
        findings,
    }
}

fn endpoint(
    facts: EndpointFacts,
    of_service: Health,
    left_out: &HashMap<String, usize>,
) -> EndpointRow {
    let left_out_by = left_out.get(&facts.address).copied().unwrap_or_default();
    EndpointRow {
        address: facts.address,
        workload: facts.workload,
        host: facts.host,
        ready: facts.ready,
        left_out_by,
        health: match facts.ready {
            true if left_out_by > 0 => Health::Error,
            true if of_service == Health::Idle => Health::Idle,
            true => Health::Ok,
            false => Health::Error,
        },
    }
}
