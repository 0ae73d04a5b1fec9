//! Exports spans to the collector: takes them from the workers every few seconds, and sends batches
//! by OTLP over gRPC.
//!
//! One task on the main thread. The collector may be away, slow or wrong: the queue is bounded, the
//! oldest spans are dropped and counted, and tries become rarer. The connection is this proxy's
//! own: the system resolves the collector's name, and neither the mesh's routes nor its mutual TLS
//! apply.

use crate::config::snapshot::Snapshot;
use crate::control::client::causes;
use crate::control::dial::{self, Stream};
use crate::control::publish::Current;
use crate::telemetry::span::{BATCH, Span, Totals, TraceSpanKind};
use crate::worker::Command;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tulle_api::otlp_trace as otlp;
use tulle_api::otlp_trace::any_value::Value;
use tulle_api::otlp_trace::span::SpanKind;
use tulle_api::otlp_trace::status::StatusCode;
use tulle_api::otlp_trace::trace_service_client::TraceServiceClient;
use tulle_model::resource::{Collector, Tracing};
use tulle_tls::outside::{Inside, OutsideClient};

/// Longest that a span waits while the collector works.
const INTERVAL: Duration = Duration::from_secs(5);
/// Spans that wait here while it does not.
const WAITING: usize = 4 * BATCH;
/// Timeout of sending a batch.
const RPC_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait between tries.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The task.
pub struct Exporter {
    current: Current,
    workers: Vec<UnboundedSender<Command>>,
    totals: Arc<Totals>,
    /// The workload beside this proxy, among those of its service.
    instance: String,
    waiting: VecDeque<Span>,
    /// The client, with the settings it was made for.
    client: Option<(Box<Tracing>, TraceServiceClient<Channel>)>,
}

impl Exporter {
    /// Creates an exporter that has no spans yet.
    pub fn new(
        current: Current,
        workers: Vec<UnboundedSender<Command>>,
        totals: Arc<Totals>,
        instance: String,
    ) -> Self {
        Self {
            current,
            workers,
            totals,
            instance,
            waiting: VecDeque::new(),
            client: None,
        }
    }

    /// Runs until it is told to `end`, and then sends the remaining spans.
    pub async fn run(mut self, mut end: oneshot::Receiver<()>) {
        let mut backoff = Duration::ZERO;
        loop {
            let (current, totals) = (self.current.changed(), self.totals.clone());
            let changed = current.notified();
            let off = self.current.get().mesh.tracing.is_none();
            let ended = tokio::select! {
                _ = &mut end => true,
                () = changed, if off => false,
                () = tokio::time::sleep(INTERVAL.max(backoff)), if !off => false,
                () = totals.batch.notified(), if !off && backoff.is_zero() => false,
            };
            backoff = match self.turn().await {
                Ok(()) => Duration::ZERO,
                Err(error) => {
                    let backoff = (backoff * 2).clamp(INTERVAL, MAX_BACKOFF);
                    tracing::warn!(%error, waiting = self.waiting.len(), retry_in = ?backoff, "spans");
                    backoff
                }
            };
            if ended {
                return;
            }
        }
    }

    /// Takes the workers' spans, and sends all that wait.
    async fn turn(&mut self) -> Result<(), String> {
        for worker in &self.workers {
            let (reply, answer) = oneshot::channel();
            if worker.send(Command::Spans(reply)).is_ok() {
                self.waiting.extend(answer.await.unwrap_or_default());
            }
        }
        self.shorten(WAITING);
        let snapshot = self.current.get();
        let Some(tracing) = &snapshot.mesh.tracing else {
            self.shorten(0);
            self.client = None;
            return Ok(());
        };
        while !self.waiting.is_empty() {
            if self.client.as_ref().is_none_or(|(of, _)| of != tracing) {
                self.client = Some((tracing.clone(), connect(tracing)?));
            }
            let Some((_, client)) = &mut self.client else {
                break;
            };
            let count = self.waiting.len().min(BATCH);
            let batch = batch(
                &snapshot,
                tracing,
                &self.instance,
                self.waiting.range(..count),
            );
            let sent = tokio::time::timeout(RPC_LIMIT, client.export(batch)).await;
            let rejected = match sent {
                Ok(Ok(answer)) => match answer.into_inner().partial_success {
                    Some(partial) => usize::try_from(partial.rejected_spans).unwrap_or_default(),
                    None => 0,
                },
                Ok(Err(status)) if is_final(&status) => {
                    let why = refusal(tracing, &status);
                    self.forget(count, count);
                    return Err(why);
                }
                Ok(Err(status)) => return Err(refusal(tracing, &status)),
                Err(_) => {
                    let endpoint = &tracing.endpoint;
                    return Err(format!(
                        "the collector {endpoint} took longer than {RPC_LIMIT:?}"
                    ));
                }
            };
            self.forget(count, rejected.min(count));
        }
        Ok(())
    }

    /// Drops the oldest spans beyond `most`.
    fn shorten(&mut self, most: usize) {
        let lost = self.waiting.len().saturating_sub(most);
        if lost > 0 {
            self.forget(lost, lost);
        }
    }

    fn forget(&mut self, count: usize, lost: usize) {
        self.waiting.drain(..count);
        let add = |total: &std::sync::atomic::AtomicU64, count: usize| {
            total.fetch_add(count as u64, Ordering::Relaxed);
        };
        add(&self.totals.dropped, lost);
        add(&self.totals.exported, count - lost);
    }
}

/// Whether sending it again would end the same (OTLP's specification, "Failures").
fn is_final(status: &Status) -> bool {
    !matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            // The connection broke under it.
            | Code::Unknown
            | Code::Internal
    )
}

fn refusal(tracing: &Tracing, status: &Status) -> String {
    let why = match std::error::Error::source(status) {
        Some(error) => causes(error),
        None => format!("{}: {}", status.code(), status.message()),
    };
    format!("the collector {}: {why}", tracing.endpoint)
}

/// Creates a client that connects on first use and reconnects when needed. Each time it resolves
/// the name anew.
fn connect(tracing: &Tracing) -> Result<TraceServiceClient<Channel>, String> {
    let collector = Collector::parse(&tracing.endpoint).map_err(str::to_owned)?;
    let tls = match collector.tls {
        true => {
            let failed = |e: tulle_tls::outside::OutsideError| e.to_string();
            let client = OutsideClient::new(&tracing.roots).map_err(failed)?;
            let config = client.config(Inside::Http2).map_err(failed)?;
            let name = OutsideClient::server_name(collector.host).map_err(failed)?;
            Some((tokio_rustls::TlsConnector::from(config), name))
        }
        false => None,
    };
    let address = collector.authority.to_owned();
    let service = dial::connector(move || {
        let (tls, address) = (tls.clone(), address.clone());
        async move {
            let tcp = TcpStream::connect(&address).await?;
            tcp.set_nodelay(true)?;
            let stream: Box<dyn Stream> = match tls {
                Some((connector, name)) => Box::new(connector.connect(name, tcp).await?),
                None => Box::new(tcp),
            };
            Ok(stream)
        }
    });
    // The connector adds TLS; this URI is only repeated in the requests.
    let endpoint = Endpoint::from_shared(format!("http://{}", collector.authority));
    let endpoint = endpoint.map_err(|e| e.to_string())?;
    let channel = endpoint
        .connect_timeout(Duration::from_secs(5))
        .connect_with_connector_lazy(service);
    Ok(TraceServiceClient::new(channel))
}

fn batch<'a>(
    snapshot: &Snapshot,
    tracing: &Tracing,
    instance: &str,
    spans: impl Iterator<Item = &'a Span>,
) -> otlp::ExportTraceServiceRequest {
    let own = [
        text("service.name", &service_name(snapshot, instance)),
        text("service.instance.id", instance),
    ];
    let given = tracing.attributes.iter().map(|(n, v)| text(n, v));
    otlp::ExportTraceServiceRequest {
        resource_spans: vec![otlp::ResourceSpans {
            resource: Some(otlp::Resource {
                attributes: own.into_iter().chain(given).collect(),
            }),
            scope_spans: vec![otlp::ScopeSpans {
                scope: Some(otlp::InstrumentationScope {
                    name: "tulle-proxy".into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                }),
                spans: spans.map(message).collect(),
            }],
        }],
    }
}

/// Returns the service's name. A pod without a service goes by its service account: there would be
/// a name for each pod that ever was.
fn service_name(snapshot: &Snapshot, instance: &str) -> String {
    match (snapshot.service(), snapshot.identity.service_account()) {
        (pod, Some((namespace, account))) if pod == instance => format!("{account}.{namespace}"),
        (service, _) => service.to_owned(),
    }
}

/// Builds a message with the names of OpenTelemetry's semantic conventions for HTTP, gRPC and
/// networks.
fn message(span: &Span) -> otlp::Span {
    let (host, port) = match span.authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (span.authority.as_str(), None),
    };
    let mut attributes = vec![
        text("http.request.method", &span.method),
        text("url.scheme", span.scheme),
        text("url.path", &span.path),
        text("server.address", host),
    ];
    let mut add = |attribute| attributes.push(attribute);
    if let Some(port) = port {
        add(number("server.port", port));
    }
    if span.answer.status > 0 {
        let status = span.answer.status;
        add(number("http.response.status_code", status.into()));
    }
    if let Some(code) = span.answer.grpc {
        add(text("rpc.system", "grpc"));
        add(number("rpc.grpc.status_code", code.into()));
    }
    if span.sent > 1 {
        let again = i64::from(span.sent) - 1;
        add(number("http.request.resend_count", again));
    }
    if let Some(client) = span.client {
        add(text("client.address", &client.to_string()));
    }
    if let (TraceSpanKind::Client, Some(upstream)) = (span.kind, span.upstream) {
        add(text("network.peer.address", &upstream.ip().to_string()));
        add(number("network.peer.port", upstream.port().into()));
    }
    let name = |id: &Option<_>| {
        id.as_ref()
            .map_or("unknown".to_owned(), ToString::to_string)
    };
    add(text("tulle.source", &name(&span.source)));
    add(text("tulle.destination", &name(&span.destination)));
    add(text("tulle.service", &span.service));
    let error = span.error();
    if let Some(error) = &error {
        add(text("error.type", error));
    }
    let nanos = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    };
    let kind = match span.kind {
        TraceSpanKind::Server => SpanKind::Server,
        TraceSpanKind::Client => SpanKind::Client,
    };
    let detail = span.failure.as_ref().map(|(_, detail)| detail.clone());
    otlp::Span {
        trace_id: span.ids.trace.to_be_bytes().to_vec(),
        span_id: span.ids.span.to_be_bytes().to_vec(),
        parent_span_id: match span.parent {
            0 => Vec::new(),
            parent => parent.to_be_bytes().to_vec(),
        },
        // Services are few, paths are not.
        name: format!("{} {}", span.method, span.service),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.started),
        end_time_unix_nano: nanos(span.started + span.took),
        attributes,
        status: error.map(|_| otlp::Status {
            message: detail.unwrap_or_default(),
            code: StatusCode::Error.into(),
        }),
        // Only sampled spans get this far.
        flags: 1,
    }
}

fn text(key: &str, value: &str) -> otlp::KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: i64) -> otlp::KeyValue {
    attribute(key, Value::IntValue(value))
}

fn attribute(key: &str, value: Value) -> otlp::KeyValue {
    otlp::KeyValue {
        key: key.to_owned(),
        value: Some(otlp::AnyValue { value: Some(value) }),
    }
}
