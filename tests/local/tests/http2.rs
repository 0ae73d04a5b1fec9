//! HTTP/2 as clients and applications see it, through two real sidecars.

use bytes::Bytes;
use http::HeaderMap;
use tests_local::{Http2Client, Http2Server, Pair, Server, ok, pattern, request};

#[tokio::test]
async fn requests_bodies_and_trailers_pass() {
    let app = Http2Server::echo().await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    let answer = client.get("/a?b=c").await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("got-path"), Some("/a?b=c"));
    assert_eq!(answer.header("got-authority"), Some("ratings"));
    assert_eq!(answer.body, b"");

    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    trailers.insert("a-first", "2".parse().unwrap());
    let body = pattern(3_000_000);
    let answer = client
        .exchange(request("POST", "/"), body.clone(), Some(trailers.clone()))
        .await
        .unwrap();
    assert!(answer.body == body, "{} bytes", answer.body.len());
    assert_eq!(answer.trailers, trailers);
    assert_eq!(app.connections(), 1);
}

/// Waits for a signal, so that a suite can be run by hand.
#[tokio::test]
#[ignore = "runs until it is ended"]
async fn stand() {
    let app = Http2Server::start(|mut request, mut respond| async move {
        while let Some(Ok(data)) = request.body_mut().data().await {
            let _ = request
                .body_mut()
                .flow_control()
                .release_capacity(data.len());
        }
        let mut send = respond
            .send_response(http::Response::new(()), false)
            .unwrap();
        let _ = tests_local::send_all(&mut send, Bytes::from(pattern(1000))).await;
        let _ = send.send_data(Bytes::new(), true);
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    println!("listening on {}", pair.address);
    std::fs::write("/work/wt/h2/build/port", pair.address.port().to_string()).unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1200)).await;
    let _ = (Server::echo(), ok(b""), Bytes::new());
}
