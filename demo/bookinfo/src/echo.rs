//! Says what it was asked, and fails or dawdles when told to: for trying what a mesh does to
//! requests. Over HTTP/1.1 and HTTP/2, by gRPC and WebSocket.

use crate::grpc::proto::echo_server::EchoServer;
use crate::grpc::{self, Speaker};
use crate::http::{Body, MAX_BODY, answer, error, json};
use crate::server::Answer;
use crate::websocket;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest delay.
const MAX_DELAY: f64 = 60.0;

/// The service.
pub(crate) struct Echo {
    /// How it calls itself, such as a version.
    name: String,
    /// Status of its answers.
    status: StatusCode,
    /// Requests it was asked, for `/numbers`.
    asked: AtomicU64,
    grpc: EchoServer<Speaker>,
}

impl Echo {
    /// One that calls itself so, and answers so unless the path says otherwise.
    pub(crate) fn new(name: String, status: StatusCode) -> Self {
        let grpc = grpc::speaker(&name);
        let asked = AtomicU64::default();
        Self {
            name,
            status,
            asked,
            grpc,
        }
    }
}

impl Answer for Echo {
    const HTTP2: bool = true;

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if grpc::is_call(&request) {
            return grpc::call(&self.grpc, request).await;
        }
        if websocket::is_asked_for(&request) {
            return websocket::accept(self.name.clone(), request);
        }
        let (head, body) = request.into_parts();
        let body = match Limited::new(body, MAX_BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(e) => return error(StatusCode::BAD_REQUEST, &format!("the body: {e}")),
        };
        let mut status = self.status;
        let path = head.uri.path();
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if path == "/numbers" {
            let text = format!("# TYPE echo_requests_total counter\necho_requests_total {asked}\n");
            return answer(StatusCode::OK, "text/plain; version=0.0.4", text);
        }
        if let Some(code) = path.strip_prefix("/status/") {
            match code.parse().ok().filter(|code| (200..=599).contains(code)) {
                Some(code) => status = StatusCode::from_u16(code).unwrap_or_default(),
                None => return error(StatusCode::BAD_REQUEST, "a status is from 200 to 599"),
            }
        }
        if let Some(seconds) = path.strip_prefix("/delay/") {
            match seconds
                .parse()
                .ok()
                .filter(|s| (0.0..=MAX_DELAY).contains(s))
            {
                Some(seconds) => tokio::time::sleep(Duration::from_secs_f64(seconds)).await,
                None => return error(StatusCode::BAD_REQUEST, "a delay is from 0 to 60 seconds"),
            }
        }
        let mut headers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (name, value) in &head.headers {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            headers.entry(name.as_str()).or_default().push(value);
        }
        let headers: BTreeMap<_, _> = headers
            .into_iter()
            .map(|(name, values)| (name, values.join(", ")))
            .collect();
        json(
            status,
            &serde_json::json!({
                "name": self.name,
                "method": head.method.as_str(),
                "target": head.uri.to_string(),
                "headers": headers,
                "body": String::from_utf8_lossy(&body),
                "version": format!("{:?}", head.version),
            }),
        )
    }
}
