//! HTTP/2 from clients outside the mesh that agree on it by ALPN, through a gateway that ends TLS and
//! a sidecar; and HTTP/2 where the mesh itself begins TLS towards a host outside.

use crate::outside::{OUTSIDE, World, at};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tests_local::{
    Http2Client, Http2Server, Mesh, PATIENCE, Proxy, SERVER, Server, TLS12, TLS13, TlsClient,
    client_config, echo, eventually, gateway_config, inbound_config, is_root, pattern,
    public_config, send_all,
};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tulle_tls::testing::{Issued, Leaf, TestCa};

/// Fails instead of hanging.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = timeout(PATIENCE, future).await;
    result.unwrap_or_else(|_| panic!("never happened: {what}"))
}

fn web_certificate(web: &TestCa, name: &str) -> Issued {
    web.issue_leaf(&Leaf {
        uris: vec![],
        dns: vec![name.to_owned()],
        client_auth: false,
        ..Leaf::new("spiffe://none/none")
    })
}

/// client ═ TLS ═ gateway ═ mutual TLS ═ sidecar → application.
struct Edge {
    _gateway: Proxy,
    sidecar: Proxy,
    address: SocketAddr,
    _mesh: Mesh,
}

impl Edge {
    /// One listener for each host.
    fn start(app: SocketAddr, protocol: &str, hosts: &[&str]) -> Self {
        let (mesh, web) = (Mesh::new(), TestCa::new("web root"));
        let inbound = inbound_config(app).set("/inbound/ports/0/protocol", protocol);
        let listeners: Vec<Value> = hosts
            .iter()
            .map(|host| {
                let issued = web_certificate(&web, host);
                let tls = json!({
                    "certificates": [{ "chain": issued.chain_pem, "key": issued.key_pem }],
                });
                json!({ "name": host, "port": 80, "hostname": host, "protocol": "https", "tls": tls })
            })
            .collect();
        let config = gateway_config(inbound.address)
            .set("/services/0/ports/0/endpoints/0/mutualTls", true)
            .set("/services/0/ports/0/protocol", protocol)
            .set("/gateways/0/listeners", listeners);
        Self {
            sidecar: Proxy::start(&mesh, SERVER, inbound.file),
            _gateway: Proxy::start(&mesh, "edge", config.file),
            address: config.address,
            _mesh: mesh,
        }
    }

    async fn connect(&self, host: &'static str) -> Http2Client {
        let config = client_config(None, TLS13, &["h2", "http/1.1"]);
        let tcp = tokio::net::TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(host).unwrap();
        let tls = TlsConnector::from(config).connect(name, tcp).await.unwrap();
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        Http2Client::over(h2::client::Builder::new(), tls).await
    }
}

fn asks(method: &str, host: &str, path: &str) -> Request<()> {
    let uri = format!("https://{host}{path}");
    Request::builder().method(method).uri(uri).body(()).unwrap()
}

fn grpc(host: &str, path: &str) -> Request<()> {
    let mut request = asks("POST", host, path);
    let headers = request.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("te", HeaderValue::from_static("trailers"));
    request
}

fn grpc_status(code: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(
        "grpc-status".parse().unwrap(),
        HeaderValue::from_static(code),
    )])
}

#[tokio::test]
async fn bodies_both_ways_and_many_requests_at_once() {
    let old = Server::echo();
    let new = Http2Server::echo().await;
    for (app, protocol) in [(old.address(), "http"), (new.address(), "http2")] {
        let edge = Edge::start(app, protocol, &["shop.example"]);
        let client = edge.connect("shop.example").await;
        let body = pattern(1_000_000);
        let mut all = tokio::task::JoinSet::new();
        let shared = Arc::new((client, body));
        for number in 0..20 {
            let shared = shared.clone();
            all.spawn(async move {
                let (client, body) = &*shared;
                let asked = asks("POST", "shop.example", &format!("/{number}"));
                let sent = body[number..].to_vec();
                let answer = client.exchange(asked, sent, None).await.unwrap();
                assert_eq!(answer.status(), 200);
                assert!(answer.body.ends_with(&body[number..]), "{number}");
            });
        }
        soon("all are answered", all.join_all()).await;
    }
    assert_eq!(new.connections(), 1);
    let seen = old.received_text().to_ascii_lowercase();
    assert!(seen.contains("x-forwarded-proto: https\r\n"));
    assert!(seen.contains("x-forwarded-host: shop.example\r\n"));
}

#[tokio::test]
async fn grpc_unary_streaming_trailers_and_refusals() {
    let app = Http2Server::start(|request, mut respond| async move {
        assert_eq!(request.headers()["te"], "trailers");
        if request.uri().path() == "/a.B/Slow" {
            let _held = respond;
            return std::future::pending().await;
        }
        let mut response = Response::new(());
        let kind = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", kind);
        let mut send = respond.send_response(response, false).unwrap();
        let mut body = request.into_body();
        while let Some(Ok(data)) = body.data().await {
            let _ = body.flow_control().release_capacity(data.len());
            if send_all(&mut send, data).await.is_err() {
                return;
            }
        }
        let _ = send.send_trailers(grpc_status("0"));
    })
    .await;
    let edge = Edge::start(app.address(), "grpc", &["shop.example"]);
    let client = edge.connect("shop.example").await;
    let message = [&[0, 0, 0, 0, 5][..], b"hello"].concat();
    let unary = client.exchange(grpc("shop.example", "/a.B/Unary"), message.clone(), None);
    let answer = soon("unary", unary).await.unwrap();
    assert_eq!(answer.body, message, "{:?}", answer.head);
    assert_eq!(answer.header("content-type"), Some("application/grpc"));
    assert_eq!(answer.trailers, grpc_status("0"));

    // Each message is answered before the next one is sent.
    let (response, mut send) = client
        .open(grpc("shop.example", "/a.B/Chat"), false)
        .await
        .unwrap();
    send_all(&mut send, message.clone().into()).await.unwrap();
    let mut body = soon("an answer begins", response)
        .await
        .unwrap()
        .into_body();
    for _ in 0..10 {
        let mut got = Vec::new();
        while got.len() < message.len() {
            let data = soon("an answer", body.data()).await.unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            got.extend_from_slice(&data);
        }
        assert_eq!(got, message);
        send_all(&mut send, message.clone().into()).await.unwrap();
    }
    send.send_data(Bytes::new(), true).unwrap();
    while let Some(data) = soon("the rest", body.data()).await {
        body.flow_control()
            .release_capacity(data.unwrap().len())
            .unwrap();
    }
    let trailers = soon("trailers", body.trailers()).await.unwrap();
    assert_eq!(trailers, Some(grpc_status("0")));

    let mut slow = grpc("shop.example", "/a.B/Slow");
    let limit = HeaderValue::from_static("300m");
    slow.headers_mut().insert("grpc-timeout", limit);
    let answer = soon("a deadline", client.exchange(slow, message.clone(), None))
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("grpc-status"), Some("4"));
    // The answer is one that gRPC understands even without a server.
    drop(app);
    drop(edge.sidecar);
    let refused = client.exchange(grpc("shop.example", "/a.B/Unary"), message, None);
    let answer = soon("a refusal", refused).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("grpc-status"), Some("14"));
}

#[tokio::test]
async fn alpn_chooses_and_another_listener_s_host_is_misdirected() {
    let app = Server::echo();
    let edge = Edge::start(app.address(), "http", &["shop.example", "bank.example"]);
    let client = edge.connect("shop.example").await;
    let answer = |host: &'static str| client.exchange(asks("GET", host, "/"), "", None);
    assert_eq!(answer("shop.example").await.unwrap().status(), 200);
    // A browser that shares the connection for a host of another listener has to come again.
    assert_eq!(answer("bank.example").await.unwrap().status(), 421);
    assert_eq!(answer("shop.example").await.unwrap().status(), 200);
    let address = edge.address;
    let agreed = move |version, offered: &'static [&'static str]| {
        let config = client_config(None, version, offered);
        let client = TlsClient::connect_to(address, &config, "shop.example");
        client.map(|client| client.alpn())
    };
    let agreed = tokio::task::spawn_blocking(move || {
        [
            agreed(TLS13, &["http/1.1", "h2"]).unwrap(),
            agreed(TLS12, &["h2"]).unwrap(),
            agreed(TLS13, &["http/1.1"]).unwrap(),
            agreed(TLS13, &[]).unwrap(),
        ]
    });
    let agreed = agreed.await.unwrap();
    let agreed: Vec<_> = agreed.iter().map(Option::as_deref).collect();
    assert_eq!(agreed, [Some("h2"), Some("h2"), Some("http/1.1"), None]);
}

#[tokio::test]
async fn a_stalled_reader_and_one_that_gives_up_disturb_nobody() {
    let (told, mut ended) = mpsc::unbounded_channel();
    let app = Http2Server::start(move |request, mut respond| {
        let told = told.clone();
        async move {
            if request.uri().path() != "/big" {
                let _ = respond.send_response(Response::new(()), true);
                return;
            }
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            let piece = Bytes::from(pattern(64 * 1024));
            while send_all(&mut send, piece.clone()).await.is_ok() {}
            let _ = told.send(());
        }
    })
    .await;
    let edge = Edge::start(app.address(), "http2", &["shop.example"]);
    let client = edge.connect("shop.example").await;
    let (response, _send) = client
        .open(asks("GET", "shop.example", "/big"), true)
        .await
        .unwrap();
    let stalled = soon("a head", response).await.unwrap();
    for _ in 0..50 {
        let next = client.exchange(asks("GET", "shop.example", "/"), "", None);
        assert_eq!(soon("another", next).await.unwrap().status(), 200);
    }
    // Its end reaches the application.
    drop(stalled);
    drop(_send);
    soon("the application is told", ended.recv()).await.unwrap();
    let next = client.exchange(asks("GET", "shop.example", "/"), "", None);
    assert_eq!(soon("another", next).await.unwrap().status(), 200);
}

#[tokio::test]
async fn http_2_goes_on_as_http_2_where_tls_begins_at_the_sidecar() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let listen = |port: u16| {
        let address = at(OUTSIDE[0], port);
        world.outside(|| TcpListener::bind(address).unwrap())
    };
    let certificate = web_certificate(&world.web, "api.example");
    let both = public_config(&certificate, &["h2", "http/1.1"]);
    let server = Http2Server::on(listen(8443), Some(both), h2::server::Builder::new(), echo);
    let roots = world.web.pem().to_owned();
    world.rules(
        json!([{
            "name": "Egress/api", "hosts": ["api.example"],
            "ports": [{ "port": 80, "protocol": "http" }],
            "tls": { "roots": roots, "port": 8443 },
        }]),
        json!({}),
    );
    let tcp = world.app(|| std::net::TcpStream::connect(at(OUTSIDE[0], 80)).unwrap());
    tcp.set_nonblocking(true).unwrap();
    let tcp = tokio::net::TcpStream::from_std(tcp).unwrap();
    let client = Http2Client::over(h2::client::Builder::new(), tcp).await;
    let body = pattern(1_000_000);
    let mut call = grpc("api.example", "/a.B/Call");
    *call.uri_mut() = "http://api.example/a.B/Call".parse().unwrap();
    let trailers = grpc_status("0");
    let exchange = client.exchange(call, body.clone(), Some(trailers.clone()));
    let answer = soon("an answer", exchange).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.body == body, "{} bytes", answer.body.len());
    assert_eq!(answer.trailers, trailers);
    assert_eq!(answer.header("got-authority"), Some("api.example"));
    // The connection is shared by what follows.
    for _ in 0..20 {
        let mut next = asks("GET", "api.example", "/");
        *next.uri_mut() = "http://api.example/".parse().unwrap();
        let answer = soon("another", client.exchange(next, "", None)).await;
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert_eq!(server.connections(), 1);
    world.sidecar(|proxy| {
        eventually("one handshake", || {
            proxy.metric("tulle_tls_handshakes_total", &[]) == 1.0
        });
    });
}
