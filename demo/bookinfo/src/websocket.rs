//! Echo over WebSocket (RFC 6455): says every message back.

use crate::http::{Body, error, full};
use futures_util::SinkExt;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

/// Whether a request asks for a WebSocket.
pub(crate) fn is_asked_for(request: &Request<Incoming>) -> bool {
    let upgrade = request.headers().get(UPGRADE);
    upgrade.is_some_and(|u| u.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Agrees, and talks on the connection afterwards.
pub(crate) fn accept(name: String, request: Request<Incoming>) -> Response<Body> {
    let headers = request.headers();
    let version = headers.get(SEC_WEBSOCKET_VERSION);
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let key = key.filter(|_| version.is_some_and(|v| v == "13"));
    let accepted =
        key.and_then(|key| HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok());
    let Some(accepted) = accepted else {
        return error(
            StatusCode::BAD_REQUEST,
            "a WebSocket needs sec-websocket-version: 13 and sec-websocket-key",
        );
    };
    tokio::spawn(async move {
        // A client that goes away is its own business.
        let Ok(upgraded) = hyper::upgrade::on(request).await else {
            return;
        };
        let stream = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        while let Some(Ok(message)) = tokio_stream::StreamExt::next(&mut socket).await {
            let answer = match message {
                Message::Text(text) => Message::text(format!("{name}: {text}")),
                Message::Binary(bytes) => Message::Binary(bytes),
                // The library answers these.
                _ => continue,
            };
            if socket.send(answer).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    response
}
