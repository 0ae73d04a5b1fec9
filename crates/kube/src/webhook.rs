//! The servers of the controller for the cluster: the admission webhook over TLS, and readiness.

use crate::inject::{Settings, Wish, review};
use crate::scrape::Unscraped;
use crate::source::Missing;
use crate::validate;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tulle_control::cluster::Feed;

/// The API server's own limit for what it asks is 3 MiB.
const MAX_REVIEW: usize = 4 * 1024 * 1024;
const CONNECTIONS: usize = 256;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The API server waits for at most 30 seconds.
const LIFETIME: Duration = Duration::from_secs(60);
/// Of the server's certificate.
const VALIDITY: Duration = Duration::from_secs(7 * 24 * 3600);

/// What the servers answer with.
#[derive(Clone)]
pub struct Webhook {
    /// What sidecars are made with.
    pub settings: Arc<Settings>,
    /// What of the cluster is not known yet.
    pub missing: watch::Receiver<Missing>,
    /// Where Prometheus does not scrape.
    pub unscraped: Unscraped,
}

type Answer = Response<Full<Bytes>>;

impl Webhook {
    /// Serves reviews over TLS.
    pub async fn serve(self, listener: TcpListener, feed: Feed, names: Vec<String>) {
        let resolver = Arc::new(Renewed {
            feed,
            names,
            present: Mutex::default(),
        });
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = match config {
            Ok(config) => config.with_no_client_auth().with_cert_resolver(resolver),
            Err(error) => {
                tracing::error!(%error, "the webhook cannot be served");
                return;
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        accept(listener, |stream| {
            let (acceptor, webhook) = (acceptor.clone(), self.clone());
            async move {
                if let Ok(Ok(tls)) = timeout(HANDSHAKE, acceptor.accept(stream)).await {
                    webhook.connection(tls).await;
                }
            }
        })
        .await;
    }

    /// Serves readiness, in plaintext.
    pub async fn serve_health(self, listener: TcpListener) {
        accept(listener, |stream| self.clone().connection(stream)).await;
    }

    async fn connection<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(move |request| {
            let webhook = self.clone();
            async move { Ok::<_, Infallible>(webhook.answer(request).await) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HANDSHAKE);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        // Who asks tries again on a connection of its own.
        let _ = timeout(LIFETIME, connection).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/live") => text(StatusCode::OK, "live\n"),
            (&Method::GET, "/ready") => self.ready(),
            (&Method::POST, "/inject") => answer(request, |review| self.inject(review)).await,
            (&Method::POST, "/validate") => {
                answer(request, |review| {
                    validate::answer(review).map_err(str::to_owned)
                })
                .await
            }
            _ => text(
                StatusCode::NOT_FOUND,
                "GET /ready /live, POST /inject /validate\n",
            ),
        }
    }

    fn ready(&self) -> Answer {
        let missing = self.missing.borrow();
        if missing.is_empty() {
            return text(StatusCode::OK, "ready\n");
        }
        let kinds: Vec<&str> = missing.iter().copied().collect();
        let why = format!("not ready: not listed yet: {}\n", kinds.join(", "));
        text(StatusCode::SERVICE_UNAVAILABLE, &why)
    }

    fn inject(&self, review: &Value) -> Result<Value, String> {
        let namespace = review.pointer("/request/namespace").and_then(Value::as_str);
        let unscraped = namespace.is_some_and(|name| self.unscraped.has(name));
        let settings = Settings {
            metrics: self.settings.metrics && !unscraped,
            ..Settings::clone(&self.settings)
        };
        // The API server asks only for pods of which it or their namespace says so (the webhook's
        // selectors); what the pod itself says still counts.
        let answer = review::answer(review, |_| Wish::Enabled, &settings);
        answer.map_err(|why| why.to_string())
    }
}

/// Reads a review and sends what is answered to it.
async fn answer(
    request: Request<Incoming>,
    answer: impl FnOnce(&Value) -> Result<Value, String>,
) -> Answer {
    let body = Limited::new(request.into_body(), MAX_REVIEW).collect();
    let Ok(Ok(body)) = timeout(HANDSHAKE, body).await else {
        return text(
            StatusCode::BAD_REQUEST,
            "the review is not whole, or too long\n",
        );
    };
    let Ok(review) = serde_json::from_slice::<Value>(&body.to_bytes()) else {
        return text(StatusCode::BAD_REQUEST, "the review is not JSON\n");
    };
    match answer(&review) {
        Ok(answer) => {
            let mut response = Response::new(Full::from(answer.to_string()));
            let kind = hyper::header::HeaderValue::from_static("application/json");
            response
                .headers_mut()
                .insert(hyper::header::CONTENT_TYPE, kind);
            response
        }
        Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
    }
}

/// Serves each connection by itself, so many at a time.
async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
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

fn text(status: StatusCode, text: &str) -> Answer {
    let mut response = Response::new(Full::from(text.to_owned()));
    *response.status_mut() = status;
    response
}

/// A certificate of the mesh's root for the webhook's names, made when it is first needed, again after
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
                Err(error) => tracing::error!(error, "no certificate for the webhook"),
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
