//! The access log: one line per request and per TCP connection, written by a thread of its own.
//!
//! A worker never waits for it: when the writer cannot keep up, lines are dropped and counted. The
//! same lines go to clients that watch requests (`GET /tap`). While nobody watches and the log is
//! off, no line is built.

use crate::telemetry::export_totals::ExportTotals;
use crate::telemetry::grpc_status::ResponseStatus;
use crate::telemetry::line_room::{LinePlace, LineRoom};
use crate::telemetry::log_export::{Exported, LogExport};
use crate::telemetry::log_rules::{self, LogRules};
use crate::telemetry::metrics::Labels;
use crate::telemetry::reason::Reason;
use crate::telemetry::tap::Taps;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};
use tulle_http1::RequestHead;
use tulle_model::identity::SpiffeId;

/// Lines waiting to be written.
const QUEUE: usize = 8192;
/// Bytes of these lines. Usual lines are shorter than their share.
pub(super) const QUEUE_BYTES: usize = 16 * 1024 * 1024;

/// A line waiting to be written.
type Waiting = (String, LinePlace);

/// A worker's handle.
#[derive(Clone)]
pub struct AccessLog {
    lines: SyncSender<Waiting>,
    room: Arc<LineRoom>,
    dropped: Arc<AtomicU64>,
    taps: Arc<Taps>,
    export: Arc<LogExport>,
}

/// One line of the log. Field names are those operators know from Envoy's JSON log.
#[derive(serde::Serialize)]
pub struct LogEntry<'a> {
    /// RFC 3339, UTC.
    pub start_time: String,
    /// Request method; `-` for TCP and for bytes that were not a request.
    pub method: &'a str,
    /// Request path with query.
    pub path: &'a str,
    /// `HTTP/2`, `HTTP/1.1`, `HTTP/1.0` or `TCP`.
    pub protocol: &'a str,
    /// Status; 0 for TCP.
    pub response_code: u16,
    /// Status of a gRPC call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<u8>,
    /// Reason code, `-` when nothing went wrong.
    pub response_flags: &'a str,
    /// Milliseconds.
    pub duration: f64,
    /// Milliseconds until the first byte of the response.
    pub time_to_first_byte: f64,
    /// Milliseconds of them that the upstream took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_service_time: Option<f64>,
    /// Destination service.
    pub upstream_cluster: &'a str,
    /// Endpoint.
    pub upstream_host: String,
    /// Body bytes from the client.
    pub bytes_received: u64,
    /// Bytes to the client.
    pub bytes_sent: u64,
    /// `X-Forwarded-For` as the client sent it.
    pub x_forwarded_for: &'a str,
    /// Server name in the client's TLS.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub requested_server_name: &'a str,
    /// `User-Agent` as the client sent it.
    pub user_agent: &'a str,
    /// The request's id.
    pub request_id: &'a str,
    /// Host.
    pub authority: &'a str,
    /// SPIFFE id of the caller, `-` if plaintext.
    pub source_principal: &'a str,
    /// SPIFFE id of the other end, `-` if plaintext.
    pub destination_principal: &'a str,
    /// `mutual_tls` or `none`.
    pub connection_security_policy: &'a str,
    /// Audit rules that match the request.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub policy_audit: &'a str,
    /// Fields that the mesh's settings add.
    #[serde(skip_serializing_if = "Fields::is_empty")]
    pub fields: Fields<'a>,
}

/// Names and values that the mesh's settings add.
#[derive(Clone, Copy)]
pub struct Fields<'a>(&'a [(String, String)]);

impl Fields<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl serde::Serialize for Fields<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl AccessLog {
    /// Starts the writer.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start() -> std::io::Result<Self> {
        Self::writing(std::io::stdout())
    }

    /// As `start`, with another output.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn writing(out: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (lines, queue) = sync_channel(QUEUE);
        tulle_net::thread::start("access-log".into(), Box::new(move || write(&queue, out)))?;
        Ok(Self {
            lines,
            room: LineRoom::new(QUEUE_BYTES),
            dropped: Arc::default(),
            taps: Arc::default(),
            export: Arc::default(),
        })
    }

    /// Returns the watchers of requests.
    pub fn taps(&self) -> &Arc<Taps> {
        &self.taps
    }

    /// Hands lines to the exporter for a collector until it drops the receiver.
    pub(crate) fn export(
        &self,
        totals: &Arc<ExportTotals>,
    ) -> tokio::sync::mpsc::Receiver<Exported> {
        self.export.start(totals)
    }

    /// Whether a line is built: the log has it, or somebody watches.
    pub fn wanted(&self, written: bool) -> bool {
        written || self.taps.are_watched()
    }

    /// Shows a line to the watchers, hands it to the exporter, and queues it, or drops and counts it. `None`: only
    /// watchers see it.
    fn log(&self, entry: &LogEntry<'_>, ended: &ExchangeEnd, lines: Option<&LogRules>) {
        let lines = lines.filter(|lines| lines.has(ended, entry));
        let written = lines.filter(|lines| lines.written);
        let format = written.and_then(|lines| lines.format.as_ref());
        let (watched, exported) = (self.taps.are_watched(), lines.is_some_and(|l| l.exported));
        let mut line = String::new();
        if watched || exported || (written.is_some() && format.is_none()) {
            let Ok(json) = serde_json::to_string(entry) else {
                return;
            };
            line = json + "\n";
        }
        if watched {
            self.taps.show(&line);
        }
        if exported {
            self.export.send(&line);
        }
        if written.is_none() {
            return;
        }
        if let Some(format) = format {
            line = log_rules::line(format, entry);
        }
        let place = self.room.take(line.capacity());
        if place.is_none_or(|place| self.lines.try_send((line, place)).is_err()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Logs one request.
    pub fn request(
        &self,
        line: &RequestLine,
        ended: &ExchangeEnd,
        labels: &Labels,
        lines: Option<&LogRules>,
    ) {
        let lines = lines.filter(|_| line.sampled);
        let entry = entry(
            Some(line),
            line.protocol,
            &ConnectionLine::default(),
            ended,
            labels,
        );
        self.log(&entry, ended, lines);
    }

    /// Logs something that was refused before it was a request.
    pub fn unread(&self, ended: &ExchangeEnd, labels: &Labels, lines: Option<&LogRules>) {
        let entry = entry(None, "HTTP/1.1", &ConnectionLine::default(), ended, labels);
        self.log(&entry, ended, lines);
    }

    /// Logs one TCP connection.
    pub fn connection(
        &self,
        line: &ConnectionLine<'_>,
        ended: &ExchangeEnd,
        labels: &Labels,
        lines: Option<&LogRules>,
    ) {
        self.log(&entry(None, "TCP", line, ended, labels), ended, lines);
    }

    #[cfg(test)]
    pub(super) fn room(&self) -> &Arc<LineRoom> {
        &self.room
    }

    /// Lines dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn write(queue: &Receiver<Waiting>, out: impl Write) {
    let mut out = std::io::BufWriter::new(out);
    while let Ok(line) = queue.recv() {
        write_line(&mut out, line);
        while let Ok(line) = queue.try_recv() {
            write_line(&mut out, line);
        }
        let _ = out.flush();
    }
}

/// Writes a line. Its place is free then.
fn write_line(out: &mut impl Write, (line, _place): Waiting) {
    // A full disk or closed pipe must not hurt traffic: the line is lost, nothing else.
    let _ = out.write_all(line.as_bytes());
}

/// Facts about a request that the access log needs after its bytes have moved on.
pub struct RequestLine {
    /// Method.
    pub method: String,
    /// Target.
    pub target: String,
    /// `HTTP/2`, `HTTP/1.1` or `HTTP/1.0`: the protocol of the client's application.
    pub protocol: &'static str,
    /// Host.
    pub authority: String,
    /// Header.
    pub user_agent: String,
    /// Header.
    pub x_forwarded_for: String,
    /// The `X-Request-Id` header; the forwarded one if the client sends none.
    pub request_id: String,
    /// The endpoint asked last.
    pub upstream: Option<SocketAddr>,
    /// Audit rules that match, separated by commas.
    pub policy_audit: String,
    /// Server name in the client's TLS.
    pub server_name: String,
    /// Whether the log has this request; if not, only watchers see it.
    pub sampled: bool,
    /// Fields that the mesh's settings add.
    pub fields: Vec<(String, String)>,
}

/// Facts about a connection without requests.
#[derive(Default)]
pub struct ConnectionLine<'a> {
    /// The client that a load balancer named.
    pub client: Option<&'a str>,
    /// Server name in the client's TLS.
    pub server_name: Option<&'a str>,
}

/// End of an exchange.
pub struct ExchangeEnd {
    /// The answer to the client.
    pub answer: ResponseStatus,
    /// Cause.
    pub reason: Reason,
    /// When the request's head was complete.
    pub started: Instant,
    /// When the response's head was complete.
    pub first_byte: Option<Instant>,
    /// When the response's last byte was sent on.
    pub now: Instant,
    /// Body bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    /// Endpoint.
    pub upstream: Option<SocketAddr>,
    /// How long the upstream took, from the end of the request to the head of the response.
    pub upstream_time: Option<Duration>,
}

impl RequestLine {
    /// Copies the facts. The client is appended to the addresses the request names, as it is
    /// forwarded.
    pub fn new(head: &RequestHead, bytes: &[u8], client: Option<&[u8]>, http2: bool) -> Box<Self> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let field = |name: &str| {
            let mut fields = tulle_http1::headers(bytes);
            let found = fields.find(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
            found.map(|(_, value)| text(value)).unwrap_or_default()
        };
        // Each hop adds a field of its own.
        let named = tulle_http1::headers(bytes)
            .filter(|(n, _)| n.eq_ignore_ascii_case(b"x-forwarded-for"))
            .map(|(_, value)| value);
        let forwarded_for: Vec<String> = named.chain(client).map(text).collect();
        Box::new(Self {
            method: text(head.method_text.slice(bytes)),
            target: text(head.target.slice(bytes)),
            protocol: match head.minor {
                _ if http2 => "HTTP/2",
                0 => "HTTP/1.0",
                _ => "HTTP/1.1",
            },
            authority: text(head.authority.slice(bytes)),
            user_agent: field("user-agent"),
            x_forwarded_for: forwarded_for.join(", "),
            request_id: text(head.request_id.slice(bytes)),
            upstream: None,
            policy_audit: String::new(),
            server_name: String::new(),
            sampled: true,
            fields: Vec::new(),
        })
    }
}

fn entry<'a>(
    line: Option<&'a RequestLine>,
    protocol: &'a str,
    connection: &ConnectionLine<'a>,
    ended: &ExchangeEnd,
    labels: &'a Labels,
) -> LogEntry<'a> {
    let ms = |end: Instant| end.duration_since(ended.started).as_secs_f64() * 1000.0;
    let took = ended.now.duration_since(ended.started);
    fn principal(id: &Option<SpiffeId>) -> &str {
        id.as_ref().map_or("-", SpiffeId::as_str)
    }
    LogEntry {
        start_time: rfc3339(SystemTime::now() - took),
        method: line.map_or("-", |l| &l.method),
        path: line.map_or("-", |l| &l.target),
        protocol,
        response_code: ended.answer.status,
        grpc_status: ended.answer.grpc,
        response_flags: ended.reason.code(),
        duration: ms(ended.now),
        time_to_first_byte: ended.first_byte.map(ms).unwrap_or_default(),
        upstream_service_time: ended.upstream_time.map(|t| t.as_secs_f64() * 1000.0),
        upstream_cluster: &labels.destination_service,
        upstream_host: ended.upstream.map_or_else(|| "-".into(), |a| a.to_string()),
        bytes_received: ended.received,
        bytes_sent: ended.sent,
        x_forwarded_for: line.map_or(connection.client.unwrap_or("-"), |l| &l.x_forwarded_for),
        requested_server_name: line.map_or(connection.server_name.unwrap_or_default(), |l| {
            &l.server_name
        }),
        user_agent: line.map_or("-", |l| &l.user_agent),
        request_id: line.map_or("-", |l| &l.request_id),
        authority: line.map_or("-", |l| &l.authority),
        source_principal: principal(&labels.source),
        destination_principal: principal(&labels.destination),
        connection_security_policy: if labels.mutual_tls {
            "mutual_tls"
        } else {
            "none"
        },
        fields: Fields(line.map_or(&[], |l| &l.fields)),
        policy_audit: line.map_or("", |l| &l.policy_audit),
    }
}

/// `2026-01-31T12:00:00.123Z`. Days to date by Howard Hinnant's civil calendar algorithm.
fn rfc3339(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_documented() {
        let entry = LogEntry {
            start_time: String::new(),
            method: "",
            path: "",
            protocol: "",
            response_code: 0,
            grpc_status: Some(0),
            response_flags: "",
            duration: 0.0,
            time_to_first_byte: 0.0,
            upstream_service_time: Some(0.0),
            upstream_cluster: "",
            upstream_host: String::new(),
            bytes_received: 0,
            bytes_sent: 0,
            x_forwarded_for: "",
            requested_server_name: "a",
            user_agent: "",
            request_id: "",
            authority: "",
            source_principal: "",
            destination_principal: "",
            connection_security_policy: "",
            policy_audit: "a",
            fields: Fields(&[]),
        };
        let page = include_str!("../../../../docs/access-log.md");
        let fields = serde_json::to_value(&entry).unwrap();
        for field in fields.as_object().unwrap().keys() {
            let named = page.lines().any(|line| {
                let cell = line.strip_prefix("| ").and_then(|l| l.split(" | ").next());
                cell.is_some_and(|cell| cell.contains(&format!("`{field}`")))
            });
            assert!(named, "docs/access-log.md does not have {field}");
        }
    }

    #[test]
    fn times_are_rfc_3339() {
        let at = |secs| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(secs));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(4_102_444_800), "2100-01-01T00:00:00.000Z");
    }
}
