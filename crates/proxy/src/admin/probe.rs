//! Health checks of the application, made in place of the kubelet. The kubelet has no certificate
//! of the mesh, and its TCP check would reach the sidecar, which always accepts.
//!
//! The verdicts are a kubelet's: HTTP passes with a status from 200 to 399, TCP when it connects,
//! gRPC when it is serving; certificates are not verified.

use crate::control::dial::{self, Stream};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tulle_api::grpc_health::HealthCheckRequest;
use tulle_api::grpc_health::health_check_response::ServingStatus;
use tulle_api::grpc_health::health_client::HealthClient;
use tulle_model::bootstrap::{Bootstrap, Probe, ProbeCheck, ProbeHeader};
use tulle_net::socket;

/// The health checks of one application.
#[derive(Debug)]
pub struct Probes {
    application: IpAddr,
    probes: Vec<Probe>,
}

impl Probes {
    /// The health checks of a bootstrap file.
    pub fn new(bootstrap: &Bootstrap) -> Self {
        Self {
            application: bootstrap.application,
            probes: bootstrap.probes.clone(),
        }
    }

    /// Runs the check of a path; `None` if there is none.
    pub async fn ask(&self, path: &str) -> Option<(StatusCode, String)> {
        let probe = self.probes.iter().find(|p| p.path == path)?;
        let limit = Duration::from_millis(probe.timeout_ms.into());
        let answer = match tokio::time::timeout(limit, self.check(&probe.check)).await {
            Ok(answer) => answer,
            Err(_) => Err((unwell(), format!("no answer within {limit:?}"))),
        };
        Some(match answer {
            Ok(()) => (StatusCode::OK, "well\n".into()),
            Err((status, why)) => {
                tracing::debug!(probe = path, why, "the application is not well");
                (status, format!("not well: {why}\n"))
            }
        })
    }

    async fn check(&self, check: &ProbeCheck) -> Result<(), (StatusCode, String)> {
        match check {
            ProbeCheck::Tcp { port } => self.connect(*port).await.map(drop).map_err(failed),
            ProbeCheck::Http {
                port,
                path,
                tls,
                headers,
            } => {
                let stream = self.connect(*port).await.map_err(failed)?;
                let host = SocketAddr::new(self.application, *port).to_string();
                let request = request(path, &host, headers).map_err(failed)?;
                let stream: Box<dyn Stream> = match tls {
                    false => Box::new(stream),
                    true => Box::new(tls_of(stream, self.application).await.map_err(failed)?),
                };
                get(stream, request).await
            }
            ProbeCheck::Grpc { port, service } => self.grpc(*port, service).await,
        }
    }

    /// Connects from a loopback address, so that the connection does not look like a call of the
    /// workload to itself.
    async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        socket::connect_from_loopback(SocketAddr::new(self.application, port)).await
    }

    async fn grpc(&self, port: u16, service: &str) -> Result<(), (StatusCode, String)> {
        let address = SocketAddr::new(self.application, port);
        let connector = dial::connector(move || async move {
            let tcp = socket::connect_from_loopback(address).await?;
            Ok(Box::new(tcp) as Box<dyn Stream>)
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://application");
        let channel = endpoint
            .connect_with_connector(connector)
            .await
            .map_err(failed)?;
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = HealthClient::new(channel).check(request).await;
        match answer.map(|a| a.into_inner().status()) {
            Ok(ServingStatus::Serving) => Ok(()),
            Ok(other) => Err((unwell(), format!("it says {}", other.as_str_name()))),
            Err(status) => Err(failed(status.message())),
        }
    }
}

fn unwell() -> StatusCode {
    StatusCode::SERVICE_UNAVAILABLE
}

fn failed(why: impl Display) -> (StatusCode, String) {
    (unwell(), why.to_string())
}

fn request(
    path: &str,
    host: &str,
    headers: &[ProbeHeader],
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut request = Request::get(path);
    if !headers.iter().any(|h| h.name.eq_ignore_ascii_case("host")) {
        request = request.header(HOST, host);
    }
    if !headers
        .iter()
        .any(|h| h.name.eq_ignore_ascii_case("user-agent"))
    {
        request = request.header(USER_AGENT, "kube-probe");
    }
    for header in headers {
        request = request.header(&header.name, &header.value);
    }
    request.body(Full::default())
}

/// The content of the answer is not needed, and a kubelet reads little of it either.
async fn get(
    stream: Box<dyn Stream>,
    request: Request<Full<Bytes>>,
) -> Result<(), (StatusCode, String)> {
    let answer = dial::ask(stream, request).await.map_err(failed)?;
    match answer.status() {
        well if well.is_success() || well.is_redirection() => Ok(()),
        status => Err((status, format!("it answers {status}"))),
    }
}

pub(crate) async fn tls_of(
    stream: TcpStream,
    application: IpAddr,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(Anyone(provider.clone()));
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector
        .connect(ServerName::from(application), stream)
        .await
}

/// Accepts any certificate, as a kubelet does: the application is in the same pod, and the check
/// asks only whether it answers.
#[derive(Debug)]
struct Anyone(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
