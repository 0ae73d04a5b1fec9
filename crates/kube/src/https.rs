//! What the controller's servers for the API server have in common: connections that end, and a
//! certificate of the mesh's root that renews itself.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tulle_control::cluster::Feed;

const CONNECTIONS: usize = 256;
/// For a handshake, a request's head, and its body.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Of a connection, before and after it is told to end. The API server waits for a webhook for at most
/// 30 seconds, and for others for a minute.
const LIFETIME: Duration = Duration::from_secs(60);
/// Of the server's certificate.
const VALIDITY: Duration = Duration::from_secs(7 * 24 * 3600);

pub(crate) type Answer = Response<Full<Bytes>>;

/// TLS with a certificate for these names, for clients that the verifier lets in.
pub(crate) fn config(
    feed: Feed,
    names: Vec<String>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<ServerConfig, String> {
    let resolver = Arc::new(Renewed {
        feed,
        names,
        present: Mutex::default(),
    });
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let mut config = config
        .with_client_cert_verifier(clients)
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Serves each connection by itself, so many at a time.
pub(crate) async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(place) = places.clone().acquire_owned().await else {
            return; // never closed
        };
        let served = serve(stream);
        tokio::spawn(async move {
            served.await;
            drop(place);
        });
    }
}

/// Answers the requests of a connection.
pub(crate) async fn connection<S, F>(
    stream: S,
    answer: impl Fn(Request<Incoming>) -> F + Send + Sync,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Answer> + Send,
{
    let service = service_fn(move |request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    if timeout(LIFETIME, connection.as_mut()).await.is_err() {
        // What is being answered is; the next request comes on another connection.
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LIFETIME, connection).await;
    }
}

pub(crate) fn text(status: StatusCode, text: &str) -> Answer {
    let mut response = Response::new(Full::from(text.to_owned()));
    *response.status_mut() = status;
    response
}

pub(crate) fn json(status: StatusCode, value: &Value) -> Answer {
    let mut response = text(status, &value.to_string());
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A certificate of the mesh's root for a server's names, made when it is first needed, again after
/// two thirds of its life, and when the root changes.
struct Renewed {
    feed: Feed,
    names: Vec<String>,
    present: Mutex<Option<Present>>,
}

struct Present {
    key: Arc<CertifiedKey>,
    renew_at: SystemTime,
    /// Fingerprint of the root that it comes from.
    root: String,
}

impl Renewed {
    fn make(&self) -> Result<CertifiedKey, String> {
        let (chain, key) = self.feed.server_certificate(&self.names, VALIDITY)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
        let key = aws_lc_rs::sign::any_ecdsa_type(&key).map_err(|e| e.to_string())?;
        let chain = chain.into_iter().map(CertificateDer::from).collect();
        Ok(CertifiedKey::new(chain, key))
    }
}

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        let root = self.feed.root_fingerprint();
        let good = |p: &Present| now < p.renew_at && p.root == root;
        if !present.as_ref().is_some_and(good) {
            match self.make() {
                Ok(key) => {
                    *present = Some(Present {
                        key: Arc::new(key),
                        renew_at: now + VALIDITY * 2 / 3,
                        root,
                    });
                }
                Err(error) => tracing::error!(error, "no certificate for the controller's servers"),
            }
        }
        present.as_ref().map(|p| p.key.clone())
    }
}

impl fmt::Debug for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewed")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
