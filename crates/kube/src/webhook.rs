//! The servers of the controller for the cluster: the admission webhook over TLS, and readiness.

pub use crate::https::Bodies;
use crate::https::{self, HANDSHAKE, HttpResponse, Unread, accept, text};
use crate::inject::{self, InjectionSetting, Settings};
use crate::issuer::certificates;
use crate::kinds::Missing;
use crate::metrics::REVIEWS;
use crate::review::Review;
use crate::scrape::Unscraped;
use crate::validate;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tulle_control::feed::Feed;
use tulle_control::memory_limit;
use tulle_model::manifest::MeshSpec;
use tulle_net::places::HeldPlace;

/// The API server's own limit for what it asks is 3 MiB.
const MAX_REVIEW: usize = 4 * 1024 * 1024;

/// Everything that the servers need for their answers.
#[derive(Clone)]
pub struct Webhook {
    /// Settings with which sidecars are injected.
    pub settings: Arc<Settings>,
    /// The Mesh in force, which adds to `settings`.
    pub mesh: watch::Receiver<MeshSpec>,
    /// The kinds of objects that are not known yet.
    pub missing: watch::Receiver<Missing>,
    /// Where Prometheus does not scrape.
    pub unscraped: Unscraped,
    /// Memory for the bodies of requests.
    pub bodies: Bodies,
    /// Authorities of the certificate that a client needs for a review; none: nobody needs one.
    pub client_roots: Option<Arc<RootCertStore>>,
}

/// The requests that a connection may make.
#[derive(Clone, Copy)]
enum Asker {
    /// Health alone.
    Kubelet,
    /// Reviews, too.
    ApiServer,
    /// A client of the webhook that has not shown the certificate it needs.
    Unproved,
}

/// Reads the authorities (PEM) of clients of the webhook; `None` if the text is empty.
///
/// # Errors
/// They are no certificates.
pub fn client_roots(pem: &str) -> Result<Option<Arc<RootCertStore>>, String> {
    if pem.is_empty() {
        return Ok(None);
    }
    let read = certificates(pem.as_bytes())?;
    if read.is_empty() {
        return Err("it has no certificate in PEM".to_owned());
    }
    let mut roots = RootCertStore::empty();
    for der in read {
        let added = roots.add(CertificateDer::from(der));
        added.map_err(|e| format!("a certificate is not usable: {e}"))?;
    }
    Ok(Some(Arc::new(roots)))
}

impl Webhook {
    /// Serves reviews over TLS.
    pub async fn serve(self, listener: TcpListener, feed: Feed, names: Vec<String>) {
        let config = self.verifier();
        let config = config.and_then(|verifier| https::config(feed, names, verifier));
        let config = match config {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(error, "the webhook cannot be served");
                return;
            }
        };
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        accept(listener, |stream, place| {
            let (acceptor, webhook) = (acceptor.clone(), self.clone());
            async move {
                if let Ok(Ok(tls)) = timeout(HANDSHAKE, acceptor.accept(stream)).await {
                    let shown = tls.get_ref().1.peer_certificates().is_some();
                    let asker = match shown || webhook.client_roots.is_none() {
                        true => Asker::ApiServer,
                        false => Asker::Unproved,
                    };
                    webhook.connection(tls, place, asker).await;
                }
            }
        })
        .await;
    }

    /// Serves readiness, in plaintext.
    pub async fn serve_health(self, listener: TcpListener) {
        let serve = |stream, place| self.clone().connection(stream, place, Asker::Kubelet);
        accept(listener, serve).await;
    }

    /// Verifies certificates of clients that show one. Clients without one learn why they are
    /// refused.
    fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let Some(roots) = &self.client_roots else {
            return Ok(WebPkiClientVerifier::no_client_auth());
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider);
        let verifier = verifier.allow_unauthenticated().build();
        verifier.map_err(|e| format!("authorities of its clients: {e}"))
    }

    async fn connection<S>(self, stream: S, place: Arc<HeldPlace>, asker: Asker)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let source = place.source();
        let answer = move |request| {
            let webhook = self.clone();
            async move { webhook.answer(request, source, asker).await }
        };
        https::connection(stream, place, answer).await;
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        source: IpAddr,
        asker: Asker,
    ) -> HttpResponse {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/live") => text(StatusCode::OK, "live\n"),
            (&Method::GET, "/ready") => self.ready(),
            (&Method::POST, "/inject" | "/validate") if !matches!(asker, Asker::ApiServer) => {
                text(StatusCode::FORBIDDEN, asker.refusal())
            }
            (&Method::POST, "/inject") => {
                self.review("inject", request, source, |review| self.inject(review))
                    .await
            }
            (&Method::POST, "/validate") => {
                let domain = &self.settings.trust_domain;
                self.review("validate", request, source, |review| {
                    validate::response(review, domain)
                })
                .await
            }
            _ => text(
                StatusCode::NOT_FOUND,
                "GET /ready /live, POST /inject /validate\n",
            ),
        }
    }

    fn ready(&self) -> HttpResponse {
        let missing = self.missing.borrow();
        if missing.is_empty() {
            return text(StatusCode::OK, "ready\n");
        }
        let kinds: Vec<&str> = missing.iter().copied().collect();
        let why = format!("not ready: not listed yet: {}\n", kinds.join(", "));
        text(StatusCode::SERVICE_UNAVAILABLE, &why)
    }

    fn inject(&self, review: &Review<'_>) -> Value {
        let namespace = review.request().namespace.as_deref();
        let unscraped = namespace.is_some_and(|name| self.unscraped.has(name));
        let settings = Settings {
            metrics: self.settings.metrics && !unscraped,
            ..self.settings.of_mesh(&self.mesh.borrow())
        };
        // The API server asks only for pods of which it or their namespace says so (the webhook's
        // selectors); what the pod itself says still counts.
        inject::review::response(review, |_| InjectionSetting::Enabled, &settings)
    }

    /// Reads a review, and sends the result of `answer`.
    async fn review(
        &self,
        webhook: &'static str,
        request: Request<Incoming>,
        source: IpAddr,
        answer: impl FnOnce(&Review<'_>) -> Value,
    ) -> HttpResponse {
        match self.reviewed(request, source, answer).await {
            Ok(answer) => {
                REVIEWS.add([webhook, result(&answer)], 1);
                https::json(StatusCode::OK, &answer)
            }
            Err((status, why)) => {
                let ended = match status {
                    StatusCode::SERVICE_UNAVAILABLE => "shed",
                    _ => "invalid",
                };
                REVIEWS.add([webhook, ended], 1);
                text(status, &format!("{why}\n"))
            }
        }
    }

    async fn reviewed(
        &self,
        request: Request<Incoming>,
        source: IpAddr,
        answer: impl FnOnce(&Review<'_>) -> Value,
    ) -> Result<Value, (StatusCode, String)> {
        let body = self.bodies.read(source, request, MAX_REVIEW);
        let body = body.await.map_err(refused)?;
        let review = Review::read(&body.bytes).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
        body.make_room(review.memory()).map_err(refused)?;
        Ok(answer(&review))
    }
}

impl Asker {
    /// Says why it gets no review.
    fn refusal(self) -> &'static str {
        match self {
            Self::Unproved => {
                "only the API server is answered: a client needs a certificate of webhook.clientCA, and none was \
                 shown (docs/kubernetes/install.md#webhook)\n"
            }
            Self::Kubelet | Self::ApiServer => {
                "this port is for health; reviews are on the webhook's\n"
            }
        }
    }
}

fn refused(why: Unread) -> (StatusCode, String) {
    match why {
        Unread::Incomplete => (
            StatusCode::BAD_REQUEST,
            "the review is not whole, or too long".into(),
        ),
        Unread::NoMemory => (
            StatusCode::SERVICE_UNAVAILABLE,
            "overload: this review and those that came at the same time take too much memory"
                .into(),
        ),
        Unread::Short => {
            let why = memory_limit::refusal();
            let why = why.unwrap_or_else(|| "overload: memory was short".to_owned());
            (StatusCode::SERVICE_UNAVAILABLE, why)
        }
    }
}

/// How a review ended, in a word.
fn result(answer: &Value) -> &'static str {
    let response = &answer["response"];
    match response["allowed"] == true {
        false => "refused",
        true if response.get("patch").is_some() => "patched",
        true if response.get("warnings").is_some() => "warned",
        true => "allowed",
    }
}
