//! Exports spans: takes them from the workers every few seconds.

use crate::config::snapshot::Snapshot;
use crate::control::publish::Current;
use crate::export::batches::Batches;
use crate::export::collector::Signal;
use crate::export::own::{number, resource, scope, text};
use crate::telemetry::export_totals::ExportTotals;
use crate::telemetry::span::{Span, TraceSpanKind};
use crate::worker::Command;
use prost::Message;
use prost::bytes::Bytes;
use std::collections::vec_deque::Iter;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use tulle_api::otlp::trace as otlp;
use tulle_api::otlp::trace::span::SpanKind;
use tulle_api::otlp::trace::status::StatusCode;
use tulle_model::resource::Collector;

/// The task.
pub(super) struct Exporter {
    current: Current,
    workers: Vec<UnboundedSender<Command>>,
    totals: Arc<ExportTotals>,
    /// The workload beside this proxy, among those of its service.
    instance: String,
    batches: Batches<Span>,
}

impl Exporter {
    /// Creates an exporter that has no spans yet.
    pub(super) fn new(
        current: Current,
        workers: Vec<UnboundedSender<Command>>,
        totals: Arc<ExportTotals>,
        instance: String,
    ) -> Self {
        Self {
            current,
            workers,
            batches: Batches::new(Signal::Traces, totals.clone()),
            totals,
            instance,
        }
    }

    /// Runs until it is told to `end`, and then sends the remaining spans.
    pub(super) async fn run(mut self, mut end: watch::Receiver<bool>) {
        loop {
            let (current, totals) = (self.current.changed(), self.totals.clone());
            let changed = current.notified();
            let off = self.current.get().mesh.tracing.is_none();
            let served = self.batches.is_served();
            let ended = tokio::select! {
                _ = end.wait_for(|end| *end) => true,
                () = changed, if off => false,
                () = tokio::time::sleep(self.batches.pause()), if !off => false,
                () = totals.batch.notified(), if !off && served => false,
            };
            self.turn().await;
            if ended {
                return;
            }
        }
    }

    /// Takes the workers' spans, and sends all that wait.
    async fn turn(&mut self) {
        for worker in &self.workers {
            let (reply, answer) = oneshot::channel();
            if worker.send(Command::Spans(reply)).is_ok() {
                self.batches.add(answer.await.unwrap_or_default());
            }
        }
        let snapshot = self.current.get();
        let Some(tracing) = &snapshot.mesh.tracing else {
            self.batches.stop();
            return;
        };
        let (settings, instance) = (tracing.collector(), &self.instance);
        let encode = |spans: Iter<'_, Span>| batch(&snapshot, &settings, instance, spans);
        self.batches.send(&settings, &encode).await;
    }
}

fn batch(
    snapshot: &Snapshot,
    settings: &Collector,
    instance: &str,
    spans: Iter<'_, Span>,
) -> Bytes {
    let message = otlp::ExportTraceServiceRequest {
        resource_spans: vec![otlp::ResourceSpans {
            resource: Some(resource(snapshot, settings, instance)),
            scope_spans: vec![otlp::ScopeSpans {
                scope: Some(scope()),
                spans: spans.map(message).collect(),
            }],
        }],
    };
    message.encode_to_vec().into()
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
