//! Claims that a proxy may make: of calls that its own identity makes, and of those that its own identity answers.

use super::Proxy;
use crate::history::{BUCKETS, Counts, Pair, Sample};
use crate::index::Nodes;
use serde::Deserialize;
use std::borrow::Cow;
use tulle_api::v1;

/// Most edges of a report.
pub(super) const MAX_EDGES: usize = 512;
/// Most failures of a message.
pub(super) const MAX_FAILED: usize = 32;
/// More than anybody counts between two reports.
const MOST: u64 = 1 << 40;
/// Refusals by policy.
const DENIALS: [&str; 5] = [
    "denied",
    "plaintext_refused",
    "egress_denied",
    "external_denied",
    "unauthenticated",
];
/// Reasons that are no failure of the mesh: the configuration gave the answer, or the client left.
const NO_FAILURES: [&str; 5] = [
    "",
    "redirected",
    "responded",
    "cors_preflight",
    "client_closed",
];

/// Stands in a line of a tap for who has no identity, or is not told apart.
const NO_IDENTITY: &str = "-";

/// The sides of a request in a line of a tap.
#[derive(Deserialize)]
struct Line<'l> {
    #[serde(borrow)]
    source_principal: Cow<'l, str>,
    #[serde(borrow)]
    destination_principal: Cow<'l, str>,
    #[serde(borrow)]
    upstream_cluster: Cow<'l, str>,
}

/// Whether a line of a tap is the proxy's to tell.
pub(super) fn line(proxy: &Proxy, nodes: &Nodes, line: &str) -> bool {
    // One that names a side twice is refused here, too.
    let Ok(line) = serde_json::from_str::<Line<'_>>(line) else {
        return false;
    };
    let own = proxy.identity.as_str();
    let (source, destination) = (&*line.source_principal, &*line.destination_principal);
    if source == own {
        return true;
    }
    // A proxy that counts more kinds of calls than it tells apart names neither side.
    let unnamed = source == NO_IDENTITY && destination == NO_IDENTITY;
    (destination == own || unnamed)
        && answered(proxy, nodes, source, &line.upstream_cluster).is_some()
}

/// Returns the edge that these counts are about; `None`: they are not the proxy's to tell.
pub(super) fn edge(proxy: &Proxy, nodes: &Nodes, counts: &v1::EdgeCounts) -> Option<Pair> {
    let own = proxy.identity.as_str();
    match counts.at_source {
        true => (counts.source == own).then(|| called(proxy, nodes, &counts.destination_service)),
        false if counts.destination == own => {
            answered(proxy, nodes, &counts.source, &counts.destination_service)
        }
        false => None,
    }
}

fn called(proxy: &Proxy, nodes: &Nodes, service: &str) -> Pair {
    let source = nodes.of_proxy(proxy.identity.as_str(), &proxy.instance);
    (source.clone(), nodes.of_destination(service).clone())
}

fn answered(proxy: &Proxy, nodes: &Nodes, source: &str, service: &str) -> Option<Pair> {
    let own = proxy.identity.as_str();
    let named = nodes.of_destination(service);
    let destination = match nodes.all.contains_key(named) {
        true if nodes.serves(own, named) => named,
        true => return None,
        false => nodes.of_proxy(own, &proxy.instance),
    };
    let source = match source.is_empty() {
        true => nodes.outside(),
        false => nodes.of_identity(source),
    };
    Some((source.clone(), destination.clone()))
}

/// Returns the sums of an edge. Where the caller's proxy reports, too, that one counts, and the other side only adds why
/// it refused or failed.
pub(super) fn counts(
    told: &v1::EdgeCounts,
    told_by_caller: bool,
    mut number: impl FnMut(&str) -> u8,
) -> Counts {
    let mut counts = Counts::default();
    let mut closed = 0;
    for outcome in &told.outcomes {
        let count = outcome.count.min(MOST);
        let reason = outcome.reason.as_str();
        if !NO_FAILURES.contains(&reason) {
            counts.reason(number(reason), count);
        }
        if DENIALS.contains(&reason) {
            counts.denied += count;
        } else if outcome.status_class == 5 || !NO_FAILURES.contains(&reason) {
            counts.failed += count;
        }
        counts.grpc += if outcome.grpc { count } else { 0 };
        closed += count;
    }
    if told_by_caller {
        return Counts {
            denied: counts.denied,
            reasons: counts.reasons,
            ..Counts::default()
        };
    }
    counts.requests = match told.tcp {
        // One that was refused was perhaps never opened.
        true => told.opened.min(MOST).max(closed),
        false => closed,
    };
    counts.tcp = if told.tcp { counts.requests } else { 0 };
    counts.mutual = if told.mutual_tls { counts.requests } else { 0 };
    counts.sent = told.sent_bytes.min(MOST);
    counts.received = told.received_bytes.min(MOST);
    let pairs = told.durations.chunks_exact(2).take(BUCKETS);
    for pair in pairs {
        let [bucket, count] = pair else { continue };
        if let Some(sum) = counts.durations.get_mut(*bucket as usize) {
            *sum += u64::from(*count);
        }
    }
    counts
}

/// Returns a failure and its edge; `None`: it is not the proxy's to tell.
pub(super) fn sample(
    proxy: &Proxy,
    nodes: &Nodes,
    failed: v1::FailedRequest,
) -> Option<(Pair, Sample)> {
    let pair = match failed.source == proxy.identity.as_str() {
        true => called(proxy, nodes, &failed.destination_service),
        false => {
            // Clients outside the mesh are told of by their address, or not at all.
            let source = match failed.source.starts_with("spiffe://") {
                true => failed.source.as_str(),
                false => "",
            };
            answered(proxy, nodes, source, &failed.destination_service)?
        }
    };
    let sample = Sample {
        at: failed.at_unix_seconds.min(super::now()),
        reason: cut(failed.reason, 40),
        status: u16::try_from(failed.status).unwrap_or_default(),
        grpc_status: failed.grpc_status.checked_sub(1),
        method: cut(failed.method, 32),
        path: cut(failed.path, 256),
        detail: cut(failed.detail, 512),
        upstream: cut(failed.upstream, 64),
        proxy: proxy.shared_id.clone(),
        count: failed.count.max(1).into(),
    };
    Some((pair, sample))
}

fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}
