//! Requests under OSM's names, for those who bring its dashboards.
//!
//! OSM counts at the client's side and tells neither services nor causes apart.

use super::labels::{Peer, UNKNOWN};
use super::series::{BUCKETS_MS, Histogram, Labels, Reporter, StatusGroup};
use super::text::{header, write_histogram};
use crate::telemetry::reason::Reason;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Requests of one workload to another.
#[derive(Default)]
struct Hop {
    by_code: BTreeMap<String, u64>,
    durations: Histogram,
}

/// Writes all of it.
pub(super) fn write<'a>(
    requests: impl Iterator<Item = (&'a Labels, &'a Vec<(StatusGroup, Reason, Histogram)>)>,
    out: &mut String,
) {
    let mut hops: BTreeMap<String, Hop> = BTreeMap::new();
    for (labels, outcomes) in requests.filter(|(l, _)| l.reporter == Reporter::Source && !l.tcp) {
        let hop = hops.entry(text(labels)).or_default();
        for (answer, _, histogram) in outcomes.iter().filter(|(answer, ..)| answer.is_response()) {
            *hop.by_code.entry(answer.to_string()).or_default() += histogram.count;
            hop.durations.merge(histogram);
        }
    }
    hops.retain(|_, hop| hop.durations.count > 0);
    let name = "osm_request_total";
    header(
        out,
        name,
        "counter",
        "Requests that ended, at the client's side.",
    );
    for (labels, hop) in &hops {
        for (code, count) in &hop.by_code {
            let _ = writeln!(out, "{name}{{{labels},response_code=\"{code}\"}} {count}");
        }
    }
    let name = "osm_request_duration_ms";
    let help = "From the request's head to the response's last byte, at the client's side.";
    header(out, name, "histogram", help);
    for (labels, hop) in &hops {
        write_histogram(name, labels, &hop.durations, &BUCKETS_MS, out);
    }
}

fn text(labels: &Labels) -> String {
    let mut text = String::new();
    let sides = [
        ("source", &labels.source, &labels.source_workload),
        (
            "destination",
            &labels.destination,
            &labels.destination_workload,
        ),
    ];
    for (side, identity, workload) in sides {
        let peer = Peer::new(identity.as_ref(), workload.as_deref());
        let comma = if text.is_empty() { "" } else { "," };
        let (namespace, kind, name) = (peer.namespace, peer.kind(), peer.name);
        let _ = write!(
            text,
            "{comma}{side}_namespace=\"{namespace}\",{side}_kind=\"{kind}\",{side}_name=\"{name}\",\
             {side}_pod=\"{UNKNOWN}\""
        );
    }
    text
}
