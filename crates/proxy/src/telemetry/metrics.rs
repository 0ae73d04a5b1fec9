//! Counters of one worker: plain numbers, merged with the other workers' when they are scraped.
//!
//! A series is looked up when a connection or a destination is set up, not per request; a request
//! then adds to numbers it already holds. Names and labels are Istio's. No label is ever taken
//! from a path or header, and the number of series is bounded.

use crate::telemetry::grpc_status::ResponseStatus;
use crate::telemetry::reason::Reason;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tulle_model::identity::SpiffeId;

/// Upper bounds in milliseconds, the same as Istio's.
pub const BUCKETS_MS: [f64; 19] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10000.0,
    30000.0,
    60000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];
/// Series a worker keeps; more are counted under unknown labels.
const MAX_SERIES: usize = 4096;
/// A series that nobody holds and that did not change for this long is forgotten.
const EXPIRY: Duration = Duration::from_secs(900);

/// Most audit rules counted by name; the last one also stands for any further rule.
const MAX_AUDITS: usize = 256;

/// The proxy that reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reporter {
    /// The client's sidecar or a gateway.
    Source,
    /// The server's sidecar.
    Destination,
}

/// The labels of a series.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels {
    /// The proxy that reports.
    pub reporter: Reporter,
    /// The caller's identity; `None`: outside the mesh.
    pub source: Option<SpiffeId>,
    /// The service called.
    pub destination_service: Arc<str>,
    /// The identity that answers; `None`: outside the mesh or not known.
    pub destination: Option<SpiffeId>,
    /// Whether the connection between the two is mutual TLS.
    pub mutual_tls: bool,
    /// Whether it is opaque TCP rather than HTTP.
    pub tcp: bool,
}

/// Requests with the same labels.
pub struct RequestSeries {
    /// Its labels.
    pub labels: Labels,
    outcomes: RefCell<Vec<Outcome>>,
    tcp: TcpCounters,
    touched: Cell<Instant>,
}

struct Outcome {
    answer: ResponseStatus,
    reason: Reason,
    histogram: Histogram,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Histogram {
    buckets: [u64; BUCKETS_MS.len()],
    count: u64,
    sum_ms: f64,
}

#[derive(Default)]
struct TcpCounters {
    opened: Cell<u64>,
    closed: Cell<u64>,
    sent: Cell<u64>,
    received: Cell<u64>,
}

fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get().wrapping_add(count));
}

impl Histogram {
    fn observe(&mut self, ms: f64) {
        // Buckets are cumulative only when they are shown: one increment per request.
        if let Some(bucket) = BUCKETS_MS.iter().position(|&bound| ms <= bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum_ms += ms;
    }

    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_ms += other.sum_ms;
    }
}

impl RequestSeries {
    fn new(labels: Labels) -> Rc<Self> {
        Rc::new(Self {
            labels,
            outcomes: RefCell::new(Vec::new()),
            tcp: TcpCounters::default(),
            touched: Cell::new(Instant::now()),
        })
    }

    /// Counts one request that began at `started` and ended `now`.
    pub fn request(&self, answer: ResponseStatus, reason: Reason, started: Instant, now: Instant) {
        let ms = now.duration_since(started).as_secs_f64() * 1000.0;
        self.touched.set(now);
        let mut outcomes = self.outcomes.borrow_mut();
        // A handful of outcomes per series: a scan is faster than hashing.
        let known = outcomes
            .iter_mut()
            .find(|o| o.answer == answer && o.reason == reason);
        match known {
            Some(outcome) => outcome.histogram.observe(ms),
            None => {
                let mut histogram = Histogram::default();
                histogram.observe(ms);
                outcomes.push(Outcome {
                    answer,
                    reason,
                    histogram,
                });
            }
        }
    }

    /// Counts a TCP connection that began.
    pub fn tcp_opened(&self) {
        add(&self.tcp.opened, 1);
        self.touched.set(Instant::now());
    }

    /// Counts bytes of a TCP connection: `received` from the caller, `sent` to it.
    pub fn tcp_bytes(&self, received: u64, sent: u64) {
        add(&self.tcp.received, received);
        add(&self.tcp.sent, sent);
    }

    /// Counts a TCP connection that ended.
    pub fn tcp_closed(&self, reason: Reason) {
        add(&self.tcp.closed, 1);
        self.touched.set(Instant::now());
        if reason != Reason::Ok {
            let now = Instant::now();
            self.request(0.into(), reason, now, now);
        }
    }
}

/// Counters by code. There are a handful of codes, all constants of the program.
#[derive(Debug, Clone, Default)]
pub struct CodeCounters(Vec<(&'static str, u64)>);

impl CodeCounters {
    /// Adds to the counter of a code.
    pub fn add(&mut self, code: &'static str, count: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == code) {
            Some((_, sum)) => *sum += count,
            None => self.0.push((code, count)),
        }
    }

    fn merge(&mut self, other: Self) {
        for (code, count) in other.0 {
            self.add(code, count);
        }
    }
}

/// Counters about the proxy itself.
#[derive(Debug, Clone, Default)]
pub struct Internals {
    /// Connections accepted from downstream.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Handshakes that succeeded, as client and as server.
    pub handshakes: u64,
    /// Handshakes among these that resumed a session.
    pub resumed: u64,
    /// Handshakes that failed, by the cause's code.
    pub handshakes_failed: CodeCounters,
    /// Connections dialled.
    pub dialled: u64,
    /// Requests sent again after a reused connection died.
    pub replays: u64,
    /// Connections taken for opaque TCP because nothing recognisable came in time.
    pub detect_timeouts: u64,
    /// Connections or streams refused at a limit.
    pub overloads: u64,
    /// Plaintext connections refused in strict mode.
    pub plaintext_refused: u64,
    /// External authorization checks, by result.
    pub external_auth: CodeCounters,
    /// Matches of audit rules, by rule.
    pub audits: Vec<(Arc<str>, u64)>,
    /// Copies of requests, by result.
    pub mirrored: CodeCounters,
    /// Requests sent again, by cause.
    pub retries: CodeCounters,
    /// Retries that a limit prevented, by the limit.
    pub retries_refused: CodeCounters,
    /// Endpoints asked although they were unhealthy, because none was healthy.
    pub panics: u64,
    /// Connections closed at once at a limit.
    pub shed: u64,
}

/// All series of one worker.
#[derive(Default)]
pub struct Metrics {
    series: RefCell<HashMap<Labels, Rc<RequestSeries>>>,
    internals: RefCell<Internals>,
}

/// One worker's numbers, to be merged and shown.
#[derive(Default)]
pub struct WorkerReport {
    requests: HashMap<Labels, Vec<(ResponseStatus, Reason, Histogram)>>,
    tcp: HashMap<Labels, [u64; 4]>,
    internals: Internals,
    workers: u64,
    pauses: u64,
}

impl Metrics {
    /// The series with these labels.
    pub fn series(&self, labels: Labels) -> Rc<RequestSeries> {
        let mut all = self.series.borrow_mut();
        if let Some(series) = all.get(&labels) {
            return series.clone();
        }
        let mut labels = labels;
        if all.len() >= MAX_SERIES {
            labels.source = None;
            labels.destination = None;
        }
        all.entry(labels.clone())
            .or_insert_with(|| RequestSeries::new(labels))
            .clone()
    }

    /// Changes a counter about the proxy itself.
    pub fn internal(&self, change: impl FnOnce(&mut Internals)) {
        change(&mut self.internals.borrow_mut());
    }

    /// Counts a match of an audit rule.
    pub fn audited(&self, rule: &Arc<str>) {
        add_audit(&mut self.internals.borrow_mut().audits, rule, 1);
    }

    /// Returns the present numbers. Forgets series that have expired.
    pub fn report(&self) -> WorkerReport {
        let mut report = WorkerReport {
            internals: self.internals.borrow().clone(),
            workers: 1,
            pauses: tulle_net::moderation::pauses(),
            ..WorkerReport::default()
        };
        self.series.borrow_mut().retain(|labels, series| {
            let outcomes = series.outcomes.borrow();
            let shown = outcomes
                .iter()
                .map(|o| (o.answer, o.reason, o.histogram.clone()));
            report.requests.insert(labels.clone(), shown.collect());
            let tcp = &series.tcp;
            if tcp.opened.get() > 0 {
                let counts = [&tcp.opened, &tcp.closed, &tcp.sent, &tcp.received].map(Cell::get);
                report.tcp.insert(labels.clone(), counts);
            }
            Rc::strong_count(series) > 1 || series.touched.get().elapsed() < EXPIRY
        });
        report
    }
}

impl WorkerReport {
    /// Adds another worker's numbers.
    pub fn merge(&mut self, other: Self) {
        for (labels, outcomes) in other.requests {
            let mine = self.requests.entry(labels).or_default();
            for (answer, reason, histogram) in outcomes {
                match mine
                    .iter_mut()
                    .find(|(a, r, _)| *a == answer && *r == reason)
                {
                    Some((_, _, known)) => known.merge(&histogram),
                    None => mine.push((answer, reason, histogram)),
                }
            }
        }
        for (labels, counts) in other.tcp {
            let mine = self.tcp.entry(labels).or_default();
            for (mine, theirs) in mine.iter_mut().zip(counts) {
                *mine += theirs;
            }
        }
        let (a, b) = (&mut self.internals, other.internals);
        a.accepted += b.accepted;
        a.open += b.open;
        a.handshakes += b.handshakes;
        a.resumed += b.resumed;
        a.handshakes_failed.merge(b.handshakes_failed);
        a.dialled += b.dialled;
        a.replays += b.replays;
        a.detect_timeouts += b.detect_timeouts;
        a.overloads += b.overloads;
        a.plaintext_refused += b.plaintext_refused;
        a.mirrored.merge(b.mirrored);
        a.external_auth.merge(b.external_auth);
        a.retries.merge(b.retries);
        a.retries_refused.merge(b.retries_refused);
        for (rule, count) in &b.audits {
            add_audit(&mut a.audits, rule, *count);
        }
        a.panics += b.panics;
        a.shed += b.shed;
        self.workers += other.workers;
        self.pauses += other.pauses;
    }

    /// Prometheus text, version 0.0.4.
    pub fn encode(&self) -> String {
        let mut out = String::with_capacity(8192);
        self.encode_requests(&mut out);
        self.encode_tcp(&mut out);
        self.encode_internals(&mut out);
        out
    }

    fn encode_requests(&self, out: &mut String) {
        let mut rows: Vec<_> = self
            .requests
            .iter()
            .flat_map(|(labels, outcomes)| outcomes.iter().map(move |o| (labels, o)))
            .filter(|(labels, (answer, ..))| !labels.tcp && answer.status > 0)
            .map(|(labels, (answer, reason, histogram))| {
                let protocol = answer.grpc.map_or("http", |_| "grpc");
                let mut text = label_text(labels, protocol);
                let status = answer.status;
                let _ = write!(
                    text,
                    ",response_code=\"{status}\",response_flags=\"{reason}\""
                );
                if let Some(status) = answer.grpc {
                    let _ = write!(text, ",grpc_response_status=\"{status}\"");
                }
                (text, histogram)
            })
            .collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        header(
            out,
            "istio_requests_total",
            "counter",
            "Requests that ended.",
        );
        for (labels, histogram) in &rows {
            let _ = writeln!(out, "istio_requests_total{{{labels}}} {}", histogram.count);
        }
        let name = "istio_request_duration_milliseconds";
        header(
            out,
            name,
            "histogram",
            "From the request's head to the response's last byte.",
        );
        for (labels, histogram) in &rows {
            let mut below = 0;
            for (bound, count) in BUCKETS_MS.iter().zip(histogram.buckets) {
                below += count;
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
            }
            let _ = writeln!(
                out,
                "{name}_bucket{{{labels},le=\"+Inf\"}} {}",
                histogram.count
            );
            let _ = writeln!(out, "{name}_sum{{{labels}}} {}", histogram.sum_ms);
            let _ = writeln!(out, "{name}_count{{{labels}}} {}", histogram.count);
        }
    }

    fn encode_tcp(&self, out: &mut String) {
        let names = [
            (
                "istio_tcp_connections_opened_total",
                "TCP connections that began.",
            ),
            (
                "istio_tcp_connections_closed_total",
                "TCP connections that ended.",
            ),
            ("istio_tcp_sent_bytes_total", "Bytes sent to the caller."),
            (
                "istio_tcp_received_bytes_total",
                "Bytes received from the caller.",
            ),
        ];
        let mut rows: Vec<_> = self
            .tcp
            .iter()
            .map(|(labels, counts)| (label_text(labels, "tcp"), counts))
            .collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        for (index, (name, help)) in names.into_iter().enumerate() {
            header(out, name, "counter", help);
            for (labels, counts) in &rows {
                let _ = writeln!(
                    out,
                    "{name}{{{labels},response_flags=\"-\"}} {}",
                    counts.get(index).copied().unwrap_or_default()
                );
            }
        }
        header(
            out,
            "tulle_tcp_failures_total",
            "counter",
            "TCP connections that failed, by reason.",
        );
        for (labels, outcomes) in &self.requests {
            for (answer, reason, histogram) in outcomes {
                if answer.status == 0 {
                    let _ = writeln!(
                        out,
                        "tulle_tcp_failures_total{{{},reason=\"{reason}\"}} {}",
                        label_text(labels, if labels.tcp { "tcp" } else { "http" }),
                        histogram.count
                    );
                }
            }
        }
    }

    fn encode_internals(&self, out: &mut String) {
        let i = &self.internals;
        let rows = [
            ("tulle_workers", "gauge", "Worker threads.", self.workers),
            (
                "tulle_pauses_total",
                "counter",
                "Pauses of workers before they waited for events.",
                self.pauses,
            ),
            (
                "tulle_connections_open",
                "gauge",
                "Connections open now.",
                i.open,
            ),
            (
                "tulle_connections_accepted_total",
                "counter",
                "Connections accepted.",
                i.accepted,
            ),
            (
                "tulle_connections_dialled_total",
                "counter",
                "Connections dialled.",
                i.dialled,
            ),
            (
                "tulle_tls_handshakes_total",
                "counter",
                "Handshakes that succeeded.",
                i.handshakes,
            ),
            (
                "tulle_tls_resumptions_total",
                "counter",
                "Handshakes that resumed a session.",
                i.resumed,
            ),
            (
                "tulle_replays_total",
                "counter",
                "Requests sent again on a new connection.",
                i.replays,
            ),
            (
                "tulle_detect_timeouts_total",
                "counter",
                "Connections taken for opaque TCP after the detection limit.",
                i.detect_timeouts,
            ),
            (
                "tulle_overloads_total",
                "counter",
                "Connections or streams refused at a limit.",
                i.overloads,
            ),
            (
                "tulle_plaintext_refused_total",
                "counter",
                "Plaintext connections refused in strict mode.",
                i.plaintext_refused,
            ),
            (
                "tulle_endpoint_panics_total",
                "counter",
                "Endpoints asked although unhealthy: none was healthy.",
                i.panics,
            ),
            (
                "tulle_connections_shed_total",
                "counter",
                "Connections closed at once because there were too many, or memory was short.",
                i.shed,
            ),
        ];
        for (name, kind, help, value) in rows {
            header(out, name, kind, help);
            let _ = writeln!(out, "{name} {value}");
        }
        let name = "tulle_tls_handshakes_failed_total";
        header(out, name, "counter", "Handshakes that failed, by reason.");
        for (reason, count) in &i.handshakes_failed.0 {
            let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {count}");
        }
        let tallies = [
            (
                "tulle_mirrored_total",
                "outcome",
                "Copies of requests, by result.",
                &i.mirrored,
            ),
            (
                "tulle_retries_total",
                "cause",
                "Requests sent again by a retry policy.",
                &i.retries,
            ),
            (
                "tulle_retries_refused_total",
                "spent",
                "Requests not sent again because the budget or limit was spent.",
                &i.retries_refused,
            ),
        ];
        for (name, label, help, tally) in tallies {
            header(out, name, "counter", help);
            for (value, count) in &tally.0 {
                let _ = writeln!(out, "{name}{{{label}=\"{value}\"}} {count}");
            }
        }
        let name = "tulle_external_auth_total";
        let help = "External authorization checks, by result.";
        header(out, name, "counter", help);
        for (outcome, count) in &i.external_auth.0 {
            let _ = writeln!(out, "{name}{{outcome=\"{outcome}\"}} {count}");
        }
        let name = "tulle_policy_audit_total";
        header(out, name, "counter", "Requests matched by audit rules.");
        for (rule, count) in &i.audits {
            let _ = writeln!(out, "{name}{{rule=\"{}\"}} {count}", rule.escape_debug());
        }
    }
}

/// Adds to a rule's counter. Rules change with the configuration, so only so many are kept by name.
fn add_audit(audits: &mut Vec<(Arc<str>, u64)>, rule: &Arc<str>, count: u64) {
    if let Some((_, sum)) = audits.iter_mut().find(|(known, _)| known == rule) {
        *sum += count;
    } else if audits.len() < MAX_AUDITS {
        audits.push((rule.clone(), count));
    } else if let Some((_, sum)) = audits.last_mut() {
        *sum += count;
    }
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// The common labels. Identities and service names are validated and hold nothing to escape.
fn label_text(labels: &Labels, protocol: &str) -> String {
    let reporter = match labels.reporter {
        Reporter::Source => "source",
        Reporter::Destination => "destination",
    };
    let name = |id: &Option<SpiffeId>| id.as_ref().map_or("unknown", SpiffeId::name).to_owned();
    let principal =
        |id: &Option<SpiffeId>| id.as_ref().map_or("unknown", SpiffeId::as_str).to_owned();
    let security = if labels.mutual_tls {
        "mutual_tls"
    } else {
        "none"
    };
    format!(
        "reporter=\"{reporter}\",source_workload=\"{}\",source_principal=\"{}\",\
         destination_service=\"{}\",destination_service_name=\"{}\",destination_workload=\"{}\",\
         destination_principal=\"{}\",connection_security_policy=\"{security}\",\
         request_protocol=\"{protocol}\"",
        name(&labels.source),
        principal(&labels.source),
        labels.destination_service,
        labels.destination_service,
        name(&labels.destination),
        principal(&labels.destination),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Labels {
        Labels {
            reporter: Reporter::Destination,
            source: Some(SpiffeId::parse("spiffe://t/svc/a").unwrap()),
            destination_service: "b".into(),
            destination: Some(SpiffeId::parse("spiffe://t/svc/b").unwrap()),
            mutual_tls: true,
            tcp: false,
        }
    }

    #[test]
    fn workers_are_merged_and_buckets_are_cumulative() {
        let (one, two) = (Metrics::default(), Metrics::default());
        let start = Instant::now();
        let after = |ms| start + Duration::from_micros(ms);
        one.series(labels())
            .request(200.into(), Reason::Ok, start, after(400));
        one.series(labels())
            .request(200.into(), Reason::Ok, start, after(7000));
        two.series(labels())
            .request(200.into(), Reason::Ok, start, after(900));
        two.series(labels())
            .request(403.into(), Reason::Denied, start, after(100));
        let mut report = one.report();
        report.merge(two.report());
        let text = report.encode();
        let line = |wanted: &[&str]| {
            let lines = text.lines().filter(|l| !l.starts_with('#'));
            let mut found = lines.filter(|l| wanted.iter().all(|w| l.contains(w)));
            found
                .next()
                .unwrap_or_default()
                .rsplit(' ')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(
            line(&["istio_requests_total{", "response_code=\"200\""]),
            "3"
        );
        assert_eq!(
            line(&["response_flags=\"denied\"", "istio_requests_total{"]),
            "1"
        );
        assert_eq!(line(&["_bucket", "\"200\"", "le=\"0.5\""]), "1");
        assert_eq!(line(&["_bucket", "\"200\"", "le=\"1\""]), "2");
        assert_eq!(line(&["_bucket", "\"200\"", "le=\"10\""]), "3");
        assert_eq!(line(&["tulle_workers "]), "2");
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let metrics = Metrics::default();
        for i in 0..MAX_SERIES + 100 {
            let source = SpiffeId::parse(&format!("spiffe://t/svc/w{i}")).ok();
            metrics.series(Labels { source, ..labels() });
        }
        assert!(metrics.series.borrow().len() <= MAX_SERIES + 1);
    }
}
