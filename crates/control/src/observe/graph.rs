//! Nodes and edges of a window of time.

use super::Observer;
use super::shown::{Coverage, Edge, EdgeSeries, Graph, Health, Node, ReasonRate, Rest};
use crate::history::{COARSE, Counts, FINE, History, Pair, STEP, Span, begin, step};
use crate::index::{NodeFacts, Nodes, OUTSIDE};
use crate::reports::now;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Reasons that are shown of an edge.
const MAX_REASONS: usize = 5;
/// Share of requests that fail from which on something is an error.
const ERROR: f64 = 0.05;
/// The same for a warning.
const WARNING: f64 = 0.01;

/// Three digits are enough, and a number that hardly changes is no change.
pub(super) fn rounded(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powf(2.0 - number.abs().log10().floor());
    (number * scale).round() / scale
}

/// Takes an edge's id apart.
pub(super) fn pair(id: &str) -> Option<Pair> {
    let (source, destination) = id.split_once('>')?;
    Some((source.into(), destination.into()))
}

/// How failures look at a glance.
fn health(requests: u64, failed: f64, denied: f64) -> Health {
    match () {
        () if requests == 0 => Health::Idle,
        () if failed >= ERROR => Health::Error,
        () if failed >= WARNING || denied > 0.0 => Health::Warning,
        () => Health::Ok,
    }
}

/// Returns an edge of these sums.
#[allow(clippy::cast_precision_loss)]
pub(super) fn edge(history: &History, pair: &Pair, counts: &Counts, seconds: f64) -> Edge {
    let rate = |count: u64| rounded(count as f64 / seconds);
    let denied = counts.denied.min(counts.requests.max(counts.denied));
    // A caller over TCP sees a refusal as a failure.
    let failed = match counts.tcp > 0 {
        true => counts.failed.saturating_sub(denied),
        false => counts.failed,
    };
    let requests = counts.requests.max(denied + failed);
    let share = |count: u64| count as f64 / requests.max(1) as f64;
    let good = requests - failed - denied;
    let mut reasons = counts.reasons.clone();
    reasons.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let reasons = reasons.into_iter().take(MAX_REASONS);
    let reasons = reasons.map(|(code, count)| ReasonRate {
        code: history.code(code).to_owned(),
        rate: rate(count),
    });
    Edge {
        id: format!("{}>{}", pair.0, pair.1),
        source: pair.0.to_string(),
        destination: pair.1.to_string(),
        protocol: match (counts.tcp, counts.grpc) {
            (1.., _) => "tcp",
            (_, 1..) => "grpc",
            _ => "http",
        },
        rate: rate(requests),
        success: (requests > 0).then(|| rounded(share(good))),
        p50: counts.quantile(0.5).map(rounded),
        p99: counts.quantile(0.99).map(rounded),
        mtls: match counts.mutual {
            0 => "none",
            mutual if mutual >= counts.requests => "all",
            _ => "some",
        },
        denied: rate(denied),
        failed: rate(failed),
        reasons: reasons.collect(),
        bytes_in: rate(counts.received),
        bytes_out: rate(counts.sent),
        health: health(requests, share(failed), share(denied)),
    }
}

/// The proxies of a node.
#[derive(Default)]
struct OfProxies {
    count: usize,
    refused: usize,
}

impl Observer {
    /// The mesh in a window of so many seconds that ends then, or now.
    pub fn graph(&self, at: Option<f64>, window: u32) -> Graph {
        let window = window.clamp(10, 900);
        let at = at.unwrap_or_else(now).min(now());
        let nodes = self.state.nodes_known();
        let findings = self.found();
        let (edges, served, rest) = self.edges(at, window);
        let mut of_proxies: HashMap<Arc<str>, OfProxies> = HashMap::new();
        let streams = self.state.hub.streams();
        for stream in &streams {
            let status = stream.status();
            let node = nodes.of_proxy(stream.identity.as_str(), &status.instance);
            let of = of_proxies.entry(node.clone()).or_default();
            of.count += 1;
            of.refused += usize::from(!status.last_error.is_empty() || !status.faults.is_empty());
        }
        let used = |id: &str| edges.iter().any(|e| e.source == id || e.destination == id);
        let shown = nodes
            .all
            .values()
            .filter(|n| n.kind != "external" || used(&n.id));
        let mut shown: Vec<Node> = shown
            .map(|facts| {
                let found = findings
                    .of_node
                    .get(&*facts.id)
                    .copied()
                    .unwrap_or_default();
                let served = served.get(&*facts.id);
                node(facts, of_proxies.get(&facts.id), found, served)
            })
            .collect();
        shown.extend(
            [
                (OUTSIDE, "outside", "outside"),
                ("egress/unknown", "external", "unknown"),
            ]
            .into_iter()
            .filter(|(id, ..)| used(id))
            .map(|(id, kind, name)| Node {
                id: id.to_owned(),
                kind,
                name: name.to_owned(),
                health: Health::Ok,
                ..Node::default()
            }),
        );
        shown.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Graph {
            at,
            window,
            revision: self.revision(),
            nodes: shown,
            edges,
            rest,
            coverage: Coverage {
                proxies: streams.len(),
                reporting: self.state.reports.proxies().len(),
                since: self.since(),
            },
        }
    }

    /// Since when there is a history.
    fn since(&self) -> f64 {
        self.state.reports.since().max(now() - 900.0)
    }

    /// Edges by id, the sums of what each node serves, and the rest.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn edges(
        &self,
        at: f64,
        window: u32,
    ) -> (Vec<Edge>, BTreeMap<String, Counts>, Option<Rest>) {
        let history = self.state.reports.history();
        let span = history.span(at, window);
        let mut served: BTreeMap<String, Counts> = BTreeMap::new();
        let mut edges = Vec::new();
        for (pair, counts) in history.edges(span) {
            edges.push(edge(&history, pair, &counts, span.seconds()));
            served.entry(pair.1.to_string()).or_default().add(&counts);
        }
        edges.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let rest = history.rest(span).map(|(edges, requests)| Rest {
            edges,
            rate: rounded(requests as f64 / span.seconds()),
        });
        (edges, served, rest)
    }
}

fn node(
    facts: &NodeFacts,
    proxies: Option<&OfProxies>,
    findings: usize,
    served: Option<&Counts>,
) -> Node {
    let none = OfProxies::default();
    let proxies = proxies.unwrap_or(&none);
    let wrong = findings > 0 || proxies.refused > 0 || facts.ready < facts.endpoints;
    let served = served.map_or(Health::Idle, of_counts);
    let health = match served {
        _ if facts.endpoints > 0 && facts.ready == 0 => Health::Error,
        Health::Idle | Health::Ok if wrong => Health::Warning,
        served => served,
    };
    Node {
        id: facts.id.to_string(),
        kind: facts.kind,
        name: own_name(facts),
        namespace: facts.namespace.clone(),
        hosts: facts.hosts.iter().cloned().collect(),
        proxies: proxies.count,
        endpoints: facts.endpoints,
        ready: facts.ready,
        findings,
        health,
        identities: facts.identities.iter().cloned().collect(),
    }
}

/// A node's name without its namespace.
pub(super) fn own_name(facts: &NodeFacts) -> String {
    let namespace = facts.namespace.as_ref().map(|n| format!(".{n}"));
    let own = namespace.and_then(|n| facts.name.strip_suffix(n.as_str()));
    own.unwrap_or(&facts.name).to_owned()
}

/// How what is served does.
#[allow(clippy::cast_precision_loss)]
pub(super) fn of_counts(counts: &Counts) -> Health {
    let all = counts.requests.max(1) as f64;
    health(
        counts.requests,
        counts.failed as f64 / all,
        counts.denied as f64 / all,
    )
}

/// How edges did together over time: a value for each step, or group of steps where these are kept together.
#[allow(clippy::cast_precision_loss)]
pub(super) fn series(history: &History, pairs: &[Pair], at: f64, window: u32) -> EdgeSeries {
    let end = step(at);
    let steps = window.clamp(10, 900).div_ceil(STEP);
    // The newest steps alone are kept one by one.
    let group = match steps <= FINE - COARSE {
        true => 1,
        false => COARSE,
    };
    let first = end.saturating_sub(steps) / group * group;
    let mut series = EdgeSeries {
        from: begin(first),
        step: group * STEP,
        ..EdgeSeries::default()
    };
    let mut from = first;
    while from < end {
        let to = (from + group).min(end);
        let span = Span { from, to };
        let mut sum = Counts::default();
        for counts in pairs.iter().filter_map(|pair| history.edge(pair, span)) {
            sum.add(&counts);
        }
        let rate = |count: u64| rounded(count as f64 / span.seconds());
        series.rate.push(rate(sum.requests.max(sum.denied)));
        series.failed.push(rate(sum.failed));
        series.denied.push(rate(sum.denied));
        series.p50.push(sum.quantile(0.5).map(rounded));
        series.p99.push(sum.quantile(0.99).map(rounded));
        from += group;
    }
    series
}

/// Edges to or from a node.
pub(super) fn pairs_of(history: &History, span: Span, wanted: impl Fn(&Pair) -> bool) -> Vec<Pair> {
    let edges = history.edges(span).map(|(pair, _)| pair);
    edges.filter(|pair| wanted(pair)).cloned().collect()
}

/// Names to ask about a call between two nodes; `None`: there is nobody to ask about.
pub(super) fn names(nodes: &Nodes, pair: &Pair) -> Option<(String, String)> {
    let name = |id: &str| nodes.all.get(id).map(|node| node.name.clone());
    Some((name(&pair.0)?, name(&pair.1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_enough() {
        assert_eq!(rounded(0.0), 0.0);
        assert_eq!(rounded(1234.5), 1230.0);
        assert_eq!(rounded(0.998_76), 0.999);
        assert_eq!(rounded(f64::NAN), 0.0);
    }

    #[test]
    fn an_edge_says_how_it_went() {
        let mut history = History::default();
        let denied = history.reason("denied");
        let counts = Counts {
            requests: 600,
            failed: 30,
            denied: 60,
            mutual: 600,
            reasons: vec![(denied, 60)],
            ..Counts::default()
        };
        let pair = pair("service/a>service/b").unwrap();
        let edge = edge(&history, &pair, &counts, 60.0);
        assert_eq!((edge.rate, edge.denied, edge.failed), (10.0, 1.0, 0.5));
        assert_eq!((edge.success, edge.mtls), (Some(0.85), "all"));
        assert_eq!(
            (edge.reasons[0].code.as_str(), edge.health),
            ("denied", Health::Error)
        );
        // A refusal of TCP is no failure beside it.
        let tcp = Counts {
            requests: 10,
            failed: 10,
            denied: 10,
            tcp: 10,
            ..Counts::default()
        };
        let edge = super::edge(&history, &pair, &tcp, 10.0);
        assert_eq!(
            (edge.rate, edge.denied, edge.failed, edge.protocol),
            (1.0, 1.0, 0.0, "tcp")
        );
    }
}
