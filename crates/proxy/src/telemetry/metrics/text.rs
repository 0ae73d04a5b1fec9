//! The numbers as Prometheus text, version 0.0.4, piece by piece: all of it at once may take many megabytes.

use super::WorkerReport;
use super::osm;
use super::series::{BUCKETS_MS, Histogram, Labels, StatusGroup};
use crate::telemetry::reason::Reason;
use std::collections::HashMap;
use std::fmt::Write;
use tulle_model::resource::MetricSettings;

/// Bytes of a piece, after which it ends with the series at hand.
const PIECE: usize = 32 * 1024;

/// The families of metrics that have labels of traffic, in their order.
const FAMILIES: [Family; 9] = [
    Family::Requests,
    Family::Durations,
    Family::RequestBytes,
    Family::ResponseBytes,
    Family::Tcp(0),
    Family::Tcp(1),
    Family::Tcp(2),
    Family::Tcp(3),
    Family::TcpFailures,
];

#[derive(Clone, Copy, PartialEq)]
enum Family {
    Requests,
    Durations,
    RequestBytes,
    ResponseBytes,
    /// Place among the counters of connections.
    Tcp(usize),
    TcpFailures,
}

impl Family {
    /// Name, type and meaning.
    fn described(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Requests => ("istio_requests_total", "counter", "Requests that ended."),
            Self::Durations => (
                "istio_request_duration_milliseconds",
                "histogram",
                "From the request's head to the response's last byte.",
            ),
            Self::RequestBytes => (
                "istio_request_bytes",
                "histogram",
                "Bytes of requests' bodies.",
            ),
            Self::ResponseBytes => (
                "istio_response_bytes",
                "histogram",
                "Bytes of responses' bodies.",
            ),
            Self::Tcp(0) => (
                "istio_tcp_connections_opened_total",
                "counter",
                "TCP connections that began.",
            ),
            Self::Tcp(1) => (
                "istio_tcp_connections_closed_total",
                "counter",
                "TCP connections that ended.",
            ),
            Self::Tcp(2) => (
                "istio_tcp_sent_bytes_total",
                "counter",
                "Bytes sent to the caller.",
            ),
            Self::Tcp(_) => (
                "istio_tcp_received_bytes_total",
                "counter",
                "Bytes received from the caller.",
            ),
            Self::TcpFailures => (
                "tulle_tcp_failures_total",
                "counter",
                "TCP connections that failed, by reason.",
            ),
        }
    }
}

/// The text; each item is a piece of it.
pub struct TrafficText {
    report: WorkerReport,
    settings: MetricSettings,
    /// Labels in their order.
    order: Vec<Labels>,
    /// Place in [`FAMILIES`], and in `order`.
    next: (usize, usize),
    done: bool,
}

impl WorkerReport {
    /// Returns the text. With compact labels of series that are not, two may be shown alike.
    pub fn into_text(self, settings: MetricSettings) -> TrafficText {
        let mut order: Vec<Labels> = self.requests.keys().cloned().collect();
        order.sort_unstable();
        TrafficText {
            report: self,
            settings,
            order,
            next: (0, 0),
            done: false,
        }
    }
}

impl Iterator for TrafficText {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.done {
            return None;
        }
        let mut out = String::with_capacity(PIECE / 2);
        while out.len() < PIECE {
            let Some(&family) = FAMILIES.get(self.next.0) else {
                self.done = true;
                self.rest(&mut out);
                break;
            };
            self.step(family, &mut out);
        }
        Some(out)
    }
}

impl TrafficText {
    /// Writes one labelled group of a family, after its header if it is the first.
    fn step(&mut self, family: Family, out: &mut String) {
        let (name, kind, help) = family.described();
        let sizes = matches!(family, Family::RequestBytes | Family::ResponseBytes);
        if self.next.1 == 0 && !(sizes && self.settings.without_sizes) {
            header(out, name, kind, help);
        }
        match self.order.get(self.next.1) {
            Some(labels) => {
                match family {
                    Family::Requests | Family::Durations => self.requests(family, labels, out),
                    Family::RequestBytes | Family::ResponseBytes => self.sizes(family, labels, out),
                    Family::Tcp(place) => self.tcp(name, place, labels, out),
                    Family::TcpFailures => self.failures(name, labels, out),
                }
                self.next.1 += 1;
            }
            None => self.next = (self.next.0 + 1, 0),
        }
    }

    fn requests(&self, family: Family, labels: &Labels, out: &mut String) {
        let (name, ..) = family.described();
        for (answer, reason, histogram) in answered(&self.report.requests, labels) {
            let labels = self.outcome(labels, *answer, *reason);
            if family == Family::Requests {
                let _ = writeln!(out, "{name}{{{labels}}} {}", histogram.count);
            } else {
                write_histogram(name, &labels, histogram, &BUCKETS_MS, out);
            }
        }
    }

    fn sizes(&self, family: Family, labels: &Labels, out: &mut String) {
        if self.settings.without_sizes {
            return;
        }
        let (name, ..) = family.described();
        for (answer, reason, sizes) in answered(&self.report.sizes, labels) {
            let labels = self.outcome(labels, *answer, *reason);
            let histogram = match family {
                Family::RequestBytes => &sizes.request,
                _ => &sizes.response,
            };
            write_histogram(name, &labels, histogram, &BUCKETS_MS, out);
        }
    }

    fn tcp(&self, name: &str, place: usize, labels: &Labels, out: &mut String) {
        let counts = self.report.tcp.get(labels);
        if let Some(count) = counts.and_then(|counts| counts.get(place)) {
            let labels = self.labels(labels, "tcp");
            let _ = writeln!(out, "{name}{{{labels},response_flags=\"-\"}} {count}");
        }
    }

    fn failures(&self, name: &str, labels: &Labels, out: &mut String) {
        let outcomes = self.report.requests.get(labels).into_iter().flatten();
        for (_, reason, histogram) in outcomes.filter(|(answer, ..)| !answer.is_response()) {
            let labels = self.labels(labels, if labels.tcp { "tcp" } else { "http" });
            let count = histogram.count;
            let _ = writeln!(out, "{name}{{{labels},reason=\"{reason}\"}} {count}");
        }
    }

    /// Everything that has no labels of traffic.
    fn rest(&self, out: &mut String) {
        if self.settings.osm_names {
            osm::write(self.report.requests.iter(), out);
        }
        self.report.encode_internals(out);
    }

    fn labels(&self, labels: &Labels, protocol: &str) -> String {
        let mut text = String::with_capacity(1024);
        labels.write(protocol, self.settings.compact, &mut text);
        text
    }

    fn outcome(&self, labels: &Labels, answer: StatusGroup, reason: Reason) -> String {
        let protocol = if answer.is_grpc() { "grpc" } else { "http" };
        let mut text = self.labels(labels, protocol);
        let _ = write!(
            text,
            ",response_code=\"{answer}\",response_flags=\"{reason}\""
        );
        if let Some(status) = answer.grpc_status() {
            let _ = write!(text, ",grpc_response_status=\"{status}\"");
        }
        text
    }
}

/// The outcomes of requests that were answered.
fn answered<'a, T>(
    all: &'a HashMap<Labels, Vec<(StatusGroup, Reason, T)>>,
    labels: &Labels,
) -> impl Iterator<Item = &'a (StatusGroup, Reason, T)> {
    let http = !labels.tcp;
    let outcomes = all.get(labels).into_iter().flatten();
    outcomes.filter(move |(answer, ..)| http && answer.is_response())
}

pub(super) fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

pub(super) fn write_histogram(
    name: &str,
    labels: &str,
    histogram: &Histogram,
    bounds: &[f64],
    out: &mut String,
) {
    let mut below = 0;
    for (bound, count) in bounds.iter().zip(histogram.buckets) {
        below += count;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
    }
    let count = histogram.count;
    let _ = writeln!(
        out,
        "{name}_bucket{{{labels},le=\"+Inf\"}} {count}\n{name}_sum{{{labels}}} {}\n\
         {name}_count{{{labels}}} {count}",
        histogram.sum,
    );
}
