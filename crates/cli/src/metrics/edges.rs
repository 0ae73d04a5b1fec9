//! Edges: one for each pair of identities that talked, with how well.
//!
//! Both sidecars of a hop report it. The destination's report is taken where there is one: it is
//! the side that authorized. The source's report stands in for destinations that cannot be read.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tulle_model::samples::{MetricSample, percentile};

const REQUESTS: &str = "istio_requests_total";
const CONNECTIONS: &str = "istio_tcp_connections_opened_total";
/// [`Edge::security`] of what left the mesh.
pub(crate) const EGRESS: &str = "egress";
const TCP_FAILURES: &str = "tulle_tcp_failures_total";
/// Prefix of the service of a request that a rule let out of the mesh.
const EGRESS_RULE: &str = "Egress/";
/// Reasons that only connections have which reached somebody.
const AFTER_REACHING: [&str; 5] = [
    "-",
    "idle_timeout",
    "upstream_reset",
    "client_closed",
    "request_timeout",
];
/// Answers that a route gives instead of a backend.
const ANSWERED: [&str; 4] = [
    "redirected",
    "responded",
    "cors_preflight",
    "fault_injected",
];
const DURATIONS: &str = "istio_request_duration_milliseconds_bucket";

/// A caller and a service that talked, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Edge {
    /// SPIFFE id of the caller; empty for a client outside the mesh.
    pub(crate) source: String,
    /// SPIFFE id of the called side.
    pub(crate) destination: String,
    /// Short name of the caller.
    pub(crate) source_workload: String,
    /// Service that was called.
    pub(crate) destination_service: String,
    /// `mutual_tls`, `plaintext`, or `egress` for what left the mesh.
    pub(crate) security: String,
    /// HTTP requests.
    pub(crate) requests: u64,
    /// TCP connections.
    pub(crate) connections: u64,
    /// Requests and connections refused by policy, or for being plaintext.
    pub(crate) denied: u64,
    /// Share of requests that did not fail ([`MetricSample::is_failure`]) and were not denied; absent when
    /// there were none.
    pub(crate) success_rate: Option<f64>,
    /// Median duration in milliseconds, estimated within its bucket.
    pub(crate) p50_ms: Option<f64>,
    /// 99th percentile in milliseconds, estimated within its bucket.
    pub(crate) p99_ms: Option<f64>,
}

/// Requests that reached nobody: no endpoint, no connection, no such service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Unreached {
    /// SPIFFE id of the caller.
    pub(crate) source: String,
    /// Service that was called.
    pub(crate) destination_service: String,
    /// The proxy's reason code.
    pub(crate) reason: String,
    /// Number of requests.
    pub(crate) requests: u64,
}

type Key = (String, String, String, String);

#[derive(Default)]
struct Sums {
    source_workload: String,
    requests: f64,
    failed: f64,
    denied: f64,
    connections: f64,
    /// Upper bound (as text, since f64 is no key) to cumulative count.
    buckets: BTreeMap<u64, f64>,
}

/// Returns requests that never reached a service, and so count as neither mutual TLS nor plaintext.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counters, whole and positive
pub(crate) fn unreached(samples: &[MetricSample]) -> Vec<Unreached> {
    let mut counts: BTreeMap<(String, String, String), f64> = BTreeMap::new();
    let lost = |s: &&MetricSample| s.name == REQUESTS && is_unreached(s) && !is_answered(s);
    for sample in samples.iter().filter(|s| lost(s) || is_tcp_unreached(s)) {
        let reason = match sample.name == REQUESTS {
            true => "response_flags",
            false => "reason",
        };
        let key = (
            known(sample.label("source_principal")),
            known(sample.service()),
            sample.label(reason).to_owned(),
        );
        *counts.entry(key).or_default() += sample.value;
    }
    counts
        .into_iter()
        .filter(|(_, count)| *count > 0.0)
        .map(|((source, destination_service, reason), count)| Unreached {
            source,
            destination_service,
            reason,
            requests: count as u64,
        })
        .collect()
}

fn is_unreached(sample: &MetricSample) -> bool {
    sample.label("reporter") == "source"
        && known(sample.label("destination_principal")).is_empty()
        && !matches!(sample.label("response_flags"), "" | "-")
}

/// Whether a route answered instead of a backend. Nobody was meant to be reached.
pub(crate) fn is_answered(sample: &MetricSample) -> bool {
    ANSWERED.contains(&sample.label("response_flags"))
}

/// The same as [`is_unreached`] of TCP, whose connections count as opened all the same.
pub(crate) fn is_tcp_unreached(sample: &MetricSample) -> bool {
    is_tcp_failure(sample)
        && sample.label("reporter") == "source"
        && known(sample.label("destination_principal")).is_empty()
        && !AFTER_REACHING.contains(&sample.label("reason"))
}

/// Requests that end without an answer are counted there too, but not as connections.
fn is_tcp_failure(sample: &MetricSample) -> bool {
    sample.name == TCP_FAILURES && sample.label("request_protocol") == "tcp"
}

/// Whether it left the mesh: by an Egress rule, or to an address of no service.
fn leaves(sample: &MetricSample) -> bool {
    let service = known(sample.service());
    sample.label("reporter") == "source"
        && known(sample.label("destination_principal")).is_empty()
        && (service.is_empty() || service.starts_with(EGRESS_RULE))
}

/// Traffic between workloads (and gateways) of the mesh, plaintext into a workload, and what leaves
/// the mesh.
pub(crate) fn edges(samples: &[MetricSample]) -> Vec<Edge> {
    let destination = sums(samples, "destination");
    let mut source = sums(samples, "source");
    source.retain(|(from, to, service, _), _| {
        let told = |(f, t, s, _): &Key| f == from && (t == to || to.is_empty()) && s == service;
        !destination.keys().any(told)
    });
    destination.into_iter().chain(source).map(edge).collect()
}

fn sums(samples: &[MetricSample], reporter: &str) -> BTreeMap<Key, Sums> {
    let mut sums: BTreeMap<Key, Sums> = BTreeMap::new();
    for sample in samples.iter().filter(|s| s.label("reporter") == reporter) {
        if !matches!(
            sample.name.as_str(),
            REQUESTS | CONNECTIONS | DURATIONS | TCP_FAILURES
        ) || is_unreached(sample)
        {
            continue;
        }
        let entry = sums.entry(key(sample)).or_default();
        if entry.source_workload.is_empty() {
            entry.source_workload = known(sample.label("source_workload"));
        }
        match sample.name.as_str() {
            REQUESTS => {
                entry.requests += sample.value;
                // A caller that is refused has no success either.
                if sample.is_failure() || is_denied(sample.label("response_flags")) {
                    entry.failed += sample.value;
                }
                if is_denied(sample.label("response_flags")) {
                    entry.denied += sample.value;
                }
            }
            CONNECTIONS => entry.connections += sample.value,
            TCP_FAILURES if is_tcp_unreached(sample) => entry.connections -= sample.value,
            TCP_FAILURES => {
                if is_tcp_failure(sample) && is_denied(sample.label("reason")) {
                    entry.denied += sample.value;
                }
            }
            _ => {
                let bound: f64 = sample.label("le").parse().unwrap_or(f64::INFINITY);
                // Bounds are positive, so their bits sort as they do.
                *entry.buckets.entry(bound.max(0.0).to_bits()).or_default() += sample.value;
            }
        }
    }
    // A series that exists but never counted is no traffic.
    sums.retain(|_, s| s.requests > 0.0 || s.connections > 0.0);
    sums
}

/// Whether a caller was refused, by the reason code.
pub(crate) fn is_denied(reason: &str) -> bool {
    matches!(
        reason,
        "denied" | "plaintext_refused" | "unauthenticated" | "external_denied"
    )
}

fn key(sample: &MetricSample) -> Key {
    let security = match sample.label("connection_security_policy") {
        "mutual_tls" => "mutual_tls",
        _ if leaves(sample) => EGRESS,
        _ => "plaintext",
    };
    (
        known(sample.label("source_principal")),
        known(sample.label("destination_principal")),
        known(sample.service()),
        security.to_owned(),
    )
}

/// Istio's metrics say `unknown` for what is not known.
fn known(value: &str) -> String {
    if value == "unknown" {
        return String::new();
    }
    value.to_owned()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counters, whole and positive
fn edge(((source, destination, service, security), sums): (Key, Sums)) -> Edge {
    let buckets: Vec<(f64, f64)> = sums
        .buckets
        .iter()
        .map(|(bound, count)| (f64::from_bits(*bound), *count))
        .collect();
    Edge {
        source,
        destination,
        source_workload: sums.source_workload,
        destination_service: service,
        security,
        requests: sums.requests as u64,
        connections: sums.connections as u64,
        denied: sums.denied as u64,
        success_rate: (sums.requests > 0.0).then(|| 1.0 - sums.failed / sums.requests),
        p50_ms: percentile(&buckets, 0.50),
        p99_ms: percentile(&buckets, 0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::samples::parse;

    const A: &str = "source_workload=\"a\",source_principal=\"spiffe://t/svc/a\",\
         destination_service=\"b\",destination_workload=\"b\",\
         destination_principal=\"spiffe://t/svc/b\",connection_security_policy=\"mutual_tls\"";

    #[test]
    fn the_destination_is_believed_and_each_hop_counted_once() {
        let text = format!(
            "istio_requests_total{{reporter=\"source\",{A},response_code=\"200\"}} 9\n\
             istio_requests_total{{reporter=\"destination\",{A},response_code=\"200\"}} 6\n\
             istio_requests_total{{reporter=\"destination\",{A},response_code=\"503\"}} 2\n\
             istio_requests_total{{reporter=\"destination\",{A},response_code=\"403\",response_flags=\"denied\"}} 2\n"
        );
        let edges = edges(&parse(&text));
        assert_eq!(edges.len(), 1);
        let edge = &edges[0];
        assert_eq!(edge.source, "spiffe://t/svc/a");
        assert_eq!(edge.destination, "spiffe://t/svc/b");
        assert_eq!(edge.security, "mutual_tls");
        assert_eq!((edge.requests, edge.denied), (10, 2));
        assert_eq!(edge.success_rate, Some(0.6), "who is denied has no success");
        assert_eq!(edge.p50_ms, None);
    }

    #[test]
    fn the_source_stands_in_when_the_destination_cannot_be_read() {
        let text =
            format!("istio_requests_total{{reporter=\"source\",{A},response_code=\"0\"}} 3\n");
        let edges = edges(&parse(&text));
        assert_eq!(edges.len(), 1);
        assert_eq!(edges[0].success_rate, Some(0.0));
    }

    #[test]
    fn plaintext_into_a_workload_is_an_edge() {
        let text = "istio_requests_total{reporter=\"destination\",source_principal=\"\",\
             destination_principal=\"spiffe://t/svc/b\",destination_service=\"b\",\
             connection_security_policy=\"none\",response_code=\"200\"} 1\n";
        let edges = edges(&parse(text));
        assert_eq!(edges.len(), 1);
        assert_eq!(edges[0].destination, "spiffe://t/svc/b");
        assert_eq!(edges[0].security, "plaintext");
    }

    #[test]
    fn a_request_that_reached_nobody_is_no_hop() {
        let text = "istio_requests_total{reporter=\"source\",source_principal=\"spiffe://t/svc/a\",\
             destination_service=\"b\",destination_principal=\"unknown\",\
             connection_security_policy=\"none\",response_code=\"503\",response_flags=\"no_endpoint\"} 2\n\
             istio_requests_total{reporter=\"source\",source_principal=\"spiffe://t/svc/a\",\
             destination_service=\"c\",destination_principal=\"unknown\",\
             connection_security_policy=\"none\",response_code=\"200\",response_flags=\"-\"} 1\n";
        let samples = parse(text);
        let lost = unreached(&samples);
        assert_eq!(lost.len(), 1);
        assert_eq!(
            (lost[0].reason.as_str(), lost[0].requests),
            ("no_endpoint", 2)
        );
        let edges = edges(&samples);
        assert_eq!(
            edges.len(),
            1,
            "what was answered in plaintext is a hop: {edges:?}"
        );
        assert_eq!(edges[0].destination_service, "c");
    }

    /// A sample of the source for somebody who is no member of the mesh.
    fn beyond(name: &str, service: &str, more: &str, count: u32) -> String {
        format!(
            "{name}{{reporter=\"source\",source_principal=\"spiffe://t/svc/a\",\
             destination_service=\"{service}\",destination_principal=\"unknown\",\
             connection_security_policy=\"none\",{more}}} {count}\n"
        )
    }

    #[test]
    fn what_leaves_the_mesh_is_no_plaintext_hop() {
        let text = [
            beyond(
                REQUESTS,
                "Egress/books",
                "response_code=\"200\",response_flags=\"-\"",
                2,
            ),
            beyond(
                REQUESTS,
                "unknown",
                "response_code=\"200\",response_flags=\"-\"",
                3,
            ),
            beyond(CONNECTIONS, "unknown", "response_flags=\"-\"", 4),
            // One of the four was refused.
            beyond(
                TCP_FAILURES,
                "unknown",
                "request_protocol=\"tcp\",reason=\"egress_denied\"",
                1,
            ),
        ];
        let samples = parse(&text.concat());
        let edges = edges(&samples);
        let shown: Vec<(&str, &str, u64, u64)> = edges
            .iter()
            .map(|e| {
                (
                    &*e.destination_service,
                    &*e.security,
                    e.requests,
                    e.connections,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [("", "egress", 3, 3), ("Egress/books", "egress", 2, 0)]
        );
        let lost = unreached(&samples);
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert_eq!((&*lost[0].reason, lost[0].requests), ("egress_denied", 1));
    }

    #[test]
    fn a_connection_to_a_service_that_nobody_serves_is_no_hop() {
        let text = [
            beyond(CONNECTIONS, "db", "response_flags=\"-\"", 2),
            beyond(
                TCP_FAILURES,
                "db",
                "request_protocol=\"tcp\",reason=\"no_endpoint\"",
                2,
            ),
        ];
        let samples = parse(&text.concat());
        assert_eq!(edges(&samples), []);
        assert_eq!(unreached(&samples)[0].reason, "no_endpoint");
    }

    #[test]
    fn an_answer_of_the_route_is_not_a_service_that_was_not_reached() {
        let text: String = [
            "redirected",
            "responded",
            "cors_preflight",
            "fault_injected",
        ]
        .map(|reason| {
            let more = format!("response_code=\"301\",response_flags=\"{reason}\"");
            beyond(REQUESTS, "shop", &more, 1)
        })
        .concat();
        let samples = parse(&text);
        assert_eq!(unreached(&samples), []);
        assert_eq!(edges(&samples), []);
    }

    #[test]
    fn a_denied_connection_is_counted_as_denied() {
        let text = format!(
            "{CONNECTIONS}{{reporter=\"destination\",{A},response_flags=\"-\"}} 3\n\
             {TCP_FAILURES}{{reporter=\"destination\",{A},request_protocol=\"tcp\",reason=\"denied\"}} 2\n\
             {TCP_FAILURES}{{reporter=\"destination\",{A},request_protocol=\"http\",reason=\"denied\"}} 1\n"
        );
        let edges = edges(&parse(&text));
        assert_eq!((edges[0].connections, edges[0].denied), (3, 2));
    }

    #[test]
    fn series_without_traffic_are_no_edges() {
        let text =
            format!("istio_requests_total{{reporter=\"source\",{A},response_code=\"200\"}} 0\n");
        assert!(edges(&parse(&text)).is_empty());
    }
}
