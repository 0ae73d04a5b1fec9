//! A client of one collector, by OTLP over gRPC or HTTP.
//!
//! The connection is this proxy's own: the system resolves the collector's name, and neither the mesh's routes nor
//! its mutual TLS apply. Messages are encoded before they get here: one client in the program serves all signals.

use crate::control::client::causes;
use crate::control::dial::{self, Stream};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tulle_api::otlp::common::ExportResponse;
use tulle_model::resource::{Collector, CollectorAddress, OtlpProtocol};
use tulle_tls::outside::{Inside, OutsideClient, OutsideError};

/// Timeout of sending a batch.
const RPC_LIMIT: Duration = Duration::from_secs(10);
/// Timeout of connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of an answer: a count and a message.
const MOST_ANSWER: usize = 64 * 1024;

/// A kind of telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Traces,
    Metrics,
    Logs,
}

impl Signal {
    /// The method of gRPC (OTLP 1.x, "OTLP/gRPC").
    fn method(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            Self::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        })
    }

    /// The path of HTTP (OTLP 1.x, "OTLP/HTTP Request").
    fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
            Self::Logs => "/v1/logs",
        }
    }
}

/// Why a batch was not taken.
#[derive(Debug)]
pub(crate) struct SendError {
    /// For the log.
    pub(crate) why: String,
    /// Whether sending it again would end the same.
    pub(crate) is_final: bool,
}

impl SendError {
    fn transient(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_final: false,
        }
    }
}

/// A client of one collector.
pub(crate) struct Client {
    settings: Collector,
    way: Way,
}

enum Way {
    /// It connects on first use and reconnects when needed; each time it resolves the name anew.
    Grpc(tonic::client::Grpc<Channel>),
    /// A connection for each batch: between two batches none has to be kept.
    Http(Dialler),
}

impl Client {
    /// Creates a client that has not connected yet.
    ///
    /// # Errors
    /// The roots or the endpoint cannot be used.
    pub(crate) fn new(settings: &Collector) -> Result<Self, String> {
        let dialler = Dialler::new(settings)?;
        let way = match settings.protocol {
            OtlpProtocol::Http => Way::Http(dialler),
            OtlpProtocol::Grpc => {
                // The dialler adds TLS; this URI is only repeated in the requests.
                let endpoint = Endpoint::from_shared(format!("http://{}", dialler.authority));
                let endpoint = endpoint.map_err(|e| e.to_string())?;
                let connector = dial::connector(move || dialler.clone().dial());
                let endpoint = endpoint.connect_timeout(CONNECT_LIMIT);
                let channel = endpoint.connect_with_connector_lazy(connector);
                Way::Grpc(tonic::client::Grpc::new(channel))
            }
        };
        Ok(Self {
            settings: settings.clone(),
            way,
        })
    }

    /// Whether it was made for these settings.
    pub(crate) fn is_for(&self, settings: &Collector) -> bool {
        self.settings == *settings
    }

    /// Sends a message. Returns how many items of it the collector has rejected.
    ///
    /// # Errors
    /// It has taken none.
    pub(crate) async fn send(&mut self, signal: Signal, message: Bytes) -> Result<u64, SendError> {
        let endpoint = &self.settings.endpoint;
        let sent = async {
            match &mut self.way {
                Way::Grpc(client) => by_grpc(client, signal, message).await,
                Way::Http(dialler) => by_http(dialler.clone(), signal, message).await,
            }
        };
        let sent = timeout(RPC_LIMIT, sent).await.unwrap_or_else(|_| {
            let why = format!("it took longer than {RPC_LIMIT:?}");
            Err(SendError::transient(why))
        });
        let answer = sent.map_err(|error| SendError {
            why: format!("the collector {endpoint}: {}", error.why),
            ..error
        })?;
        // An answer that cannot be read came with success.
        let partial = ExportResponse::decode(answer).unwrap_or_default();
        let rejected = partial
            .partial_success
            .map_or(0, |partial| partial.rejected);
        Ok(u64::try_from(rejected).unwrap_or_default())
    }
}

async fn by_grpc(
    client: &mut tonic::client::Grpc<Channel>,
    signal: Signal,
    message: Bytes,
) -> Result<Bytes, SendError> {
    let ready = client.ready().await;
    ready.map_err(|error| SendError::transient(causes(&error)))?;
    let request = tonic::Request::new(message);
    let answer = client.unary(request, signal.method(), BytesCodec).await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| SendError {
            why: match std::error::Error::source(&status) {
                Some(error) => causes(error),
                None => format!("{}: {}", status.code(), status.message()),
            },
            is_final: is_final(&status),
        })
}

/// Whether sending it again would end the same (OTLP 1.x, "Failures").
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

async fn by_http(dialler: Dialler, signal: Signal, message: Bytes) -> Result<Bytes, SendError> {
    let failed = |error: &dyn std::fmt::Display| SendError::transient(error.to_string());
    let request = Request::post(signal.path())
        .header(HOST, &*dialler.authority)
        .header(USER_AGENT, "tulle-proxy")
        .header(CONTENT_TYPE, "application/x-protobuf");
    let request = request.body(Full::new(message)).map_err(|e| failed(&e))?;
    let stream = timeout(CONNECT_LIMIT, dialler.dial()).await;
    let stream = stream.map_err(|_| SendError::transient("it does not answer"))?;
    let stream = stream.map_err(|e| failed(&e))?;
    let answer = dial::ask(stream, request).await.map_err(|e| failed(&e))?;
    let status = answer.status();
    let body = read(answer).await?;
    if status.is_success() {
        return Ok(body);
    }
    Err(SendError {
        why: format!("it answers {status}"),
        is_final: !is_retryable(status),
    })
}

/// The statuses after which a client sends again (OTLP 1.x, "Failures" of OTLP/HTTP).
fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

async fn read(answer: Response<Incoming>) -> Result<Bytes, SendError> {
    let body = Limited::new(answer.into_body(), MOST_ANSWER)
        .collect()
        .await;
    let body = body.map_err(|error| SendError::transient(error.to_string()))?;
    Ok(body.to_bytes())
}

/// Makes connections to a collector.
#[derive(Clone)]
struct Dialler {
    authority: Arc<str>,
    tls: Option<(
        tokio_rustls::TlsConnector,
        rustls::pki_types::ServerName<'static>,
    )>,
}

impl Dialler {
    fn new(settings: &Collector) -> Result<Self, String> {
        let address = CollectorAddress::parse(&settings.endpoint).map_err(str::to_owned)?;
        let inside = match settings.protocol {
            OtlpProtocol::Grpc => Inside::Http2,
            OtlpProtocol::Http => Inside::Http1,
        };
        let tls = match address.tls {
            true => {
                let failed = |e: OutsideError| e.to_string();
                let client = OutsideClient::new(&settings.roots).map_err(failed)?;
                let config = client.config(inside).map_err(failed)?;
                let name = OutsideClient::server_name(address.host).map_err(failed)?;
                Some((tokio_rustls::TlsConnector::from(config), name))
            }
            false => None,
        };
        Ok(Self {
            authority: address.authority.into(),
            tls,
        })
    }

    async fn dial(self) -> io::Result<Box<dyn Stream>> {
        let tcp = TcpStream::connect(&*self.authority).await?;
        tcp.set_nodelay(true)?;
        Ok(match self.tls {
            Some((connector, name)) => Box::new(connector.connect(name, tcp).await?),
            None => Box::new(tcp),
        })
    }
}

/// Sends and receives messages that are encoded already.
#[derive(Debug, Clone, Copy)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(message);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = message.remaining();
        Ok(Some(message.copy_to_bytes(length)))
    }
}
