//! Shares code for messages between the services: bodies, JSON answers, header rules.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;

/// Made here, passed through from a peer, or made by a gRPC service.
pub(crate) type Body = Either<Full<Bytes>, Either<Incoming, tonic::body::Body>>;

/// Largest body read into memory; passed-through bodies are not limited.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// Says which identity called the service that answered; see [`caller`].
pub(crate) const CALLED_BY: HeaderName = HeaderName::from_static("x-called-by");

/// Headers of a trace: copied from a request to the requests it causes.
const TRACE: [&str; 10] = [
    "x-request-id",
    "traceparent",
    "tracestate",
    "baggage",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
];

/// A body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Either::Left(Full::new(bytes.into()))
}

/// An answer with a body of the given type.
pub(crate) fn answer(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Passes a peer's body through.
pub(crate) fn passed(body: Incoming) -> Body {
    Either::Right(Either::Left(body))
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(body) {
        Ok(bytes) => answer(status, "application/json", bytes),
        Err(e) => error(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("the answer cannot be written as JSON: {e}"),
        ),
    }
}

/// `{"error": …}`.
pub(crate) fn error(status: StatusCode, message: &str) -> Response<Body> {
    let body = serde_json::json!({ "error": message }).to_string();
    answer(status, "application/json", body)
}

/// 404 for a path no service of this name has.
pub(crate) fn no_such_path(path: &str) -> Response<Body> {
    error(
        StatusCode::NOT_FOUND,
        &format!("there is nothing at {path}"),
    )
}

/// 405 with the methods that would do.
pub(crate) fn method_not_allowed(method: &Method, allowed: &'static str) -> Response<Body> {
    let message = format!("{method} is not possible here; use {allowed}");
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, &message);
    response
        .headers_mut()
        .insert("allow", HeaderValue::from_static(allowed));
    response
}

/// GET, or HEAD, which the server answers like GET without the body.
pub(crate) fn is_read(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// The trace headers of a request.
pub(crate) fn trace(from: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in TRACE {
        if let Some(value) = from.get(name) {
            headers.insert(HeaderName::from_static(name), value.clone());
        }
    }
    headers
}

/// Removes what holds for one connection only (RFC 9110 section 7.6.1).
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// The SPIFFE id that the sidecar in front verified: the `URI` of the last element of
/// `x-forwarded-client-cert`. None without a mesh.
pub(crate) fn caller(headers: &HeaderMap) -> Option<&str> {
    let value = headers
        .get_all("x-forwarded-client-cert")
        .iter()
        .next_back()?;
    let element = value.to_str().ok()?.rsplit(',').next()?;
    let uri = element.split(';').find_map(|part| {
        let (key, value) = part.split_once('=')?;
        key.trim().eq_ignore_ascii_case("uri").then_some(value)
    })?;
    Some(uri.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn caller_is_the_uri_of_the_last_element() {
        let found = headers(&[(
            "x-forwarded-client-cert",
            "By=spiffe://m/svc/a;URI=spiffe://m/svc/old,By=spiffe://m/svc/b;Hash=00;URI=\"spiffe://m/svc/x\"",
        )]);
        assert_eq!(caller(&found), Some("spiffe://m/svc/x"));
        assert_eq!(caller(&HeaderMap::new()), None);
        let other = headers(&[("x-forwarded-client-cert", "By=spiffe://m/svc/a;Hash=00")]);
        assert_eq!(caller(&other), None);
    }

    #[test]
    fn hop_by_hop_goes_and_the_rest_stays() {
        let mut all = headers(&[
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("traceparent", "00-1-2-01"),
        ]);
        remove_hop_by_hop(&mut all);
        assert_eq!(all.len(), 1);
        assert!(all.contains_key("traceparent"));
    }

    #[test]
    fn only_trace_headers_are_copied() {
        let from = headers(&[("b3", "1-2-1"), ("authorization", "secret")]);
        let copied = trace(&from);
        assert_eq!(copied.len(), 1);
        assert!(copied.contains_key("b3"));
    }
}
