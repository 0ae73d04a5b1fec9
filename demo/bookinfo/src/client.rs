//! Calling other services: one pooled keep-alive client per process.

use crate::http::{Body, CALLED_BY, MAX_BODY, error, full};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderMap};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from sending a request to the end of the answer's head.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a service answers.
#[derive(Debug, Clone)]
pub(crate) struct Upstream(Authority);

impl FromStr for Upstream {
    type Err = String;

    /// `host:port`, optionally after `http://`: the mesh gives the former, people write the latter.
    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix("http://").unwrap_or(text);
        let bare = bare.strip_suffix('/').unwrap_or(bare);
        let authority = Authority::from_str(bare)
            .map_err(|e| format!("{text:?} is not host:port or http://host:port: {e}"))?;
        match authority.port_u16() {
            Some(_) if !authority.host().is_empty() => Ok(Self(authority)),
            _ => Err(format!(
                "{text:?} needs a host and a port, as in ratings:8101"
            )),
        }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a call brought no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// Nothing answered in time.
    TimedOut(String),
    /// The upstream could not be reached or broke off.
    Failed(String, String),
    /// The answer's status is not a success.
    Refused(String, StatusCode, String),
    /// The answer's body is too large or broke off.
    Body(String, String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(who) => write!(f, "{who} did not answer within {ANSWER_TIMEOUT:?}"),
            Self::Failed(who, why) => write!(f, "{who} cannot be reached: {why}"),
            Self::Refused(who, status, body) => write!(f, "{who} answered {status}: {body}"),
            Self::Body(who, why) => write!(f, "the answer of {who} cannot be read: {why}"),
        }
    }
}

impl CallError {
    /// The answer for a client whose request failed because of this.
    pub(crate) fn answer(&self) -> Response<Body> {
        let status = match self {
            Self::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Refused(_, status, _) => *status,
            Self::Failed(..) | Self::Body(..) => StatusCode::BAD_GATEWAY,
        };
        error(status, &self.to_string())
    }
}

/// A successful answer, read whole.
pub(crate) struct Fetched {
    /// The body.
    pub body: Bytes,
    /// The identity under which the upstream was called, if it said so.
    pub called_by: Option<String>,
}

/// The client.
#[derive(Clone)]
pub(crate) struct Client(hyper_util::client::legacy::Client<HttpConnector, Body>);

impl Client {
    /// A client with an empty pool.
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self(
            hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .build(connector),
        )
    }

    /// Sends a request to an upstream, whatever its URI and Host said before.
    pub(crate) async fn send(
        &self,
        upstream: &Upstream,
        path: PathAndQuery,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, CallError> {
        let mut parts = hyper::http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(upstream.0.clone());
        parts.path_and_query = Some(path);
        let failed = |why: String| CallError::Failed(upstream.to_string(), why);
        *request.uri_mut() = Uri::from_parts(parts).map_err(|e| failed(e.to_string()))?;
        request.headers_mut().remove(HOST);
        match tokio::time::timeout(ANSWER_TIMEOUT, self.0.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(e)) => Err(failed(root_cause(&e))),
            Err(_) => Err(CallError::TimedOut(upstream.to_string())),
        }
    }

    /// `GET path` with these headers; anything but a success is an error.
    pub(crate) async fn get(
        &self,
        upstream: &Upstream,
        path: &str,
        headers: HeaderMap,
    ) -> Result<Fetched, CallError> {
        let path = PathAndQuery::from_str(path)
            .map_err(|e| CallError::Failed(upstream.to_string(), e.to_string()))?;
        let mut request = Request::new(full(Bytes::new()));
        *request.headers_mut() = headers;
        let response = self.send(upstream, path, request).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_BODY)
            .collect()
            .await
            .map_err(|e| CallError::Body(upstream.to_string(), e.to_string()))?
            .to_bytes();
        if !head.status.is_success() {
            let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            let who = upstream.to_string();
            return Err(CallError::Refused(who, head.status, text));
        }
        let called_by = head.headers.get(CALLED_BY);
        let called_by = called_by.and_then(|id| id.to_str().ok()).map(str::to_owned);
        Ok(Fetched { body, called_by })
    }
}

/// The innermost error says what happened; the outer ones only that something did.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_with_and_without_scheme() {
        for text in [
            "ratings:8101",
            "http://ratings:8101",
            "http://ratings:8101/",
        ] {
            assert_eq!(
                text.parse::<Upstream>().unwrap().to_string(),
                "ratings:8101"
            );
        }
        let v6: Upstream = "[::1]:80".parse().unwrap();
        assert_eq!(v6.to_string(), "[::1]:80");
    }

    #[test]
    fn refuses_other_upstreams() {
        for text in [
            "",
            "ratings",
            "http://ratings",
            "https://ratings:1",
            "a:b",
            "ratings:1/x",
        ] {
            assert!(text.parse::<Upstream>().is_err(), "{text:?}");
        }
    }
}
