//! A collector: what takes OTLP over gRPC, or over HTTP, and remembers.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use prost::Message;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tulle_api::otlp::common::any_value::Value;
use tulle_api::otlp::common::{ExportResponse, KeyValue};
use tulle_api::otlp::logs::logs_service_server::{LogsService, LogsServiceServer};
use tulle_api::otlp::logs::{ExportLogsServiceRequest, LogRecord};
use tulle_api::otlp::metrics::metrics_service_server::{MetricsService, MetricsServiceServer};
use tulle_api::otlp::metrics::{ExportMetricsServiceRequest, Metric};
use tulle_api::otlp::trace::trace_service_server::{TraceService, TraceServiceServer};
use tulle_api::otlp::trace::{ExportTraceServiceRequest, Span, span::SpanKind};

/// A running one.
pub struct Collector {
    address: SocketAddr,
    all: Arc<All>,
    runtime: Runtime,
}

/// A span as it was told.
#[derive(Debug, Clone)]
pub struct Taken {
    /// The attributes of the reporting process.
    pub resource: Vec<KeyValue>,
    /// The reported span.
    pub span: Span,
}

impl Taken {
    /// An attribute of the span, as text; empty: there is none.
    pub fn said(&self, key: &str) -> String {
        said(&self.span.attributes, key)
    }

    /// An attribute of who tells.
    pub fn teller(&self, key: &str) -> String {
        said(&self.resource, key)
    }

    /// Trace, span and caller as W3C writes them.
    pub fn ids(&self) -> (String, String, String) {
        let span = &self.span;
        (
            hex(&span.trace_id),
            hex(&span.span_id),
            hex(&span.parent_span_id),
        )
    }

    /// Whether it is the server's end (or a gateway).
    pub fn is_server(&self) -> bool {
        match self.span.kind() {
            SpanKind::Server => true,
            SpanKind::Client => false,
            SpanKind::Unspecified => panic!("{self:?}"),
        }
    }

    /// Whether it says that something failed, and what.
    pub fn failed(&self) -> Option<String> {
        let status = self.span.status.as_ref()?;
        assert_eq!(status.code, 2, "{self:?}");
        Some(status.message.clone())
    }
}

/// An attribute as text; empty: there is none.
pub fn said(attributes: &[KeyValue], key: &str) -> String {
    let found: Vec<_> = attributes.iter().filter(|a| a.key == key).collect();
    assert!(found.len() <= 1, "{key}: {attributes:?}");
    match found.first().and_then(|a| a.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        None => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Everything that came.
#[derive(Default)]
struct All {
    spans: Mutex<Vec<Taken>>,
    /// The newest report of each sender, by `service.instance.id`.
    metrics: Mutex<BTreeMap<String, Vec<Metric>>>,
    logs: Mutex<Vec<(String, LogRecord)>>,
}

impl All {
    fn take_spans(&self, request: ExportTraceServiceRequest) {
        let mut taken = self.spans.lock().unwrap();
        for of in request.resource_spans {
            let resource = of.resource.unwrap_or_default().attributes;
            let spans = of.scope_spans.into_iter().flat_map(|s| s.spans);
            taken.extend(spans.map(|span| Taken {
                resource: resource.clone(),
                span,
            }));
        }
    }

    fn take_metrics(&self, request: ExportMetricsServiceRequest) {
        let mut taken = self.metrics.lock().unwrap();
        for of in request.resource_metrics {
            let instance = said(&of.resource.unwrap().attributes, "service.instance.id");
            let metrics = of.scope_metrics.into_iter().flat_map(|s| s.metrics);
            taken.insert(instance, metrics.collect());
        }
    }

    fn take_logs(&self, request: ExportLogsServiceRequest) {
        let mut taken = self.logs.lock().unwrap();
        for of in request.resource_logs {
            let instance = said(&of.resource.unwrap().attributes, "service.instance.id");
            let records = of.scope_logs.into_iter().flat_map(|s| s.log_records);
            taken.extend(records.map(|record| (instance.clone(), record)));
        }
    }

    /// Takes what came by HTTP.
    fn take(&self, path: &str, body: Bytes) {
        match path {
            "/v1/traces" => self.take_spans(Message::decode(body).unwrap()),
            "/v1/metrics" => self.take_metrics(Message::decode(body).unwrap()),
            "/v1/logs" => self.take_logs(Message::decode(body).unwrap()),
            other => panic!("no path of OTLP: {other}"),
        }
    }
}

struct Service(Arc<All>);

type Exported = Result<Response<ExportResponse>, Status>;

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(&self, request: Request<ExportTraceServiceRequest>) -> Exported {
        self.0.take_spans(request.into_inner());
        Ok(Response::new(ExportResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(&self, request: Request<ExportMetricsServiceRequest>) -> Exported {
        self.0.take_metrics(request.into_inner());
        Ok(Response::new(ExportResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Service {
    async fn export(&self, request: Request<ExportLogsServiceRequest>) -> Exported {
        self.0.take_logs(request.into_inner());
        Ok(Response::new(ExportResponse::default()))
    }
}

async fn serve_http(listener: TcpListener, all: Arc<All>) {
    while let Ok((stream, _)) = listener.accept().await {
        let all = all.clone();
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            let all = all.clone();
            async move {
                let kind = request.headers().get("content-type").cloned();
                assert_eq!(kind.unwrap(), "application/x-protobuf");
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await?.to_bytes();
                all.take(&path, body);
                let answer = ExportResponse::default().encode_to_vec();
                Ok::<_, hyper::Error>(hyper::Response::new(Full::new(Bytes::from(answer))))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
    }
}

impl Default for Collector {
    fn default() -> Self {
        Self::on((Ipv4Addr::LOCALHOST, 0).into())
    }
}

impl Collector {
    /// Starts a collector on a given address.
    pub fn on(address: SocketAddr) -> Self {
        let (listener, started) = Self::start(address);
        let all = &started.all;
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(Service(all.clone())))
            .add_service(MetricsServiceServer::new(Service(all.clone())))
            .add_service(LogsServiceServer::new(Service(all.clone())));
        let connections = TcpListenerStream::new(listener);
        started
            .runtime
            .spawn(server.serve_with_incoming(connections));
        started
    }

    /// Starts a collector that takes OTLP over HTTP.
    pub fn by_http() -> Self {
        let (listener, started) = Self::start((Ipv4Addr::LOCALHOST, 0).into());
        let serving = serve_http(listener, started.all.clone());
        started.runtime.spawn(serving);
        started
    }

    fn start(address: SocketAddr) -> (TcpListener, Self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        let started = Self {
            address,
            all: Arc::default(),
            runtime,
        };
        (listener, started)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All spans so far.
    pub fn taken(&self) -> Vec<Taken> {
        self.all.spans.lock().unwrap().clone()
    }

    /// The newest metrics of a sender, by its `service.instance.id`.
    pub fn metrics(&self, instance: &str) -> Vec<Metric> {
        let all = self.all.metrics.lock().unwrap();
        all.get(instance).cloned().unwrap_or_default()
    }

    /// All log records of a sender so far.
    pub fn logs(&self, instance: &str) -> Vec<LogRecord> {
        let all = self.all.logs.lock().unwrap();
        let own = all.iter().filter(|(of, _)| of == instance);
        own.map(|(_, record)| record.clone()).collect()
    }

    /// Waits until there are so many, and no more; the server's end after the client's.
    pub fn expect(&self, count: usize) -> Vec<Taken> {
        crate::eventually("all spans come", || self.taken().len() >= count);
        let mut taken = self.taken();
        assert_eq!(taken.len(), count, "{taken:#?}");
        taken.sort_by_key(|t| (t.is_server(), t.span.start_time_unix_nano));
        taken
    }
}
