//! One edge: how it did, what failed, and why a call is allowed or not. And what differs between two windows.

use super::graph::{edge, names, pair, series};
use super::pages::{Considered, Refusal, Why, WhyQuery};
use super::shown::{Compared, Comparison, Edge, EdgePage, ErrorSample};
use super::{Observer, guide, refusal};
use crate::history::Sample;
use crate::reports::now;
use crate::state::Refused;
use std::collections::BTreeMap;
use tulle_api::v1;

/// Edges that are compared at most.
const MAX_COMPARED: usize = 200;
/// Standard deviations that are more than noise.
const NOISE: f64 = 3.0;
/// A duration that grows by this factor is more than noise.
const SLOWER: f64 = 1.5;

impl Observer {
    /// All about an edge.
    pub fn edge(&self, id: &str, window: u32) -> Option<EdgePage> {
        let pair = pair(id)?;
        let at = now();
        let page = {
            let history = self.state.reports.history();
            let span = history.span(at, window.clamp(10, 900));
            let counts = history.edge(&pair, span)?;
            EdgePage {
                edge: edge(&history, &pair, &counts, span.seconds()),
                series: series(&history, std::slice::from_ref(&pair), at, window),
                errors: history
                    .samples(&pair, at - f64::from(window))
                    .into_iter()
                    .map(error)
                    .collect(),
                why: None,
            }
        };
        let nodes = self.state.nodes_known();
        let why = names(&nodes, &pair).and_then(|(from, to)| {
            let asked = WhyQuery {
                from,
                to,
                ..WhyQuery::default()
            };
            self.why(asked).ok()
        });
        Some(EdgePage { why, ..page })
    }

    /// Whether a call is allowed, and why.
    ///
    /// # Errors
    /// A name is not known, or the time is beyond the history.
    pub fn why(&self, asked: WhyQuery) -> Result<Why, Refusal> {
        #[allow(clippy::cast_possible_truncation)] // seconds of this century
        let at = asked.at.map_or(0, |at| at as i64);
        let nodes = self.state.nodes_known();
        let name = |text: String| match nodes.all.get(text.as_str()) {
            Some(node) => node.name.clone(),
            None => text,
        };
        let request = v1::ExplainRequest {
            from: name(asked.from),
            to: name(asked.to),
            path: asked.path,
            method: asked.method,
            port: asked.port,
            at_unix_seconds: at,
        };
        let explained = self.state.explain(&request);
        explained.map(why).map_err(|refused| match refused {
            Refused::Conflict(message) => Refusal {
                code: "beyond_history",
                message,
                fix: "ask about a later time".into(),
                status: 422,
            },
            other => refusal(other),
        })
    }

    /// The edges that differ between two windows.
    pub fn compare(&self, before: f64, after: f64, window: u32) -> Comparison {
        let window = window.clamp(10, 900);
        let of = |at| -> BTreeMap<String, Edge> {
            let edges = self.edges(at, window).0.into_iter();
            edges.map(|edge| (edge.id.clone(), edge)).collect()
        };
        let (mut before, after) = (of(before), of(after));
        let mut all: Vec<(f64, Compared)> = Vec::new();
        for (id, after) in after {
            let before = before.remove(&id);
            add(&mut all, id, before, Some(after), window);
        }
        for (id, before) in before {
            add(&mut all, id, Some(before), None, window);
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let edges = all.into_iter().take(MAX_COMPARED);
        Comparison {
            edges: edges.map(|(_, compared)| compared).collect(),
        }
    }
}

fn add(
    all: &mut Vec<(f64, Compared)>,
    id: String,
    before: Option<Edge>,
    after: Option<Edge>,
    window: u32,
) {
    let by = difference(before.as_ref(), after.as_ref(), window);
    if by > NOISE {
        all.push((by, Compared { id, before, after }));
    }
}

/// Says by how many standard deviations two edges differ in what matters most. Requests come at random: their number
/// varies by its root.
fn difference(before: Option<&Edge>, after: Option<&Edge>, window: u32) -> f64 {
    let number = |edge: Option<&Edge>, of: fn(&Edge) -> f64| {
        edge.map_or(0.0, |edge| of(edge) * f64::from(window))
    };
    let numbers: [fn(&Edge) -> f64; 3] = [|e| e.rate, |e| e.failed, |e| e.denied];
    let counted = numbers.into_iter().map(|of| {
        let (was, is) = (number(before, of), number(after, of));
        (is - was).abs() / (is + was).sqrt().max(1.0)
    });
    let slower = match (before.and_then(|e| e.p99), after.and_then(|e| e.p99)) {
        (Some(was), Some(is)) if (is - was).abs() > 1.0 => {
            let factor = (is / was.max(0.01)).max(was / is.max(0.01));
            NOISE * factor / SLOWER
        }
        _ => 0.0,
    };
    counted.fold(slower, f64::max)
}

fn error(sample: Sample) -> ErrorSample {
    let advice = guide::reason(&sample.reason);
    let is_answer = sample.reason.is_empty();
    let (cause, fix, doc) = match is_answer {
        true => (
            format!("the application answered with {}", sample.status),
            "its log says why: `tulle logs WORKLOAD`".to_owned(),
            "docs/access-log.md".to_owned(),
        ),
        false => {
            let cause = match sample.detail.is_empty() {
                true => advice.cause.to_owned(),
                false => format!("{} ({})", advice.cause, sample.detail),
            };
            let doc = format!("docs/reasons.md#{}", sample.reason);
            (cause, advice.fix.to_owned(), doc)
        }
    };
    ErrorSample {
        at: sample.at,
        reason: if is_answer {
            "-".to_owned()
        } else {
            sample.reason
        },
        status: sample.status,
        grpc_status: sample.grpc_status,
        method: sample.method,
        path: sample.path,
        count: sample.count,
        proxy: sample.proxy.to_string(),
        upstream: sample.upstream,
        cause,
        fix,
        doc,
    }
}

fn why(e: v1::Explanation) -> Why {
    let considered = e.considered.into_iter().map(|c| Considered {
        kind: c.kind,
        name: c.name,
        outcome: c.outcome,
    });
    Why {
        allowed: e.allowed,
        source_identity: e.source_identity,
        destination_identities: e.destination_identities,
        route: e.route,
        rule: e.rule,
        policy: e.policy,
        reason: e.reason,
        endpoints: e.endpoints,
        mtls: e.mtls,
        considered: considered.collect(),
        filters: e.filters,
        split: e.split,
        limits: e.limits,
        timeout: e.timeout,
        retry: e.retry,
        destinations: e.destinations,
        conflicts: e.conflicts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(rate: f64, failed: f64, p99: f64) -> Edge {
        Edge {
            rate,
            failed,
            p99: Some(p99),
            ..Edge::default()
        }
    }

    #[test]
    fn noise_is_no_difference() {
        let differ = |before: Option<Edge>, after: Option<Edge>| {
            difference(before.as_ref(), after.as_ref(), 60) > NOISE
        };
        assert!(!differ(
            Some(edge(10.0, 0.0, 5.0)),
            Some(edge(10.5, 0.0, 5.5))
        ));
        assert!(differ(
            Some(edge(10.0, 0.0, 5.0)),
            Some(edge(20.0, 0.0, 5.0))
        ));
        assert!(differ(
            Some(edge(10.0, 0.0, 5.0)),
            Some(edge(10.0, 0.5, 5.0))
        ));
        assert!(differ(
            Some(edge(10.0, 0.0, 5.0)),
            Some(edge(10.0, 0.0, 50.0))
        ));
        assert!(differ(None, Some(edge(1.0, 0.0, 5.0))));
    }
}
