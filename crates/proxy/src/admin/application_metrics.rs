//! The application's metrics, served together with the sidecar's own.
//!
//! A scraper has no certificate of the mesh, so a strict sidecar refuses it on the application's
//! port. The sidecar scrapes the application instead and appends the answer to its own metrics. A
//! scraper rejects the whole text for one line that it cannot read, so an answer that is not
//! Prometheus text is left out, and `tulle_application_metrics_up` is 0.

use crate::admin::probe;
use crate::codec::exposition::merge;
use crate::control::dial::{self, Stream};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::sync::Mutex;
use tulle_model::bootstrap::{ApplicationMetrics, Bootstrap};
use tulle_net::socket;

/// Most bytes of an answer.
const MOST_BYTES: usize = 4 << 20;
/// Longest wait for the application, for connection and answer together.
const PATIENCE: Duration = Duration::from_secs(5);
/// Part of the scraper's own timeout that the application may use.
const SHARE: f64 = 0.8;

/// The application's metrics endpoint.
pub struct Scraper {
    address: SocketAddr,
    source: ApplicationMetrics,
    /// One scrape at a time: an answer may be large.
    turn: Mutex<()>,
    /// Why the last scrape failed, to be logged once; empty if it succeeded.
    trouble: std::sync::Mutex<String>,
}

impl Scraper {
    /// The scraper of a file; `None` if the file names no metrics of the application.
    pub fn new(bootstrap: &Bootstrap) -> Option<Self> {
        let source = bootstrap.application_metrics.clone()?;
        Some(Self {
            address: SocketAddr::new(bootstrap.application, source.port),
            source,
            turn: Mutex::default(),
            trouble: std::sync::Mutex::default(),
        })
    }

    /// Appends the application's metrics, and whether the scrape succeeded.
    pub async fn append(&self, out: &mut String, asked: &HeaderMap) {
        let limit = patience(asked);
        let scraped = async {
            let _turn = self.turn.lock().await;
            let text = self.fetch().await?;
            let length = out.len();
            let merged = merge(&text, out);
            if merged.is_err() {
                out.truncate(length);
            }
            merged
        };
        let scraped = match tokio::time::timeout(limit, scraped).await {
            Ok(scraped) => scraped,
            Err(_) => Err(format!("no whole answer within {limit:?}")),
        };
        let up = u8::from(scraped.is_ok());
        out.push_str(&format!(
            "# HELP tulle_application_metrics_up Whether the application's own metrics follow those of the proxy.\n\
             # TYPE tulle_application_metrics_up gauge\ntulle_application_metrics_up {up}\n"
        ));
        self.tell(scraped.err().unwrap_or_default());
    }

    fn tell(&self, trouble: String) {
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == trouble {
            return;
        }
        let (port, path) = (self.source.port, &self.source.path);
        match trouble.as_str() {
            "" => tracing::info!(port, path, "the application's metrics are served again"),
            why => tracing::warn!(port, path, "the application's metrics are left out: {why}"),
        }
        *known = trouble;
    }

    async fn fetch(&self) -> Result<String, String> {
        // A loopback source address keeps this connection from looking like a call of the workload
        // to itself.
        let stream = socket::connect_from_loopback(self.address).await;
        let stream = stream.map_err(|e| format!("no connection: {e}"))?;
        match self.source.tls {
            false => self.get(Box::new(stream)).await,
            true => {
                let tls = probe::tls_of(stream, self.address.ip()).await;
                let tls = tls.map_err(|e| format!("no TLS: {e}"))?;
                self.get(Box::new(tls)).await
            }
        }
    }

    async fn get(&self, stream: Box<dyn Stream>) -> Result<String, String> {
        let failed = |e: hyper::Error| format!("no answer: {e}");
        let request = Request::get(self.source.path.as_str())
            .header(HOST, self.address.to_string())
            .header(USER_AGENT, "tulle-proxy")
            .header(ACCEPT, "text/plain;version=0.0.4");
        let request = request.body(Full::default());
        let request = request.map_err(|e| format!("its path is not valid: {e}"))?;
        let answer = dial::ask(stream, request).await.map_err(failed)?;
        if answer.status() != StatusCode::OK {
            return Err(format!("it answers {}", answer.status()));
        }
        let kind = answer.headers().get(CONTENT_TYPE);
        let kind = kind.map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
        if let Some(kind) = kind.filter(|kind| kind.starts_with("application/")) {
            return Err(format!(
                "it answers with {kind:?}, not with Prometheus text"
            ));
        }
        read(answer).await
    }
}

async fn read(answer: Response<Incoming>) -> Result<String, String> {
    let mut body = answer.into_body();
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| format!("its answer ends too early: {e}"))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if read.len() + data.len() > MOST_BYTES {
            return Err(format!("it answers with more than {MOST_BYTES} bytes"));
        }
        read.extend_from_slice(data);
    }
    String::from_utf8(read).map_err(|_| "its answer is not UTF-8".to_owned())
}

/// How long the application may take. The scraper sends its own timeout.
fn patience(asked: &HeaderMap) -> Duration {
    let said = asked.get("x-prometheus-scrape-timeout-seconds");
    let said = said.and_then(|s| s.to_str().ok()?.parse::<f64>().ok());
    let said = said.and_then(|seconds| Duration::try_from_secs_f64(seconds * SHARE).ok());
    said.map_or(PATIENCE, |said| said.min(PATIENCE))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderMap;

    #[test]
    fn a_scraper_s_patience_is_not_used_up() {
        let patience = |said: Option<&str>| {
            let mut headers = HeaderMap::new();
            let said = said.map(|said| said.parse().unwrap());
            said.map(|said| headers.insert("x-prometheus-scrape-timeout-seconds", said));
            super::patience(&headers).as_secs_f64()
        };
        assert_eq!(patience(None), 5.0);
        assert_eq!(patience(Some("1")), 0.8);
        for odd in ["10", "soon", "-1", "NaN", "1e300"] {
            assert_eq!(patience(Some(odd)), 5.0, "{odd}");
        }
    }
}
