//! Takes spans as collectors do (OTLP over gRPC), and says over HTTP which there are: to look at traces
//! where there is nothing to look at them with.

use crate::grpc::{call, is_call};
use crate::http::{Body, json};
use crate::server::Answer;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tonic::Status;
use tulle_api::otlp_trace::any_value::Value;
use tulle_api::otlp_trace::span::SpanKind;
use tulle_api::otlp_trace::trace_service_server::{TraceService, TraceServiceServer};
use tulle_api::otlp_trace::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Span,
};

/// Spans that are kept; the oldest go first.
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
struct Kept(Arc<Mutex<VecDeque<Told>>>);

/// The service.
pub(crate) struct Collect {
    kept: Kept,
    grpc: TraceServiceServer<Kept>,
}

impl Collect {
    /// One that has been told nothing.
    pub(crate) fn new() -> Self {
        let kept = Kept::default();
        let grpc = TraceServiceServer::new(kept.clone());
        Self { kept, grpc }
    }
}

impl Answer for Collect {
    const HTTP2: bool = true;

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if is_call(&request) {
            return call(&self.grpc, request).await;
        }
        let kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
        json(StatusCode::OK, &*kept)
    }
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for of in request.into_inner().resource_spans {
            let resource = attributes(&of.resource.unwrap_or_default().attributes);
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            kept.extend(spans.map(|span| told(&resource, &span)));
        }
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
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
        None => String::new(),
    };
    all.iter().map(|a| (a.key.clone(), text(a))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
