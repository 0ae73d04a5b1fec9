//! The servers of the controller for the cluster: the admission webhook over TLS, and readiness.

use crate::https::{self, Answer, HANDSHAKE, accept, text};
use crate::inject::{Settings, Wish, review};
use crate::metrics::REVIEWS;
use crate::scrape::Unscraped;
use crate::source::Missing;
use crate::validate;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use rustls::server::WebPkiClientVerifier;
use serde_json::Value;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tulle_control::cluster::Feed;

/// The API server's own limit for what it asks is 3 MiB.
const MAX_REVIEW: usize = 4 * 1024 * 1024;

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

impl Webhook {
    /// Serves reviews over TLS.
    pub async fn serve(self, listener: TcpListener, feed: Feed, names: Vec<String>) {
        let config = https::config(feed, names, WebPkiClientVerifier::no_client_auth());
        let config = match config {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(error, "the webhook cannot be served");
                return;
            }
        };
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
        let answer = move |request| {
            let webhook = self.clone();
            async move { webhook.answer(request).await }
        };
        https::connection(stream, answer).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/live") => text(StatusCode::OK, "live\n"),
            (&Method::GET, "/ready") => self.ready(),
            (&Method::POST, "/inject") => {
                answer("inject", request, |review| self.inject(review)).await
            }
            (&Method::POST, "/validate") => {
                answer("validate", request, |review| {
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
    webhook: &'static str,
    request: Request<Incoming>,
    answer: impl FnOnce(&Value) -> Result<Value, String>,
) -> Answer {
    match reviewed(request, answer).await {
        Ok(answer) => {
            REVIEWS.add([webhook, result(&answer)], 1);
            https::json(StatusCode::OK, &answer)
        }
        Err(why) => {
            REVIEWS.add([webhook, "invalid"], 1);
            text(StatusCode::BAD_REQUEST, &format!("{why}\n"))
        }
    }
}

async fn reviewed(
    request: Request<Incoming>,
    answer: impl FnOnce(&Value) -> Result<Value, String>,
) -> Result<Value, String> {
    let body = Limited::new(request.into_body(), MAX_REVIEW).collect();
    let Ok(Ok(body)) = timeout(HANDSHAKE, body).await else {
        return Err("the review is not whole, or too long".into());
    };
    let review = serde_json::from_slice::<Value>(&body.to_bytes());
    answer(&review.map_err(|_| "the review is not JSON".to_owned())?)
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
