//! A collector of spans: what takes OTLP over gRPC, and remembers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tulle_api::otlp_trace::any_value::Value;
use tulle_api::otlp_trace::trace_service_server::{TraceService, TraceServiceServer};
use tulle_api::otlp_trace::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Span, span::SpanKind,
};

/// A running one.
pub struct Collector {
    address: SocketAddr,
    taken: Arc<Mutex<Vec<Taken>>>,
    _runtime: Runtime,
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

fn said(attributes: &[KeyValue], key: &str) -> String {
    let found: Vec<_> = attributes.iter().filter(|a| a.key == key).collect();
    assert!(found.len() <= 1, "{key}: {attributes:?}");
    match found.first().and_then(|a| a.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        None => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

struct Service(Arc<Mutex<Vec<Taken>>>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut taken = self.0.lock().unwrap();
        for of in request.into_inner().resource_spans {
            let resource = of.resource.unwrap_or_default().attributes;
            let spans = of.scope_spans.into_iter().flat_map(|s| s.spans);
            taken.extend(spans.map(|span| Taken {
                resource: resource.clone(),
                span,
            }));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
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
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let taken = Arc::new(Mutex::default());
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(Service(taken.clone()));
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Self {
            address,
            taken,
            _runtime: runtime,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All spans so far.
    pub fn taken(&self) -> Vec<Taken> {
        self.taken.lock().unwrap().clone()
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
