//! Calls of gRPC, whose failures HTTP's status does not tell: who counts, watches and balances sees them.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use tests_local::{Http2Client, Http2Server, PATIENCE, Pair, Proxy, request};

/// Answers `/N` with status N: in trailers, or, below `/head`, in the head of a response without content.
async fn application() -> Http2Server {
    Http2Server::start(|request, mut respond| async move {
        let path = request.uri().path().to_owned();
        // An application that answers before the message has come stops its client from sending it.
        let mut message = request.into_body();
        while let Some(Ok(part)) = message.data().await {
            let _ = message.flow_control().release_capacity(part.len());
        }
        let (short, code) = match path.strip_prefix("/head/") {
            Some(code) => (true, code),
            None => (false, path.trim_start_matches('/')),
        };
        let status = HeaderValue::from_str(code).unwrap();
        let mut response = http::Response::new(());
        let headers = response.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        if short {
            headers.insert("grpc-status", status);
            let _ = respond.send_response(response, true);
            return;
        }
        let Ok(mut send) = respond.send_response(response, false) else {
            return;
        };
        let _ = send.send_data(Bytes::from_static(b"\0\0\0\0\0"), false);
        if code != "none" {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status);
            let _ = send.send_trailers(trailers);
            return;
        }
        let _ = send.send_data(Bytes::new(), true);
    })
    .await
}

async fn call(client: &Http2Client, path: &str) {
    let mut asked = request("POST", path);
    let headers = asked.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("te", HeaderValue::from_static("trailers"));
    assert_eq!(
        client.exchange(asked, "x", None).await.unwrap().status(),
        200
    );
}

fn speaking_grpc(app: &Http2Server) -> Pair {
    Pair::speaking(app.address(), "grpc")
}

#[tokio::test]
async fn calls_are_counted_by_their_own_status() {
    let app = application().await;
    let pair = speaking_grpc(&app);
    let client = Http2Client::connect(pair.address).await;
    for path in ["/0", "/0", "/13", "/head/14", "/5", "/none", "/77"] {
        call(&client, path).await;
    }
    assert_eq!(client.get("/0").await.unwrap().status(), 200);
    for proxy in [&pair.client, &pair.server] {
        for (status, count) in [("0", 2.0), ("13", 1.0), ("14", 1.0), ("5", 1.0), ("2", 2.0)] {
            let status = format!(
                "response_code=\"200\",response_flags=\"-\",grpc_response_status=\"{status}\""
            );
            let labels = ["request_protocol=\"grpc\"", &status];
            proxy.await_metric("istio_requests_total", &labels, count);
            assert_eq!(proxy.metric("istio_requests_total", &labels), count);
        }
        // A plain HTTP request is not counted as a gRPC call.
        let plain = ["request_protocol=\"http\"", "response_code=\"200\""];
        proxy.await_metric("istio_requests_total", &plain, 1.0);
    }
}

/// Lines of requests as they end.
fn watch(proxy: &Proxy) -> impl Iterator<Item = Value> + use<> {
    let admin = proxy.config["admin"].as_str().unwrap();
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /tap HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut status = String::new();
    reader.read_line(&mut status).unwrap();
    assert!(status.contains(" 200 "), "{status}");
    let lines = reader.lines().map(Result::unwrap);
    lines
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(&line).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_sees_what_was_spoken_and_answered() {
    let app = application().await;
    let pair = speaking_grpc(&app);
    let client = Http2Client::connect(pair.address).await;
    for proxy in [&pair.client, &pair.server] {
        let mut seen = watch(proxy);
        call(&client, "/13").await;
        let line = tokio::task::spawn_blocking(move || seen.next()).await;
        let line = line.unwrap().unwrap();
        assert_eq!(line["protocol"], "HTTP/2", "{line}");
        assert_eq!(line["response_code"], 200);
        assert_eq!(line["grpc_status"], 13);
        assert!(line["time_to_first_byte"].as_f64() > Some(0.0), "{line}");
    }
}

#[tokio::test]
async fn a_circuit_opens_when_calls_fail() {
    let app = application().await;
    let pair = Pair::with(app.address(), |client, server| {
        let breaker = json!({ "breaker": { "minRequests": 4, "errorPpm": 500_000 } });
        let client = client
            .set("/services/0/ports/0/protocol", "grpc")
            .set("/services/0/ports/0/traffic", breaker);
        (client, server.set("/inbound/ports/0/protocol", "grpc"))
    });
    let client = Http2Client::connect(pair.address).await;
    // A caller's mistake is no failure of the server.
    for _ in 0..8 {
        call(&client, "/5").await;
    }
    let open = [
        "response_flags=\"circuit_open\"",
        "grpc_response_status=\"14\"",
    ];
    assert_eq!(pair.client.metric("istio_requests_total", &open), 0.0);
    for _ in 0..20 {
        call(&client, "/13").await;
    }
    pair.client.await_metric("istio_requests_total", &open, 1.0);
}
