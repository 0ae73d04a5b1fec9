//! HTTP/2 as clients and applications see it, through two real sidecars.

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Response};
use std::future::poll_fn;
use std::time::{Duration, Instant};
use tests_local::{
    Client, Http2Client, Http2Server, Mesh, PATIENCE, Pair, Proxy, Server, gateway_config,
    note_wait, ok, outbound_config, pattern, pause, post, read, request, send_all, server_config,
};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Fails instead of hanging.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let result = timeout(PATIENCE, future).await;
    note_wait(what, begun.elapsed());
    result.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// The pause between two looks at what tells nobody when it changes.
async fn look_again() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("1"));
    trailers.insert("a-first", HeaderValue::from_static("2"));
    trailers
}

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

    let body = pattern(3_000_000);
    let answer = client
        .exchange(request("POST", "/"), body.clone(), Some(trailers()))
        .await
        .unwrap();
    assert!(answer.body == body, "{} bytes", answer.body.len());
    assert_eq!(answer.trailers, trailers());
    assert_eq!(app.connections(), 1);
}

#[tokio::test]
async fn fields_keep_their_order_and_their_number() {
    let app = Http2Server::echo().await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    let mut asked = request("GET", "/");
    for (name, value) in [("z", "1"), ("m", "2"), ("z", "3"), ("a", "4")] {
        asked
            .headers_mut()
            .append(name, HeaderValue::from_static(value));
    }
    let answer = client.exchange(asked, "", None).await.unwrap();
    let headers = answer.head.headers();
    let z: Vec<_> = headers.get_all("got-z").iter().collect();
    assert_eq!(z, ["1", "3"]);
    let names: Vec<_> = headers.keys().map(|n| n.as_str()).collect();
    let place = |name| names.iter().position(|n| *n == name).unwrap();
    assert!(place("got-z") < place("got-m") && place("got-m") < place("got-a"));
    assert!(
        headers["got-x-forwarded-client-cert"]
            .to_str()
            .unwrap()
            .contains("productpage")
    );
}

#[tokio::test]
async fn a_client_of_http_2_reaches_an_application_of_http_1() {
    let app = Server::http(|request| {
        if request.target() == "/chunked" {
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Mixed-Case: a\r\n\r\n\
                3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n"
                .to_vec();
        }
        let mut body = request.head.clone().into_bytes();
        body.extend_from_slice(&request.body);
        ok(&body)
    });
    let pair = Pair::start(app.address()); // declared as http
    let client = Http2Client::connect(pair.address).await;
    let mut asked = request("POST", "/x");
    let headers = asked.headers_mut();
    headers.append("cookie", HeaderValue::from_static("a=1"));
    headers.append("cookie", HeaderValue::from_static("b=2"));
    let answer = client
        .exchange(asked, "five stars", Some(trailers()))
        .await
        .unwrap();
    let text = answer.text();
    assert!(
        text.starts_with("POST /x HTTP/1.1\r\nhost: ratings\r\n"),
        "{text}"
    );
    assert!(text.contains("\r\ncookie: a=1; b=2\r\n"), "{text}");
    assert!(
        text.contains("\r\ntransfer-encoding: chunked\r\n"),
        "{text}"
    );
    assert!(text.ends_with("five stars"), "{text}");
    assert!(app.received_text().contains("x-sum: 1\r\na-first: 2\r\n"));

    let answer = client.get("/chunked").await.unwrap();
    assert_eq!(answer.body, b"abc");
    assert_eq!(answer.trailers["x-sum"], "7");
    assert_eq!(answer.header("x-mixed-case"), Some("a"));
    assert_eq!(answer.header("transfer-encoding"), None);
}

#[tokio::test]
async fn a_client_of_http_1_reaches_an_application_of_http_2() {
    let app = Http2Server::echo().await;
    let pair = Pair::speaking(app.address(), "http2");
    let address = pair.address;
    tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(address);
        let response = client.get("/x");
        assert_eq!(response.status(), 200);
        assert_eq!(response.header("got-path"), "/x");
        assert_eq!(response.header("got-authority"), "ratings");
        client.send(post("/", b"five stars"));
        assert_eq!(client.response("POST").text(), "five stars");
        client.send(
            "POST / HTTP/1.1\r\nHost: ratings\r\nTE: trailers\r\nConnection: te\r\n\
             Transfer-Encoding: chunked\r\n\r\n4\r\nmore\r\n0\r\nX-Sum: 5\r\n\r\n",
        );
        let head = "HTTP/1.1 200 OK\r\n";
        assert_eq!(client.read_exact(head.len()), head.as_bytes());
        let mut rest = Vec::new();
        while !rest.ends_with(b"0\r\nx-sum: 5\r\n\r\n") {
            rest.extend(client.read_exact(1));
        }
        // The connection goes on.
        assert_eq!(client.get("/y").status(), 200);
    })
    .await
    .unwrap();
    assert_eq!(app.connections(), 1);
}

#[tokio::test]
async fn an_undeclared_port_is_spoken_to_as_its_clients_speak() {
    let app = Http2Server::echo().await;
    let pair = Pair::speaking(app.address(), "detect");
    let client = Http2Client::connect(pair.address).await;
    assert_eq!(client.get("/").await.unwrap().status(), 200);

    let app = Server::echo();
    let pair = Pair::speaking(app.address(), "detect");
    let address = pair.address;
    let asked = tokio::task::spawn_blocking(move || Client::connect(address).get("/").status());
    assert_eq!(asked.await.unwrap(), 200);
}

#[tokio::test]
async fn each_request_of_a_connection_is_balanced_by_itself() {
    let apps = [Http2Server::echo().await, Http2Server::echo().await];
    let mesh = Mesh::new();
    let endpoint = |app: &Http2Server| serde_json::json!({ "address": app.address().to_string(), "mutualTls": false });
    let config = outbound_config(apps[0].address())
        .set("/services/0/ports/0/protocol", "grpc")
        .set(
            "/services/0/ports/0/endpoints",
            serde_json::json!([endpoint(&apps[0]), endpoint(&apps[1])]),
        );
    let _proxy = Proxy::start(&mesh, tests_local::CLIENT, config.file);
    let client = Http2Client::connect(config.address).await;
    for _ in 0..6 {
        assert_eq!(client.get("/").await.unwrap().status(), 200);
    }
    assert_eq!(apps.each_ref().map(Http2Server::connections), [1, 1]);
}

/// A reader that does not read holds its own stream only, and what waits for it is bounded.
#[tokio::test]
async fn a_stalled_reader_does_not_stall_others() {
    const LARGE: usize = 8 << 20;
    let app = Http2Server::start(|request, mut respond| async move {
        let mut send = respond.send_response(Response::new(()), false).unwrap();
        let size = if request.uri().path() == "/large" {
            LARGE
        } else {
            1000
        };
        let _ = send_all(&mut send, Bytes::from(pattern(size))).await;
        let _ = send.send_data(Bytes::new(), true);
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    let before = [pair.client.memory(), pair.server.memory()];
    let client = Http2Client::connect(pair.address).await;
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let (response, _) = client.open(request("GET", "/large"), true).await.unwrap();
        stalled.push(soon("a head", response).await.unwrap());
    }
    // Another connection: the stalled ones have used up their own connection's credit.
    let other = Http2Client::connect(pair.address).await;
    for _ in 0..20 {
        let answer = soon("an answer", other.get("/small")).await.unwrap();
        assert!(answer.body == pattern(1000));
    }
    let grown = |proxy: &Proxy, before: u64| proxy.memory().saturating_sub(before) >> 20;
    let grown = [
        grown(&pair.client, before[0]),
        grown(&pair.server, before[1]),
    ];
    assert!(grown.iter().all(|mb| *mb < 16), "{grown:?} MB more");
    // Those who read at last get all of it.
    let reading: Vec<_> = stalled.into_iter().map(|r| tokio::spawn(read(r))).collect();
    for reading in reading {
        let answer = soon("the rest", reading).await.unwrap().unwrap();
        assert!(answer.body == pattern(LARGE));
    }
}

/// An upload whose reader stalls does not hold up the others of its connection.
#[tokio::test]
async fn a_stalled_upload_does_not_stall_others() {
    let (go, gate) = tokio::sync::watch::channel(false);
    // The application's own connection must have room for those that it does not read.
    let mut builder = h2::server::Builder::new();
    builder.initial_connection_window_size(16 << 20);
    let app = Http2Server::with(builder, move |mut request, mut respond| {
        let mut gate = gate.clone();
        async move {
            if request.uri().path() == "/slow" {
                let _ = gate.wait_for(|open| *open).await;
            }
            let mut count = 0;
            while let Some(Ok(data)) = request.body_mut().data().await {
                let _ = request
                    .body_mut()
                    .flow_control()
                    .release_capacity(data.len());
                count += data.len();
            }
            let mut response = Response::new(());
            response.headers_mut().insert("count", count.into());
            let _ = respond.send_response(response, true);
        }
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    let mut slow = Vec::new();
    for _ in 0..10 {
        let (response, mut send) = client.open(request("POST", "/slow"), false).await.unwrap();
        slow.push(tokio::spawn(async move {
            send_all(&mut send, Bytes::from(pattern(4 << 20))).await?;
            send.send_data(Bytes::new(), true)?;
            response.await
        }));
    }
    for _ in 0..10 {
        let asked = client.exchange(request("POST", "/fast"), pattern(100_000), None);
        let answer = soon("a fast one", asked).await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(answer.header("count"), Some("100000"));
    }
    assert!(slow.iter().all(|s| !s.is_finished()));
    go.send(true).unwrap();
    for slow in slow {
        let response = soon("a slow one", slow).await.unwrap().unwrap();
        assert_eq!(response.headers()["count"], "4194304");
    }
}

#[tokio::test]
async fn what_the_client_resets_is_reset_at_the_application() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let (begin, mut begun) = mpsc::unbounded_channel();
    let app = Http2Server::start(move |mut request, mut respond| {
        let (tell, begin) = (tell.clone(), begin.clone());
        async move {
            if request.uri().path() == "/upload" {
                let mut cut = None;
                while let (None, Some(data)) = (cut, request.body_mut().data().await) {
                    let _ = begin.send(());
                    cut = data.err().and_then(|e| e.reason());
                }
                let _ = tell.send(cut);
                return;
            }
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            let reason = poll_fn(|cx| send.poll_reset(cx)).await;
            let _ = tell.send(reason.ok());
        }
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    // While the response is under way.
    let (response, mut send) = client.open(request("GET", "/"), true).await.unwrap();
    let _body = soon("a head", response).await.unwrap();
    send.send_reset(Reason::CANCEL);
    assert_eq!(
        soon("a reset", told.recv()).await,
        Some(Some(Reason::CANCEL))
    );
    // While the request is under way.
    let (_response, mut send) = client
        .open(request("POST", "/upload"), false)
        .await
        .unwrap();
    send.send_data(Bytes::from_static(b"half"), false).unwrap();
    soon("the upload has begun", begun.recv()).await.unwrap();
    send.send_reset(Reason::CANCEL);
    assert_eq!(
        soon("a reset", told.recv()).await,
        Some(Some(Reason::CANCEL))
    );
    // And the connection goes on.
    let (_, mut send) = client.open(request("GET", "/"), true).await.unwrap();
    send.send_reset(Reason::CANCEL);
    let (response, mut send) = client.open(request("GET", "/"), true).await.unwrap();
    assert_eq!(soon("a head", response).await.unwrap().status(), 200);
    send.send_reset(Reason::CANCEL);
}

#[tokio::test]
async fn what_the_application_resets_is_reset_at_the_client_or_refused() {
    let (go, gate) = tokio::sync::watch::channel(false);
    let app = Http2Server::start(move |request, mut respond| {
        let mut gate = gate.clone();
        async move {
            if request.uri().path() == "/late" {
                let mut send = respond.send_response(Response::new(()), false).unwrap();
                send.send_data(Bytes::from_static(b"half"), false).unwrap();
                let _ = gate.wait_for(|open| *open).await;
                return send.send_reset(Reason::INTERNAL_ERROR);
            }
            respond.send_reset(Reason::INTERNAL_ERROR);
        }
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    let early = soon("an answer", client.get("/early")).await.unwrap();
    assert_eq!(early.status(), 502);
    assert_eq!(early.header("x-tulle-reason"), Some("upstream_reset"));
    let (response, _) = client.open(request("GET", "/late"), true).await.unwrap();
    let late = soon("a head", response).await.unwrap();
    go.send(true).unwrap();
    let late = soon("an end", read(late)).await;
    let error = late.map(|a| a.text()).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn what_the_application_has_refused_is_sent_again() {
    let app = Http2Server::start(|request, mut respond| async move {
        // It refuses the first ones and has done nothing.
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if count < 2 && request.method() == "POST" {
            return respond.send_reset(Reason::REFUSED_STREAM);
        }
        let _ = respond.send_response(Response::new(()), true);
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    // A POST, which is sent again only because the refusal says that nothing was done.
    let answer = client
        .exchange(request("POST", "/"), "", None)
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn an_application_that_does_not_speak_http_2_is_named() {
    let app = Server::echo();
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    let answer = soon("an answer", client.get("/")).await.unwrap();
    assert_eq!(answer.status(), 502);
    let text = answer.text();
    assert!(text.contains("HTTP/2"), "{text}");
}

#[tokio::test]
async fn refusals_of_grpc_are_in_its_own_words() {
    let app = Http2Server::start(|_, respond| async move {
        std::future::pending::<()>().await;
        drop(respond);
    })
    .await;
    let pair = Pair::with(app.address(), |client, server| {
        (
            client.set("/services/0/ports/0/protocol", "grpc"),
            server
                .set("/inbound/ports/0/protocol", "grpc")
                .set("/inbound/policy/permissive", false),
        )
    });
    let grpc = |timeout: Option<&'static str>| {
        let mut asked = request("POST", "/tulle.Test/Call");
        let headers = asked.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        if let Some(timeout) = timeout {
            headers.insert("grpc-timeout", HeaderValue::from_static(timeout));
        }
        asked
    };
    let client = Http2Client::connect(pair.address).await;
    let denied = client.exchange(grpc(None), "x", None).await.unwrap();
    assert_eq!(denied.status(), 200);
    assert_eq!(denied.header("grpc-status"), Some("7"));
    assert_eq!(denied.header("content-type"), Some("application/grpc"));
    assert_eq!(denied.header("x-tulle-reason"), Some("denied"));
    assert!(
        denied
            .header("grpc-message")
            .unwrap()
            .contains("productpage")
    );
    // A client that does not speak gRPC gets the status of HTTP.
    let denied = client.get("/").await.unwrap();
    assert_eq!(denied.status(), 403);
    drop(pair);

    // The client waits no longer than it said, and neither does anybody for it.
    let pair = Pair::speaking(app.address(), "grpc");
    let client = Http2Client::connect(pair.address).await;
    let asked = client.exchange(grpc(Some("100m")), "x", None);
    let late = soon("a deadline", asked).await.unwrap();
    assert_eq!(late.header("grpc-status"), Some("4"));
    assert_eq!(late.header("x-tulle-reason"), Some("request_timeout"));
    drop(pair);

    let mesh = Mesh::new();
    let nobody = outbound_config(([127, 0, 0, 1], tests_local::free_port()).into())
        .set("/services/0/ports/0/endpoints/0/mutualTls", false);
    let _proxy = Proxy::start(&mesh, tests_local::CLIENT, nobody.file);
    let client = Http2Client::connect(nobody.address).await;
    let lost = client.exchange(grpc(None), "x", None).await.unwrap();
    assert_eq!(lost.header("grpc-status"), Some("14"));
}

#[tokio::test]
async fn a_grpc_server_that_resets_a_stream_whose_deadline_has_passed_is_not_unavailable() {
    const DEADLINE: Duration = Duration::from_millis(50);
    let app = Http2Server::start(|request, mut respond| async move {
        if request.uri().path() == "/tulle.Test/Late" {
            tokio::time::sleep(DEADLINE).await;
        }
        respond.send_reset(Reason::CANCEL);
    })
    .await;
    let pair = Pair::speaking(app.address(), "grpc");
    let client = Http2Client::connect(pair.address).await;
    for (path, timeout, status) in [
        ("/tulle.Test/Late", "50m", "4"),
        ("/tulle.Test/Early", "60S", "14"),
    ] {
        let mut asked = request("POST", path);
        let headers = asked.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-timeout", HeaderValue::from_static(timeout));
        // As long as the request goes on no proxy waits for its response.
        let (response, _send) = client.open(asked, false).await.unwrap();
        let answer = soon("a head", response).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], status, "{path}");
    }
}

#[tokio::test]
async fn a_gateway_speaks_http_2_to_its_clients_and_http_1_to_an_application_that_says_nothing() {
    let app = Server::echo();
    let mesh = Mesh::new();
    let config = gateway_config(app.address()).set("/services/0/ports/0/protocol", "detect");
    let _proxy = Proxy::start(&mesh, "edge", config.file);
    let client = Http2Client::connect(config.address).await;
    let answer = client
        .exchange(request("POST", "/"), "x", None)
        .await
        .unwrap();
    assert!(
        answer
            .text()
            .starts_with("POST / HTTP/1.1\r\nhost: ratings\r\n")
    );
    assert!(answer.text().contains("x-forwarded-for: 127.0.0.1\r\n"));
}

/// Waits until so many requests are at the application.
async fn all_arrive(arrived: &watch::Sender<usize>, count: usize) {
    let mut changes = arrived.subscribe();
    soon("all arrive", changes.wait_for(|now| *now >= count))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_drain_loses_no_stream() {
    let (go, gate) = tokio::sync::watch::channel(false);
    let arrived = watch::Sender::new(0);
    let count = arrived.clone();
    let app = Http2Server::start(move |_, mut respond| {
        let mut gate = gate.clone();
        count.send_modify(|now| *now += 1);
        async move {
            let _ = gate.wait_for(|open| *open).await;
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            let _ = send.send_data(Bytes::from_static(b"whole"), true);
        }
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let (response, _) = client.open(request("GET", "/"), true).await.unwrap();
        waiting.push(response);
    }
    all_arrive(&arrived, 10).await;
    pair.client.terminate();
    // The client is told to take another connection.
    soon("GOAWAY", async {
        while client.send.clone().ready().await.is_ok()
            && client.open(request("GET", "/late"), true).await.is_ok()
        {
            look_again().await;
        }
    })
    .await;
    // Streams may take longer than the server waits for those on their way.
    let named = "the server has named the last stream that it took";
    let passed = tokio::task::spawn_blocking(move || pause(named, Duration::from_secs(3)));
    passed.await.unwrap();
    go.send(true).unwrap();
    for response in waiting {
        let answer = soon("an answer", async { read(response.await?).await }).await;
        assert_eq!(answer.unwrap().body, b"whole");
    }
}

#[tokio::test]
async fn connections_outlive_a_change_of_the_configuration() {
    let app = Http2Server::echo().await;
    let pair = Pair::speaking(app.address(), "http2");

    let client = Http2Client::connect(pair.address).await;
    let (response, mut send) = client.open(request("POST", "/"), false).await.unwrap();
    send.send_data(Bytes::from_static(b"before "), false)
        .unwrap();
    let response = soon("a head", response).await.unwrap();
    for proxy in [&pair.client, &pair.server] {
        let mut file = proxy.config.clone();
        file["mesh"]["maxHeaders"] = 90.into();
        proxy.reload(&file);
    }
    send.send_data(Bytes::from_static(b"after"), true).unwrap();
    assert_eq!(
        soon("the rest", read(response)).await.unwrap().body,
        b"before after"
    );
    assert_eq!(client.get("/").await.unwrap().status(), 200);
}

/// The handshake of extended CONNECT (RFC 8441).
fn websocket(path: &str) -> http::Request<()> {
    let mut asked = request("CONNECT", path);
    asked
        .extensions_mut()
        .insert(h2::ext::Protocol::from_static("websocket"));
    let version = HeaderValue::from_static("13");
    asked.headers_mut().insert("sec-websocket-version", version);
    asked
}

/// Sends something through a tunnel and waits until it comes back.
async fn sees_its_echo(client: &Http2Client) {
    let (response, mut send) = client.open(websocket("/chat"), false).await.unwrap();
    let response = soon("an answer", response).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("sec-websocket-accept"));
    assert!(!response.headers().contains_key("upgrade"));
    let mut body = response.into_body();
    for text in ["one", "two", "three"] {
        send.send_data(Bytes::from_static(text.as_bytes()), false)
            .unwrap();
        let mut seen = Vec::new();
        while seen.len() < text.len() {
            seen.extend(soon("an echo", body.data()).await.unwrap().unwrap());
        }
        assert_eq!(seen, text.as_bytes());
    }
    send.send_data(Bytes::new(), true).unwrap();
    while let Some(rest) = soon("the end", body.data()).await {
        assert_eq!(rest.unwrap(), "");
    }
}

async fn tunnelling(address: std::net::SocketAddr) -> Http2Client {
    let client = Http2Client::connect(address).await;
    // Any answer comes after the SETTINGS that allow it.
    let _ = client.get("/").await;
    soon("leave for tunnels", async {
        while !client.send.is_extended_connect_protocol_enabled() {
            look_again().await;
        }
    })
    .await;
    client
}

#[tokio::test]
async fn a_websocket_of_http_2_reaches_an_application_of_http_1() {
    let app = Server::start(|mut connection| {
        while let Ok(request) = connection.request() {
            if request.header("upgrade") != "websocket" {
                connection.try_send(ok(b"")).unwrap();
                continue;
            }
            assert_eq!(request.method(), "GET");
            assert_eq!(request.header("sec-websocket-key").len(), 24);
            assert_eq!(request.header("sec-websocket-version"), "13");
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
            connection.try_send(answer).unwrap();
            while let Ok(bytes) = connection.read_some() {
                if bytes.is_empty() || connection.try_send(bytes).is_err() {
                    return;
                }
            }
        }
    });
    let pair = Pair::start(app.address());
    let client = tunnelling(pair.address).await;
    sees_its_echo(&client).await;
}

/// An application that takes WebSockets over HTTP/2 and sends back what comes.
async fn tunnel_app() -> Http2Server {
    let mut builder = h2::server::Builder::new();
    builder.enable_connect_protocol();
    Http2Server::with(builder, |request, mut respond| async move {
        let protocol = request.extensions().get::<h2::ext::Protocol>();
        let end = protocol.is_none_or(|p| p.as_str() != "websocket");
        let mut send = respond.send_response(Response::new(()), end).unwrap();
        let mut body = request.into_body();
        while let Some(Ok(data)) = body.data().await {
            let _ = body.flow_control().release_capacity(data.len());
            if send_all(&mut send, data).await.is_err() {
                return;
            }
        }
        let _ = send.send_data(Bytes::new(), true);
    })
    .await
}

#[tokio::test]
async fn a_websocket_of_http_2_reaches_an_application_of_http_2() {
    let app = tunnel_app().await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = tunnelling(pair.address).await;
    sees_its_echo(&client).await;
    sees_its_echo(&client).await;
    assert_eq!(app.connections(), 1);
}

#[tokio::test]
async fn a_websocket_of_http_1_reaches_an_application_of_http_2() {
    let app = tunnel_app().await;
    let pair = Pair::speaking(app.address(), "http2");
    let address = pair.address;
    tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(address);
        client.send(
            "GET /chat HTTP/1.1\r\nHost: ratings\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        );
        let response = client.response("GET");
        assert_eq!(response.status(), 101);
        assert_eq!(response.header("upgrade"), "websocket");
        let accept = response.header("sec-websocket-accept");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        client.send("hello");
        assert_eq!(client.read_exact(5), b"hello");
        client.half_close();
        assert!(client.is_ended());
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_websocket_is_declined_where_the_application_takes_none() {
    let app = Server::http(|_| ok(b"no"));
    let pair = Pair::start(app.address());
    let client = tunnelling(pair.address).await;
    let (response, _send) = client.open(websocket("/chat"), false).await.unwrap();
    let response = soon("an answer", response).await.unwrap();
    assert_eq!(response.status(), 502);
}

/// Peers that know HTTP/2 and not `tulle/1`, such as other proxies: towards us and away from us.
#[tokio::test]
async fn peers_without_tulle_1_speak_http_2_over_mutual_tls() {
    let mesh = Mesh::new();
    let certificate = mesh.ca.issue(&tests_local::id(tests_local::CLIENT));
    let app = Server::echo();
    let config = tests_local::inbound_config(app.address());
    let _proxy = Proxy::start(&mesh, tests_local::SERVER, config.file);
    let offer = tests_local::client_config(Some(&certificate), tests_local::TLS13, &["h2"]);
    let tcp = tokio::net::TcpStream::connect(config.address)
        .await
        .unwrap();
    let name = rustls::pki_types::ServerName::try_from("ratings.test").unwrap();
    let tls = tokio_rustls::TlsConnector::from(offer)
        .connect(name, tcp)
        .await
        .unwrap();
    let (send, connection): (h2::client::SendRequest<Bytes>, _) =
        h2::client::handshake(tls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    for path in ["/one", "/two"] {
        let mut ready = send.clone().ready().await.unwrap();
        let (response, _) = ready.send_request(request("GET", path), true).unwrap();
        let answer = soon("an answer", async { read(response.await?).await }).await;
        let text = answer.unwrap().text();
        assert!(
            text.starts_with(&format!("GET {path} HTTP/1.1\r\n")),
            "{text}"
        );
        assert!(text.contains("svc/productpage"), "{text}");
    }
    assert_eq!(app.connections(), 1);

    // Away from us: a peer that offers nothing but h2.
    let certificate = mesh.ca.issue(&tests_local::id(tests_local::SERVER));
    let acceptor = tokio_rustls::TlsAcceptor::from(server_config(&certificate, &["h2"]));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = outbound_config(listener.local_addr().unwrap());
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let accepted = count.clone();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            accepted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let tls = acceptor.accept(tcp).await.unwrap();
                let mut connection = h2::server::handshake(tls).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    assert_eq!(request.uri().scheme_str(), Some("https"));
                    let send = respond.send_response(Response::new(()), false);
                    let mut send: h2::SendStream<Bytes> = send.unwrap();
                    send.send_data(Bytes::from_static(b"hello"), false).unwrap();
                    send.send_trailers(trailers()).unwrap();
                }
            });
        }
    });
    let _proxy = Proxy::start(&mesh, tests_local::CLIENT, config.file);
    let client = Http2Client::connect(config.address).await;
    for _ in 0..3 {
        let answer = soon("an answer", client.get("/")).await.unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "hello"));
        assert_eq!(answer.trailers, trailers());
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// Calls that nobody answers, each given up when its deadline has passed: far more than a flood may
/// have of streams that are cut at once.
#[tokio::test]
async fn clients_that_give_up_on_slow_calls_keep_their_connections() {
    // Fewer than may be open at a time.
    const CALLS: usize = 100;
    let arrived = watch::Sender::new(0);
    let count = arrived.clone();
    let app = Http2Server::start(move |request, mut respond| {
        let count = count.clone();
        async move {
            if request.uri().path() == "/slow" {
                count.send_modify(|now| *now += 1);
                let _ = poll_fn(|cx| respond.poll_reset(cx)).await;
                return;
            }
            let _ = respond.send_response(Response::new(()), true);
        }
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    assert_eq!(client.get("/").await.unwrap().status(), 200);
    for round in 0..15 {
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            let call = client.open(request("POST", "/slow"), true);
            calls.push(soon("a call begins", call).await.unwrap());
        }
        // All calls must have arrived before they are given up.
        all_arrive(&arrived, (round + 1) * CALLS).await;
        let long_ago = Duration::from_millis(300);
        tokio::time::sleep(long_ago).await;
        note_wait("calls that are given up late", long_ago);
        drop(calls);
        let answer = soon("an answer", client.get("/")).await;
        assert_eq!(answer.unwrap().status(), 200, "round {round}");
    }
    assert_eq!(app.connections(), 1);
    assert_eq!(pair.client.metric("tulle_tls_handshakes_total", &[]), 1.0);
}

/// The application takes nothing, so nothing more is read from the client; its reset is noticed.
#[tokio::test]
async fn an_upload_that_is_given_up_while_it_is_blocked_ends_at_once() {
    let (told, mut heard) = mpsc::unbounded_channel();
    let app = Http2Server::start(move |request, mut respond| {
        let told = told.clone();
        async move {
            let _unread = request.into_body();
            let _ = told.send("begun");
            let _ = poll_fn(|cx| respond.poll_reset(cx)).await;
            let _ = told.send("reset");
        }
    })
    .await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    let opened = client.open(request("POST", "/"), false).await;
    let (response, mut send) = opened.unwrap();
    assert_eq!(soon("it has begun", heard.recv()).await, Some("begun"));
    // Until nobody on the way takes more.
    let upload = send_all(&mut send, pattern(30_000_000).into());
    assert!(timeout(Duration::from_secs(2), upload).await.is_err());
    drop((response, send));
    assert_eq!(
        soon("the reset has come", heard.recv()).await,
        Some("reset")
    );
}
