//! Takes spans, metrics and log records as collectors do (OTLP over gRPC), and says over HTTP which there are: to
//! look at them where there is nothing to look at them with. `/metrics` has the names of metrics, `/logs` the
//! newest records, every other path the newest spans.

use crate::grpc::{call, is_call};
use crate::http::{Body, json};
use crate::server::Answer;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tonic::Status;
use tonic::server::NamedService;
use tulle_api::otlp::common::any_value::Value;
use tulle_api::otlp::common::{ExportResponse, KeyValue};
use tulle_api::otlp::logs::ExportLogsServiceRequest;
use tulle_api::otlp::logs::logs_service_server::{LogsService, LogsServiceServer};
use tulle_api::otlp::metrics::ExportMetricsServiceRequest;
use tulle_api::otlp::metrics::metrics_service_server::{MetricsService, MetricsServiceServer};
use tulle_api::otlp::trace::span::SpanKind;
use tulle_api::otlp::trace::trace_service_server::{TraceService, TraceServiceServer};
use tulle_api::otlp::trace::{ExportTraceServiceRequest, Span};

/// Spans, and records, that are kept; the oldest go first.
const KEPT: usize = 1000;

type Attributes = BTreeMap<String, String>;

/// A span and who told of it.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    resource: Attributes,
    name: String,
    kind: &'static str,
    trace: String,
    id: String,
    /// Empty: it begins the trace.
    parent: String,
    attributes: Attributes,
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    spans: VecDeque<Told>,
    logs: VecDeque<Attributes>,
    metrics: BTreeSet<String>,
}

/// The service.
pub(crate) struct Collect {
    kept: Kept,
    traces: TraceServiceServer<Kept>,
    metrics: MetricsServiceServer<Kept>,
    logs: LogsServiceServer<Kept>,
}

impl Collect {
    /// One that has been told nothing.
    pub(crate) fn new() -> Self {
        let kept = Kept::default();
        Self {
            traces: TraceServiceServer::new(kept.clone()),
            metrics: MetricsServiceServer::new(kept.clone()),
            logs: LogsServiceServer::new(kept.clone()),
            kept,
        }
    }
}

impl Answer for Collect {
    const HTTP2: bool = true;

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if is_call(&request) {
            let service = request.uri().path().split('/').nth(1).unwrap_or_default();
            return match service {
                name if name == MetricsServiceServer::<Kept>::NAME => {
                    call(&self.metrics, request).await
                }
                name if name == LogsServiceServer::<Kept>::NAME => call(&self.logs, request).await,
                _ => call(&self.traces, request).await,
            };
        }
        let kept = self.kept.all();
        match request.uri().path() {
            "/metrics" => json(StatusCode::OK, &kept.metrics),
            "/logs" => json(StatusCode::OK, &kept.logs),
            _ => json(StatusCode::OK, &kept.spans),
        }
    }
}

impl Kept {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep<T>(kept: &mut VecDeque<T>, new: impl Iterator<Item = T>) {
    kept.extend(new);
    let surplus = kept.len().saturating_sub(KEPT);
    kept.drain(..surplus);
}

type Exported = Result<tonic::Response<ExportResponse>, Status>;

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(&self, request: tonic::Request<ExportTraceServiceRequest>) -> Exported {
        for of in request.into_inner().resource_spans {
            let resource = attributes(&of.resource.unwrap_or_default().attributes);
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let told = spans.map(|span| told(&resource, &span));
            keep(&mut self.all().spans, told);
        }
        Ok(tonic::Response::new(ExportResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Kept {
    async fn export(&self, request: tonic::Request<ExportMetricsServiceRequest>) -> Exported {
        let all = request.into_inner().resource_metrics.into_iter();
        let all = all.flat_map(|of| of.scope_metrics);
        let names = all
            .flat_map(|scope| scope.metrics)
            .map(|metric| metric.name);
        self.all().metrics.extend(names);
        Ok(tonic::Response::new(ExportResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Kept {
    async fn export(&self, request: tonic::Request<ExportLogsServiceRequest>) -> Exported {
        let all = request.into_inner().resource_logs.into_iter();
        let all = all.flat_map(|of| of.scope_logs);
        let records = all.flat_map(|scope| scope.log_records);
        keep(
            &mut self.all().logs,
            records.map(|record| attributes(&record.attributes)),
        );
        Ok(tonic::Response::new(ExportResponse::default()))
    }
}

fn told(resource: &Attributes, span: &Span) -> Told {
    Told {
        resource: resource.clone(),
        name: span.name.clone(),
        kind: match span.kind() {
            SpanKind::Server => "SERVER",
            SpanKind::Client => "CLIENT",
            SpanKind::Unspecified => "UNSPECIFIED",
        },
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        attributes: attributes(&span.attributes),
    }
}

fn attributes(all: &[KeyValue]) -> Attributes {
    let text = |value: &KeyValue| match value.value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        None => String::new(),
    };
    all.iter().map(|a| (a.key.clone(), text(a))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
