//! CONNECT to a service that is a proxy itself, through two real sidecars: judged and routed as a
//! request, a tunnel if the service grants it, and an ordinary response if not.

use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tests_local::{
    CLIENT, Client, Connection, Http2Client, Http2Server, Pair, Server, eventually, gateway_config,
    id, ok, pattern, read, send_all,
};

const ASKED: &str = "CONNECT db.test:5432 HTTP/1.1\r\nHost: db.test:5432\r\n";
const GRANTED: &str = "proxy-authorization: yes\r\n";

/// A forward proxy behind a sidecar: who shows no credentials is asked for them. The other end of
/// a tunnel greets, says what it hears, and bids farewell.
fn forward_proxy() -> Server {
    Server::start(|mut connection| {
        while let Ok(request) = connection.request() {
            if request.method() != "CONNECT" {
                connection.send(ok(request.target().as_bytes()));
            } else if request.target() == "forbidden.test:1" {
                connection.send("HTTP/1.1 403 no\r\nContent-Length: 2\r\n\r\nno");
            } else if request.header("proxy-authorization").is_empty() {
                let fields = "Proxy-Authenticate: Basic\r\nContent-Length: 3\r\n";
                connection.send(format!("HTTP/1.1 407 who\r\n{fields}\r\nwho"));
            } else {
                return tunnel(connection);
            }
        }
    })
}

fn tunnel(mut connection: Connection) {
    // RFC 9110, section 9.3.6: a client ignores these fields.
    connection.send("HTTP/1.1 200 go on\r\nContent-Length: 3\r\n\r\nhello ");
    while let Ok(bytes) = connection.read_some() {
        if bytes.is_empty() {
            connection.send("bye");
            return;
        }
        connection.send(bytes);
    }
}

/// Reads a head and no more.
fn head(client: &mut Client) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(client.read_exact(1));
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

/// Opens a tunnel.
fn open(client: &mut Client) {
    client.send(format!("{ASKED}{GRANTED}\r\n"));
    let head = head(client);
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    for field in ["content-length", "transfer-encoding", "connection: close"] {
        assert!(!head.contains(field), "{head}");
    }
    assert_eq!(client.read_exact(6), b"hello ");
}

fn carries(client: &mut Client) {
    let data = pattern(400_000);
    for part in data.chunks(50_000) {
        client.send(part);
        assert!(client.read_exact(part.len()) == part);
    }
}

#[test]
fn a_tunnel_carries_both_ways_until_both_have_ended() {
    let app = forward_proxy();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    // A connection that has carried others may become one.
    assert_eq!(client.get("/before").status(), 200);
    open(&mut client);
    carries(&mut client);
    client.half_close();
    assert_eq!(client.read_to_end().unwrap(), b"bye");
    let heard = app.received_text();
    let (asked, _) = heard.split_once("proxy-authorization").unwrap();
    assert!(
        asked.contains("CONNECT db.test:5432 HTTP/1.1\r\n"),
        "{asked}"
    );
    assert!(
        asked
            .to_ascii_lowercase()
            .ends_with("host: db.test:5432\r\n"),
        "{asked}"
    );
    assert!(heard.contains("x-forwarded-client-cert: "));
    pair.server
        .await_metric("istio_requests_total", &["\"200\""], 2.0);
}

#[test]
fn early_bytes_go_into_the_tunnel() {
    let app = forward_proxy();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    client.send(format!("{ASKED}{GRANTED}\r\nGET /early HTTP/1.1\r\n\r\n"));
    assert!(head(&mut client).starts_with("http/1.1 200 "));
    let expected = b"hello GET /early HTTP/1.1\r\n\r\n";
    assert_eq!(client.read_exact(expected.len()), expected);
}

#[test]
fn who_is_asked_for_credentials_comes_back_on_the_same_connection() {
    let app = forward_proxy();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    for _ in 0..2 {
        client.send(format!("{ASKED}\r\n"));
        let answer = client.response("CONNECT");
        assert_eq!((answer.status(), answer.text().as_str()), (407, "who"));
        assert_eq!(answer.header("proxy-authenticate"), "Basic");
    }
    assert_eq!(client.get("/between").status(), 200);
    open(&mut client);
    carries(&mut client);
}

#[test]
fn bytes_for_a_tunnel_that_is_not_granted_are_no_request() {
    const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: ratings\r\n\r\n";
    let app = forward_proxy();
    let pair = Pair::with(app.address(), |client, server| {
        let by_header = json!({ "rules": [
            { "name": "rest", "sources": [id(CLIENT)] },
            { "name": "marked", "action": "deny",
              "matches": [{ "methods": ["CONNECT"], "headers": { "x-marked": ".*" } }] },
        ] });
        (client, server.set("/inbound/policy", by_header))
    });
    for (asked, status) in [
        (format!("{ASKED}\r\n"), 407),
        (
            ASKED.replace("db.test:5432", "forbidden.test:1") + "\r\n",
            403,
        ),
        (format!("{ASKED}{GRANTED}x-marked: 1\r\n\r\n"), 403),
    ] {
        let mut client = pair.connect();
        client.send(format!("{asked}{SMUGGLED}"));
        assert_eq!(client.response("CONNECT").status(), status, "{asked}");
        assert!(client.is_ended(), "{asked}");
    }
    // They may also come on their way to the answer.
    let mut client = pair.connect();
    client.send(ASKED.replace("db.test:5432", "forbidden.test:1") + "\r\n");
    let answer = client.response("CONNECT");
    assert_eq!(answer.header("connection"), "close");
    // The connection may be gone.
    let _ = client.try_send(SMUGGLED);
    assert!(client.is_ended());
    assert_eq!(pair.connect().get("/after").status(), 200);
    let heard = app.received_text();
    assert!(
        !heard.contains("smuggled") && !heard.contains("x-marked"),
        "{heard}"
    );
}

#[test]
fn a_tunnel_is_allowed_by_a_rule_that_is_about_it() {
    let app = forward_proxy();
    let rule = |matches: Value| {
        json!({ "rules": [{
            "name": "TrafficTarget/proxy", "sources": [id(CLIENT)], "matches": matches,
        }] })
    };
    let to = |host: &str| json!([{ "methods": ["CONNECT"], "hosts": [host] }]);
    let pair = Pair::with(app.address(), |client, server| {
        (client, server.set("/inbound/policy", rule(to("db.test"))))
    });
    let mut tunnel = pair.connect();
    open(&mut tunnel);
    let refused = |asked: &str| {
        let mut client = pair.connect();
        client.send(asked);
        let answer = client.response("CONNECT");
        assert_eq!(answer.status(), 403, "{}", answer.text());
        assert_eq!(answer.header("x-tulle-reason"), "denied");
        assert!(client.is_ended());
    };
    refused("CONNECT other.test:5432 HTTP/1.1\r\nHost: db.test\r\n\r\n");
    assert_eq!(pair.connect().get("/").status(), 403);

    // A rule that allows by path or header cannot judge what is sent through the tunnel.
    let reload = |policy: Value| {
        let mut file = pair.server.config.clone();
        file["inbound"]["policy"] = policy;
        pair.server.reload(&file);
    };
    reload(rule(json!([{ "pathRegex": ".*" }])));
    assert!(tunnel.is_ended(), "an open one is judged again");
    refused(&format!("{ASKED}{GRANTED}\r\n"));
    eventually("the refusal names the rule", || {
        let errors = pair.server.errors();
        errors.iter().any(|e| {
            e["detail"]
                .as_str()
                .unwrap()
                .contains("TrafficTarget/proxy looks at")
        })
    });
    reload(rule(json!([])));
    open(&mut pair.connect());
    assert!(!app.received_text().contains("other.test"));
}

#[test]
fn a_silent_tunnel_ends() {
    let app = forward_proxy();
    let pair = Pair::with(app.address(), |client, server| {
        (client, server.set("/mesh/idleTimeoutMs", 2000))
    });
    let mut client = pair.connect();
    open(&mut client);
    assert!(client.is_ended());
}

#[test]
fn a_gateway_opens_none() {
    let app = forward_proxy();
    let mesh = tests_local::Mesh::new();
    let config = gateway_config(app.address());
    let _gateway = tests_local::Proxy::start(&mesh, "edge", config.file);
    let mut client = Client::connect(config.address);
    client.send(format!("{ASKED}{GRANTED}\r\n"));
    let answer = client.response("CONNECT");
    assert_eq!(answer.status(), 404);
    assert_eq!(answer.header("x-tulle-reason"), "no_route");
    assert!(client.is_ended());
    assert_eq!(app.received_text(), "");
}

/// CONNECT of HTTP/2, without `:protocol`.
fn connect(host: &str, credentials: bool) -> Request<()> {
    let mut request = Request::builder().method("CONNECT").uri(host);
    if credentials {
        request = request.header("proxy-authorization", "yes");
    }
    request.body(()).unwrap()
}

async fn tunnel_of_http2(client: &Http2Client, greeting: &[u8], farewell: &[u8]) {
    let asked = connect("db.test:5432", true);
    let (response, mut send) = client.open(asked, false).await.unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("content-length"));
    let data = Bytes::from(pattern(400_000));
    let sent = data.clone();
    let up = async move {
        send_all(&mut send, sent).await.unwrap();
        send.send_data(Bytes::new(), true).unwrap();
    };
    let (answered, ()) = tokio::join!(read(response), up);
    let expected = [greeting, &data, farewell].concat();
    assert!(answered.unwrap().body == expected);
}

#[tokio::test]
async fn a_client_of_http_2_gets_a_tunnel_from_a_proxy_of_http_1() {
    let app = forward_proxy();
    let pair = Pair::start(app.address());
    let client = Http2Client::connect(pair.address).await;
    let (response, _send) = client
        .open(connect("db.test:5432", false), false)
        .await
        .unwrap();
    let answer = read(response.await.unwrap()).await.unwrap();
    assert_eq!((answer.status(), answer.text().as_str()), (407, "who"));
    tunnel_of_http2(&client, b"hello ", b"bye").await;
    assert_eq!(client.get("/after").await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_proxy_of_http_2_grants_tunnels_to_clients_of_both_versions() {
    let app = Http2Server::echo().await;
    let pair = Pair::speaking(app.address(), "http2");
    let client = Http2Client::connect(pair.address).await;
    tunnel_of_http2(&client, b"", b"").await;
    let address = pair.address;
    let http1 = move || {
        let mut client = Client::connect(address);
        client.send(format!("{ASKED}\r\n"));
        let head = head(&mut client);
        assert!(head.contains("got-authority: db.test:5432\r\n"), "{head}");
        carries(&mut client);
        client.half_close();
        assert_eq!(client.read_to_end().unwrap(), b"");
    };
    tokio::task::spawn_blocking(http1).await.unwrap();
}
